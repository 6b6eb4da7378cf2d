//! SecurityContextConstraints, where there is that kind: without them pods of machines and of the node agent would not be admitted.

use serde_json::{Value, json};

/// The kind that OpenShift admits pods by.
pub(crate) const KIND: (&str, &str) = ("security.openshift.io/v1", "SecurityContextConstraints");

/// What the accounts' pods may be.
pub(crate) fn render(namespace: &str) -> Vec<Value> {
    let any = json!({ "type": "RunAsAny" });
    let one = |name: &str, more: Value| {
        let mut constraints = json!({
            "apiVersion": KIND.0, "kind": KIND.1, "metadata": { "name": name },
            "allowPrivilegedContainer": false, "allowPrivilegeEscalation": true, "allowHostDirVolumePlugin": true,
            "allowHostIPC": false, "allowHostNetwork": false, "allowHostPID": false, "allowHostPorts": false,
            "readOnlyRootFilesystem": false, "allowedCapabilities": null, "defaultAddCapabilities": null,
            "requiredDropCapabilities": null,
            "fsGroup": any, "runAsUser": any, "seLinuxContext": any, "supplementalGroups": any,
            "volumes": ["*"],
            "users": [format!("system:serviceaccount:{namespace}:{name}")], "groups": [],
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            constraints[field] = value.clone();
        }
        constraints
    };
    vec![
        // It enters the namespaces of guests, and serves migrations at ports of the node.
        one(
            "kubevirt-handler",
            json!({
                "allowPrivilegedContainer": true, "allowHostPID": true, "allowHostIPC": true, "allowHostPorts": true,
            }),
        ),
        // It makes the pods of machines, whose authors need no rights of their own for it.
        one(
            "kubevirt-controller",
            json!({
                "allowedCapabilities": ["SYS_NICE", "NET_BIND_SERVICE"],
                "seccompProfiles": ["runtime/default", "unconfined", "localhost/kubevirt/kubevirt.json"],
            }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented table, field by field.
    #[test]
    fn constraints_are_those_that_administrators_of_openshift_know() {
        let all = render("kubevirt");
        let of = |name: &str| all.iter().find(|one| one["metadata"]["name"] == name).unwrap();
        let said = |one: &Value| {
            ["PrivilegedContainer", "HostNetwork", "HostPID", "HostIPC", "HostPorts", "HostDirVolumePlugin"]
                .map(|what| one[format!("allow{what}")] == true)
        };
        assert_eq!(said(of("kubevirt-handler")), [true, false, true, true, true, true]);
        assert_eq!(said(of("kubevirt-controller")), [false, false, false, false, false, true]);
        assert_eq!(of("kubevirt-controller")["allowedCapabilities"], json!(["SYS_NICE", "NET_BIND_SERVICE"]));
        assert_eq!(of("kubevirt-handler")["users"], json!(["system:serviceaccount:kubevirt:kubevirt-handler"]));
    }

    /// Pods run under these accounts.
    #[test]
    fn each_account_that_they_name_is_one_of_ours() {
        let input = super::super::Input { namespace: "kubevirt".into(), ..Default::default() };
        let accounts = super::super::rbac::render(&input);
        for one in render("kubevirt") {
            let name = &one["metadata"]["name"];
            let is_it =
                |manifest: &&Value| manifest["kind"] == "ServiceAccount" && manifest["metadata"]["name"] == *name;
            assert!(accounts.iter().any(|manifest| is_it(&manifest)), "{name}");
        }
    }
}
