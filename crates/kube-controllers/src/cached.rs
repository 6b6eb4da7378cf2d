//! What the controllers keep in memory of each kind: which objects, and which parts of them.

use std::fmt::Debug;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret,
    Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::IPAddress;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// A kind that is kept in a [`crate::store::Store`].
pub trait Cached: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {
    /// A cluster may lack the kind: it is watched while it is served.
    const OPTIONAL: bool = false;
    /// Which objects to watch.
    fn selection() -> watcher::Config {
        watcher::Config::default()
    }
    /// Where to watch them.
    fn api(client: Client) -> Api<Self> {
        Api::all(client)
    }
    /// Drops what no controller reads. Objects out of a store are therefore never written back whole.
    fn trim(&mut self) {
        trim_metadata(self);
    }
}

/// `kubectl apply` keeps a copy of the whole object here.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn trim_metadata<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

macro_rules! cached {
    ($($kind:ty),* $(,)?) => { $(impl Cached for $kind {})* };
}
cached!(
    ControllerRevision,
    DaemonSet,
    Deployment,
    ReplicaSet,
    StatefulSet,
    CronJob,
    Job,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Service,
    ServiceAccount,
    EndpointSlice,
    IPAddress,
    PodDisruptionBudget,
    ClusterRole,
    Namespace,
    ResourceQuota,
    Endpoints,
    CertificateSigningRequest,
    StorageClass,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    VolumeAttachment,
);

impl Cached for Pod {
    fn trim(&mut self) {
        trim_metadata(self);
        let Some(spec) = &mut self.spec else { return };
        // Only who looks for a node asks which images are where.
        let placed = spec.node_name.is_some();
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            container.args = None;
            container.env = None;
            container.env_from = None;
            // Which sidecars a CSI driver brings is read off its containers.
            if crate::sidecar::of(container).is_none() {
                container.command = None;
                container.image = container.image.take().filter(|_| !placed);
            }
            container.lifecycle = None;
            container.liveness_probe = None;
            container.readiness_probe = None;
            container.security_context = None;
            container.startup_probe = None;
            container.volume_mounts = None;
        }
        spec.security_context = None;
    }
}

impl Cached for ConfigMap {
    fn selection() -> watcher::Config {
        watcher::Config::default().fields("metadata.name=kube-root-ca.crt")
    }
}

impl Cached for Secret {
    fn selection() -> watcher::Config {
        watcher::Config::default().fields("type=kubernetes.io/service-account-token")
    }
}

impl Cached for Lease {
    /// Heartbeats of nodes only; leader elections would wake us every other second.
    fn api(client: Client) -> Api<Self> {
        Api::namespaced(client, "kube-node-lease")
    }
}
