//! What more than one controller knows of the cluster. Each kind is watched once, kept once, and its changes are told to
//! whoever subscribed.
//!
//! ```text
//!  watch -> Store (bytes; read through Context) -> Changes: every subscriber -> keys in the subscriber's own queue
//!  a controller -> News (what is no object) ---------^
//! ```
//!
//! Subscribers are handed over before the first list is asked for, and none can be added later: nobody misses an object.
//! A change is lent to each, not copied. A kind that one controller alone reads is watched in that controller's folder.

mod changes;
mod lost;

use std::fmt::Debug;
use std::sync::Arc;

use api::backup::v1alpha1::{VirtualMachineBackup, VirtualMachineBackupTracker};
use api::cdi::v1beta1::DataVolume;
use api::export::v1::VirtualMachineExport;
use api::kubevirt::constants::label;
use api::kubevirt::hotplug::APP as ATTACHMENT;
use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::store::{Store, Watch};
use kit::{Task, served, store};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use meta::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use changes::{Changes, index_values};
use changes::{Heard, News};
pub(crate) use lost::LostNodes;

use crate::facts::{copies, index, put_back, trim};
use crate::tracking;

/// The copies of objects; filled by [`Stores::watch`].
pub struct Stores {
    /// VirtualMachines.
    pub vms: Store<VirtualMachine>,
    /// VirtualMachineInstances.
    pub vmis: Store<VirtualMachineInstance>,
    /// Launcher pods.
    pub pods: Store<Pod>,
    /// Pods that have volumes for running guests.
    pub attachments: Store<Pod>,
    /// Claims that disks may lie on.
    pub claims: Store<PersistentVolumeClaim>,
    /// Data volumes, where there are any.
    pub data_volumes: Store<DataVolume>,
    /// Volumes that are put back under the names of claims.
    pub put_backs: Store<PersistentVolume>,
    /// Which driver makes the volumes of claims.
    pub storage_classes: Store<StorageClass>,
    /// How drivers make snapshots of volumes, where any do.
    pub snapshot_classes: Store<VolumeSnapshotClass>,
    /// Snapshots of volumes, where there are any.
    pub volume_snapshots: Store<VolumeSnapshot>,
    /// Snapshots of machines.
    pub snapshots: Store<VirtualMachineSnapshot>,
    /// Machines that are brought back to snapshots.
    pub restores: Store<VirtualMachineRestore>,
    /// Backups of machines.
    pub backups: Store<VirtualMachineBackup>,
    /// What is known of the last backups of machines.
    pub trackers: Store<VirtualMachineBackupTracker>,
    /// Exports of volumes and machines.
    pub exports: Store<VirtualMachineExport>,
    /// Nodes that virt-handler has labelled.
    pub nodes: Store<Node>,
    /// The KubeVirt object.
    pub kubevirts: Store<KubeVirt>,
    /// Migrations.
    pub migrations: Store<VirtualMachineInstanceMigration>,
    /// Nodes that do not answer.
    pub(crate) lost: LostNodes,
    /// Machines whose node was lost, or answers again.
    pub(crate) stranded: News,
    /// Machines whose disks somebody asked to have copied, or does not any more.
    pub(crate) copying: News,
    /// Machines whose guest is to have more than its pod can be given.
    pub(crate) outgrown: News,
}

impl Stores {
    /// Nothing known yet, and nobody who hears of it.
    pub(crate) fn new() -> (Self, Changes) {
        let changes = Changes::default();
        let stores = Self {
            vms: Store::default(),
            vmis: Store::default(),
            pods: Store::default(),
            attachments: Store::default(),
            claims: Store::default(),
            data_volumes: Store::default(),
            put_backs: Store::default(),
            storage_classes: Store::default(),
            snapshot_classes: Store::default(),
            volume_snapshots: Store::default(),
            snapshots: Store::default(),
            restores: Store::default(),
            backups: Store::default(),
            trackers: Store::default(),
            exports: Store::default(),
            nodes: Store::default(),
            kubevirts: Store::default(),
            migrations: Store::default(),
            lost: LostNodes::default(),
            stranded: changes.stranded.news(),
            copying: changes.copying.news(),
            outgrown: changes.outgrown.news(),
        };
        (stores, changes)
    }

    /// Fills the stores and tells `changes`, for as long as the tasks are held. The KubeVirt object is that in `namespace`.
    pub(crate) fn watch(self: &Arc<Self>, client: &Client, namespace: &str, changes: Changes) -> Vec<Task<()>> {
        let app = |app: &str| watcher::Config::default().labels(&format!("{}={app}", label::APP));
        let launchers = Watch { config: app(label::APP_VIRT_LAUNCHER), trim: trim::pod, index: index::pod_indexes };
        let attachments = Watch { config: app(ATTACHMENT), trim: trim::attachment, index: index::attachment_indexes };
        let put_backs = Watch { config: labelled(put_back::PUT_BACK), index: put_back::indexes, ..Watch::default() };
        let nodes = Watch { config: labelled(label::SCHEDULABLE), trim: trim::node, ..Watch::default() };
        let claims = Watch { trim: trim::claim, index: index::claim_indexes, ..Watch::default() };
        let kubevirts = Watch { trim: trim::kubevirt, index: of_every_machine, ..Watch::default() };
        let kubevirt: Api<KubeVirt> = Api::namespaced(client.clone(), namespace);
        let of = Watching { client, stores: self };
        vec![
            of.all(by(index::vm_indexes), &self.vms, changes.vms),
            of.all(by(index::vmi_indexes), &self.vmis, changes.vmis),
            of.all(launchers, &self.pods, changes.pods),
            of.all(attachments, &self.attachments, changes.attachments),
            of.all(claims, &self.claims, changes.claims),
            of.served(Watch::default(), &self.data_volumes, changes.data_volumes),
            of.all(put_backs, &self.put_backs, changes.put_backs),
            of.all(Watch::default(), &self.storage_classes, changes.storage_classes),
            of.served(Watch::default(), &self.snapshot_classes, changes.snapshot_classes),
            of.served(by(copies::volume_snapshot_indexes), &self.volume_snapshots, changes.volume_snapshots),
            of.all(by(copies::snapshot_indexes), &self.snapshots, changes.snapshots),
            of.all(by(copies::restore_indexes), &self.restores, changes.restores),
            of.all(by(copies::backup_indexes), &self.backups, changes.backups),
            of.all(by(copies::tracker_indexes), &self.trackers, changes.trackers),
            of.all(by(copies::export_indexes), &self.exports, changes.exports),
            of.all(nodes, &self.nodes, changes.nodes),
            of.some(kubevirt, kubevirts, &self.kubevirts, changes.kubevirts),
            of.all(by(index::migration_indexes), &self.migrations, changes.migrations),
            changes.stranded.tell(self.clone()),
            changes.copying.tell(self.clone()),
            changes.outgrown.tell(self.clone()),
        ]
    }
}

/// Objects that have this label.
fn labelled(label: &str) -> watcher::Config {
    watcher::Config::default().labels(label)
}

/// All of them, whole, found by these words.
fn by<K>(index: fn(&K) -> Vec<String>) -> Watch<K> {
    Watch { index, ..Watch::default() }
}

/// What every watch needs.
struct Watching<'a> {
    client: &'a Client,
    stores: &'a Arc<Stores>,
}

impl Watching<'_> {
    fn all<K>(&self, how: Watch<K>, store: &Store<K>, heard: Heard<K>) -> Task<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    {
        self.some(Api::all(self.client.clone()), how, store, heard)
    }

    fn some<K>(&self, api: Api<K>, how: Watch<K>, store: &Store<K>, mut heard: Heard<K>) -> Task<()>
    where
        K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    {
        let stores = self.stores.clone();
        store::watch(api, how, store.clone(), move |change| heard.tell(&stores, &change))
    }

    /// Where there is no such kind, nobody waits for one.
    fn served<K>(&self, how: Watch<K>, store: &Store<K>, mut heard: Heard<K>) -> Task<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    {
        let (api, resource, stores) =
            (Api::all(self.client.clone()), ApiResource::erase::<K>(&()), self.stores.clone());
        served::watch(self.client, &resource, api, how, store.clone(), move |change| heard.tell(&stores, &change))
    }
}

/// What a change of the KubeVirt object may change for every machine.
fn of_every_machine(kubevirt: &KubeVirt) -> Vec<String> {
    let configuration = kubevirt.spec.configuration.as_ref();
    let policy = configuration.and_then(|configuration| configuration.instancetype.as_ref()?.reference_policy.clone());
    vec![tracking::index(kubevirt), format!("references:{}", policy.unwrap_or_default())]
}
