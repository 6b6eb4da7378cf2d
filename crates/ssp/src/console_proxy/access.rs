//! The account of a machine that may see its screen, and nothing else. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::NAME;

/// The names of an account, its role and its binding are at most so long.
const LONGEST: usize = 253;

/// The name of the account of `machine`, and of its role and binding.
pub(super) fn account_name(machine: &str) -> String {
    let suffix = "-vnc-access";
    let stem: String = machine.chars().take(LONGEST - suffix.len()).collect();
    format!("{stem}{suffix}")
}

/// Whether the machine with this UID owns the object.
pub(super) fn is_owned_by(metadata: &ObjectMeta, uid: &str) -> bool {
    !uid.is_empty() && metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

/// The account, what it may, and that it may; in the order in which they are made.
pub(super) fn manifests(namespace: &str, machine: &str, uid: &str) -> [Value; 3] {
    let name = account_name(machine);
    let metadata = json!({
        "name": name, "namespace": namespace,
        "labels": { "app.kubernetes.io/managed-by": NAME },
        "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine, "uid": uid }],
    });
    let rbac = "rbac.authorization.k8s.io";
    let version = format!("{rbac}/v1");
    [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }),
        json!({
            "apiVersion": version, "kind": "Role", "metadata": metadata,
            "rules": [{
                "apiGroups": ["subresources.kubevirt.io"], "resources": ["virtualmachineinstances/vnc"],
                "resourceNames": [machine], "verbs": ["get"],
            }],
        }),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_may_see_the_screen_of_its_machine_and_nothing_else() {
        let [account, role, binding] = manifests("ns", "vm", "u");
        assert_eq!(account["metadata"]["name"], "vm-vnc-access");
        let rules = json!([{
            "apiGroups": ["subresources.kubevirt.io"], "resources": ["virtualmachineinstances/vnc"],
            "resourceNames": ["vm"], "verbs": ["get"],
        }]);
        assert_eq!(role["rules"], rules);
        assert_eq!(
            (&binding["roleRef"]["kind"], &binding["subjects"][0]["name"]),
            (&json!("Role"), &json!("vm-vnc-access"))
        );
        let owned: ObjectMeta = serde_json::from_value(account["metadata"].clone()).unwrap();
        assert!(is_owned_by(&owned, "u") && !is_owned_by(&owned, "other") && !is_owned_by(&ObjectMeta::default(), ""));
    }

    #[test]
    fn long_names_stay_names() {
        assert_eq!(account_name(&"a".repeat(253)).len(), 253);
    }
}
