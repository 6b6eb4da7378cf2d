//! What to do about the disks that come and go, given what the guest has. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::kubevirt::hotplug::{disk, is_named, status, utilities, volumes};
use api::kubevirt::v1::{VirtualMachineInstance, VolumeStatus};
use domain::{DeviceKind, LiveDevice};
use meta::quantity::Amount;

/// A volume that an attachment pod on this node has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attached {
    pub(crate) volume: String,
    /// UID of the pod.
    pub(crate) pod: String,
}

/// What to do, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// To be lent to the launcher.
    pub(crate) lend: Vec<Attached>,
    /// Devices that the guest has, which its launcher is to be allowed still.
    pub(crate) renew: Vec<String>,
    /// The launcher has to compare the domain with the VMI.
    pub(crate) compare: bool,
    /// The launcher has no use for them any more.
    pub(crate) take_back: Vec<String>,
    /// The guest was asked to let go of something: nobody tells when it did not hear.
    pub(crate) waits: bool,
}

/// Whether the guest has the disk of `volume`: with a medium, where it is a drive.
pub(crate) fn has(devices: &[LiveDevice], volume: &str) -> bool {
    devices.iter().any(|device| device.kind == DeviceKind::Disk && device.name == volume && !device.source.is_empty())
}

/// The plan for a guest with these `devices`, whose launcher was lent `lent` and writes to the volumes that `writes` says.
pub(crate) fn plan(
    vmi: &VirtualMachineInstance,
    devices: &[LiveDevice],
    lent: &BTreeSet<String>,
    writes: impl Fn(&str) -> bool,
) -> Plan {
    let mut plan = Plan::default();
    let disks = volumes(&vmi.spec).map(|volume| &volume.name).filter(|volume| disk(&vmi.spec, volume).is_some());
    for volume in disks.map(String::as_str).chain(utilities(&vmi.spec).map(|volume| volume.name)) {
        if has(devices, volume) {
            plan.renew.extend(is_block(vmi, volume).then(|| volume.to_owned()));
            continue;
        }
        let pod = status(vmi, volume)
            .filter(|status| status.phase.as_deref().is_some_and(|phase| !before_attachment(phase)))
            .and_then(|status| status.hotplug_volume.as_ref()?.attach_pod_uid.clone());
        match pod {
            Some(_) if lent.contains(volume) => plan.compare |= disk(&vmi.spec, volume).is_some(),
            Some(pod) => {
                plan.lend.push(Attached { volume: volume.to_owned(), pod });
                plan.compare |= disk(&vmi.spec, volume).is_some();
            }
            None => {}
        }
    }
    let named = |name: &str| is_named(&vmi.spec, name);
    let held = devices.iter().filter(|device| device.kind == DeviceKind::Disk && !device.source.is_empty());
    plan.waits = held.filter(|device| !named(&device.name)).count() > 0;
    let used = |name: &str| named(name) || has(devices, name) || writes(name);
    plan.take_back = lent.iter().filter(|name| !used(name)).cloned().collect();
    plan.compare |= plan.waits || !plan.take_back.is_empty();
    plan
}

fn is_block(vmi: &VirtualMachineInstance, volume: &str) -> bool {
    let mode = |status: &VolumeStatus| status.persistent_volume_claim_info.as_ref()?.volume_mode.clone();
    status(vmi, volume).and_then(mode).as_deref() == Some("Block")
}

/// Volumes whose claims are larger than their disks, and the sizes of the claims.
pub(crate) type Larger = BTreeMap<String, u64>;

/// The volumes of `vmi` whose claims are larger than the disks that the guest has.
pub(crate) fn larger(vmi: &VirtualMachineInstance, devices: &[LiveDevice]) -> Larger {
    let known = devices.iter().filter(|device| device.kind == DeviceKind::Disk && device.size > 0 && !device.readonly);
    let sizes = known.filter_map(|device| {
        let info = status(vmi, &device.name)?.persistent_volume_claim_info.as_ref()?;
        let claim = Amount::try_from(info.capacity.get("storage")?).ok()?.bytes();
        (claim > device.size).then(|| (device.name.clone(), claim))
    });
    sizes.collect()
}

fn before_attachment(phase: &str) -> bool {
    use api::kubevirt::hotplug::phase::{BOUND, PENDING};
    phase.is_empty() || phase == PENDING || phase == BOUND
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vmi(volumes: &[(&str, &str)]) -> VirtualMachineInstance {
        let disks: Vec<_> = volumes.iter().map(|(name, _)| json!({ "name": name })).collect();
        let specs: Vec<_> = volumes
            .iter()
            .map(|(name, _)| json!({ "name": name, "dataVolume": { "name": name, "hotpluggable": true } }))
            .collect();
        let statuses: Vec<_> = volumes
            .iter()
            .map(|(name, phase)| {
                json!({ "name": name, "target": "", "phase": phase, "hotplugVolume": { "attachPodUID": "p" } })
            })
            .collect();
        serde_json::from_value(json!({
            "spec": { "domain": { "devices": { "disks": disks } }, "volumes": specs },
            "status": { "volumeStatus": statuses },
        }))
        .unwrap()
    }

    fn live(names: &[&str]) -> Vec<LiveDevice> {
        let device =
            |name: &&str| LiveDevice { name: (*name).to_owned(), source: "/x".to_owned(), ..LiveDevice::default() };
        names.iter().map(device).collect()
    }

    #[track_caller]
    fn check(volumes: &[(&str, &str)], devices: &[&str], lent: &[&str], expect: (&[&str], bool, &[&str], bool)) {
        let lent = lent.iter().map(|name| (*name).to_owned()).collect();
        let plan = plan(&vmi(volumes), &live(devices), &lent, |_| false);
        let lend: Vec<&str> = plan.lend.iter().map(|attached| attached.volume.as_str()).collect();
        let back: Vec<&str> = plan.take_back.iter().map(String::as_str).collect();
        assert_eq!((lend.as_slice(), plan.compare, back.as_slice(), plan.waits), expect);
    }

    #[test]
    fn a_claim_that_has_grown_is_larger_than_its_disk() {
        let info = json!({ "capacity": { "storage": "2Mi" } });
        let entry = |name: &str| json!({ "name": name, "target": "", "persistentVolumeClaimInfo": info });
        let vmi = json!({ "status": { "volumeStatus": [entry("a"), entry("b")] } });
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        let mut devices = live(&["a", "b", "c"]);
        for (device, size) in devices.iter_mut().zip([1 << 20, 2 << 20, 1]) {
            device.size = size;
        }
        assert_eq!(larger(&vmi, &devices), [("a".to_owned(), 2 << 20)].into());
    }

    #[test]
    fn devices_that_the_guest_has_stay_allowed() {
        let mut vmi = serde_json::to_value(vmi(&[("a", "Ready"), ("b", "Ready"), ("c", "MountedToPod")])).unwrap();
        for (at, mode) in ["Block", "Filesystem", "Block"].iter().enumerate() {
            vmi["status"]["volumeStatus"][at]["persistentVolumeClaimInfo"] = json!({ "volumeMode": mode });
        }
        let plan = plan(&serde_json::from_value(vmi).unwrap(), &live(&["a", "b"]), &BTreeSet::new(), |_| false);
        assert_eq!(plan.renew, ["a"]);
        assert_eq!(plan.lend.iter().map(|attached| attached.volume.as_str()).collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn disks_come_and_go() {
        check(&[], &[], &[], (&[], false, &[], false));
        check(&[("a", "Bound")], &[], &[], (&[], false, &[], false));
        check(&[("a", "AttachedToNode")], &[], &[], (&["a"], true, &[], false));
        check(&[("a", "MountedToPod")], &[], &["a"], (&[], true, &[], false));
        // After a restart of this process, what the guest has is not lent again, and what it lacks is.
        check(&[("a", "Ready"), ("b", "MountedToPod")], &["a"], &[], (&["b"], true, &[], false));
        check(&[("a", "Ready")], &["a"], &["a"], (&[], false, &[], false));
        check(&[], &["a"], &["a"], (&[], true, &[], true));
        check(&[], &[], &["a"], (&[], true, &["a"], false));
        let kept = plan(&vmi(&[]), &[], &["a".to_owned()].into(), |name| name == "a");
        assert_eq!(kept, Plan::default(), "the launcher still writes to it");
    }
}
