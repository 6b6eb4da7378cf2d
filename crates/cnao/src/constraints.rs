//! SecurityContextConstraints, by which OpenShift admits the pods of an account. They name no users: a role of their own gives the right to
//! use them. Pure.

use kit::operator::manifests::{binding, role, rule};
use serde_json::{Value, json};

/// The version of their kind, and the kind.
pub(crate) const KIND: (&str, &str) = ("security.openshift.io/v1", "SecurityContextConstraints");

/// Those called `name`: nothing of the node and no privilege, but what `more` says.
pub(crate) fn of(name: &str, more: &Value) -> Value {
    let any = json!({ "type": "RunAsAny" });
    let mut all = json!({
        "apiVersion": KIND.0, "kind": KIND.1, "metadata": { "name": name },
        "allowPrivilegedContainer": false, "allowPrivilegeEscalation": false, "allowHostDirVolumePlugin": false,
        "allowHostIPC": false, "allowHostNetwork": false, "allowHostPID": false, "allowHostPorts": false,
        "readOnlyRootFilesystem": true, "allowedCapabilities": null, "defaultAddCapabilities": null,
        "requiredDropCapabilities": ["ALL"],
        "fsGroup": any, "supplementalGroups": any, "seLinuxContext": { "type": "MustRunAs" },
        "seccompProfiles": ["runtime/default"], "users": [], "groups": [],
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    all
}

/// The right of the account called as they are to run its pods under them.
pub(crate) fn grant(name: &str, namespace: &str) -> [Value; 2] {
    let mut usage = rule("security.openshift.io", &["securitycontextconstraints"], &["use"]);
    usage["resourceNames"] = json!([name]);
    let grant = format!("{name}-scc-use");
    let metadata = json!({ "name": grant });
    [role(&metadata, &[usage]), binding(&metadata, &grant, (namespace, name))]
}
