//! Backups that are pulled: once they have begun, QEMU serves them, and an export of their own shows them to whoever has the
//! token, until their time is over or they are deleted. Pure.

use std::time::Duration;

use api::backup::v1alpha1::{BackupVolumeInfo, VirtualMachineBackup, VirtualMachineBackupStatus};
use api::export::constants::{endpoint, phase};
use api::export::v1::{VirtualMachineExport, VirtualMachineExportLink, VirtualMachineExportSpec};
use api::kubevirt::v1::VirtualMachineInstanceBackupStatus as Told;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;

use super::{Outcome, PULL, Step, View, aborting};

/// The kind of backups, in references.
pub const KIND: &str = "VirtualMachineBackup";
/// Their group.
pub const GROUP: &str = "backup.kubevirt.io";
/// How long a backup may be pulled when nobody says.
const GOOD_FOR: Duration = Duration::from_secs(2 * 3600);

/// QEMU serves it.
pub fn is_pulled(backup: &VirtualMachineBackup) -> bool {
    backup.spec.mode.as_deref() == Some(PULL)
}

/// How long it may be pulled yet; none when its time is over.
pub fn left(backup: &VirtualMachineBackup, now: Timestamp) -> Option<Duration> {
    let asked = backup.spec.ttl_duration.as_deref().and_then(kit::duration::parse).unwrap_or(GOOD_FOR);
    let end = backup.creation_timestamp()?.0.checked_add(asked).ok()?;
    Duration::try_from(end.duration_since(now)).ok().filter(|left| !left.is_zero())
}

/// Whoever has the token could pull it.
pub(super) fn was_served(backup: &VirtualMachineBackup) -> bool {
    backup.status.as_ref().is_some_and(|status| status.export_uid.is_some())
}

/// The export that is the backup's own, and not somebody else's of its name.
pub fn is_own(export: &VirtualMachineExport, backup: &VirtualMachineBackup) -> bool {
    export
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == backup.uid().as_ref())
}

/// Its export, good for as long as the backup is.
pub fn export(backup: &VirtualMachineBackup, left: Duration) -> VirtualMachineExport {
    VirtualMachineExport {
        metadata: ObjectMeta {
            name: Some(backup.name_any()),
            namespace: backup.namespace(),
            owner_references: Some(vec![OwnerReference {
                api_version: format!("{GROUP}/v1alpha1"),
                kind: KIND.to_owned(),
                name: backup.name_any(),
                uid: backup.uid().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: VirtualMachineExportSpec {
            source: TypedLocalObjectReference {
                api_group: Some(GROUP.to_owned()),
                kind: KIND.to_owned(),
                name: backup.name_any(),
            },
            token_secret_ref: backup.spec.token_secret_ref.clone(),
            ttl_duration: Some(format!("{}s", left.as_secs().max(1))),
        },
        ..VirtualMachineExport::default()
    }
}

/// What to do for one that QEMU serves.
pub(super) fn serve(view: &View<'_>, told: &Told) -> Step {
    let backup = view.backup;
    if left(backup, view.now).is_none() {
        let why = "pull mode backup TTL has expired: Backup is aborting";
        return if aborting(backup) { Step::Abort } else { Step::Say(Outcome::Aborting(why)) };
    }
    let preparing = |why: Option<String>| {
        Step::Say(Outcome::Preparing { made: Box::new(told.clone()), why: why.unwrap_or_else(|| PREPARING.to_owned()) })
    };
    let known = backup.status.as_deref().map(|status| status.included_volumes.as_slice()).unwrap_or_default();
    match view.export {
        // Its volumes are known before anybody is to show them.
        None if known.is_empty() => preparing(None),
        None => Step::Serve,
        Some(other) if !is_own(other, backup) => {
            let name = backup.name_any();
            preparing(Some(format!("VirtualMachineExport {name} is there and belongs to something else: delete it")))
        }
        Some(export) => match links(export) {
            None => preparing(None),
            Some(link) => Step::Say(Outcome::Served {
                cert: link.cert.clone(),
                volumes: known.iter().map(|volume| linked(volume, link)).collect(),
                export: export.uid().unwrap_or_default(),
            }),
        },
    }
}

const PREPARING: &str = "Backup export is being initialized";

/// By which it is pulled: those from outside of the cluster, where there is a way.
fn links(export: &VirtualMachineExport) -> Option<&VirtualMachineExportLink> {
    let status = export.status.as_ref().filter(|status| status.phase.as_deref() == Some(phase::READY))?;
    let links = status.links.as_ref()?;
    let shows = |link: &&VirtualMachineExportLink| !link.backups.is_empty();
    links.external.as_ref().filter(shows).or(links.internal.as_ref().filter(shows))
}

fn linked(volume: &BackupVolumeInfo, link: &VirtualMachineExportLink) -> BackupVolumeInfo {
    let shown = link.backups.iter().find(|shown| shown.name == volume.volume_name);
    let url = |kind: &str| {
        let found = shown.into_iter().flat_map(|shown| &shown.endpoints).find(|one| one.endpoint == kind);
        found.map(|one| one.url.clone())
    };
    BackupVolumeInfo {
        volume_name: volume.volume_name.clone(),
        data_endpoint: url(endpoint::DATA),
        map_endpoint: url(endpoint::MAP),
    }
}

/// Nothing leads to it any more.
pub(super) fn unlink(status: &mut VirtualMachineBackupStatus) {
    status.endpoint_cert = None;
    for volume in &mut status.included_volumes {
        (volume.data_endpoint, volume.map_endpoint) = (None, None);
    }
}

#[cfg(test)]
mod tests;
