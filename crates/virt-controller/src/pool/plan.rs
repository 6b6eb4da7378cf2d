//! What a pool does with its machines in one pass. Pure.
//!
//! ```text
//! heal -> let go -> hold -> make, delete -> write anew -> restart
//! ```

mod healing;
mod rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::time::Duration;

use api::kubevirt::constants::finalizer::FOREGROUND;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolSpec};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::SelectorExt as _;

use super::machine::{index, name};
use super::{FINALIZER, REVISION, selection};
use crate::replicas::{self, BURST};

/// A pool and what there is of it.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The pool.
    pub pool: &'a VirtualMachinePool,
    /// The machines whose controller it is.
    pub machines: &'a [VirtualMachine],
    /// Their instances, by name.
    pub instances: &'a BTreeMap<String, VirtualMachineInstance>,
    /// UIDs of machines that were told to go.
    pub going: &'a BTreeSet<String>,
    /// The revision that its spec is.
    pub revision: &'a str,
    /// What older revisions were.
    pub revisions: &'a BTreeMap<String, VirtualMachinePoolSpec>,
    /// Now.
    pub now: Timestamp,
    /// What chance decides by.
    pub dice: &'a RandomState,
}

/// What to do.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    /// These do not get on and are deleted.
    pub heal: Vec<&'a VirtualMachine>,
    /// These are its own no longer.
    pub detach: Vec<&'a VirtualMachine>,
    /// These are to wait for it when they are deleted.
    pub hold: Vec<&'a VirtualMachine>,
    /// These are being deleted, and wait for it.
    pub release: Vec<&'a VirtualMachine>,
    /// Machines with these numbers are made.
    pub create: Vec<u32>,
    /// These are too many.
    pub delete: Vec<&'a VirtualMachine>,
    /// These get the new spec.
    pub renew: Vec<(&'a VirtualMachine, u32)>,
    /// These are made anew, with their disks.
    pub replace: Vec<&'a VirtualMachine>,
    /// These guests are restarted.
    pub restart: Vec<&'a VirtualMachineInstance>,
    /// These are as the new revision says already.
    pub relabel: Vec<&'a VirtualMachineInstance>,
    /// When to look again though nothing changes.
    pub again: Option<Duration>,
}

impl Plan<'_> {
    /// True when all is as wanted.
    pub fn is_settled(&self) -> bool {
        let counts = [
            self.heal.len(),
            self.detach.len(),
            self.create.len(),
            self.delete.len(),
            self.renew.len(),
            self.replace.len(),
            self.restart.len(),
            self.relabel.len(),
        ];
        counts == [0; 8]
    }
}

/// What is to be done, where `taken` tells whether a machine of any owner has a name.
pub fn plan<'a>(seen: &Seen<'a>, taken: impl Fn(&str) -> bool) -> Plan<'a> {
    let held = |vm: &&VirtualMachine| vm.finalizers().iter().any(|name| name == FINALIZER);
    let mut plan =
        Plan { release: seen.machines.iter().filter(|vm| is_deleted(vm)).filter(held).collect(), ..Plan::default() };
    let Some(selector) = replicas::selector(&seen.pool.spec.selector) else { return plan };
    if seen.pool.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut machines = active(seen.machines, seen.going);
    healing::plan(seen, &machines, &mut plan);
    let healed: BTreeSet<Option<&String>> = plan.heal.iter().map(|vm| vm.metadata.uid.as_ref()).collect();
    machines.retain(|vm| !healed.contains(&vm.metadata.uid.as_ref()));
    plan.detach = machines.iter().copied().filter(|vm| !selector.matches(vm.labels())).collect();
    machines.retain(|vm| selector.matches(vm.labels()));
    plan.hold = machines.iter().copied().filter(|vm| !held(vm)).collect();
    if seen.pool.spec.paused == Some(true) {
        return plan;
    }
    scale(seen, &machines, taken, &mut plan);
    if plan.create.is_empty() && plan.delete.is_empty() {
        rollout::plan(seen, &machines, &mut plan);
    }
    plan
}

fn is_deleted(vm: &VirtualMachine) -> bool {
    vm.metadata.deletion_timestamp.is_some()
}

/// Those that count.
pub fn active<'a>(machines: &'a [VirtualMachine], going: &BTreeSet<String>) -> Vec<&'a VirtualMachine> {
    let gone = |vm: &VirtualMachine| vm.metadata.uid.as_ref().is_some_and(|uid| going.contains(uid));
    machines.iter().filter(|vm| !is_deleted(vm) && !gone(vm)).collect()
}

/// Whether the guest is ready.
pub fn is_ready(vm: &VirtualMachine) -> bool {
    vm.status.as_ref().and_then(|status| status.ready) == Some(true)
}

/// True when the disks of `vm`, which is being deleted, are to outlive it. Who deletes a machine with all that depends on it wants that to go, too.
pub fn keeps_disks(pool: &VirtualMachinePool, vm: &VirtualMachine) -> bool {
    let strategy = pool.spec.scale_in_strategy.as_ref();
    let proactive = strategy.and_then(|strategy| strategy.proactive.as_ref()?.state_preservation.as_deref());
    let opportunistic = strategy.and_then(|strategy| strategy.opportunistic.as_ref()?.state_preservation.as_deref());
    matches!(proactive.or(opportunistic), Some("Offline" | "Online"))
        && pool.metadata.deletion_timestamp.is_none()
        && !vm.finalizers().iter().any(|name| name == FOREGROUND)
}

fn scale<'a>(seen: &Seen<'a>, machines: &[&'a VirtualMachine], taken: impl Fn(&str) -> bool, plan: &mut Plan<'a>) {
    let wanted = replicas::wanted(seen.pool.spec.replicas);
    let pool = seen.pool.name_any();
    if machines.len() < wanted {
        let lacking = (wanted - machines.len()).min(BURST);
        plan.create = (0..).filter(|number| !taken(&name(&pool, *number))).take(lacking).collect();
        return;
    }
    let strategy = seen.pool.spec.scale_in_strategy.as_ref();
    if strategy.is_some_and(|strategy| strategy.unmanaged.is_some() || strategy.opportunistic.is_some()) {
        return;
    }
    let surplus = (machines.len() - wanted).min(BURST);
    if surplus == 0 {
        return;
    }
    let policy = strategy.and_then(|strategy| strategy.proactive.as_ref()?.selection_policy.as_deref());
    let mut chosen = machines.to_vec();
    selection::order(policy, &pool, &mut chosen, seen.dice);
    chosen.truncate(surplus);
    plan.delete = chosen;
}

/// The revision that a machine or an instance is of.
fn revision_of(labels: &BTreeMap<String, String>) -> &str {
    labels.get(REVISION).map(String::as_str).unwrap_or_default()
}

/// The number of a machine of `pool`.
fn number(pool: &VirtualMachinePool, vm: &VirtualMachine) -> Option<u32> {
    index(&pool.name_any(), &vm.name_any())
}

#[cfg(test)]
mod tests;
