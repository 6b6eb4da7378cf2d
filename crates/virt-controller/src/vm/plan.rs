//! What to do about a virtual machine: its run strategy and the requests against its instance. Pure.
//!
//! | strategy | no VMI | VMI ended well | VMI failed | stop request |
//! |---|---|---|---|---|
//! | Always | start | delete, start | delete, start after back-off | delete, start |
//! | RerunOnFailure | start when newly so, or asked | delete | delete, start after back-off | delete |
//! | Manual | start when asked | delete when a start is asked | same | delete |
//! | Once | start | leave | leave | delete |
//! | Halted | - | delete | delete | delete |
//! | WaitAsReceiver | refused by [`unserved`] | leave | leave | delete |

use std::time::Duration;

use api::kubevirt::constants::{finalizer, phase, run_strategy};
use api::kubevirt::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineStartFailure, VirtualMachineStateChangeRequest,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::backoff::Backoff;

use crate::facts::instance;
use crate::facts::machine::strategy;
use crate::facts::nodes::NODE_UNRESPONSIVE;

/// Start, in `status.stateChangeRequests`.
pub const START: &str = "Start";
/// Stop, in `status.stateChangeRequests`.
pub const STOP: &str = "Stop";

const RESTART: Backoff = Backoff { base: Duration::from_secs(10), max: Duration::from_secs(300) };
/// A guest that ran this long before it crashed starts a new count.
const STABLE: SignedDuration = SignedDuration::from_secs(300);

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make sure the VM waits for its instance when it is deleted.
    Hold,
    /// Create the instance.
    Start {
        /// With its CPUs stopped.
        paused: bool,
    },
    /// Delete the instance.
    Stop,
    /// Let the deleted instance go: its end has been seen.
    ReleaseInstance,
    /// Let the deleted VM go.
    Release,
}

/// What to do and what to remember.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// Why no instance is made.
    pub trouble: Option<String>,
    /// `status.stateChangeRequests` afterwards.
    pub requests: Vec<VirtualMachineStateChangeRequest>,
    /// `status.startFailure` afterwards.
    pub failure: Option<VirtualMachineStartFailure>,
    /// Look again after this long.
    pub again: Option<Duration>,
}

/// Why no instance is made of `vm` as it is written, if none is: it would lack what the VM names.
pub fn unserved(vm: &VirtualMachine) -> Option<String> {
    // Its guest would boot instead.
    (strategy(vm) == run_strategy::WAIT_AS_RECEIVER).then(|| {
        "spec.runStrategy WaitAsReceiver cannot be used in this version: no machine is received from another cluster"
            .to_owned()
    })
}

/// Everything a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The machine.
    pub vm: &'a VirtualMachine,
    /// Its instance.
    pub vmi: Option<&'a VirtualMachineInstance>,
    /// An instance of its name belongs to somebody else.
    pub is_name_taken: bool,
    /// Its disks are filled and where they are to be.
    pub has_disks: bool,
    /// The time.
    pub now: Timestamp,
}

/// The plan.
pub fn plan(view: View<'_>) -> Plan {
    let mut plan = of(view);
    if view.is_name_taken {
        let name = view.vm.metadata.name.as_deref().unwrap_or_default();
        plan.trouble = Some(format!(
            "VirtualMachineInstance {name} exists and belongs to something else: delete it, or rename this VM"
        ));
    }
    plan
}

fn of(view: View<'_>) -> Plan {
    let View { vm, vmi, now, .. } = view;
    if vm.metadata.deletion_timestamp.is_some() {
        return deleting(vm, vmi);
    }
    let mut plan = Plan { requests: requests(vm, vmi), failure: failure(vm, vmi, now), ..Default::default() };
    if !has_finalizer(&vm.metadata.finalizers, finalizer::VM) {
        plan.steps.push(Step::Hold);
    }
    match vmi {
        Some(vmi) if vmi.metadata.deletion_timestamp.is_some() => {
            if has_finalizer(&vmi.metadata.finalizers, finalizer::VM) {
                plan.steps.push(Step::ReleaseInstance);
            }
        }
        Some(vmi) => present(vm, vmi, &mut plan),
        None if view.is_name_taken => {}
        None => absent(view, &mut plan),
    }
    plan
}

fn has_finalizer(finalizers: &Option<Vec<String>>, name: &str) -> bool {
    finalizers.iter().flatten().any(|held| held == name)
}

fn deleting(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Plan {
    let status = vm.status.clone().unwrap_or_default();
    let mut plan = Plan { requests: status.state_change_requests, failure: status.start_failure, ..Default::default() };
    let orphan = has_finalizer(&vm.metadata.finalizers, "orphan");
    match vmi.filter(|_| !orphan) {
        Some(vmi) if vmi.metadata.deletion_timestamp.is_none() => plan.steps.push(Step::Stop),
        Some(vmi) => {
            if has_finalizer(&vmi.metadata.finalizers, finalizer::VM) {
                plan.steps.push(Step::ReleaseInstance);
            }
        }
        None => {
            if has_finalizer(&vm.metadata.finalizers, finalizer::VM) {
                plan.steps.push(Step::Release);
            }
        }
    }
    plan
}

/// The requests that are still to be served.
fn requests(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Vec<VirtualMachineStateChangeRequest> {
    let mut requests = vm.status.as_ref().map(|status| status.state_change_requests.clone()).unwrap_or_default();
    let uid = vmi.and_then(|vmi| vmi.metadata.uid.as_deref());
    if requests.first().is_some_and(|first| first.action == STOP && first.uid.as_deref() != uid) {
        requests.remove(0);
    }
    unserved_requests(&requests, vmi).to_vec()
}

/// What is left of `requests` with `vmi` there: one to start it is served.
pub(super) fn unserved_requests<'a>(
    requests: &'a [VirtualMachineStateChangeRequest],
    vmi: Option<&VirtualMachineInstance>,
) -> &'a [VirtualMachineStateChangeRequest] {
    let alive = vmi.is_some_and(|vmi| !ended(vmi) && vmi.metadata.deletion_timestamp.is_none());
    match requests {
        [first, rest @ ..] if alive && first.action == START => rest,
        all => all,
    }
}

fn ended(vmi: &VirtualMachineInstance) -> bool {
    instance::is_final(vmi)
}

fn present(vm: &VirtualMachine, vmi: &VirtualMachineInstance, plan: &mut Plan) {
    let first = plan.requests.first();
    let stop_asked = first.is_some_and(|request| request.action == STOP && request.uid == vmi.metadata.uid);
    let start_asked = first.is_some_and(|request| request.action == START);
    let failed = instance::phase_of(vmi) == phase::FAILED;
    let stop = stop_asked
        || match strategy(vm) {
            run_strategy::HALTED => true,
            run_strategy::ALWAYS => ended(vmi),
            run_strategy::RERUN_ON_FAILURE => {
                if failed && !plan.requests.iter().any(|request| request.action == START) {
                    let action = START.to_owned();
                    plan.requests.push(VirtualMachineStateChangeRequest { action, ..Default::default() });
                }
                ended(vmi)
            }
            run_strategy::MANUAL => ended(vmi) && start_asked,
            _ => false,
        };
    if stop {
        plan.steps.push(Step::Stop);
    }
}

fn absent(View { vm, has_disks, now, .. }: View<'_>, plan: &mut Plan) {
    let asked = plan.requests.first().filter(|request| request.action == START);
    let status = vm.status.as_ref();
    let observed = status.and_then(|status| status.run_strategy.as_deref()).unwrap_or_default();
    let wanted = strategy(vm);
    let start = match wanted {
        run_strategy::ALWAYS | run_strategy::ONCE | run_strategy::WAIT_AS_RECEIVER => true,
        run_strategy::RERUN_ON_FAILURE => asked.is_some() || observed != wanted,
        run_strategy::MANUAL => asked.is_some(),
        _ => false,
    };
    if !start {
        return;
    }
    let retry = plan.failure.as_ref().and_then(|failure| failure.retry_after_timestamp.as_ref()).map(|at| at.0);
    if let Some(at) = retry.filter(|at| *at > now) {
        plan.again = Duration::try_from(at.duration_since(now)).ok();
        return;
    }
    if let Some(why) = unserved(vm) {
        plan.trouble = Some(why);
        return;
    }
    if !has_disks {
        return;
    }
    let paused = asked.is_some_and(|request| request.data.get("paused").is_some_and(|paused| paused == "true"));
    plan.steps.push(Step::Start { paused });
}

/// Counts instances that failed before the guest was stable; one that was stable, or that ended well, ends the count.
fn failure(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    now: Timestamp,
) -> Option<VirtualMachineStartFailure> {
    let held = vm.status.as_ref().and_then(|status| status.start_failure.clone());
    // Where nothing is started again by itself, there is nothing to hold back.
    if !matches!(strategy(vm), run_strategy::ALWAYS | run_strategy::RERUN_ON_FAILURE) {
        return None;
    }
    let Some(vmi) = vmi else { return held };
    let well = instance::phase_of(vmi) == phase::SUCCEEDED;
    if well || ran_for(vmi, now).is_some_and(|ran| ran >= STABLE) {
        return None;
    }
    // It did not crash: its node was lost. Elsewhere it is started at once.
    if vmi.status.as_ref().and_then(|status| status.reason.as_deref()) == Some(NODE_UNRESPONSIVE) {
        return held;
    }
    let uid = vmi.metadata.uid.clone();
    let counted = held.as_ref().is_some_and(|failure| failure.last_failed_vmiuid == uid);
    let stopped = vmi.metadata.deletion_timestamp.is_some();
    if instance::phase_of(vmi) != phase::FAILED || counted || stopped {
        return held;
    }
    let count = held.and_then(|failure| failure.consecutive_fail_count).unwrap_or(0).saturating_add(1);
    let delay = RESTART.delay(u32::try_from(count).unwrap_or(u32::MAX));
    let retry = SignedDuration::try_from(delay).ok().and_then(|delay| now.checked_add(delay).ok());
    Some(VirtualMachineStartFailure {
        consecutive_fail_count: Some(count),
        last_failed_vmiuid: uid,
        retry_after_timestamp: retry.map(|at| Time(kit::clock::seconds(at))),
    })
}

/// How long the guest ran, as far as the phases tell.
fn ran_for(vmi: &VirtualMachineInstance, now: Timestamp) -> Option<SignedDuration> {
    let phases = &vmi.status.as_ref()?.phase_transition_timestamps;
    let at = |wanted: &[&str]| {
        let found = phases.iter().find(|p| p.phase.as_deref().is_some_and(|phase| wanted.contains(&phase)))?;
        Some(found.phase_transition_timestamp.as_ref()?.0)
    };
    let start = at(&[phase::RUNNING])?;
    Some(at(&[phase::SUCCEEDED, phase::FAILED]).unwrap_or(now).duration_since(start))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(strategy: &str, requests: Value, vmi: Option<Value>, steps: &[Step]) -> Plan {
        let vm = json!({
            "metadata": { "name": "vm", "finalizers": [finalizer::VM] },
            "spec": { "runStrategy": strategy, "template": {} },
            "status": { "stateChangeRequests": requests, "runStrategy": strategy },
        });
        let vm: VirtualMachine = serde_json::from_value(vm).unwrap();
        let vmi: Option<VirtualMachineInstance> = vmi.map(|vmi| serde_json::from_value(vmi).unwrap());
        let plan = plan(view(&vm, vmi.as_ref()));
        assert_eq!(plan.steps, steps, "{plan:?}");
        plan
    }

    fn view<'a>(vm: &'a VirtualMachine, vmi: Option<&'a VirtualMachineInstance>) -> View<'a> {
        View { vm, vmi, is_name_taken: false, has_disks: true, now: NOW.parse().unwrap() }
    }

    #[test]
    fn nothing_is_started_without_its_name_and_its_disks() {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": { "name": "vm", "finalizers": [finalizer::VM] }, "spec": { "running": true, "template": {} },
        }))
        .unwrap();
        assert_eq!(plan(view(&vm, None)).steps.len(), 1);
        let empty = plan(View { has_disks: false, ..view(&vm, None) });
        assert_eq!((empty.steps.as_slice(), empty.trouble), (&[][..], None));
        let taken = plan(View { is_name_taken: true, ..view(&vm, None) });
        assert!(taken.steps.is_empty() && taken.trouble.unwrap().contains("vm exists and belongs to something else"));
    }

    fn vmi(phase: &str) -> Option<Value> {
        Some(json!({ "metadata": { "name": "vm", "uid": "u" }, "status": { "phase": phase } }))
    }

    const RUN: Step = Step::Start { paused: false };

    #[test]
    fn always() {
        check("Always", json!([]), None, &[RUN]);
        check("Always", json!([]), vmi("Running"), &[]);
        check("Always", json!([]), vmi("Succeeded"), &[Step::Stop]);
        check("Always", json!([]), vmi("Failed"), &[Step::Stop]);
    }

    #[test]
    fn halted() {
        check("Halted", json!([]), None, &[]);
        check("Halted", json!([]), vmi("Running"), &[Step::Stop]);
    }

    #[test]
    fn manual_waits_to_be_asked() {
        check("Manual", json!([]), None, &[]);
        check("Manual", json!([{ "action": "Start" }]), None, &[RUN]);
        let paused = Step::Start { paused: true };
        check("Manual", json!([{ "action": "Start", "data": { "paused": "true" } }]), None, &[paused]);
        check("Manual", json!([]), vmi("Succeeded"), &[]);
        check("Manual", json!([{ "action": "Stop", "uid": "u" }]), vmi("Running"), &[Step::Stop]);
        check("Manual", json!([{ "action": "Start" }]), vmi("Succeeded"), &[Step::Stop]);
    }

    #[test]
    fn rerun_on_failure_leaves_a_guest_that_shut_down() {
        check("RerunOnFailure", json!([]), None, &[]);
        let plan = check("RerunOnFailure", json!([]), vmi("Failed"), &[Step::Stop]);
        assert_eq!(plan.requests[0].action, START);
        let plan = check("RerunOnFailure", json!([]), vmi("Succeeded"), &[Step::Stop]);
        assert!(plan.requests.is_empty());
    }

    #[test]
    fn once_leaves_its_only_instance() {
        check("Once", json!([]), None, &[RUN]);
        check("Once", json!([]), vmi("Failed"), &[]);
    }

    #[test]
    fn only_what_starts_by_itself_is_backed_off() {
        for (strategy, counted) in [("Always", true), ("RerunOnFailure", true), ("Manual", false), ("Once", false)] {
            let vm = json!({ "metadata": { "finalizers": [finalizer::VM] }, "spec": { "runStrategy": strategy, "template": {} } });
            let failed = vmi("Failed").map(|vmi| serde_json::from_value(vmi).unwrap());
            let vm = serde_json::from_value(vm).unwrap();
            let plan = plan(view(&vm, failed.as_ref()));
            assert_eq!(plan.failure.is_some(), counted, "{strategy}");
        }
    }

    #[test]
    fn a_receiver_is_not_started() {
        let plan = check("WaitAsReceiver", json!([]), None, &[]);
        assert!(plan.trouble.unwrap().starts_with("spec.runStrategy WaitAsReceiver cannot be used"));
    }

    #[test]
    fn a_machine_that_waits_for_a_migration_is_not_booted() {
        let machine = |strategy: &str| {
            let vm = json!({ "spec": { "runStrategy": strategy, "template": {} } });
            unserved(&serde_json::from_value(vm).unwrap())
        };
        let why = "spec.runStrategy WaitAsReceiver cannot be used in this version: no machine is received from another cluster";
        assert_eq!(machine("WaitAsReceiver").as_deref(), Some(why));
        assert_eq!(machine("Always"), None);
    }

    #[test]
    fn restart_stops_then_starts() {
        let restart = json!([{ "action": "Stop", "uid": "u" }, { "action": "Start" }]);
        let plan = check("Manual", restart.clone(), vmi("Running"), &[Step::Stop]);
        assert_eq!(plan.requests.len(), 2);
        let plan = check("Manual", restart, None, &[RUN]);
        assert_eq!(plan.requests.len(), 1);
        let plan = check("Manual", json!([{ "action": "Start" }]), vmi("Pending"), &[]);
        assert!(plan.requests.is_empty());
    }

    #[test]
    fn crashes_are_backed_off_and_counted_once() {
        let now: Timestamp = NOW.parse().unwrap();
        let mut vm = json!({
            "metadata": { "name": "vm", "finalizers": [finalizer::VM] },
            "spec": { "running": true, "template": {} },
        });
        for (count, delay) in [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300)] {
            let failed = json!({ "metadata": { "uid": count.to_string() }, "status": { "phase": "Failed" } });
            let failed: VirtualMachineInstance = serde_json::from_value(failed).unwrap();
            let typed: VirtualMachine = serde_json::from_value(vm.clone()).unwrap();
            let first = plan(View { now, ..view(&typed, Some(&failed)) });
            vm["status"]["startFailure"] = json!(first.failure);
            let typed: VirtualMachine = serde_json::from_value(vm.clone()).unwrap();
            assert_eq!(plan(View { now, ..view(&typed, Some(&failed)) }).failure, first.failure);
            let waiting = plan(View { now, ..view(&typed, None) });
            assert_eq!((waiting.steps, waiting.again), (vec![], Some(Duration::from_secs(delay))), "{count}");
        }
        let well = json!({ "metadata": { "uid": "8" }, "status": { "phase": "Succeeded" } });
        let typed: VirtualMachine = serde_json::from_value(vm.clone()).unwrap();
        assert_eq!(plan(View { now, ..view(&typed, Some(&serde_json::from_value(well).unwrap())) }).failure, None);
        let stable = json!({ "metadata": { "uid": "8" }, "status": { "phase": "Failed", "phaseTransitionTimestamps": [
            { "phase": "Running", "phaseTransitionTimestamp": "2026-01-01T00:30:00Z" },
            { "phase": "Failed", "phaseTransitionTimestamp": "2026-01-01T00:59:59Z" },
        ] } });
        let typed: VirtualMachine = serde_json::from_value(vm).unwrap();
        assert_eq!(plan(View { now, ..view(&typed, Some(&serde_json::from_value(stable).unwrap())) }).failure, None);
    }

    #[test]
    fn a_guest_lost_with_its_node_has_not_crashed() {
        let vm = json!({ "metadata": { "finalizers": [finalizer::VM] }, "spec": { "runStrategy": "Always", "template": {} } });
        let lost = json!({ "metadata": { "uid": "u" }, "status": { "phase": "Failed", "reason": NODE_UNRESPONSIVE } });
        let vm = serde_json::from_value(vm).unwrap();
        let lost = serde_json::from_value(lost).unwrap();
        let plan = plan(view(&vm, Some(&lost)));
        assert_eq!((plan.steps, plan.failure), (vec![Step::Stop], None));
    }

    #[test]
    fn deletion_takes_the_instance_first() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check_deleted(finalizers: Value, vmi: Option<Value>, steps: &[Step]) {
            let vm = json!({
                "metadata": { "name": "vm", "deletionTimestamp": NOW, "finalizers": finalizers },
                "spec": { "runStrategy": "Always", "template": {} },
            });
            let vmi = vmi.map(|vmi| serde_json::from_value(vmi).unwrap());
            let vm = serde_json::from_value(vm).unwrap();
            let plan = plan(view(&vm, vmi.as_ref()));
            assert_eq!(plan.steps, steps);
        }
        check_deleted(json!([finalizer::VM]), vmi("Running"), &[Step::Stop]);
        check_deleted(json!([finalizer::VM]), None, &[Step::Release]);
        check_deleted(json!([finalizer::VM, "orphan"]), vmi("Running"), &[Step::Release]);
        let going = json!({ "metadata": { "deletionTimestamp": NOW, "finalizers": [finalizer::VM] } });
        check_deleted(json!([finalizer::VM]), Some(going), &[Step::ReleaseInstance]);
    }
}
