//! What is left to do once a migration is over, or its object gone: the VMI says how it ended, the pod that lost is
//! deleted, the label that called the target's virt-handler is taken back. Pure.

use api::kubevirt::{v1::VirtualMachineInstance, words::label};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{
    plan::{Step, is_down, job},
    state,
};
use crate::vmi::{active, plan as vmi};

/// What is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// To do, in order.
    pub(super) steps: Vec<Step>,
    /// Nothing is left, nor waited for.
    pub(super) done: bool,
}

/// What is left of the migration `uid` of `guest`, whose launcher pods are `pods`.
pub(super) fn settle(uid: &str, guest: &VirtualMachineInstance, pods: &[Pod]) -> Settled {
    let mut steps = Vec::new();
    let gone = vmi::is_final(guest) || guest.metadata.deletion_timestamp.is_some();
    let own = state::ours(guest, uid);
    let target = || pods.iter().find(|pod| job(pod) == Some(uid));
    match own.filter(|_| !gone) {
        Some(own) if !state::over(own) => {
            if !state::started(own) {
                let down = target().is_none_or(is_down);
                let reason = if down { "Target pod is down" } else { "the migration was given up" };
                steps.push(Step::Conclude { reason });
            } else if own.abort_requested != Some(true) {
                steps.push(Step::Abort);
            }
            return Settled { steps, done: false };
        }
        Some(own) if state::moved(own) => {
            if !state::taken_over(guest, own) {
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
            if !gone && state::of(guest).is_none() {
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
