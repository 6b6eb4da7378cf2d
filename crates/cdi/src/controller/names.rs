//! Names that are made of other names, and never longer than a name may be. Pure.

use sha2::{Digest as _, Sha256};

/// The longest name of most kinds.
const LONGEST: usize = 253;

/// `BASE-NAME`; when that is too long, its beginning and a hash of the whole.
pub fn joined(base: &str, name: &str) -> String {
    short(&format!("{base}-{name}"), LONGEST)
}

/// The name of a Service for the claim `name`: a Service's name is a label of DNS.
pub fn service(base: &str, name: &str) -> String {
    short(&format!("{base}-{}", name.replace('.', "-")), 63)
}

/// `name`; when it has more than `longest` characters, its beginning and a hash of the whole.
pub fn short(name: &str, longest: usize) -> String {
    if name.len() <= longest {
        return name.to_owned();
    }
    let hash = hex(&Sha256::digest(name.as_bytes())[..4]);
    let kept: String = name.chars().take(longest.saturating_sub(hash.len() + 1)).collect();
    format!("{}-{hash}", kept.trim_end_matches(['-', '.']))
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_beginning() {
        assert_eq!(joined("importer", "disk"), "importer-disk");
        assert_eq!(service("cdi-upload", "my.disk"), "cdi-upload-my-disk");
        let (a, b) = (service("cdi-upload", &"x".repeat(100)), service("cdi-upload", &"x".repeat(101)));
        assert!(a.len() == 63 && a != b && a.starts_with("cdi-upload-xxx"));
    }
}
