//! The keys by which the stores find snapshots. Pure.

use api::snapshot::v1beta1::VirtualMachineSnapshot;
use kube::ResourceExt;

use api::volume_snapshot::VolumeSnapshot;

/// The index key of snapshots of a machine.
pub(crate) fn source_key(namespace: &str, vm: &str) -> String {
    format!("source:{namespace}/{vm}")
}

/// Index keys of a snapshot: its source.
pub(crate) fn snapshot_keys(snapshot: &VirtualMachineSnapshot) -> Vec<String> {
    vec![source_key(&snapshot.namespace().unwrap_or_default(), &snapshot.spec.source.name)]
}

/// The index key of volume snapshots that a content owns.
pub(crate) fn content_key(namespace: &str, content: &str) -> String {
    format!("content:{namespace}/{content}")
}

/// The namespace and the UID of the snapshot whose content has this index key.
pub(crate) fn of_content(key: &str) -> Option<(&str, &str)> {
    let (namespace, content) = key.strip_prefix("content:")?.split_once('/')?;
    Some((namespace, content.strip_prefix("vmsnapshot-content-")?))
}

/// Index keys of a volume snapshot: the content that owns it.
pub(crate) fn volume_snapshot_keys(snapshot: &VolumeSnapshot) -> Vec<String> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let owner = snapshot.owner_references().iter().find(|owner| owner.kind == "VirtualMachineSnapshotContent");
    owner.map(|owner| vec![content_key(&namespace, &owner.name)]).unwrap_or_default()
}
