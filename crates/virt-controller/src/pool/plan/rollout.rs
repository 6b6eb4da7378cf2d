//! How machines become what the pool says now: their specs at once, their guests a few at a time. Pure.

use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::pool::v1beta1::VirtualMachinePoolSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::{Plan, Seen, is_ready, number, revision_of};
use crate::pool::selection;
use crate::replicas::{self, BURST};

/// Until guests that may not be restarted yet are looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// What an instance of an older revision needs.
enum Need {
    /// Its disks are to be others.
    Replacement,
    /// The guest is to be another.
    Restart,
    /// Nothing that it would notice.
    Nothing,
}

pub(super) fn plan<'a>(seen: &Seen<'a>, machines: &[&'a VirtualMachine], plan: &mut Plan<'a>) {
    let strategy = seen.pool.spec.update_strategy.as_ref();
    if strategy.is_some_and(|strategy| strategy.unmanaged.is_some()) {
        return;
    }
    let outdated = machines.iter().filter(|vm| revision_of(vm.labels()) != seen.revision);
    plan.renew = outdated.filter_map(|vm| Some((*vm, number(seen.pool, vm)?))).take(BURST).collect();
    if strategy.is_some_and(|strategy| strategy.opportunistic.is_some()) {
        return;
    }
    let (mut changed, mut replaced) = (Vec::new(), Vec::new());
    for vm in machines.iter().filter(|vm| revision_of(vm.labels()) == seen.revision) {
        let Some(vmi) = instance(seen, vm).filter(|vmi| revision_of(vmi.labels()) != seen.revision) else { continue };
        match need(seen.revisions.get(revision_of(vmi.labels())), &seen.pool.spec) {
            Need::Nothing => plan.relabel.push(vmi),
            Need::Restart => changed.push(*vm),
            Need::Replacement => {
                changed.push(*vm);
                replaced.push(vm.metadata.uid.as_ref());
            }
        }
    }
    let policy = strategy.and_then(|strategy| strategy.proactive.as_ref()?.selection_policy.as_deref());
    selection::order(policy, &seen.pool.name_any(), &mut changed, seen.dice);
    // Who serves nobody can be restarted at no cost.
    changed.sort_by_key(|vm| is_ready(vm));
    let away = machines.iter().filter(|vm| !is_ready(vm) && is_to_run(seen, vm)).count();
    let mut budget = most_unavailable(&seen.pool.spec).saturating_sub(away);
    for vm in changed.into_iter().take(BURST) {
        if is_ready(vm) {
            if budget == 0 {
                plan.again = plan.again.into_iter().chain([LOOK_AGAIN]).min();
                break;
            }
            budget -= 1;
        }
        if replaced.contains(&vm.metadata.uid.as_ref()) {
            plan.replace.push(vm);
        } else {
            plan.restart.extend(instance(seen, vm));
        }
    }
}

/// The instance of `vm` that is not on its way out.
fn instance<'a>(seen: &Seen<'a>, vm: &VirtualMachine) -> Option<&'a VirtualMachineInstance> {
    let vmi = seen.instances.get(&vm.name_any())?;
    let own = vm.metadata.uid.as_deref().is_some_and(|uid| replicas::is_of(vmi, uid));
    Some(vmi).filter(|vmi| own && vmi.metadata.deletion_timestamp.is_none())
}

/// A machine that is switched off is not missed.
fn is_to_run(seen: &Seen<'_>, vm: &VirtualMachine) -> bool {
    let word = vm.status.as_ref().and_then(|status| status.printable_status.as_deref());
    seen.instances.contains_key(&vm.name_any()) || word != Some("Stopped")
}

fn need(old: Option<&VirtualMachinePoolSpec>, new: &VirtualMachinePoolSpec) -> Need {
    let of = |spec: &VirtualMachinePoolSpec| spec.virtual_machine_template.spec.clone().unwrap_or_default();
    // What nobody knows any more is taken for another.
    let Some((old, renamed)) = old.map(|old| (of(old), old.name_generation != new.name_generation)) else {
        return Need::Restart;
    };
    let new = of(new);
    if old.data_volume_templates != new.data_volume_templates {
        return Need::Replacement;
    }
    let same = old.template == new.template
        && old.instancetype == new.instancetype
        && old.preference == new.preference
        && !renamed;
    if same { Need::Nothing } else { Need::Restart }
}

/// How many machines may be away.
fn most_unavailable(spec: &VirtualMachinePoolSpec) -> usize {
    let wanted = replicas::wanted(spec.replicas);
    let percent = |percent: usize| (wanted.saturating_mul(percent.min(100)) / 100).max(1);
    match &spec.max_unavailable {
        None => percent(100),
        Some(IntOrString::Int(count)) => usize::try_from(*count).unwrap_or(0).max(1),
        Some(IntOrString::String(text)) => {
            percent(text.strip_suffix('%').and_then(|number| number.parse().ok()).unwrap_or(100))
        }
    }
}
