//! How far a pod is in getting the size that its guest is to have. Pure.
//!
//! | condition HotVCPUChange, HotMemoryChange | the guest |
//! |---|---|
//! | none | has what its instance says |
//! | `PodResized` | is given it, or asked to give it back, by the node's agent |
//! | `PodResizeInProgress` | waits for its pod |
//! | `PodResizeDeferred` | waits for room on its node, or for a migration |
//! | `PodNotResizable` | waits for a migration |

use std::collections::BTreeMap;

use api::kubevirt::constants::{condition, resize};
use api::kubevirt::size::{Topology, guest_memory};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::{remove, set};
use meta::quantity::Amount;
use serde_json::{Value, json};

use crate::facts::launcher;

/// What of a container's resources can be changed in place.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// In what the guest differs from its instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// In its CPUs.
    pub cpus: bool,
    /// In its memory.
    pub memory: bool,
}

impl Change {
    /// In one of them.
    pub fn is_any(self) -> bool {
        self.cpus || self.memory
    }
}

/// How far the pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// It is as large as it was asked to be.
    Made,
    /// The node is at it; with what it says.
    Coming(String),
    /// The node has no room now; with what it says.
    Deferred(String),
    /// It will not be that large; with why.
    Never(String),
}

/// Sockets, cores and threads that the guest is known to have.
fn current(vmi: &VirtualMachineInstance) -> Option<Topology> {
    let known = vmi.status.as_ref()?.current_cpu_topology.as_ref()?;
    let count = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    Some(Topology { sockets: count(known.sockets)?, cores: count(known.cores)?, threads: count(known.threads)? })
}

/// The memory that was last asked of the guest.
fn requested(vmi: &VirtualMachineInstance) -> Option<Amount> {
    Amount::try_from(vmi.status.as_ref()?.memory.as_ref()?.guest_requested.as_ref()?).ok()
}

/// The memory that the guest uses, where that changes while it runs: then all sizes are whole blocks.
fn used(vmi: &VirtualMachineInstance) -> Option<Amount> {
    vmi.spec.domain.memory.as_ref()?.max_guest.as_ref()?;
    Amount::try_from(vmi.status.as_ref()?.memory.as_ref()?.guest_current.as_ref()?).ok()
}

/// In what the guest differs from what `vmi` says. One that uses more than that has yet to give it back.
pub fn change(vmi: &VirtualMachineInstance) -> Change {
    let (wanted, memory) = (Topology::of(&vmi.spec.domain), guest_memory(&vmi.spec.domain));
    Change {
        cpus: current(vmi).is_some_and(|current| current.vcpus() != wanted.vcpus()),
        memory: requested(vmi).is_some_and(|requested| requested != memory)
            || used(vmi).is_some_and(|used| used > memory),
    }
}

/// Whether a change is told of in the conditions.
pub fn is_told(vmi: &VirtualMachineInstance) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|c| [condition::VCPU_CHANGE, condition::MEMORY_CHANGE].contains(&c.type_.as_str()))
}

/// `vmi` with all that its guest has or is to have: a guest that shrinks needs its pod as it is until it has.
pub fn largest(vmi: &VirtualMachineInstance) -> VirtualMachineInstance {
    let mut largest = vmi.clone();
    let domain = &mut largest.spec.domain;
    let wanted = Topology::of(domain);
    if let Some(current) = current(vmi).filter(|current| current.sockets > wanted.sockets) {
        domain.cpu.get_or_insert_default().sockets = i64::try_from(current.sockets).ok();
    }
    let asked = guest_memory(domain);
    if let Some(memory) = requested(vmi).max(used(vmi)).filter(|most| *most > asked) {
        domain.memory.get_or_insert_default().guest = Some(memory.to_binary());
    }
    largest
}

/// The resources of the guest's container.
pub fn compute(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == "compute")?.resources.as_ref()
}

type List = BTreeMap<String, Quantity>;

fn resizable(list: Option<&List>) -> BTreeMap<&str, Amount> {
    let kept = list.into_iter().flatten().filter(|(name, _)| RESIZABLE.contains(&name.as_str()));
    kept.filter_map(|(name, quantity)| Some((name.as_str(), Amount::try_from(quantity).ok()?))).collect()
}

/// What is to be changed of the pod's spec for its guest's container to have `wanted`; none when it has. What was never limited stays
/// so, and what was does: neither can be changed in place.
pub fn patch(pod: &Pod, wanted: &ResourceRequirements) -> Option<Value> {
    let held = compute(pod).cloned().unwrap_or_default();
    let differs = |held: Option<&List>, wanted: Option<&List>| -> List {
        let before = resizable(held);
        let known = wanted.into_iter().flatten();
        known
            .filter(|(name, quantity)| {
                let before = before.get(name.as_str());
                before.is_some() && Amount::try_from(*quantity).is_ok_and(|wanted| before != Some(&wanted))
            })
            .map(|(name, quantity)| (name.clone(), quantity.clone()))
            .collect()
    };
    let requests = differs(held.requests.as_ref(), wanted.requests.as_ref());
    let limits = differs(held.limits.as_ref(), wanted.limits.as_ref());
    if requests.is_empty() && limits.is_empty() {
        return None;
    }
    let resources = json!({ "requests": requests, "limits": limits });
    Some(json!({ "containers": [{ "name": "compute", "resources": resources }] }))
}

/// How far the node is with what the pod's spec says.
pub fn room(pod: &Pod) -> Room {
    let told = |kind: &str| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")
    };
    if let Some(pending) = told("PodResizePending") {
        let message = pending.message.clone().unwrap_or_default();
        return match pending.reason.as_deref() {
            Some("Infeasible") => Room::Never(message),
            _ => Room::Deferred(message),
        };
    }
    if let Some(progress) = told("PodResizeInProgress") {
        return Room::Coming(progress.message.clone().unwrap_or_default());
    }
    let spec = compute(pod).cloned().unwrap_or_default();
    let Some(status) = launcher::compute(pod) else { return Room::Coming(String::new()) };
    // A node that resizes no pods does not say what it has allocated: the pod has what it was made with.
    let Some(allocated) = &status.allocated_resources else { return Room::Made };
    let allocated = resizable(Some(allocated));
    let actual = status.resources.clone().unwrap_or_default();
    let limits = resizable(spec.limits.as_ref());
    // What a node applies of requests is rounded: that it has allocated them is what counts.
    let has = resizable(spec.requests.as_ref()) == allocated && limits == resizable(actual.limits.as_ref());
    if has { Room::Made } else { Room::Coming(String::new()) }
}

/// Says in the conditions how far the guest is.
pub fn tell(status: &mut VirtualMachineInstanceStatus, change: Change, room: &Room, now: Timestamp) {
    let or = |message: &str, otherwise: &str| {
        if message.is_empty() { otherwise.to_owned() } else { message.to_owned() }
    };
    let (reason, message) = match room {
        Room::Made => (resize::MADE, "the launcher pod has the size that the guest is to have".to_owned()),
        Room::Coming(message) => (resize::IN_PROGRESS, or(message, "the node is resizing the launcher pod")),
        Room::Deferred(message) => (resize::DEFERRED, or(message, "the node has no room at present")),
        Room::Never(why) => {
            let remedy = "migrate the guest, or restart it";
            (resize::IMPOSSIBLE, format!("{}: {remedy}", or(why, "the node cannot give the launcher pod this size")))
        }
    };
    for (kind, differs) in [(condition::VCPU_CHANGE, change.cpus), (condition::MEMORY_CHANGE, change.memory)] {
        if differs {
            set(&mut status.conditions, kind, "True", Some(reason), Some(&message), &Time(now));
        } else {
            remove(&mut status.conditions, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(requests: Value, limits: Value, status: Value) -> Pod {
        let resources = json!({ "requests": requests, "limits": limits });
        serde_json::from_value(json!({
            "spec": { "containers": [{ "name": "compute", "resources": resources }] },
            "status": status,
        }))
        .unwrap()
    }

    #[track_caller]
    fn check_patch(held: (Value, Value), wanted: (Value, Value), expect: Option<Value>) {
        let wanted = serde_json::from_value(json!({ "requests": wanted.0, "limits": wanted.1 })).unwrap();
        let found = patch(&pod(held.0, held.1, json!({})), &wanted);
        assert_eq!(found.map(|patch| patch["containers"][0]["resources"].clone()), expect);
    }

    #[test]
    fn only_what_differs_and_can_be_resized_is_asked_for() {
        let held =
            || (json!({ "cpu": "100m", "memory": "1Gi", "ephemeral-storage": "50M" }), json!({ "memory": "2Gi" }));
        check_patch(held(), held(), None);
        check_patch(held(), (json!({ "cpu": "0.1", "memory": "1024Mi" }), json!({})), None);
        let wanted = (
            json!({ "cpu": "200m", "memory": "2Gi", "ephemeral-storage": "1G" }),
            json!({ "memory": "4Gi", "cpu": "2" }),
        );
        let expect = json!({ "requests": { "cpu": "200m", "memory": "2Gi" }, "limits": { "memory": "4Gi" } });
        check_patch(held(), wanted, Some(expect));
    }

    #[track_caller]
    fn check_room(conditions: Value, allocated: Value, expect: &Room) {
        let status = json!({ "conditions": conditions, "containerStatuses": [{
            "name": "compute", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": allocated, "resources": { "limits": { "memory": "2Gi" } },
        }] });
        assert_eq!(room(&pod(json!({ "cpu": "2", "memory": "1Gi" }), json!({ "memory": "2Gi" }), status)), *expect);
    }

    #[test]
    fn the_node_says_how_far_it_is() {
        let told =
            |kind: &str, reason: &str| json!([{ "type": kind, "status": "True", "reason": reason, "message": "m" }]);
        check_room(json!([]), json!({ "cpu": "2000m", "memory": "1Gi" }), &Room::Made);
        check_room(json!([]), json!({ "cpu": "1", "memory": "1Gi" }), &Room::Coming(String::new()));
        check_room(json!([]), Value::Null, &Room::Made);
        check_room(told("PodResizeInProgress", ""), json!({ "cpu": "2", "memory": "1Gi" }), &Room::Coming("m".into()));
        check_room(told("PodResizePending", "Deferred"), json!({ "cpu": "1" }), &Room::Deferred("m".into()));
        check_room(told("PodResizePending", "Infeasible"), json!({ "cpu": "1" }), &Room::Never("m".into()));
    }
}
