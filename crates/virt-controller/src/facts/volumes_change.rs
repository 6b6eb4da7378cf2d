//! What an instance says of the claims that its disks are to be copied into. Pure.
//!
//! ```text
//!   (none) --asked--> migratedVolumes, VolumesChange True --handed over--> copied by a migration --moved--> switched: (none)
//!                           |          ^------------- the migration failed ---------'
//!                           `--template reverted--> VolumesChange False, until no migration copies any more --> (none)
//! ```
//! An instance names the claims that have its disks, whatever is being copied: whoever reads it finds the data. Which
//! migration copies is written with the hand-over to the nodes, so that an earlier one is not taken for it.

use api::kubevirt::constants::condition;
use api::kubevirt::v1::{
    DataVolumeSource, PersistentVolumeClaimVolumeSource, StorageMigratedVolumeInfo, VirtualMachineInstance,
    VirtualMachineInstanceStatus, Volume,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::{remove, set};

use crate::facts::instance::is_final;
use crate::facts::{claims, migration_state};

/// On an instance whose disks are to be copied into other claims: the UID of the migration that does it, or nothing yet.
pub const COPIED_BY: &str = "ferrovirt.io/volumes-copied-by";
/// What the condition says while they are.
pub const MESSAGE: &str = "migrate volumes";
/// The reason of the condition when that was taken back.
pub const CANCELLED: &str = "VolumesChangeCancellation";

/// The claim that is named by `info`, if one is.
pub fn named(info: Option<&api::kubevirt::v1::PersistentVolumeClaimInfo>) -> Option<&str> {
    info?.claim_name.as_deref()
}

/// The claim a disk is copied out of.
pub fn source(moved: &StorageMigratedVolumeInfo) -> &str {
    named(moved.source_pvc_info.as_deref()).unwrap_or_default()
}

/// The claim a disk is copied into.
pub fn destination(moved: &StorageMigratedVolumeInfo) -> &str {
    named(moved.destination_pvc_info.as_deref()).unwrap_or_default()
}

/// How large the claim is that a disk is copied into is known.
pub fn has_size(moved: &StorageMigratedVolumeInfo) -> bool {
    moved.destination_pvc_info.as_ref().is_some_and(|info| info.capacity.contains_key("storage"))
}

/// The migration that copies, empty while none does; none when nothing was asked for.
pub fn copier(vmi: &VirtualMachineInstance) -> Option<&str> {
    vmi.metadata.annotations.as_ref()?.get(COPIED_BY).map(String::as_str)
}

/// What was asked for, taken back or not.
pub fn asked(vmi: &VirtualMachineInstance) -> &[StorageMigratedVolumeInfo] {
    let listed = vmi.status.as_ref().map(|status| status.migrated_volumes.as_slice()).unwrap_or_default();
    if copier(vmi).is_some() { listed } else { &[] }
}

/// It was asked for and not taken back.
pub fn is_wanted(vmi: &VirtualMachineInstance) -> bool {
    let status = vmi.status.as_ref();
    let change = status.and_then(|status| status.conditions.iter().find(|c| c.type_ == condition::VOLUMES_CHANGE));
    copier(vmi).is_some() && change.is_some_and(|change| change.status == "True")
}

/// The claim that the next migration copies the disk of `volume` into.
pub fn destination_of<'a>(vmi: &'a VirtualMachineInstance, volume: &str) -> Option<&'a str> {
    let asked = if is_wanted(vmi) { asked(vmi) } else { &[] };
    asked.iter().find(|moved| moved.volume_name == volume).map(destination)
}

/// A migration that copies was handed over to the nodes, and is not over.
pub fn is_under_way(vmi: &VirtualMachineInstance) -> bool {
    copier(vmi).is_some_and(|uid| migration_state::ours(vmi, uid).is_some_and(|state| !migration_state::over(state)))
}

/// The disks were copied, and the guest runs on the copies.
pub fn has_arrived(vmi: &VirtualMachineInstance) -> bool {
    copier(vmi).is_some_and(|uid| migration_state::ours(vmi, uid).is_some_and(migration_state::moved))
}

/// Whether the volumes of `pod` lie on the claims that `vmi` names: what was asked for may have changed since it was made.
pub fn fits(vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let held = |name: &str| {
        let volume = volumes.iter().find(|volume| volume.name == name);
        volume.and_then(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
    };
    claims::of(vmi).all(|used| held(used.volume).is_none_or(|claim| claim == used.claim))
}

/// What is to be done about an instance for which disks were to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It is to name the claims that its disks are on now.
    Switch,
    /// What was asked for was taken back, and nobody copies any more.
    Forget,
    /// The migration failed: the next one may try.
    Release,
}

/// What is to be done about `vmi`, if something is.
pub fn settle(vmi: &VirtualMachineInstance) -> Option<Settlement> {
    let copier = copier(vmi)?;
    if has_arrived(vmi) {
        // The target's node first says that the guest is there, unless it has ended since.
        let settled =
            is_final(vmi) || migration_state::of(vmi).is_some_and(|state| migration_state::taken_over(vmi, state));
        return settled.then_some(Settlement::Switch);
    }
    if is_under_way(vmi) {
        return None;
    }
    if !is_wanted(vmi) {
        return Some(Settlement::Forget);
    }
    (!copier.is_empty()).then_some(Settlement::Release)
}

/// The status of an instance that is asked to have its disks copied.
pub fn ask(status: &mut VirtualMachineInstanceStatus, moved: Vec<StorageMigratedVolumeInfo>, now: Timestamp) {
    status.migrated_volumes = moved;
    set(&mut status.conditions, condition::VOLUMES_CHANGE, "True", None, Some(MESSAGE), &Time(now));
}

/// The status of an instance once that is taken back.
pub fn take_back(status: &mut VirtualMachineInstanceStatus, now: Timestamp) {
    set(&mut status.conditions, condition::VOLUMES_CHANGE, "False", Some(CANCELLED), None, &Time(now));
}

/// The status of an instance whose disks were copied.
pub fn done(status: &mut VirtualMachineInstanceStatus) {
    status.migrated_volumes.clear();
    remove(&mut status.conditions, condition::VOLUMES_CHANGE);
}

/// The volumes of `vmi` on the claims that their disks were copied into. `is_data_volume` says what a claim was made by.
pub fn switched(vmi: &VirtualMachineInstance, is_data_volume: impl Fn(&str) -> bool) -> Vec<Volume> {
    let mut volumes = vmi.spec.volumes.clone();
    for moved in asked(vmi) {
        let Some(volume) = volumes.iter_mut().find(|volume| volume.name == moved.volume_name) else { continue };
        let claim = destination(moved).to_owned();
        let held = volume.persistent_volume_claim.take();
        let hotpluggable = is_hotpluggable(volume, held.as_ref());
        volume.data_volume = None;
        if is_data_volume(&claim) {
            volume.data_volume = Some(DataVolumeSource { name: claim, hotpluggable });
        } else {
            let held = held.unwrap_or_default();
            let source = PersistentVolumeClaimVolumeSource { claim_name: claim, hotpluggable, ..held };
            volume.persistent_volume_claim = Some(source);
        }
    }
    volumes
}

/// Whether a volume on this claim, or data volume, may come and go.
pub(crate) fn is_hotpluggable(volume: &Volume, claim: Option<&PersistentVolumeClaimVolumeSource>) -> Option<bool> {
    let data = volume.data_volume.as_ref().and_then(|data| data.hotpluggable);
    claim.and_then(|claim| claim.hotpluggable).or(data)
}
