//! What follows from a template that names other claims than the running instance does. Pure.
//!
//! | `updateVolumesStrategy` | changed claim | what follows |
//! |---|---|---|
//! | none, Replacement | of a volume that comes and goes | unplugged and plugged in again ([`crate::vm::hotplug`]) |
//! | none, Replacement | any other | the machine has to be restarted |
//! | any | of a medium of a drive | exchanged |
//! | Migration | any other | copied by a migration, where that can be; else the machine has to be restarted |
//!
//! The sentences are KubeVirt's where it has any: clients look for them.

use std::collections::BTreeMap;

use api::cdi::constants::phase as data_phase;
use api::kubevirt::constants::{condition, phase};
use api::kubevirt::hotplug::{disk, is_hotplug};
use api::kubevirt::v1::{
    PersistentVolumeClaimInfo, StorageMigratedVolumeInfo, VirtualMachine, VirtualMachineInstance, Volume,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::facts::claims::{self, Claims};
use crate::facts::data_volumes::DataVolumes;
use crate::facts::instance::phase_of;
use crate::facts::stand_ins::{self, size_of};
use crate::facts::volumes_change;

const MIGRATION: &str = "Migration";
const REPLACEMENT: &str = "Replacement";
/// A claim that one node reaches, and whose disk a guest does not leave behind.
const ALONE: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];

/// Why a machine has to be restarted whose claims are exchanged.
pub const REPLACED: &str = "the volumes replacement is effective only after restart";
/// Why a change is not acted on while disks are copied.
pub const ONLY_BACK: &str = "The volume can only be reverted to the previous version during the update";

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Update {
    /// Nothing.
    #[default]
    None,
    /// The instance is asked to have these disks copied.
    Copy(Vec<StorageMigratedVolumeInfo>),
    /// What it was asked for is taken back.
    TakeBack,
    /// It can only be done by a restart, and why.
    Restart(String),
    /// It is not done as it stands, and why; what is waited for may come.
    Refuse(String),
}

/// What is known.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The machine.
    pub vm: &'a VirtualMachine,
    /// Its instance.
    pub vmi: &'a VirtualMachineInstance,
    /// The claims that either names.
    pub claims: &'a Claims,
    /// The data volumes that the machine names.
    pub data: &'a DataVolumes,
}

/// The administrator of the machine wants changed claims to be copied.
pub fn migrates(vm: &VirtualMachine) -> bool {
    vm.spec.update_volumes_strategy.as_deref() == Some(MIGRATION)
}

/// A volume whose claim is changed: by name, the claim it is on and the one it is to be on.
struct Changed<'a> {
    volume: &'a Volume,
    from: &'a str,
    to: &'a str,
}

/// What follows for the volumes that machine and instance both have.
pub fn plan(view: &View<'_>) -> Update {
    let changed = changed(view);
    if volumes_change::copier(view.vmi).is_some() {
        return while_asked(view, &changed);
    }
    if changed.is_empty() {
        return Update::None;
    }
    match view.vm.spec.update_volumes_strategy.as_deref() {
        Some(MIGRATION) if phase_of(view.vmi) != phase::RUNNING => Update::None,
        Some(MIGRATION) => copy(view, &changed),
        None | Some("" | REPLACEMENT) => Update::Restart(REPLACED.to_owned()),
        Some(other) => Update::Refuse(format!("updateVolumes strategy not recognized: {other}")),
    }
}

/// Volumes on claims in both, on different ones: what only comes or goes, and media, are not meant here.
fn changed<'a>(view: &View<'a>) -> Vec<Changed<'a>> {
    let Some(template) = view.vm.spec.template.spec.as_deref() else { return Vec::new() };
    let exchanged = |volume: &Volume| {
        let is_medium = disk(&view.vmi.spec, &volume.name).is_some_and(|disk| disk.cdrom.is_some());
        is_hotplug(volume) && (is_medium || !migrates(view.vm))
    };
    let volumes = template.volumes.iter().filter(|volume| !exchanged(volume));
    let pairs = volumes.filter_map(|volume| {
        let to = claims::of_volume(volume)?.claim;
        let held = view.vmi.spec.volumes.iter().find(|held| held.name == volume.name)?;
        Some(Changed { volume, from: claims::of_volume(held)?.claim, to })
    });
    pairs.filter(|pair| !is_same(view.claims, pair.from, pair.to)).collect()
}

/// A disk that moved with its guest is known by the claim it was made with.
fn is_same(claims: &Claims, held: &str, named: &str) -> bool {
    held == named || claims.get(held).is_some_and(|claim| stand_ins::root(claim) == named)
}

/// Until all of it is done, what was asked for can only be taken back as a whole.
fn while_asked(view: &View<'_>, changed: &[Changed<'_>]) -> Update {
    let asked = volumes_change::asked(view.vmi);
    let to = |moved: &StorageMigratedVolumeInfo| changed.iter().find(|pair| pair.volume.name == moved.volume_name);
    let goes_on = |moved: &StorageMigratedVolumeInfo| {
        // Right after the switch the instance has the new claim already.
        to(moved).is_none_or(|pair| pair.to == volumes_change::destination(moved))
    };
    let others = changed.iter().filter(|pair| !asked.iter().any(|moved| moved.volume_name == pair.volume.name)).count();
    let all_back = changed.is_empty();
    if volumes_change::has_arrived(view.vmi) {
        return Update::None;
    }
    match volumes_change::is_wanted(view.vmi) {
        true if all_back => Update::TakeBack,
        true if others == 0 && changed.len() == asked.len() && asked.iter().all(goes_on) => Update::None,
        true => Update::Refuse(ONLY_BACK.to_owned()),
        false => Update::None,
    }
}

/// Asks for the disks to be copied, if they can be.
fn copy(view: &View<'_>, changed: &[Changed<'_>]) -> Update {
    if let Some(why) = unfit(view, changed) {
        return Update::Restart(why);
    }
    if let Some(why) = unmovable(view, changed) {
        return Update::Restart(why);
    }
    let mut moved: Vec<StorageMigratedVolumeInfo> = Vec::new();
    for pair in changed {
        match destination(view, pair) {
            Ok(target) if moved.iter().any(|other| volumes_change::destination(other) == pair.to) => {
                let name = target.claim_name.unwrap_or_default();
                return Update::Refuse(format!("PVC {name} can take the disk of one volume, and two name it"));
            }
            Ok(target) => moved.push(StorageMigratedVolumeInfo {
                volume_name: pair.volume.name.clone(),
                source_pvc_info: view.claims.get(pair.from).map(|claim| {
                    // By the name that the template would say it with.
                    Box::new(PersistentVolumeClaimInfo {
                        claim_name: Some(stand_ins::root(claim)),
                        ..claims::info(claim)
                    })
                }),
                destination_pvc_info: Some(Box::new(target)),
            }),
            Err(why) => return Update::Refuse(why),
        }
    }
    Update::Copy(moved)
}

/// Volumes that a migration cannot copy, by what they are.
fn unfit(view: &View<'_>, changed: &[Changed<'_>]) -> Option<String> {
    let mut found: BTreeMap<(u8, &str), Vec<&str>> = BTreeMap::new();
    for pair in changed {
        let name = pair.volume.name.as_str();
        let Some(disk) = disk(&view.vmi.spec, name) else {
            found.entry((0, "filesystems")).or_default().push(name);
            continue;
        };
        let held = view.vmi.spec.volumes.iter().find(|held| held.name == name).and_then(claims::of_volume);
        let read_only = disk.cdrom.is_some()
            || disk.disk.as_ref().is_some_and(|target| target.readonly == Some(true))
            || held.is_some_and(|used| used.read_only);
        let what = if disk.shareable == Some(true) {
            (1, "shareable")
        } else if disk.lun.is_some() {
            (2, "luns")
        } else if read_only {
            (3, "read-only")
        } else if is_filled_in_place(view, pair) {
            (4, "DV storage class isn't a CSI or not using volume populators")
        } else {
            continue;
        };
        found.entry(what).or_default().push(name);
    }
    let told: Vec<String> = found.iter().map(|((_, what), names)| format!(" {what}: [{}]", names.join(" "))).collect();
    (!told.is_empty()).then(|| format!("invalid volumes to update with migration:{}", told.concat()))
}

/// The claim of a data volume that is not done is written to by others, where no volume populator fills it beforehand.
fn is_filled_in_place(view: &View<'_>, pair: &Changed<'_>) -> bool {
    let Some(data) = pair.volume.data_volume.as_ref().and_then(|source| view.data.get(&source.name)) else {
        return false;
    };
    let is_done = data.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(data_phase::SUCCEEDED);
    let populated = view.claims.get(pair.to).and_then(|claim| claim.spec.as_ref()?.data_source_ref.as_ref());
    !is_done && view.claims.contains_key(pair.to) && populated.is_none()
}

/// Why the guest cannot be moved without what else it has, or at all.
fn unmovable(view: &View<'_>, changed: &[Changed<'_>]) -> Option<String> {
    let status = view.vmi.status.as_deref()?;
    let held = |kind: &str| status.conditions.iter().find(|c| c.type_ == kind && c.status == "False");
    if let Some(no) = held(condition::STORAGE_LIVE_MIGRATABLE) {
        let message = no.message.as_deref().unwrap_or_default();
        return Some(format!("cannot migrate the volumes as the VMI isn't migratable: {message}"));
    }
    let goes = |name: &str| changed.iter().any(|pair| pair.volume.name == name);
    let alone = |info: &PersistentVolumeClaimInfo| info.access_modes.iter().any(|mode| ALONE.contains(&mode.as_str()));
    // What is no volume of the guest's, as the state of its firmware, goes its own way.
    let named = |name: &str| view.vmi.spec.volumes.iter().any(|volume| volume.name == name);
    let stays = status.volume_status.iter().find(|known| {
        let alone = known.persistent_volume_claim_info.as_deref().is_some_and(alone);
        alone && named(&known.name) && !goes(&known.name)
    })?;
    Some(format!("cannot migrate the VM. The volume {} is RWO and not included in the migration volumes", stays.name))
}

/// The claim that the disk is to be copied into, if it is there and large enough.
fn destination(view: &View<'_>, pair: &Changed<'_>) -> Result<PersistentVolumeClaimInfo, String> {
    let namespace = view.vm.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(data) = pair.volume.data_volume.as_ref()
        && let Some(known) = view.data.get(&data.name)
    {
        let phase = known.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let ready = [data_phase::SUCCEEDED, data_phase::WAIT_FOR_FIRST_CONSUMER, data_phase::PENDING_POPULATION];
        if !ready.contains(&phase) {
            return Err(format!("DataVolume {namespace}/{} is in phase {phase:?}: it is waited for", data.name));
        }
    }
    let Some(target) = view.claims.get(pair.to).filter(|claim| claim.metadata.deletion_timestamp.is_none()) else {
        return Err(format!("PVC {namespace}/{} does not exist, waiting for it to appear", pair.to));
    };
    let used = claims::of(view.vmi).find(|used| used.claim == pair.to);
    if let Some(used) = used {
        return Err(format!("PVC {namespace}/{} is the disk of volume {} already", pair.to, used.volume));
    }
    if let Some(holder) = stand_ins::moved_to(target) {
        return Err(format!("PVC {namespace}/{}: its disk moved with a guest and is on PVC {holder}", pair.to));
    }
    let (needed, there) = (size(view, pair), capacity(target));
    if there < needed {
        return Err(format!(
            "PVC {namespace}/{} has {there} B, less than the {needed} B of the disk of volume {}: choose a larger one",
            pair.to, pair.volume.name
        ));
    }
    Ok(claims::info(target))
}

/// Bytes of the disk, as far as they are known.
fn size(view: &View<'_>, pair: &Changed<'_>) -> u64 {
    let known = api::kubevirt::hotplug::status(view.vmi, &pair.volume.name).and_then(|status| status.size);
    let known = known.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
    known.or_else(|| view.claims.get(pair.from).map(capacity)).unwrap_or_default()
}

fn capacity(claim: &PersistentVolumeClaim) -> u64 {
    size_of(&stand_ins::size(claim))
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
