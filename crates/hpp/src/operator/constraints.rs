//! SecurityContextConstraints, where there is that kind: without them pods that mount would not be admitted. Pure.

use serde_json::{Value, json};

use super::settings::{ACCOUNT, DRIVER, LEGACY, LEGACY_ACCOUNT, Settings, labels};

/// What the accounts' pods may be.
pub(crate) fn render(settings: &Settings, legacy: bool) -> Vec<Value> {
    let mut all = vec![one(DRIVER, ACCOUNT, settings)];
    if legacy {
        all.push(one(LEGACY, LEGACY_ACCOUNT, settings));
    }
    all
}

fn one(name: &str, account: &str, settings: &Settings) -> Value {
    let any = json!({ "type": "RunAsAny" });
    json!({
        "apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
        "metadata": { "name": name, "labels": labels(name) },
        "allowPrivilegedContainer": true, "allowPrivilegeEscalation": true, "allowHostDirVolumePlugin": true,
        "allowHostIPC": false, "allowHostNetwork": false, "allowHostPID": false, "allowHostPorts": false,
        "readOnlyRootFilesystem": false, "allowedCapabilities": null, "defaultAddCapabilities": null,
        "requiredDropCapabilities": null,
        "fsGroup": any, "runAsUser": any, "seLinuxContext": any, "supplementalGroups": any,
        "volumes": ["*"],
        "users": [format!("system:serviceaccount:{}:{account}", settings.namespace)], "groups": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_account_has_its_own() {
        let settings = Settings { namespace: "hpp".into(), image: "i".into(), ..Settings::default() };
        assert_eq!(render(&settings, false).len(), 1);
        let users: Vec<_> = render(&settings, true).iter().map(|manifest| manifest["users"][0].clone()).collect();
        let expect = [
            "system:serviceaccount:hpp:hostpath-provisioner-admin-csi",
            "system:serviceaccount:hpp:hostpath-provisioner-admin",
        ];
        assert_eq!(users, expect);
    }
}
