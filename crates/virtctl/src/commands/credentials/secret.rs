//! Which Secret of a virtual machine is meant, and whose it is. Pure.

use api::kubevirt::v1::{AccessCredential, AccessCredentialSecretSource, VirtualMachine};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rand::Rng as _;

use crate::fault::Fault;

/// Characters behind a prefix that make a key of a Secret one that nobody has.
const RANDOM: usize = 6;

fn credentials(vm: &VirtualMachine) -> &[AccessCredential] {
    vm.spec.template.spec.as_deref().map(|spec| spec.access_credentials.as_slice()).unwrap_or_default()
}

fn named(source: &Option<AccessCredentialSecretSource>) -> Option<&str> {
    source.as_ref().map(|secret| secret.secret_name.as_str()).filter(|name| !name.is_empty())
}

/// Secrets with SSH keys that the agent gives to `user`.
pub(super) fn with_keys<'a>(vm: &'a VirtualMachine, user: &str) -> Vec<&'a str> {
    let of_user = |credential: &'a AccessCredential| {
        let key = credential.ssh_public_key.as_ref()?;
        let users = &key.propagation_method.qemu_guest_agent.as_ref()?.users;
        users.iter().any(|known| known == user).then(|| named(&key.source.secret))?
    };
    credentials(vm).iter().filter_map(of_user).collect()
}

/// Secrets with passwords that the agent sets.
pub(super) fn with_passwords(vm: &VirtualMachine) -> Vec<&str> {
    let passwords = credentials(vm).iter().filter_map(|credential| credential.user_password.as_ref());
    let by_agent = passwords.filter(|password| password.propagation_method.qemu_guest_agent.is_some());
    by_agent.filter_map(|password| named(&password.source.secret)).collect()
}

/// The one that is meant, of those that there are.
pub(super) fn one<'a>(wanted: &str, known: &[&'a str]) -> Result<&'a str, Fault> {
    match known {
        known if !wanted.is_empty() => known
            .iter()
            .find(|name| **name == wanted)
            .copied()
            .ok_or_else(|| Fault::new(format!("secret {wanted} was not assigned"))),
        [only] => Ok(only),
        _ => Err(Fault::new("multiple secrets specified, use option --secret to specify which secret to modify")
            .hint(format!("there are {}", known.join(", ")))),
    }
}

/// Refuses a Secret that is not the machine's own, and thus perhaps used by others.
pub(super) fn owned(secret: &ObjectMeta, vm: &VirtualMachine) -> Result<(), Fault> {
    let own = |owner: &OwnerReference| {
        owner.kind == "VirtualMachine"
            && Some(&owner.name) == vm.metadata.name.as_ref()
            && Some(&owner.uid) == vm.metadata.uid.as_ref()
    };
    if secret.owner_references.iter().flatten().any(own) {
        return Ok(());
    }
    let name = |object: &ObjectMeta| object.name.clone().unwrap_or_default();
    let (secret, vm) = (name(secret), name(&vm.metadata));
    Err(Fault::new(format!("secret {secret} does not have an owner reference pointing to VM {vm}"))
        .hint("others may use it; --force changes it for all of them"))
}

/// A key for the data of a Secret that nobody has.
pub(super) fn fresh(prefix: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    let letter = |_| char::from(LETTERS[random.random_range(0..LETTERS.len())]);
    format!("{prefix}{}", (0..RANDOM).map(letter).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm() -> VirtualMachine {
        let source = |name: &str| json!({ "secret": { "secretName": name } });
        let keys = |name: &str, way| json!({ "sshPublicKey": { "source": source(name), "propagationMethod": way } });
        let agent = |users: &[&str]| json!({ "qemuGuestAgent": { "users": users } });
        serde_json::from_value(json!({
            "metadata": { "name": "vm", "uid": "u" },
            "spec": { "template": { "spec": { "domain": { "devices": {} }, "accessCredentials": [
                keys("a", agent(&["eve", "adam"])), keys("b", agent(&["eve"])), keys("c", json!({ "noCloud": {} })),
                { "userPassword": { "source": source("p"), "propagationMethod": { "qemuGuestAgent": {} } } },
            ] } } },
        }))
        .unwrap()
    }

    #[test]
    fn the_secret_that_is_meant_is_one_that_the_user_has() {
        let vm = vm();
        assert_eq!(with_keys(&vm, "eve"), ["a", "b"]);
        assert_eq!(with_keys(&vm, "adam"), ["a"]);
        assert!(with_keys(&vm, "root").is_empty());
        assert_eq!(with_passwords(&vm), ["p"]);
        let check = |wanted: &str, expect: Result<&str, &str>| match (one(wanted, &["a", "b"]), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{other:?}"),
        };
        check("b", Ok("b"));
        check("p", Err("secret p was not assigned"));
        check("", Err("use option --secret to specify which secret to modify"));
        assert_eq!(one("", &["a"]).unwrap(), "a");
    }

    #[test]
    fn a_secret_is_the_machines_own_by_its_uid() {
        let check = |owner: serde_json::Value, expect: bool| {
            let secret = json!({ "name": "s", "ownerReferences": [owner] });
            assert_eq!(owned(&serde_json::from_value(secret).unwrap(), &vm()).is_ok(), expect, "{owner}");
        };
        let own = |kind: &str, name: &str, uid: &str| json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "name": name, "uid": uid });
        check(own("VirtualMachine", "vm", "u"), true);
        check(own("VirtualMachine", "vm", "the machine of that name before"), false);
        check(own("VirtualMachine", "other", "u"), false);
        check(own("Pod", "vm", "u"), false);
        assert!(owned(&ObjectMeta::default(), &vm()).is_err());
    }

    #[test]
    fn fresh_keys_are_keys_of_a_secret() {
        let key = fresh("ssh-key-");
        assert!(key.len() == 14 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{key}");
    }
}
