//! What is left to do once a migration is over, or its object gone: the VMI says how it ended, the pod that lost is
//! deleted, the label that called the target's virt-handler is taken back. Pure.

use api::kubevirt::constants::label;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::facts::launcher::{is_down, job};
use crate::facts::{active, instance, migration_state};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the source's virt-handler to stop.
    Abort,
    /// Say on the VMI that nothing was moved: no handler had begun.
    Conclude {
        /// `failureReason`.
        reason: &'static str,
    },
    /// Take the target's node out of the VMI's labels.
    Unlabel,
    /// Delete a pod.
    DeletePod {
        /// Its name.
        name: String,
        /// Why, as an event says it.
        why: String,
    },
}

/// What is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// To do, in order.
    pub(crate) steps: Vec<Step>,
    /// Nothing is left, nor waited for.
    pub(crate) done: bool,
}

/// What is left of the migration `uid` of `guest`, whose launcher pods are `pods`.
pub(crate) fn settle(uid: &str, guest: &VirtualMachineInstance, pods: &[Pod]) -> Settled {
    let mut steps = Vec::new();
    let gone = instance::is_final(guest) || guest.metadata.deletion_timestamp.is_some();
    let own = migration_state::ours(guest, uid);
    let target = || pods.iter().find(|pod| job(pod) == Some(uid));
    match own.filter(|_| !gone) {
        Some(own) if !migration_state::over(own) => {
            if !migration_state::started(own) {
                let down = target().is_none_or(is_down);
                let reason = if down { "Target pod is down" } else { "the migration was given up" };
                steps.push(Step::Conclude { reason });
            } else if own.abort_requested != Some(true) {
                steps.push(Step::Abort);
            }
            return Settled { steps, done: false };
        }
        Some(own) if migration_state::moved(own) => {
            if !migration_state::taken_over(guest, own) {
                return Settled::default();
            }
            let lost = pods.iter().filter(|pod| own.source_pod.is_some() && pod.metadata.name == own.source_pod);
            delete(lost, "the guest was moved out of it", &mut steps);
            unlabel(guest, own.target_node.as_deref(), &mut steps);
        }
        Some(own) => {
            lost_target(uid, guest, pods, &mut steps);
            unlabel(guest, own.target_node.as_deref(), &mut steps);
        }
        None => {
            lost_target(uid, guest, pods, &mut steps);
            // Without a migration on the VMI nobody is called by the label.
            if !gone && migration_state::of(guest).is_none() {
                unlabel(guest, None, &mut steps);
            }
        }
    }
    Settled { done: steps.is_empty(), steps }
}

fn lost_target(uid: &str, guest: &VirtualMachineInstance, pods: &[Pod], steps: &mut Vec<Step>) {
    let holds_guest = active::active(guest, pods).and_then(|pod| pod.metadata.uid.clone());
    let lost = pods.iter().filter(|pod| job(pod) == Some(uid) && pod.metadata.uid != holds_guest);
    delete(lost, "the guest was not moved into it", steps);
}

fn delete<'a>(pods: impl Iterator<Item = &'a Pod>, why: &str, steps: &mut Vec<Step>) {
    let standing = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    steps.extend(standing.map(|pod| {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let why = format!("migration pod {namespace}/{name} is deleted: {why}");
        Step::DeletePod { name, why }
    }));
}

/// Takes the label back, unless it calls another node than `node`.
fn unlabel(guest: &VirtualMachineInstance, node: Option<&str>, steps: &mut Vec<Step>) {
    let called = guest.labels().get(label::MIGRATION_TARGET_NODE);
    if called.is_some_and(|called| node.is_none_or(|node| called == node)) {
        steps.push(Step::Unlabel);
    }
}
