//! What a container image says in its environment about the disk in it becomes labels of the claim:
//! `INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small` is `instancetype.kubevirt.io/default-instancetype: u1.small`.

use std::collections::BTreeMap;

const GROUP: &str = "_KUBEVIRT_IO_";

/// The labels in these `NAME=value` lines. A value that no label may have is left out.
pub(super) fn of(environment: &[String]) -> BTreeMap<String, String> {
    environment.iter().filter_map(|line| label(line)).collect()
}

fn label(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let (prefix, rest) = name.split_once(GROUP)?;
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    if !plain(prefix) || !plain(rest) || !valid(value) {
        return None;
    }
    let prefix = prefix.to_ascii_lowercase().replace('_', ".");
    let rest = rest.to_ascii_lowercase().replace('_', "-");
    Some((format!("{prefix}.kubevirt.io/{rest}"), value.to_owned()))
}

/// Whether a label may have this value.
fn valid(value: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_groups_become_labels() {
        let check = |line: &str, expect: Option<(&str, &str)>| {
            let expect = expect.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(label(line), expect, "{line}");
        };
        check(
            "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small",
            Some(("instancetype.kubevirt.io/default-instancetype", "u1.small")),
        );
        check(
            "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE_KIND=VirtualMachinePreference",
            Some(("instancetype.kubevirt.io/default-preference-kind", "VirtualMachinePreference")),
        );
        check("PATH=/bin", None);
        check("_KUBEVIRT_IO_=x", None);
        check("X_KUBEVIRT_IO_Y=a b", None);
        check("X_KUBEVIRT_IO_Y=-a", None);
        check("X_KUBEVIRT_IO_Y", None);
    }
}
