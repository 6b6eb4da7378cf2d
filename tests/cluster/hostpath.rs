//! The hostpath provisioner, installed as anybody would install a CSI driver without sidecars: by a DaemonSet in a
//! namespace, under a name of the test's own.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use e2e::{Namespace, kubeconfig, until};
use serde_json::{Value, json};

use crate::pods::{IMAGE, apply, with};

/// An installed driver. Its objects outside of its namespace go with it; what uses its volumes must be gone before,
/// since nobody else can take them from pods.
pub(crate) struct Hostpath {
    /// Where it runs.
    pub(crate) space: Namespace,
    /// What it is registered by.
    pub(crate) name: String,
    /// Its StorageClass, and the name of its directories.
    pub(crate) short: String,
}

impl Hostpath {
    /// Installs the driver on all nodes; `driver` is merged into the spec of its CSIDriver.
    pub(crate) fn install(name: &str, short: &str, driver: &Value) -> Result<Self> {
        let installed =
            Self { space: Namespace::new(&format!("{short}-driver"))?, name: name.to_owned(), short: short.to_owned() };
        apply(&installed.space, &installed.objects(driver))?;
        installed.rolled_out()?;
        Ok(installed)
    }

    /// Waits until its pods of the present template run on all nodes that are there.
    pub(crate) fn rolled_out(&self) -> Result<()> {
        self.space.kubectl(&["rollout", "status", "daemonset/driver", "--timeout=120s"]).map(drop)
    }

    fn objects(&self, driver: &Value) -> [Value; 3] {
        let Self { name, short, .. } = self;
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
        let shared =
            |name: &str, path: &str| json!({"name": name, "mountPath": path, "mountPropagation": "Bidirectional"});
        let host =
            |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
        let container = json!({
            "name": "driver", "image": IMAGE, "command": ["ferrovirt", "hostpath-csi"],
            "args": ["--data-dir=/csi-data-dir", format!("--driver-name={name}"),
                format!("--registration-socket=/registration/{short}-reg.sock"),
                format!("--kubelet-endpoint=/var/lib/kubelet/plugins/{short}/csi.sock")],
            "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "securityContext": {"privileged": true},
            "volumeMounts": [mount("socket", "/csi"), mount("registration", "/registration"), mount("data", "/csi-data-dir"),
                shared("pods", "/var/lib/kubelet/pods"), shared("plugins", "/var/lib/kubelet/plugins/kubernetes.io")]
        });
        let volumes = json!([
            host("socket", &format!("/var/lib/kubelet/plugins/{short}")),
            host("registration", "/var/lib/kubelet/plugins_registry"),
            host("data", &format!("/{}", self.pool())),
            host("pods", "/var/lib/kubelet/pods"),
            host("plugins", "/var/lib/kubelet/plugins/kubernetes.io")
        ]);
        let spec = json!({"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"]});
        let labels = json!({"app": "driver"});
        [
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": with(spec, driver)}),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": short}, "provisioner": name,
                "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true}),
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "driver"},
                "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                    "spec": {"terminationGracePeriodSeconds": 2, "containers": [container], "volumes": volumes}}}}),
        ]
    }

    /// Where it keeps volumes, below the root of a node.
    fn pool(&self) -> String {
        format!("var/{}-volumes", self.short)
    }

    /// The names of its volumes on a node.
    pub(crate) fn data(&self, node: &str) -> Result<Vec<String>> {
        let dir = node_dir(node).join(self.pool());
        let names = fs::read_dir(dir)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| !name.starts_with('.')).collect())
    }

    /// Waits until the node's agent answers and knows the driver.
    pub(crate) fn registered(&self, node: &str) -> Result<()> {
        until(&format!("the driver is registered on {node}"), || {
            let path = format!("/api/v1/nodes/{node}/proxy/healthz");
            let answers = self.space.output(&["get", "--raw", &path])?.status.success();
            Ok((answers && self.is_listed(node)?).then_some(()))
        })
    }

    /// Whether the node's CSINode names the driver.
    pub(crate) fn is_listed(&self, node: &str) -> Result<bool> {
        let listed = self.space.get("csinode", node)?;
        Ok(listed["spec"]["drivers"].as_array().is_some_and(|all| all.iter().any(|driver| driver["name"] == self.name)))
    }

    /// Waits until all volumes of its class are gone.
    pub(crate) fn volumes_are_gone(&self) -> Result<()> {
        until("the volumes are gone", || {
            let all = self.space.kubectl(&["get", "pv", "-o", "jsonpath={.items[*].spec.storageClassName}"])?;
            Ok((!all.split(' ').any(|class| class == self.short)).then_some(()))
        })
    }
}

impl Drop for Hostpath {
    fn drop(&mut self) {
        let _ = self.space.kubectl(&["delete", "csidriver", &self.name, "--ignore-not-found"]);
        let _ = self.space.kubectl(&["delete", "storageclass", &self.short, "--ignore-not-found"]);
    }
}

/// Where the host keeps a node's files.
pub(crate) fn node_dir(node: &str) -> PathBuf {
    kubeconfig().with_file_name("nodes").join(node)
}
