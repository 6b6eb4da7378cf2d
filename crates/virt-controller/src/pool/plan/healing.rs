//! Machines that do not get on: they are deleted, and others are made in their place. Pure.

use std::time::Duration;

use api::kubevirt::v1::VirtualMachine;
use jiff::SignedDuration;
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

/// How long `vm`, which is in trouble, is waited for yet.
fn left(seen: &Seen<'_>, vm: &VirtualMachine, patience: Duration) -> Option<Duration> {
    let status = vm.status.as_ref()?;
    status.printable_status.as_deref().filter(|word| TROUBLE.contains(word))?;
    let ready = conditions::get(&status.conditions, "Ready").filter(|ready| ready.status == "False")?;
    let since = ready.last_probe_time.as_ref().or(ready.last_transition_time.as_ref())?;
    let over = since.0.checked_add(SignedDuration::try_from(patience).ok()?).ok()?;
    // In the past it is no duration.
    Some(Duration::try_from(over.duration_since(seen.now)).unwrap_or_default())
}
