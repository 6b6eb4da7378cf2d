//! What a migration waits for before its guest is on the way, for people. Pure.

use api::kubevirt::hotplug::utilities;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;

use super::queue::Turn;

/// A reason word and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// For programs.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// The reason of a migration that waits for claims of the launcher's.
pub(super) const UTILITY_VOLUMES: &str = "UtilityVolumes";

fn waiting(reason: &'static str, message: impl Into<String>) -> Option<Waiting> {
    Some(Waiting { reason, message: message.into() })
}

/// For its guest to run, alone in one pod.
pub(super) fn for_guest() -> Option<Waiting> {
    waiting("GuestNotReady", "the guest does not run yet, or its last migration is being cleared up")
}

/// For the claims that its launcher has for work of its own: they stay on their node, and are gone when that is done.
pub(super) fn for_backup(guest: &VirtualMachineInstance) -> Option<Waiting> {
    let Some(volume) = utilities(&guest.spec).next() else {
        let backup = backup_of(guest)?;
        return waiting(
            UTILITY_VOLUMES,
            format!("backup {backup} of the guest runs: the guest moves once that is done"),
        );
    };
    let kind = if volume.kind.is_empty() { "utility" } else { volume.kind };
    let message = format!("the launcher writes to PVC {} ({kind}): the guest moves once that is done", volume.claim);
    waiting(UTILITY_VOLUMES, message)
}

/// The backup that has the guest to itself.
pub(super) fn backup_of(guest: &VirtualMachineInstance) -> Option<String> {
    let known = guest.status.as_ref()?.changed_block_tracking.as_ref()?.backup_status.as_ref()?;
    Some(known.backup_name.clone().unwrap_or_default())
}

/// For the time that is kept between attempts.
pub(super) fn for_time() -> Option<Waiting> {
    waiting("BackOff", "earlier attempts to move the guest failed: a while passes before the next")
}

/// For its turn.
pub(super) fn for_turn(turn: Turn, guest: &VirtualMachineInstance) -> Option<Waiting> {
    let limits = "of the KubeVirt object's spec.configuration.migrations";
    match turn {
        Turn::Now => None,
        Turn::Cluster => {
            let message = format!("as many guests are on their way as parallelMigrationsPerCluster {limits} allows");
            waiting("ClusterLimit", message)
        }
        Turn::Node => {
            let node = guest.status.as_ref().and_then(|status| status.node_name.clone()).unwrap_or_default();
            let message =
                format!("as many guests leave node {node} as parallelOutboundMigrationsPerNode {limits} allows");
            waiting("NodeLimit", message)
        }
    }
}

/// For a node that takes its target pod; nothing when one does.
pub(super) fn for_node(target: &Pod) -> Option<Waiting> {
    let conditions = target.status.as_ref().and_then(|status| status.conditions.as_ref());
    let refused = conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False" && c.reason.as_deref() == Some("Unschedulable"))?;
    let why = refused.message.as_deref().filter(|why| !why.is_empty()).unwrap_or("the scheduler does not say why");
    waiting("NoNode", format!("no other node takes the guest: {why}"))
}
