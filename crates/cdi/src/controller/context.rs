//! What the controllers share: what is known of the cluster, one queue of work, and the ways to write.

use std::ops::Deref;
use std::sync::Arc;

use api::cdi::constants::{self, annotation};
use api::cdi::v1beta1::{
    CDI, CDIConfig, DataImportCron, DataSource, DataVolume, ObjectTransfer, StorageProfile, VolumeCloneSource,
    VolumeImportSource, VolumeUploadSource,
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kit::events::Recorder;
use kit::queue::Queue;
use kit::store::{Key, Store};
use kube::core::DynamicObject;
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::controller::authorities::Known;
use crate::controller::polls::Polls;
use crate::controller::progress::Progress;
use crate::controller::settings::Settings;

/// Group of the populators that fetch from oVirt and OpenStack.
pub const FORKLIFT: &str = "forklift.cdi.kubevirt.io";

/// One thing to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// A DataVolume.
    Volume(Key),
    /// A claim that a DataVolume or a populator fills, or the volume behind one.
    Claim(Key),
    /// A storage class and its profile.
    Profile(String),
    /// The CDIConfig.
    Config,
    /// A DataSource.
    Source(Key),
    /// A DataImportCron.
    Cron(Key),
    /// An ObjectTransfer.
    Transfer(String),
}

/// Shared by every controller; cheap to clone.
#[derive(Clone)]
pub struct Context(pub Arc<Inner>);

/// See [`Context`].
pub struct Inner {
    /// The API server.
    pub client: Client,
    /// Events about objects.
    pub recorder: Recorder,
    /// Where CDI is installed.
    pub namespace: String,
    /// Image of the pods that fill volumes.
    pub image: String,
    /// When that image is pulled.
    pub pull_policy: String,
    /// How far a pod says it is.
    pub progress: Arc<dyn Progress>,
    /// Which crons' registries are being asked.
    pub polls: Polls,
    /// Whose certificates upload servers show and trust.
    pub authorities: Known,
    /// What is to be looked at.
    pub queue: Queue<Work>,
    /// DataVolumes.
    pub volumes: Store<DataVolume>,
    /// Every claim.
    pub claims: Store<PersistentVolumeClaim>,
    /// Every persistent volume.
    pub persistent: Store<PersistentVolume>,
    /// Pods that use claims.
    pub pods: Store<Pod>,
    /// Storage classes.
    pub classes: Store<StorageClass>,
    /// Their profiles.
    pub profiles: Store<StorageProfile>,
    /// CSI drivers.
    pub drivers: Store<CSIDriver>,
    /// What asks for the product.
    pub cdis: Store<CDI>,
    /// The CDIConfig.
    pub configs: Store<CDIConfig>,
    /// What claims are filled with: imports.
    pub imports: Store<VolumeImportSource>,
    /// What claims are filled with: uploads.
    pub uploads: Store<VolumeUploadSource>,
    /// What claims are filled with: clones.
    pub clones: Store<VolumeCloneSource>,
    /// DataSources.
    pub sources: Store<DataSource>,
    /// DataImportCrons.
    pub crons: Store<DataImportCron>,
    /// ObjectTransfers.
    pub transfers: Store<ObjectTransfer>,
    /// What claims are filled with: disks of oVirt engines.
    pub ovirt: Store<DynamicObject>,
    /// What claims are filled with: images of OpenStack clouds.
    pub openstack: Store<DynamicObject>,
    /// VolumeSnapshots, where the cluster serves them.
    pub snapshots: Store<DynamicObject>,
    /// VolumeSnapshotClasses, where the cluster serves them.
    pub snapshot_classes: Store<DynamicObject>,
}

impl Deref for Context {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Context {
    /// The configuration as it is now.
    pub fn settings(&self) -> Settings {
        Settings::of(self.configs.get(&Key::new("", constants::CONFIG)).as_ref())
    }

    /// The CDI object that counts: of several, the one that is not refused.
    pub fn cdi(&self) -> Option<CDI> {
        let refused = |cdi: &CDI| cdi.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Error");
        self.cdis.list().into_iter().find(|cdi| !refused(cdi))
    }

    /// Where worker pods may run, as the CDI object says.
    pub fn placement(&self) -> Value {
        self.cdi().and_then(|cdi| cdi.spec.workload).map_or_else(|| json!({}), |placement| json!(placement))
    }

    /// The way of cloning that the CDI object asks for, whatever profiles say.
    pub fn clone_override(&self) -> Option<String> {
        self.cdi()?.spec.clone_strategy_override.filter(|word| !word.is_empty())
    }

    /// The storage class of `claim`.
    pub fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<StorageClass> {
        let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        crate::controller::settings::class(&self.classes.list(), name, false).cloned()
    }

    /// The pods that use the claim `name`.
    pub fn users(&self, namespace: &str, name: &str) -> Vec<Pod> {
        self.pods.by_index(&claim_index(namespace, name))
    }
}

/// The annotation of `object` under `key`.
pub fn annotation_of<'a, K: ResourceExt>(object: &'a K, key: &str) -> Option<&'a str> {
    object.annotations().get(key).map(String::as_str)
}

/// The index value of what `uid` owns.
pub fn owner_index(uid: &str) -> String {
    format!("owner:{uid}")
}

/// The index value of what uses or is meant for a claim.
pub fn claim_index(namespace: &str, name: &str) -> String {
    format!("claim:{namespace}/{name}")
}

/// The index value of claims that are filled from this object.
pub fn source_index(kind: &str, namespace: &str, name: &str) -> String {
    format!("from:{kind}:{namespace}/{name}")
}

/// The index value under which an object is found by its UID.
pub fn uid_index(uid: &str) -> String {
    format!("uid:{uid}")
}

/// The index value of what a cron has made.
pub fn cron_index(namespace: &str, name: &str) -> String {
    format!("cron:{namespace}/{name}")
}

fn owners<K: Resource>(object: &K) -> impl Iterator<Item = String> + '_ {
    object.owner_references().iter().filter(|owner| owner.controller == Some(true)).map(|owner| owner_index(&owner.uid))
}

fn made_by_cron<K: Resource>(object: &K) -> Option<String> {
    let cron = object.labels().get(constants::label::DATA_IMPORT_CRON)?;
    Some(cron_index(&object.namespace().unwrap_or_default(), cron))
}

/// Index values of a claim: its UID, who owns it, and what it is filled from.
pub fn claim_indexes(claim: &PersistentVolumeClaim) -> Vec<String> {
    let mut words: Vec<String> = owners(claim).collect();
    words.extend(claim.uid().map(|uid| uid_index(&uid)));
    words.extend(made_by_cron(claim));
    let namespace = claim.namespace().unwrap_or_default();
    if let Some(from) = claim.spec.as_ref().and_then(|spec| spec.data_source_ref.as_ref())
        && matches!(from.api_group.as_deref(), Some(constants::GROUP | FORKLIFT))
    {
        let namespace = annotation_of(claim, annotation::DATA_SOURCE_NAMESPACE).unwrap_or(&namespace);
        words.push(source_index(&from.kind, namespace, &from.name));
    }
    words.extend(annotation_of(claim, annotation::CLONE_REQUEST).map(|source| format!("claim:{source}")));
    words
}

/// Index values of a pod: who owns it and which claims it uses.
pub fn pod_indexes(pod: &Pod) -> Vec<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let mut words: Vec<String> = owners(pod).collect();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
    let claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    words.extend(claims.map(|claim| claim_index(&namespace, &claim.claim_name)));
    words.extend(annotation_of(pod, annotation::OWNER_UID).map(uid_index));
    words
}

/// Index values of a cron: its UID.
pub fn cron_indexes(cron: &DataImportCron) -> Vec<String> {
    cron.uid().map(|uid| uid_index(&uid)).into_iter().collect()
}

/// Index values of a persistent volume: the claim it is for, and its class.
pub fn persistent_indexes(volume: &PersistentVolume) -> Vec<String> {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let claim = claim.and_then(|claim| Some(claim_index(claim.namespace.as_deref()?, claim.name.as_deref()?)));
    claim.into_iter().collect()
}

/// Index values of a DataVolume: what it clones, and the cron that made it.
pub fn volume_indexes(volume: &DataVolume) -> Vec<String> {
    let namespace = volume.namespace().unwrap_or_default();
    let mut words: Vec<String> = made_by_cron(volume).into_iter().collect();
    words.extend(volume.uid().map(|uid| uid_index(&uid)));
    if let Some(source) = volume.spec.source.as_deref() {
        words.extend(source.pvc.as_ref().map(|from| claim_index(&from.namespace, &from.name)));
        words.extend(source.snapshot.as_ref().map(|from| source_index("VolumeSnapshot", &from.namespace, &from.name)));
    }
    if let Some(from) = &volume.spec.source_ref {
        words.push(source_index(&from.kind, from.namespace.as_deref().unwrap_or(&namespace), &from.name));
    }
    words
}

/// Drops from a pod what these controllers never read; most of a pod is its spec.
pub fn trim_pod(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        for container in &mut spec.containers {
            container.env = None;
            container.args = None;
            container.resources = None;
            container.liveness_probe = None;
            container.readiness_probe = None;
        }
        spec.init_containers = None;
        spec.affinity = None;
        spec.tolerations = None;
    }
}

/// A reference to `object` for events.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}
