//! What a migration waits for before its guest is on the way, for people. Pure.

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

fn waiting(reason: &'static str, message: impl Into<String>) -> Option<Waiting> {
    Some(Waiting { reason, message: message.into() })
}

/// For its guest to run, alone in one pod.
pub(super) fn for_guest() -> Option<Waiting> {
    waiting("GuestNotReady", "the guest does not run yet, or its last migration is being cleared up")
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
