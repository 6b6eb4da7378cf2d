//! What stands for a name where it does not fit.

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// Longest value of a label.
const LABEL: usize = 63;
/// Hexadecimal digits that tell apart long names which begin alike.
const DIGITS: usize = 8;

/// The value of a launcher pod's label `vmi.kubevirt.io/id`: the name where a label can hold it, else its beginning and a
/// digest of the whole. No two instances of a namespace share it.
pub fn instance_id(name: &str) -> String {
    if name.len() <= LABEL {
        return name.to_owned();
    }
    let digest: String = Sha1::digest(name).iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    let start: String = name.chars().take(LABEL - DIGITS - 1).collect();
    format!("{start}-{digest}")
}

/// The launcher pod's interface of a secondary network, told by the network's name in the instance: whoever attaches the pod
/// and whoever looks for the interface in it agree without asking.
pub fn pod_interface(network: &str) -> String {
    let digest: String = Sha256::digest(network).iter().map(|byte| format!("{byte:02x}")).collect();
    // 14 characters: one less than the kernel has room for.
    format!("pod{}", &digest[..11])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_told_by_their_network() {
        assert_eq!(pod_interface("blue"), "pod16477688c0e");
        assert_ne!(pod_interface("red"), pod_interface("blue"));
    }

    #[test]
    fn long_names_that_begin_alike_are_told_apart() {
        assert_eq!(instance_id("demo"), "demo");
        assert_eq!(instance_id("a.b"), "a.b");
        let whole = "a".repeat(63);
        assert_eq!(instance_id(&whole), whole);
        let long = "a".repeat(64);
        let expect = format!("{}-0098ba82", "a".repeat(54));
        assert_eq!(instance_id(&long), expect);
        assert_ne!(instance_id(&format!("{long}b")), instance_id(&format!("{long}c")));
    }
}
