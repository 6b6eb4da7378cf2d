//! Who hears of a change.

use api::{
    backup::v1alpha1::{VirtualMachineBackup, VirtualMachineBackupTracker},
    cdi::v1beta1::DataVolume,
    export::v1::VirtualMachineExport,
    kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration},
    snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot},
    volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass},
};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kit::store::Change;

/// The subscribers of each of the stores, under the store's name.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) vms: Heard<VirtualMachine>,
    pub(crate) vmis: Heard<VirtualMachineInstance>,
    pub(crate) pods: Heard<Pod>,
    pub(crate) attachments: Heard<Pod>,
    pub(crate) claims: Heard<PersistentVolumeClaim>,
    pub(crate) data_volumes: Heard<DataVolume>,
    pub(crate) put_backs: Heard<PersistentVolume>,
    pub(crate) storage_classes: Heard<StorageClass>,
    pub(crate) snapshot_classes: Heard<VolumeSnapshotClass>,
    pub(crate) volume_snapshots: Heard<VolumeSnapshot>,
    pub(crate) snapshots: Heard<VirtualMachineSnapshot>,
    pub(crate) restores: Heard<VirtualMachineRestore>,
    pub(crate) backups: Heard<VirtualMachineBackup>,
    pub(crate) trackers: Heard<VirtualMachineBackupTracker>,
    pub(crate) exports: Heard<VirtualMachineExport>,
    pub(crate) nodes: Heard<Node>,
    pub(crate) kubevirts: Heard<KubeVirt>,
    pub(crate) migrations: Heard<VirtualMachineInstanceMigration>,
}

/// Those who hear of the changes of one kind. A change is lent to one after the other, after the store has it.
pub(crate) struct Heard<K>(Vec<Box<dyn FnMut(&Change<'_, K>) + Send>>);

impl<K> Default for Heard<K> {
    fn default() -> Self {
        Heard(Vec::new())
    }
}

impl<K> Heard<K> {
    /// From the first list on, `hear` is called with every change. It must not wait for anything.
    pub(crate) fn subscribe(&mut self, hear: impl FnMut(&Change<'_, K>) + Send + 'static) {
        self.0.push(Box::new(hear));
    }

    pub(super) fn tell(&mut self, change: &Change<'_, K>) {
        self.0.iter_mut().for_each(|hear| hear(change));
    }
}
