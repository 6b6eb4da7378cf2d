//! The hostpath provisioner, installed as anybody would install a driver, and its storage class.

use anyhow::Result;
use serde_json::{Value, json};

use crate::Namespace;

/// The name it registers by.
pub const DRIVER: &str = "kubevirt.io.hostpath-provisioner";
/// The storage class.
pub const CLASS: &str = "csi-test";
/// Where it keeps volumes, in a node's root.
pub const POOL: &str = "var/csi-test-volumes";
const IMAGE: &str = "ferrovirt.local/component:v0.1.0";

/// The driver's object, its class and its DaemonSet.
pub fn manifests() -> [Value; 3] {
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let shared = |name: &str, path: &str| json!({"name": name, "mountPath": path, "mountPropagation": "Bidirectional"});
    let host = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
    let container = json!({
        "name": "driver", "image": IMAGE, "command": ["ferrovirt", "hostpath-csi"],
        "args": ["--data-dir=/csi-data-dir", "--registration-socket=/registration/csi-test-reg.sock",
            "--kubelet-endpoint=/var/lib/kubelet/plugins/csi-test/csi.sock"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": true},
        "volumeMounts": [mount("socket", "/csi"), mount("registration", "/registration"), mount("data", "/csi-data-dir"),
            shared("pods", "/var/lib/kubelet/pods"), shared("plugins", "/var/lib/kubelet/plugins/kubernetes.io")]
    });
    let volumes = json!([
        host("socket", "/var/lib/kubelet/plugins/csi-test"),
        host("registration", "/var/lib/kubelet/plugins_registry"),
        host("data", &format!("/{POOL}")),
        host("pods", "/var/lib/kubelet/pods"),
        host("plugins", "/var/lib/kubelet/plugins/kubernetes.io")
    ]);
    let labels = json!({"app": "driver"});
    [
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File", "volumeLifecycleModes": ["Persistent", "Ephemeral"]}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS}, "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true}),
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "driver"},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 2, "containers": [container], "volumes": volumes}}}}),
    ]
}

/// The driver, in a namespace that goes with it. Namespaces with claims have to go first.
pub struct Installed {
    space: Namespace,
}

impl Installed {
    /// Installs it and waits until it serves.
    pub fn new() -> Result<Self> {
        let installed = Self { space: Namespace::new("csi-driver")? };
        let items = manifests();
        installed.space.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
        installed.space.kubectl(&["rollout", "status", "daemonset/driver", "--timeout=120s"])?;
        Ok(installed)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // What is left behind is in nobody's way.
        let _ = self.space.kubectl(&["delete", "csidriver", DRIVER]);
        let _ = self.space.kubectl(&["delete", "storageclass", CLASS]);
    }
}

/// A claim of the class.
pub fn claim(name: &str, mode: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
            "resources": {"requests": {"storage": size}}}})
}
