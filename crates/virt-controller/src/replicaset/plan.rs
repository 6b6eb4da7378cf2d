//! Whom a set takes in and lets go, how many instances it lacks, and which ones go first. Pure.

use std::collections::BTreeSet;

use api::kubevirt::constants::{condition, finalizer, phase};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet};
use kit::controller::owner;
use kube::ResourceExt;
use kube::core::{ObjectMeta, SelectorExt as _};
use meta::conditions;

use crate::facts::instance::{is_final, phase_of};
use crate::replicas::{self, BURST};

/// A set and its instances.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The set.
    pub set: &'a ReplicaSet,
    /// Those whose controller it is.
    pub owned: &'a [VirtualMachineInstance],
    /// UIDs of those that were told to go.
    pub going: &'a BTreeSet<String>,
    /// No other is to be made yet: they keep ending.
    pub held: bool,
}

/// What to do.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    /// These become its own.
    pub adopt: Vec<&'a VirtualMachineInstance>,
    /// These are its own no longer.
    pub release: Vec<&'a VirtualMachineInstance>,
    /// So many are made.
    pub create: usize,
    /// These are too many.
    pub delete: Vec<&'a VirtualMachineInstance>,
    /// These have ended.
    pub tidy: Vec<&'a VirtualMachineInstance>,
}

/// Whom `set` takes in of those that nobody owns, and whom it lets go.
pub fn claims<'a>(
    set: &ReplicaSet,
    orphans: &'a [VirtualMachineInstance],
    owned: &'a [VirtualMachineInstance],
) -> Plan<'a> {
    let Some(selector) = replicas::selector(&set.spec.selector) else { return Plan::default() };
    let stays = |vmi: &&VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_none();
    let free = |vmi: &&VirtualMachineInstance| {
        owner::controller_of(&vmi.metadata).is_none()
            && vmi.metadata.namespace == set.metadata.namespace
            && !is_final(vmi)
            && selector.matches(vmi.labels())
    };
    Plan {
        adopt: orphans.iter().filter(stays).filter(free).collect(),
        release: owned.iter().filter(stays).filter(|vmi| !selector.matches(vmi.labels())).collect(),
        ..Plan::default()
    }
}

/// What is made and deleted so that there are as many as wanted.
pub fn plan<'a>(seen: &Seen<'a>) -> Plan<'a> {
    if seen.set.metadata.deletion_timestamp.is_some() || replicas::selector(&seen.set.spec.selector).is_none() {
        return Plan::default();
    }
    let mut active = active(seen.owned, seen.going);
    let wanted = replicas::wanted(seen.set.spec.replicas);
    let mut plan = Plan { tidy: tidy(seen), ..Plan::default() };
    if active.len() < wanted {
        plan.create = if seen.held { 0 } else { (wanted - active.len()).min(BURST) };
    } else {
        active.sort_by_cached_key(|vmi| by_worth(vmi));
        plan.delete = active.iter().copied().take((active.len() - wanted).min(BURST)).collect();
    }
    plan
}

/// True when more or fewer are wanted than there are.
pub fn lacks(set: &ReplicaSet, owned: &[VirtualMachineInstance], going: &BTreeSet<String>) -> bool {
    replicas::selector(&set.spec.selector).is_some() && active(owned, going).len() < replicas::wanted(set.spec.replicas)
}

/// Those that count.
pub fn active<'a>(owned: &'a [VirtualMachineInstance], going: &BTreeSet<String>) -> Vec<&'a VirtualMachineInstance> {
    let gone = |vmi: &VirtualMachineInstance| vmi.metadata.uid.as_ref().is_some_and(|uid| going.contains(uid));
    owned.iter().filter(|vmi| is_active(vmi) && !gone(vmi)).collect()
}

fn is_active(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.deletion_timestamp.is_none() && !has_ended(vmi) && phase_of(vmi) != phase::UNKNOWN && !loses_pod(vmi)
}

/// The guest ended, well or not.
pub fn has_ended(vmi: &VirtualMachineInstance) -> bool {
    is_final(vmi)
}

/// True when the guest is ready.
pub fn is_ready(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, condition::READY))
}

fn loses_pod(vmi: &VirtualMachineInstance) -> bool {
    let ready = vmi.status.as_ref().and_then(|status| conditions::get(&status.conditions, condition::READY));
    ready.is_some_and(|ready| ready.status == "False" && ready.reason.as_deref() == Some("PodTerminating"))
}

fn tidy<'a>(seen: &Seen<'a>) -> Vec<&'a VirtualMachineInstance> {
    let over = |vmi: &&VirtualMachineInstance| {
        vmi.metadata.deletion_timestamp.is_none() && (is_final(vmi) || phase_of(vmi) == phase::UNKNOWN)
    };
    let known = |vmi: &&VirtualMachineInstance| vmi.metadata.uid.as_ref().is_some_and(|uid| seen.going.contains(uid));
    seen.owned.iter().filter(over).filter(|vmi| !known(vmi)).take(BURST).collect()
}

/// Those that come first go first: who serves nobody yet, and then who was made last.
fn by_worth(vmi: &VirtualMachineInstance) -> (bool, bool, std::cmp::Reverse<Option<jiff::Timestamp>>, String) {
    let age = vmi.metadata.creation_timestamp.as_ref().map(|at| at.0);
    (is_ready(vmi), phase_of(vmi) == phase::RUNNING, std::cmp::Reverse(age), vmi.name_any())
}

/// Another instance of `set`; its name is for the API server to choose.
pub fn instance(set: &ReplicaSet) -> VirtualMachineInstance {
    let template = set.spec.template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    annotations.retain(|key, _| !key.starts_with("kubectl.kubernetes.io/"));
    let given = [template.name, template.generate_name];
    let begins = given.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or_else(|| set.name_any());
    VirtualMachineInstance {
        metadata: ObjectMeta {
            generate_name: Some(begins),
            namespace: set.metadata.namespace.clone(),
            labels: template.labels,
            annotations: Some(annotations).filter(|all| !all.is_empty()),
            owner_references: Some(vec![owner::controlled_by(set)]),
            finalizers: Some(vec![finalizer::VMI.into()]),
            ..Default::default()
        },
        spec: set.spec.template.spec.as_deref().cloned().unwrap_or_default(),
        status: None,
    }
}

#[cfg(test)]
mod tests;
