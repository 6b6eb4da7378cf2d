//! Volumes that come to a guest and leave it while it runs: which they are, and the words of their way. Pure.
//!
//! ```text
//! Pending --claim bound--> Bound --attachment pod runs--> AttachedToNode --lent to the launcher--> MountedToPod --guest has it--> Ready
//! (gone)  <--pod gone-- UnMountedFromPod <--guest has let go-- Detaching <--taken out of the specification-- Ready
//! ```
//! Of an entry in `status.volumeStatus`, virt-controller writes Pending, Bound, AttachedToNode and Detaching, and takes it
//! away; virt-handler writes the others. Volumes for the launcher itself end at MountedToPod, or go on as [`super::memory_dump`]
//! says.

use super::memory_dump;
use super::v1::{Disk, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume, VolumeStatus};

/// Values of `status.volumeStatus[].phase`.
pub mod phase {
    /// Its claim is not bound.
    pub const PENDING: &str = "Pending";
    /// Its claim is bound, and no attachment pod has it yet.
    pub const BOUND: &str = "Bound";
    /// An attachment pod on the guest's node has it.
    pub const ATTACHED_TO_NODE: &str = "AttachedToNode";
    /// The launcher has it.
    pub const MOUNTED_TO_POD: &str = "MountedToPod";
    /// The guest has it.
    pub const READY: &str = "Ready";
    /// It is to leave the guest.
    pub const DETACHING: &str = "Detaching";
    /// Neither guest nor launcher have it any more.
    pub const UNMOUNTED_FROM_POD: &str = "UnMountedFromPod";
}

/// Values of `status.volumeStatus[].reason`.
pub mod reason {
    /// There is no such claim.
    pub const CLAIM_NOT_FOUND: &str = "FailedPvcNotFound";
    /// The claim cannot be used yet, or no pod has it yet.
    pub const CLAIM_NOT_READY: &str = "PVCNotReady";
    /// The attachment pod was made.
    pub const CREATED: &str = "SuccessfulCreate";
    /// The attachment pod was deleted.
    pub const DELETED: &str = "SuccessfulDelete";
    /// The launcher has it.
    pub const MOUNTED: &str = "VolumeMountedToPod";
    /// The launcher has it no more.
    pub const UNMOUNTED: &str = "VolumeUnMountedFromPod";
    /// The guest has it.
    pub const READY: &str = "VolumeReady";
}

/// The value of the label `kubevirt.io` of attachment pods.
pub const APP: &str = "hotplug-disk";
/// The label of attachment pods that holds the UID of their guest.
pub const GUEST: &str = "ferrovirt.io/hotplug-guest";
/// The container of an attachment pod that holds the volumes.
pub const CONTAINER: &str = "hotplug-disk";
/// The volumes of a VirtualMachineInstance that its VirtualMachine does not have, by name, separated by commas.
pub const EPHEMERAL: &str = "kubevirt.io/ephemeral-hotplug-volumes";
/// The most disks that a guest can have.
pub const MOST_DISKS: usize = 255;

/// The volume comes by an attachment pod, and may come and go while the guest runs.
pub fn is_hotplug(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.hotpluggable);
    let data = volume.data_volume.as_ref().and_then(|data| data.hotpluggable);
    claim.or(data) == Some(true)
}

/// The volumes of `spec` that come and go.
pub fn volumes(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &Volume> {
    spec.volumes.iter().filter(|volume| is_hotplug(volume))
}

/// A volume for the launcher itself, which is no disk of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utility<'a> {
    /// Its name.
    pub name: &'a str,
    /// The claim it is on.
    pub claim: &'a str,
    /// Nothing is written to it.
    pub read_only: bool,
    /// What it is for; empty where that is not said.
    pub kind: &'a str,
}

/// The volumes of `spec` that come to the launcher itself while the guest runs: its utility volumes, and what earlier clients
/// list among the others.
pub fn utilities(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = Utility<'_>> {
    let own = spec.utility_volumes.iter().map(|volume| Utility {
        name: &volume.name,
        claim: &volume.claim_name,
        read_only: volume.read_only == Some(true),
        kind: volume.type_.as_deref().unwrap_or_default(),
    });
    let listed = spec.volumes.iter().filter_map(|volume| {
        let source = volume.memory_dump.as_ref()?;
        Some(Utility { name: &volume.name, claim: &source.claim_name, read_only: false, kind: memory_dump::TYPE })
    });
    own.chain(listed)
}

/// The volume called so is for the launcher itself, and no disk of the guest's.
pub fn is_utility(spec: &VirtualMachineInstanceSpec, volume: &str) -> bool {
    utilities(spec).any(|known| known.name == volume)
}

/// A volume called so is to be there.
pub fn is_named(spec: &VirtualMachineInstanceSpec, volume: &str) -> bool {
    spec.volumes.iter().any(|known| known.name == volume) || is_utility(spec, volume)
}

/// The disk of the volume called so.
pub fn disk<'a>(spec: &'a VirtualMachineInstanceSpec, volume: &str) -> Option<&'a Disk> {
    spec.domain.devices.disks.iter().find(|disk| disk.name == volume)
}

/// `spec` as the guest is started with it: without the volumes that come later, and without their disks. A drive for
/// removable media stays, and is empty.
pub fn at_start(spec: &VirtualMachineInstanceSpec) -> VirtualMachineInstanceSpec {
    let mut out = spec.clone();
    let later = |name: &str| volumes(spec).any(|volume| volume.name == name);
    out.domain.devices.disks.retain(|disk| disk.cdrom.is_some() || !later(&disk.name));
    out.volumes.retain(|volume| !is_hotplug(volume) && volume.memory_dump.is_none());
    out
}

/// What is known of the volume called so.
pub fn status<'a>(vmi: &'a VirtualMachineInstance, volume: &str) -> Option<&'a VolumeStatus> {
    vmi.status.as_ref()?.volume_status.iter().find(|status| status.name == volume)
}

/// The disks that came while the guest ran and that it has: those that are named, and those that it was asked to let go of
/// and has not yet. They are wherever it is.
pub fn carried(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let known = vmi.status.as_ref().map(|status| status.volume_status.as_slice()).unwrap_or_default();
    let held = known.iter().filter(|entry| {
        let is_named = volumes(&vmi.spec).any(|volume| volume.name == entry.name);
        match entry.phase.as_deref() {
            Some(phase::READY) if is_named => true,
            // Until virt-controller has seen that nothing names it, it is Ready.
            Some(phase::READY | phase::DETACHING) => is_leaving(vmi, entry),
            _ => false,
        }
    });
    held.map(|entry| entry.name.as_str())
}

/// Nothing names the disk of this entry any more, and the guest has it still.
pub fn is_leaving(vmi: &VirtualMachineInstance, entry: &VolumeStatus) -> bool {
    entry.hotplug_volume.is_some() && !entry.target.is_empty() && !is_named(&vmi.spec, &entry.name)
}

/// The names in the annotation [`EPHEMERAL`].
pub fn ephemeral(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let listed = vmi.metadata.annotations.as_ref().and_then(|all| all.get(EPHEMERAL)).map(String::as_str);
    listed.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_guest_starts_without_what_comes_later() {
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({
            "domain": { "devices": { "disks": [
                { "name": "root" }, { "name": "data" }, { "name": "media", "cdrom": {} }, { "name": "empty", "cdrom": {} },
            ] } },
            "volumes": [
                { "name": "root", "persistentVolumeClaim": { "claimName": "a" } },
                { "name": "data", "persistentVolumeClaim": { "claimName": "b", "hotpluggable": true } },
                { "name": "media", "dataVolume": { "name": "c", "hotpluggable": true } },
                { "name": "dump", "memoryDump": { "claimName": "dump" } },
            ],
            "utilityVolumes": [{ "name": "out", "claimName": "out", "type": "Backup" }],
        }))
        .unwrap();
        let found = at_start(&spec);
        let disks: Vec<_> = found.domain.devices.disks.iter().map(|disk| disk.name.as_str()).collect();
        assert_eq!(disks, ["root", "media", "empty"]);
        assert_eq!(found.volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["root"]);
        assert_eq!(volumes(&spec).map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["data", "media"]);
        let own: Vec<_> = utilities(&spec).map(|volume| (volume.name, volume.kind)).collect();
        assert_eq!(own, [("out", "Backup"), ("dump", "MemoryDump")]);
    }

    #[test]
    fn attached_hotplug_volumes_migrate_with_the_guest() {
        let entry = |name: &str, phase: &str, target: &str| json!({ "name": name, "phase": phase, "target": target, "hotplugVolume": { "attachPodName": "hp" } });
        let later =
            |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": name, "hotpluggable": true } });
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "spec": { "domain": { "devices": {} }, "volumes": [later("has"), later("comes")] },
            "status": { "volumeStatus": [
                { "name": "root", "target": "vda" },
                entry("has", "Ready", "sda"), entry("comes", "AttachedToNode", ""),
                entry("unseen", "Ready", "sdb"), entry("goes", "Detaching", "sdc"),
                entry("dump", "Detaching", ""), entry("gone", "UnMountedFromPod", ""),
            ] },
        }))
        .unwrap();
        assert_eq!(carried(&vmi).collect::<Vec<_>>(), ["has", "unseen", "goes"]);
    }
}
