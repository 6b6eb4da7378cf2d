//! Whether a driver brings its own sidecars: decided function by function. Pure.
//!
//! The index value of the driver's `CSIDriver` counts first: annotation [`SERVED`] lists the functions the control plane is to
//! serve (`provisioner,attacher,resizer,snapshotter`, or `all`, or `none`). Without it, a function is left alone when a
//! container whose image or command is that sidecar's runs, or is to run, where the driver's node plugin does.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::controller::pod;

/// On a `CSIDriver`: which functions the control plane serves, whatever containers there are.
pub(crate) const SERVED: &str = "ferrovirt.io/csi-controller";
/// Beneath it, node plugins have their sockets on the node.
const PLUGINS: &str = "/var/lib/kubelet/plugins";

/// What a sidecar does for a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Function {
    Provisioner,
    Attacher,
    Resizer,
    Snapshotter,
}

impl Function {
    const ALL: [Self; 4] = [Self::Provisioner, Self::Attacher, Self::Resizer, Self::Snapshotter];

    fn word(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::Snapshotter => "snapshotter",
        }
    }
}

/// What follows the last slash, without tag and digest.
fn base(path: &str) -> &str {
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split(['@', ':']).next().unwrap_or_default()
}

/// The sidecar a container is, if it is one.
pub fn of(container: &Container) -> Option<Function> {
    let command = container.command.as_ref().and_then(|c| c.first()).map_or("", String::as_str);
    let names = [base(container.image.as_deref().unwrap_or_default()), base(command)];
    Function::ALL
        .into_iter()
        .find(|function| names.iter().any(|name| name.strip_prefix("csi-").is_some_and(|name| name == function.word())))
}

/// Whether the container is the controller of snapshots that clusters are told to install.
pub(crate) fn is_snapshot_controller(container: &Container) -> bool {
    let command = container.command.as_ref().and_then(|c| c.first()).map_or("", String::as_str);
    [container.image.as_deref().unwrap_or_default(), command].iter().any(|name| base(name) == "snapshot-controller")
}

/// A pod, or the template of pods to come.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a PodSpec,
}

impl Source<'_> {
    /// Paths beneath the plugin directory the pod sees of its node.
    fn plugin_paths(&self) -> impl Iterator<Item = &str> {
        let paths = self.spec.volumes.iter().flatten().filter_map(|v| Some(v.host_path.as_ref()?.path.as_str()));
        paths.filter(|path| path.starts_with(PLUGINS))
    }

    fn containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(self.spec.init_containers.iter().flatten())
    }

    fn concerns_storage(&self) -> bool {
        self.plugin_paths().next().is_some() || self.containers().any(|container| of(container).is_some())
    }

    fn names(&self, driver: &str) -> bool {
        let labelled = pod::labels(self.meta).values().any(|value| value == driver);
        labelled || self.plugin_paths().any(|path| path.split('/').any(|part| part == driver))
    }
}

/// The functions the control plane serves for a driver. `all` are the names of all drivers: a pod that names another one
/// is none of this one's.
pub(crate) fn served(
    driver: &str,
    annotation: Option<&str>,
    all: &BTreeSet<String>,
    pods: &[Source<'_>],
) -> BTreeSet<Function> {
    if let Some(list) = annotation {
        let words: Vec<&str> = list.split(',').map(str::trim).collect();
        return Function::ALL.into_iter().filter(|f| words.contains(&"all") || words.contains(&f.word())).collect();
    }
    let others = |pod: &Source<'_>| !pod.names(driver) && all.iter().any(|other| other != driver && pod.names(other));
    // Most pods have nothing to do with storage: they are told apart before anything costs more.
    let mine: Vec<&Source<'_>> = pods.iter().filter(|pod| pod.concerns_storage() && !others(pod)).collect();
    let plugins = |named: bool| -> BTreeSet<&str> {
        let plugins = mine.iter().filter(|pod| pod.plugin_paths().next().is_some());
        plugins.filter(|pod| !named || pod.names(driver)).map(|pod| pod.namespace).collect()
    };
    let mut namespaces = plugins(true);
    if namespaces.is_empty() {
        namespaces = plugins(false);
    }
    let near = mine.iter().filter(|pod| namespaces.contains(pod.namespace));
    let brought: BTreeSet<Function> = near.flat_map(|pod| pod.containers()).filter_map(of).collect();
    Function::ALL.into_iter().filter(|function| !brought.contains(function)).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, path: &str, images: &[&str]) -> Pod {
        let containers: Vec<Value> = images.iter().map(|image| json!({"name": "c", "image": image})).collect();
        let volumes = if path.is_empty() { json!([]) } else { json!([{"name": "v", "hostPath": {"path": path}}]) };
        let value =
            json!({"metadata": {"namespace": namespace}, "spec": {"containers": containers, "volumes": volumes}});
        serde_json::from_value(value).unwrap()
    }

    #[track_caller]
    fn check(annotation: Option<&str>, pods: &[Pod], expect: &str) {
        let sources: Vec<Source<'_>> = pods
            .iter()
            .map(|pod| Source {
                namespace: pod.metadata.namespace.as_deref().unwrap(),
                meta: &pod.metadata,
                spec: pod.spec.as_ref().unwrap(),
            })
            .collect();
        let all = BTreeSet::from(["d.example.com".to_owned(), "e.example.com".to_owned()]);
        let served = served("d.example.com", annotation, &all, &sources);
        let words: Vec<&str> = served.into_iter().map(Function::word).collect();
        assert_eq!(words.join(" "), expect);
    }

    #[test]
    fn sidecars_are_left_alone() {
        const ALL: &str = "provisioner attacher resizer snapshotter";
        let plugin = pod("d", "/var/lib/kubelet/plugins/d.example.com", &["registry/driver:1"]);
        check(None, &[], ALL);
        check(None, std::slice::from_ref(&plugin), ALL);
        let provisioner = pod("d", "", &["registry:5000/sig-storage/csi-provisioner:v5@sha256:00"]);
        check(None, &[plugin.clone(), provisioner.clone()], "attacher resizer snapshotter");
        let elsewhere = pod("x", "", &["csi-provisioner"]);
        check(None, &[plugin.clone(), elsewhere], ALL);
        let strangers = pod("d", "/var/lib/kubelet/plugins/e.example.com", &["csi-attacher"]);
        check(None, &[plugin.clone(), strangers], ALL);
        let nameless = pod("d", "/var/lib/kubelet/plugins/csi-x", &["driver", "csi-resizer"]);
        check(None, &[nameless], "provisioner attacher snapshotter");
        check(Some("provisioner, resizer"), &[plugin.clone(), provisioner.clone()], "provisioner resizer");
        check(Some("none"), std::slice::from_ref(&plugin), "");
        check(Some("all"), &[plugin, provisioner], ALL);
    }

    #[test]
    fn commands_count_too() {
        let container = |image: &str, command: &str| -> Container {
            serde_json::from_value(json!({"name": "c", "image": image, "command": [command]})).unwrap()
        };
        assert_eq!(of(&container("all-in-one", "/usr/bin/csi-snapshotter")), Some(Function::Snapshotter));
        assert_eq!(of(&container("csi-node-driver-registrar", "csi-node")), None);
        assert!(is_snapshot_controller(&container("registry/sig-storage/snapshot-controller:v8", "")));
        assert!(!is_snapshot_controller(&container("csi-snapshotter", "snapshot-controller-not")));
    }
}
