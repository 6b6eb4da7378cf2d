//! The driver's sidecar, which makes, grows and captures volumes for claims where the control plane does not. Pure.

use kit::operator::manifests::{binding, role, rule};
use kit::workload::{self, field};
use serde_json::{Value, json};

use super::settings::{ACCOUNT, DRIVER, Settings, labels};

/// The volume with the container's token, which the driver itself does not get.
const TOKEN: &str = "token";

/// What the container does with the cluster's objects. Who gives this away must have it.
pub(crate) fn rules() -> Vec<Value> {
    let see = &["get", "list", "watch"];
    let mut rules = vec![
        rule("", &["persistentvolumes"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule("", &["nodes"], see),
        rule("", &["events"], &["create", "patch"]),
        rule(
            "storage.k8s.io",
            &["storageclasses", "volumeattributesclasses", "csinodes", "csidrivers", "volumeattachments"],
            see,
        ),
        rule("storage.k8s.io", &["csistoragecapacities"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshots", "volumesnapshotclasses"], see),
        rule("snapshot.storage.k8s.io", &["volumesnapshotcontents"], &["get", "list", "watch", "patch"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshotcontents/status"], &["patch"]),
    ];
    rules.extend(kit::served::rules());
    rules
}

/// The container's rights.
pub(crate) fn rights(settings: &Settings) -> [Value; 2] {
    let metadata = json!({ "name": ACCOUNT, "labels": labels(DRIVER) });
    [role(&metadata, &rules()), binding(&metadata, ACCOUNT, (&settings.namespace, ACCOUNT))]
}

/// The container.
pub(crate) fn container(policy: &str, settings: &Settings) -> Value {
    json!({
        "name": "csi-controller",
        "image": settings.image,
        "imagePullPolicy": policy,
        "command": ["csi-controller"],
        "args": ["--csi-address=/csi/csi.sock"],
        "env": [
            field("NODE_NAME", "spec.nodeName"), field("POD_NAMESPACE", "metadata.namespace"),
            workload::one_arena(),
        ],
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
        // The socket is root's. Where SELinux is, only this type reaches it.
        "securityContext": {
            "runAsUser": 0, "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true, "seLinuxOptions": { "type": "spc_t" },
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            { "name": "socket", "mountPath": "/csi" },
            { "name": TOKEN, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true },
        ],
    })
}

/// The volume of its token.
pub(crate) fn token() -> Value {
    json!({ "name": TOKEN, "projected": { "sources": [
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } }] } },
    ] } })
}
