//! What is said of the volumes that come and go, up to the node that has them. Pure.

use std::collections::BTreeSet;

use api::kubevirt::hotplug::{is_named, phase, reason};
use api::kubevirt::v1::{HotplugVolumeStatus, VirtualMachineInstance, VolumeStatus};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::plan::Holder;
use crate::facts::claims::{self, Claims};

/// Volumes that nothing names any more and that the guest may still have.
pub fn used(vmi: &VirtualMachineInstance) -> BTreeSet<String> {
    let known = vmi.status.as_ref().map(|status| status.volume_status.as_slice()).unwrap_or_default();
    let gone = |entry: &&VolumeStatus| entry.phase.as_deref() == Some(phase::UNMOUNTED_FROM_POD);
    let leaving = known.iter().filter(|entry| is_leaving(vmi, entry) && !gone(entry));
    leaving.map(|entry| entry.name.clone()).collect()
}

fn is_leaving(vmi: &VirtualMachineInstance, entry: &VolumeStatus) -> bool {
    entry.hotplug_volume.is_some() && !is_named(&vmi.spec, &entry.name)
}

/// `held` with what `claims` and `holders` say of the volumes of `vmi` that come and go.
pub fn statuses(
    vmi: &VirtualMachineInstance,
    claims: &Claims,
    holders: &[Holder],
    held: &[VolumeStatus],
) -> Vec<VolumeStatus> {
    let mut out = held.to_vec();
    for used in claims::hotplugged(vmi) {
        let known = out.iter().position(|entry| entry.name == used.volume);
        let at = known.unwrap_or_else(|| {
            out.push(VolumeStatus { name: used.volume.to_owned(), ..Default::default() });
            out.len() - 1
        });
        let claim = claims.get(used.claim);
        coming(&mut out[at], used.claim, claim, holders);
    }
    out.retain_mut(|entry| !is_leaving(vmi, entry) || going(entry, holders));
    out
}

/// A volume that is named.
fn coming(entry: &mut VolumeStatus, name: &str, claim: Option<&PersistentVolumeClaim>, holders: &[Holder]) {
    if let Some(claim) = claim {
        entry.persistent_volume_claim_info = Some(Box::new(claims::info(claim)));
    }
    let has = |holder: &&Holder| holder.is_live() && holder.has(&entry.name, name);
    let named = entry.hotplug_volume.as_ref().and_then(|held| held.attach_pod_uid.clone());
    // The one that is named already, else one that runs.
    let best = |holder: &&Holder| (Some(&holder.uid) == named.as_ref(), holder.runs);
    let holder = holders.iter().filter(has).max_by_key(best);
    entry.hotplug_volume = Some(HotplugVolumeStatus {
        attach_pod_name: holder.map(|holder| holder.name.clone()),
        attach_pod_uid: holder.map(|holder| holder.uid.clone()),
    });
    // What the node has said since is the node's.
    let before = [phase::PENDING, phase::BOUND, phase::ATTACHED_TO_NODE, phase::DETACHING, phase::UNMOUNTED_FROM_POD];
    if entry.phase.as_deref().is_some_and(|reached| !reached.is_empty() && !before.contains(&reached)) {
        return;
    }
    let volume = entry.name.clone();
    match (holder, claim) {
        (Some(holder), _) if holder.runs => {
            let message = format!("Created hotplug attachment pod {}, for volume {volume}", holder.name);
            say(entry, phase::ATTACHED_TO_NODE, reason::CREATED, message);
        }
        (_, None) => say(entry, phase::PENDING, reason::CLAIM_NOT_FOUND, format!("PVC {name} not found")),
        (_, Some(claim)) => {
            let word = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
            let reached = if word == "Bound" { phase::BOUND } else { phase::PENDING };
            say(entry, reached, reason::CLAIM_NOT_READY, format!("PVC is in phase {word}"));
        }
    }
}

/// A volume that is not named any more; false when nothing is left to say of it.
fn going(entry: &mut VolumeStatus, holders: &[Holder]) -> bool {
    let held = holders.iter().find(|holder| holder.volumes.iter().any(|(name, _)| *name == entry.name));
    let volume = entry.name.clone();
    match (entry.phase.as_deref(), held) {
        (Some(phase::UNMOUNTED_FROM_POD), None) => return false,
        (Some(phase::UNMOUNTED_FROM_POD), Some(holder)) if holder.ending => {
            let message = format!("Deleted hotplug attachment pod {}, for volume {volume}", holder.name);
            say(entry, phase::UNMOUNTED_FROM_POD, reason::DELETED, message);
        }
        (Some(phase::UNMOUNTED_FROM_POD | phase::DETACHING), _) => {}
        _ => say(entry, phase::DETACHING, "", format!("Volume {volume} is being detached from the virtual machine")),
    }
    true
}

fn say(entry: &mut VolumeStatus, phase: &str, reason: &str, message: String) {
    entry.phase = Some(phase.to_owned());
    entry.reason = (!reason.is_empty()).then(|| reason.to_owned());
    entry.message = Some(message);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn holder(runs: bool, ending: bool) -> Holder {
        let volumes = [("data".to_owned(), "disk".to_owned())].into();
        Holder { name: "hp".into(), uid: "u".into(), volumes, runs, ending, ended: false }
    }

    fn claim(phase: &str) -> Claims {
        let claim = json!({ "metadata": { "name": "disk" }, "status": { "phase": phase } });
        [("disk".to_owned(), serde_json::from_value(claim).unwrap())].into()
    }

    /// The phase after `before`, and the pod's name.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(named: bool, before: Value, claims: &Claims, holders: &[Holder], expect: Option<(&str, Option<&str>)>) {
        let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "disk", "hotpluggable": true } });
        let volumes = if named { json!([volume]) } else { json!([]) };
        let vmi = json!({ "spec": { "volumes": volumes }, "status": { "volumeStatus": before } });
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        let held = vmi.status.as_ref().unwrap().volume_status.clone();
        let found = statuses(&vmi, claims, holders, &held);
        let pod = |entry: &VolumeStatus| entry.hotplug_volume.as_ref().and_then(|held| held.attach_pod_name.clone());
        let found = found.first().map(|entry| (entry.phase.clone().unwrap_or_default(), pod(entry)));
        assert_eq!(found, expect.map(|(phase, pod)| (phase.to_owned(), pod.map(str::to_owned))));
    }

    #[test]
    fn a_volume_on_its_way_to_the_guest() {
        let none = || json!([]);
        check(true, none(), &Claims::new(), &[], Some(("Pending", None)));
        check(true, none(), &claim("Pending"), &[], Some(("Pending", None)));
        check(true, none(), &claim("Bound"), &[], Some(("Bound", None)));
        check(true, none(), &claim("Bound"), &[holder(false, false)], Some(("Bound", Some("hp"))));
        check(true, none(), &claim("Bound"), &[holder(true, false)], Some(("AttachedToNode", Some("hp"))));
        check(true, none(), &claim("Bound"), &[holder(true, true)], Some(("Bound", None)));
        let ready = json!([{ "name": "data", "target": "sda", "phase": "Ready", "hotplugVolume": {} }]);
        check(true, ready, &claim("Bound"), &[holder(true, false)], Some(("Ready", Some("hp"))));
    }

    #[test]
    fn a_volume_on_its_way_out() {
        let entry = |phase: &str| json!([{ "name": "data", "target": "", "phase": phase, "hotplugVolume": { "attachPodName": "hp" } }]);
        check(false, entry("Ready"), &Claims::new(), &[holder(true, false)], Some(("Detaching", Some("hp"))));
        let out = "UnMountedFromPod";
        check(false, entry(out), &Claims::new(), &[holder(true, false)], Some((out, Some("hp"))));
        check(false, entry(out), &Claims::new(), &[holder(true, true)], Some((out, Some("hp"))));
        check(false, entry(out), &Claims::new(), &[], None);
        // One that was part of the guest from the start is none of these.
        let fixed = json!([{ "name": "data", "target": "vda" }]);
        check(false, fixed, &Claims::new(), &[], Some(("", None)));
    }
}
