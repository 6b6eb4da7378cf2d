//! Which of a VMI's pods has the guest. While it migrates there are two. Pure.

use std::collections::BTreeMap;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState as State};
use k8s_openapi::api::core::v1::Pod;

use crate::facts::launcher::{self, is_down, job};
use crate::facts::migration_state;

/// The pod that has the guest, or is to start it: the one on the VMI's node, and before there is a node the one that no
/// migration made. Two pods of a guest are never on one node, except beside one that has ended or is ending.
pub fn active<'a>(vmi: &VirtualMachineInstance, pods: &'a [Pod]) -> Option<&'a Pod> {
    let node = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
    let own = |pod: &&Pod| if node.is_empty() { job(pod).is_none() } else { node_of(pod) == node };
    pods.iter().filter(own).min_by_key(|pod| (launcher::ended(pod), is_down(pod)))
}

/// The pod that may yet take the guest over from the active one: the target of a migration that is under way, or that
/// has moved the guest without the target's node having said so yet.
pub fn successor<'a>(vmi: &VirtualMachineInstance, pods: &'a [Pod]) -> Option<&'a Pod> {
    let state =
        migration_state::of(vmi).filter(|state| migration_state::started(state) && !migration_state::failed(state))?;
    if migration_state::taken_over(vmi, state) {
        return None;
    }
    let name = state.target_pod.as_deref()?;
    pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name) && !is_down(pod))
}

/// The guest runs in its successor's pod, though its node has not taken it over yet.
pub fn arrived(vmi: &VirtualMachineInstance, pods: &[Pod]) -> bool {
    let runs = |state: &State| migration_state::moved(state) || state.target_node_domain_ready_timestamp.is_some();
    successor(vmi, pods).is_some() && migration_state::of(vmi).is_some_and(runs)
}

/// `status.activePods`: every pod in which the guest is or might be, and its node.
pub fn mapping(vmi: &VirtualMachineInstance, pods: &[Pod]) -> BTreeMap<String, String> {
    let active = active(vmi, pods).and_then(|pod| pod.metadata.uid.as_deref());
    pods.iter()
        .filter(|pod| !node_of(pod).is_empty())
        .filter(|pod| !launcher::ended(pod) || pod.metadata.uid.as_deref() == active)
        .map(|pod| (pod.metadata.uid.clone().unwrap_or_default(), node_of(pod).to_owned()))
        .collect()
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}
