//! What more than one controller knows of the cluster. Each kind is watched once, kept once, and its changes are told to
//! whoever subscribed.
//!
//! ```text
//!  watch -> Store (bytes; read through Context) -> Changes: every subscriber -> keys in the subscriber's own queue
//! ```
//!
//! Subscribers are handed over before the first list is asked for, and none can be added later: nobody misses an object.
//! A kind that one controller alone reads is watched in that controller's folder.

mod changes;
mod lost;

use std::fmt::Debug;

use api::{
    backup::v1alpha1::{VirtualMachineBackup, VirtualMachineBackupTracker},
    cdi::v1beta1::DataVolume,
    export::v1::VirtualMachineExport,
    kubevirt::{
        constants::label,
        hotplug::APP as ATTACHMENT,
        v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration},
    },
    snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot},
    volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass},
};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kit::{
    Task, served,
    store::{self, Store, Watch},
};
use kube::{Api, Client, Resource, discovery::ApiResource, runtime::watcher};
use serde::{Serialize, de::DeserializeOwned};

pub(crate) use changes::Changes;
use changes::Heard;
use lost::LostNodes;

use crate::{
    facts::{copies, index, put_back, trim},
    tracking,
};

/// The copies of objects; filled by [`watch`].
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
        };
        (stores, changes)
    }

    /// Fills the stores and tells `changes`, for as long as the tasks are held. The KubeVirt object is that in `namespace`.
    pub(crate) fn watch(&self, client: &Client, namespace: &str, changes: Changes) -> Vec<Task<()>> {
        let app = |app: &str| watcher::Config::default().labels(&format!("{}={app}", label::APP));
        let launchers = Watch { config: app(label::APP_VIRT_LAUNCHER), trim: trim::pod, index: index::pod_indexes };
        let attachments = Watch { config: app(ATTACHMENT), trim: trim::attachment, index: index::attachment_indexes };
        let put_backs = Watch { config: labelled(put_back::PUT_BACK), index: put_back::indexes, ..Watch::default() };
        let nodes = Watch { config: labelled(label::SCHEDULABLE), trim: trim::node, ..Watch::default() };
        let claims = Watch { trim: trim::claim, index: index::claim_indexes, ..Watch::default() };
        let kubevirts = Watch { trim: trim::kubevirt, index: tracking::indexes, ..Watch::default() };
        let kubevirt: Api<KubeVirt> = Api::namespaced(client.clone(), namespace);
        vec![
            watch(client, by(index::vm_indexes), &self.vms, changes.vms),
            watch(client, by(index::vmi_indexes), &self.vmis, changes.vmis),
            watch(client, launchers, &self.pods, changes.pods),
            watch(client, attachments, &self.attachments, changes.attachments),
            watch(client, claims, &self.claims, changes.claims),
            watch_if_served(client, Watch::default(), &self.data_volumes, changes.data_volumes),
            watch(client, put_backs, &self.put_backs, changes.put_backs),
            watch(client, Watch::default(), &self.storage_classes, changes.storage_classes),
            watch_if_served(client, Watch::default(), &self.snapshot_classes, changes.snapshot_classes),
            watch_if_served(
                client,
                by(copies::volume_snapshot_indexes),
                &self.volume_snapshots,
                changes.volume_snapshots,
            ),
            watch(client, by(copies::snapshot_indexes), &self.snapshots, changes.snapshots),
            watch(client, by(copies::restore_indexes), &self.restores, changes.restores),
            watch(client, by(copies::backup_indexes), &self.backups, changes.backups),
            watch(client, by(copies::tracker_indexes), &self.trackers, changes.trackers),
            watch(client, by(copies::export_indexes), &self.exports, changes.exports),
            watch(client, nodes, &self.nodes, changes.nodes),
            watch_in(kubevirt, kubevirts, &self.kubevirts, changes.kubevirts),
            watch(client, by(index::migration_indexes), &self.migrations, changes.migrations),
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

fn watch<K>(client: &Client, how: Watch<K>, store: &Store<K>, heard: Heard<K>) -> Task<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
{
    watch_in(Api::all(client.clone()), how, store, heard)
}

fn watch_in<K>(api: Api<K>, how: Watch<K>, store: &Store<K>, mut heard: Heard<K>) -> Task<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
{
    store::watch(api, how, store.clone(), move |change| heard.tell(&change))
}

/// Where there is no such kind, nobody waits for one.
fn watch_if_served<K>(client: &Client, how: Watch<K>, store: &Store<K>, mut heard: Heard<K>) -> Task<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
{
    let (api, resource) = (Api::all(client.clone()), ApiResource::erase::<K>(&()));
    served::watch(client, &resource, api, how, store.clone(), move |change| heard.tell(&change))
}
