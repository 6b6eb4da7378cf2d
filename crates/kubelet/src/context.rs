//! What every worker of the node shares.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service};
use kit::events::Recorder;
use kube::Client;
use kube::runtime::reflector;
use pod_networks::Networks;
use rpc::cri;
use sys::cgroup::Hierarchy;

use crate::allocation::Allocations;
use crate::config::Config;
use crate::device_drivers::DeviceClaims;
use crate::devices::Devices;
use crate::drivers::Csi;
use crate::fields::NodeAmounts;
use crate::image_pulls::Images;
use crate::inventory::Inventory;
use crate::runtime::Runtime;
use crate::sandbox::Surroundings;

/// Shared by reference; nothing in it changes but through its own synchronisation.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
    pub(crate) events: Recorder,
    pub(crate) images: Images,
    pub(crate) networks: Networks,
    pub(crate) devices: Devices,
    pub(crate) allocations: Allocations,
    pub(crate) device_claims: DeviceClaims,
    pub(crate) csi: Csi,
    pub(crate) volumes: Inventory,
    pub(crate) services: reflector::Store<Service>,
    pub(crate) hierarchies: Vec<Hierarchy>,
    pub(crate) amounts: NodeAmounts,
    pub(crate) node_dns: cri::DnsConfig,
}

impl Context {
    pub(crate) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            node: &self.config.node_name,
            logs: &self.config.log_dir,
            cluster_dns: &self.config.cluster_dns,
            cluster_domain: &self.config.cluster_domain,
            node_dns: &self.node_dns,
        }
    }

    pub(crate) fn node_ips(&self) -> Vec<String> {
        self.config.node_ips.iter().map(ToString::to_string).collect()
    }

    /// `<root>/pods/<uid>`.
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.config.root.join("pods").join(uid)
    }

    /// Where the volumes of one kind lie.
    pub(crate) fn volume_dir(&self, uid: &str, plugin: &str) -> PathBuf {
        self.pod_dir(uid).join("volumes").join(format!("kubernetes.io~{plugin}"))
    }

    /// The Services a pod of `namespace` sees in its environment.
    pub(crate) fn visible_services(&self, namespace: &str) -> Vec<Service> {
        let state = self.services.state();
        let mut visible: Vec<Service> = state
            .into_iter()
            .filter(|service| {
                let own = service.metadata.namespace.as_deref();
                let is_api = own == Some("default") && service.metadata.name.as_deref() == Some("kubernetes");
                own == Some(namespace) || is_api
            })
            .map(Arc::unwrap_or_clone)
            .collect();
        visible.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        visible
    }
}

/// The object events about the pod name.
pub(crate) fn about(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        ..Default::default()
    }
}

/// The same, about one of its containers.
pub(crate) fn about_container(pod: &Pod, name: &str) -> ObjectReference {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).any(|c| c.name == name);
    let passing = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten()).any(|c| c.name == name);
    let list = match (init, passing) {
        (true, _) => "initContainers",
        (_, true) => "ephemeralContainers",
        _ => "containers",
    };
    ObjectReference { field_path: Some(format!("spec.{list}{{{name}}}")), ..about(pod) }
}
