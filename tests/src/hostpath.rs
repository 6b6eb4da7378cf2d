//! The hostpath provisioner, installed as anybody would install a CSI driver, with or without what calls it: by a
//! DaemonSet in
//! a namespace, under a name of the test's own.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use crate::{Namespace, kubeconfig, until};

/// The name by which it registers for tests that need but one; the cluster has one of its own beside it.
pub const DRIVER: &str = "test.hostpath-provisioner";
/// Its storage class in these.
pub const CLASS: &str = "csi-test";
const IMAGE: &str = "ferrovirt.local/component:v0.1.0";

/// A claim of [`CLASS`].
pub fn claim(name: &str, mode: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
            "resources": {"requests": {"storage": size}}}})
}

/// An installed driver. Its objects outside of its namespace go with it; what uses its volumes must be gone before,
/// since nobody else can take them from pods.
pub struct Hostpath {
    /// Where it runs.
    pub space: Namespace,
    /// What it is registered by.
    pub name: String,
    /// Its StorageClass, and the name of its directories.
    pub short: String,
    /// Whether it brings the controllers that call it.
    pub whole: bool,
}

impl Hostpath {
    /// Installs the driver on all nodes; `driver` is merged into the spec of its CSIDriver.
    pub fn install(name: &str, short: &str, driver: &Value) -> Result<Self> {
        Self::install_as(name, short, driver, false)
    }

    /// The same with a container beside it that makes, grows and captures volumes, as on clusters whose control plane
    /// calls
    /// no drivers.
    pub fn install_whole(name: &str, short: &str, driver: &Value) -> Result<Self> {
        Self::install_as(name, short, driver, true)
    }

    fn install_as(name: &str, short: &str, driver: &Value, whole: bool) -> Result<Self> {
        let space = Namespace::new(&format!("{short}-driver"))?;
        let installed = Self { space, name: name.to_owned(), short: short.to_owned(), whole };
        let items = installed.objects(driver);
        installed.space.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
        installed.rolled_out()?;
        Ok(installed)
    }

    /// Waits until its pods of the present template run on all nodes that are there.
    pub fn rolled_out(&self) -> Result<()> {
        self.space.kubectl(&["rollout", "status", "daemonset/driver", "--timeout=120s"]).map(drop)
    }

    fn objects(&self, driver: &Value) -> Vec<Value> {
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
            "securityContext": {"privileged": true, "runAsUser": 0},
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
        let mut spec = json!({"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"]});
        json_patch::merge(&mut spec, driver);
        let labels = json!({"app": "driver"});
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let controllers = json!({
            "name": "csi-controller", "image": IMAGE, "command": ["ferrovirt", "csi-controller"],
            // The socket is root's.
            "securityContext": {"runAsUser": 0},
            "args": [format!("--driver-name={name}")],
            "env": [field("NODE_NAME", "spec.nodeName"), field("POD_NAMESPACE", "metadata.namespace")],
            "volumeMounts": [mount("socket", "/csi")]
        });
        let (mut containers, mut called, mut objects) = (vec![container], json!({}), Vec::new());
        if self.whole {
            containers.push(controllers);
            called = json!({"ferrovirt.io/csi-controller": "none"});
            // The operator has the rights that it gives away.
            objects.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": short},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hostpath-provisioner-operator"},
                "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": self.space.name()}]}));
        }
        objects.extend([
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name, "annotations": called},
                "spec": spec}),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": short}, "provisioner": name,
                "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true}),
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "driver"},
                "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                    "spec": {"terminationGracePeriodSeconds": 2, "containers": containers, "volumes": volumes}}}}),
        ]);
        objects
    }

    /// Where it keeps volumes, below the root of a node.
    fn pool(&self) -> String {
        format!("var/{}-volumes", self.short)
    }

    /// The names of its volumes on a node.
    pub fn data(&self, node: &str) -> Result<Vec<String>> {
        let dir = node_dir(node).join(self.pool());
        let names = fs::read_dir(dir)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| !name.starts_with('.')).collect())
    }

    /// Waits until the node's agent answers and knows the driver.
    pub fn registered(&self, node: &str) -> Result<()> {
        until(&format!("the driver is registered on {node}"), || {
            let path = format!("/api/v1/nodes/{node}/proxy/healthz");
            let answers = self.space.output(&["get", "--raw", &path])?.status.success();
            Ok((answers && self.is_listed(node)?).then_some(()))
        })
    }

    /// Whether the node's CSINode names the driver.
    pub fn is_listed(&self, node: &str) -> Result<bool> {
        let listed = self.space.get("csinode", node)?;
        Ok(listed["spec"]["drivers"].as_array().is_some_and(|all| all.iter().any(|driver| driver["name"] == self.name)))
    }

    /// Waits until all volumes of its class are gone.
    pub fn volumes_are_gone(&self) -> Result<()> {
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
        if self.whole {
            let _ = self.space.kubectl(&["delete", "clusterrolebinding", &self.short, "--ignore-not-found"]);
            let _ = self.space.kubectl(&["delete", "volumesnapshotclass", &self.short, "--ignore-not-found"]);
        }
    }
}

/// Where the host keeps a node's files.
pub fn node_dir(node: &str) -> PathBuf {
    kubeconfig().with_file_name("nodes").join(node)
}
