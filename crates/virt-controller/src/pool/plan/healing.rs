//! Machines that do not get on: they are deleted, and others are made in their place. Pure.

use std::time::Duration;

use api::kubevirt::v1::VirtualMachine;
use jiff::SignedDuration;
use kube::ResourceExt;
use meta::conditions;

use super::{Plan, Seen};
use crate::replicas::BURST;

/// Failed starts in a row, when the pool does not say how many.
const STARTS: i64 = 3;

/// For how long a machine may be in trouble, when the pool does not say.
const PATIENCE: Duration = Duration::from_secs(300);

/// The words of machines that may never start by themselves.
const TROUBLE: [&str; 6] = [
    "CrashLoopBackOff",
    "ErrorUnschedulable",
    "DataVolumeError",
    "ErrorPvcNotFound",
    "ErrImagePull",
    "ImagePullBackOff",
];

/// True while `vm` may never start by itself.
pub fn is_in_trouble(vm: &VirtualMachine) -> bool {
    vm.status.as_ref().is_some_and(|status| {
        let not_ready = || conditions::get(&status.conditions, "Ready").is_some_and(|ready| ready.status == "False");
        status.printable_status.as_deref().is_some_and(|word| TROUBLE.contains(&word)) && not_ready()
    })
}

pub(super) fn plan<'a>(seen: &Seen<'a>, machines: &[&'a VirtualMachine], plan: &mut Plan<'a>) {
    let Some(strategy) = &seen.pool.spec.autohealing else { return };
    let starts = strategy.start_up_failure_threshold.unwrap_or(STARTS);
    let patience = strategy.min_failing_to_start_duration.as_deref().and_then(kit::duration::parse);
    let patience = patience.unwrap_or(PATIENCE);
    for vm in machines {
        let Some(status) = &vm.status else { continue };
        let failed = status.start_failure.as_ref().and_then(|failure| failure.consecutive_fail_count);
        if i64::from(failed.unwrap_or(0)) >= starts {
            plan.heal.push(vm);
        } else if let Some(left) = left(seen, vm, patience) {
            if left.is_zero() {
                plan.heal.push(vm);
            } else {
                plan.again = plan.again.into_iter().chain([left]).min();
            }
        }
    }
    plan.heal.truncate(BURST);
}

/// How long `vm`, if it is in trouble, is waited for yet: from the beginning of its trouble on, and of its newest start.
fn left(seen: &Seen<'_>, vm: &VirtualMachine, patience: Duration) -> Option<Duration> {
    let began = *seen.troubles.get(vm.metadata.uid.as_deref()?)?;
    let vmi = seen.instances.get(&vm.name_any());
    let started = vmi.and_then(|vmi| vmi.metadata.creation_timestamp.as_ref()).map_or(began, |at| at.0);
    let over = began.max(started).checked_add(SignedDuration::try_from(patience).ok()?).ok()?;
    // In the past it is no duration.
    Some(Duration::try_from(over.duration_since(seen.now)).unwrap_or_default())
}
