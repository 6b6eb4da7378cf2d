//! The keys under which the stores find what is made of machines: snapshots and what comes of them, copies, backups, exports.
//! Pure.

use api::backup::v1alpha1::{VirtualMachineBackup, VirtualMachineBackupTracker};
use api::export::v1::VirtualMachineExport;
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot};
use kit::store::Key;
use kube::ResourceExt;
use meta::volume_snapshot::VolumeSnapshot;

use super::index::claim_index;

/// Kinds that are exported.
pub mod source {
    /// A claim.
    pub const CLAIM: &str = "PersistentVolumeClaim";
    /// A machine's volumes, and the machine.
    pub const MACHINE: &str = "VirtualMachine";
    /// A snapshot's volumes, and the machine as it was.
    pub const SNAPSHOT: &str = "VirtualMachineSnapshot";
    /// A backup that is pulled.
    pub const BACKUP: &str = "VirtualMachineBackup";
    /// The claims that machines of a template are made of, and the template.
    pub const TEMPLATE: &str = "VirtualMachineTemplate";
}

/// The index value under which snapshots, restores and exports are found by their machine.
pub(crate) fn source_index(vm: &Key) -> String {
    format!("source:{vm}")
}

/// The machine that has this index value.
pub(crate) fn of_source(word: &str) -> Option<Key> {
    let (namespace, name) = word.strip_prefix("source:")?.split_once('/')?;
    Some(Key::new(namespace, name))
}

/// The index value under which backups, their trackers and copies are found by their machine.
pub(crate) fn machine_index(vm: &Key) -> String {
    format!("machine:{vm}")
}

/// The index value under which restores, copies and exports are found by their snapshot.
pub(crate) fn snapshot_index(snapshot: &Key) -> String {
    format!("snapshot:{snapshot}")
}

/// The index value under which backups are found by their tracker.
pub(crate) fn tracker_index(tracker: &Key) -> String {
    format!("tracker:{tracker}")
}

/// The index value under which exports are found by their backup.
pub(crate) fn backup_index(backup: &Key) -> String {
    format!("backup:{backup}")
}

/// Index values of a snapshot: its machine.
pub(crate) fn snapshot_indexes(snapshot: &VirtualMachineSnapshot) -> Vec<String> {
    vec![source_index(&in_namespace_of(snapshot, &snapshot.spec.source.name))]
}

/// The index value of volume snapshots that a content owns.
fn content_index(content: &Key) -> String {
    format!("content:{content}")
}

/// The namespace and the UID of the snapshot whose content has this index value.
pub(crate) fn of_content(word: &str) -> Option<(&str, &str)> {
    let (namespace, content) = word.strip_prefix("content:")?.split_once('/')?;
    Some((namespace, content.strip_prefix("vmsnapshot-content-")?))
}

/// Index values of a volume snapshot: the content that owns it.
pub(crate) fn volume_snapshot_indexes(snapshot: &VolumeSnapshot) -> Vec<String> {
    let owner = snapshot.owner_references().iter().find(|owner| owner.kind == "VirtualMachineSnapshotContent");
    owner.map(|owner| vec![content_index(&in_namespace_of(snapshot, &owner.name))]).unwrap_or_default()
}

/// Index values of a restore: its snapshot, its target, and the claims it makes.
pub(crate) fn restore_indexes(restore: &VirtualMachineRestore) -> Vec<String> {
    let snapshot = in_namespace_of(restore, &restore.spec.virtual_machine_snapshot_name);
    let mut words = vec![snapshot_index(&snapshot), source_index(&in_namespace_of(restore, &restore.spec.target.name))];
    let made = restore.status.iter().flat_map(|status| &status.restores);
    words.extend(made.map(|volume| claim_index(&snapshot.namespace, &volume.persistent_volume_claim)));
    words
}

/// A tracker knows the checkpoints of `backup`.
pub fn is_tracked(backup: &VirtualMachineBackup) -> bool {
    backup.spec.source.kind == "VirtualMachineBackupTracker"
}

/// Index values of a backup: its machine, or the tracker that knows it; and the claim it is written to.
pub(crate) fn backup_indexes(backup: &VirtualMachineBackup) -> Vec<String> {
    let source = in_namespace_of(backup, &backup.spec.source.name);
    let own = if is_tracked(backup) { tracker_index(&source) } else { machine_index(&source) };
    let claim = backup.spec.pvc_name.as_deref().map(|claim| claim_index(&source.namespace, claim));
    std::iter::once(own).chain(claim).collect()
}

/// Index values of a tracker: its machine.
pub(crate) fn tracker_indexes(tracker: &VirtualMachineBackupTracker) -> Vec<String> {
    vec![machine_index(&in_namespace_of(tracker, &tracker.spec.source.name))]
}

/// Index values of an export: its source.
pub(crate) fn export_indexes(export: &VirtualMachineExport) -> Vec<String> {
    let shown = in_namespace_of(export, &export.spec.source.name);
    vec![match export.spec.source.kind.as_str() {
        source::CLAIM => claim_index(&shown.namespace, &shown.name),
        source::SNAPSHOT => snapshot_index(&shown),
        source::BACKUP => backup_index(&shown),
        _ => source_index(&shown),
    }]
}

/// What is called so in the namespace of `object`.
fn in_namespace_of(object: &impl ResourceExt, name: &str) -> Key {
    Key::new(object.namespace().unwrap_or_default(), name)
}
