//! What is made for an export, by name. Pure, but for what is made up.

use sha2::{Digest, Sha256};

/// Of an export, in references.
pub const KIND: &str = "VirtualMachineExport";
/// Of an export, in references.
pub const API_VERSION: &str = "export.kubevirt.io/v1";
/// The longest part of a host's name, and the longest value of a label.
const LONGEST: usize = 63;

/// The name of the Service.
pub fn service(export: &str) -> String {
    named("virt-export", export)
}

/// The name of the pod.
pub fn pod(export: &str) -> String {
    named("virt-export", export)
}

/// The name of the Secret with a token that nobody chose.
pub fn token(export: &str) -> String {
    named("export-token", export)
}

/// The name of the ConfigMap that the server makes manifests of.
pub fn manifests(export: &str) -> String {
    shortened(&format!("exporter-vm-manifest-{export}"), 253)
}

/// The value of the label that selects the pod.
pub fn label(export: &str) -> String {
    shortened(export, LONGEST)
}

/// True for a label or an annotation by which the product's components know each other: one of the domain `kubevirt.io`.
pub fn is_ours(key: &str) -> bool {
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    domain == "kubevirt.io" || domain.ends_with(".kubevirt.io") || domain.starts_with("kubevirt.io.")
}

/// The name of a claim's volume in the pod. Some names are those of the pod's other volumes.
pub fn volume(claim: &str) -> String {
    if matches!(claim, "certificates" | "renewed" | "token" | "manifest-data") {
        unlike(claim, LONGEST)
    } else {
        undotted(claim)
    }
}

/// The claim for a volume of a snapshot.
pub fn claim(export: &str, claim: &str) -> String {
    shortened(&format!("{export}-{claim}"), 253)
}

fn named(prefix: &str, export: &str) -> String {
    undotted(&format!("{prefix}-{export}"))
}

/// `name` where there is no room for dots.
fn undotted(name: &str) -> String {
    if name.contains('.') || name.len() > LONGEST { unlike(name, LONGEST) } else { name.to_owned() }
}

fn shortened(name: &str, longest: usize) -> String {
    if name.len() <= longest { name.to_owned() } else { unlike(name, longest) }
}

/// A name of at most `longest` bytes that begins like `name`, is always the same for it, and for no other.
fn unlike(name: &str, longest: usize) -> String {
    let hash: String = Sha256::digest(name).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let start: String = name.replace('.', "-").chars().take(longest - hash.len() - 1).collect();
    format!("{}-{hash}", start.trim_end_matches('-'))
}

/// `length` letters and digits that nobody can guess.
pub fn random(length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let bytes = std::iter::repeat_with(|| uuid::Uuid::new_v4().into_bytes());
    // Of the 16 bytes two hold the version, and not chance alone.
    let bytes = bytes.flat_map(|bytes| [0, 1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 15].map(|place| bytes[place]));
    bytes.take(length).map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_where_they_stand() {
        assert_eq!((service("e").as_str(), token("e").as_str()), ("virt-export-e", "export-token-e"));
        assert_eq!((volume("data").as_str(), label("a.b").as_str()), ("data", "a.b"));
        let long = "x".repeat(80);
        for name in [service(&long), service("a.b"), volume(&long), volume("a.b"), volume("token"), label(&long)] {
            assert!(name.len() <= 63 && !name.contains('.') && !name.ends_with('-'), "{name}");
        }
        assert_ne!(volume("a.b"), volume("a-b"));
        assert_ne!(volume("token"), "token");
        assert_eq!(service(&long), service(&long));
    }

    #[test]
    fn random_names_differ() {
        let (a, b) = (random(20), random(20));
        assert!(a.len() == 20 && a != b && a.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{a} {b}");
    }
}
