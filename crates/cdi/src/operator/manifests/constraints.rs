//! SecurityContextConstraints, where there is that kind: workers of CDI are admitted under these and no wider ones.

use serde_json::{Value, json};

use super::rbac::{CONTROLLER, CRONJOB};

/// The kind that OpenShift admits pods by.
pub(crate) const KIND: (&str, &str) = ("security.openshift.io/v1", "SecurityContextConstraints");

/// What pods that the controller and the crons make may be.
pub(crate) fn render(namespace: &str) -> Value {
    let users = [CONTROLLER, CRONJOB].map(|name| format!("system:serviceaccount:{namespace}:{name}"));
    json!({
        "apiVersion": KIND.0, "kind": KIND.1, "metadata": { "name": "containerized-data-importer" },
        "priority": null,
        "allowPrivilegedContainer": false, "allowPrivilegeEscalation": false, "allowHostDirVolumePlugin": false,
        "allowHostIPC": false, "allowHostNetwork": false, "allowHostPID": false, "allowHostPorts": false,
        "readOnlyRootFilesystem": false, "allowedCapabilities": null, "defaultAddCapabilities": null,
        "requiredDropCapabilities": ["ALL"],
        "fsGroup": { "type": "RunAsAny" }, "runAsUser": { "type": "MustRunAsNonRoot" },
        "seLinuxContext": { "type": "MustRunAs" }, "supplementalGroups": { "type": "MustRunAs" },
        "seccompProfiles": ["runtime/default"],
        "volumes": [
            "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
        ],
        "users": users, "groups": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_node_is_allowed() {
        let found = render("cdi");
        let allowed =
            found.as_object().unwrap().iter().filter(|(field, value)| field.starts_with("allow") && **value == true);
        assert_eq!(allowed.count(), 0, "{found}");
        assert!(!found["volumes"].to_string().contains("hostPath"));
    }
}
