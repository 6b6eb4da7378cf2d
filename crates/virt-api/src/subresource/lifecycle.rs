//! start, stop, restart: a change of the run strategy, or a request in the machine's status. What to write is pure.

use api::kubevirt::constants::{condition, phase, run_strategy};
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::options::Options;
use super::{Context, Object};
use crate::cluster;
use crate::status::{Refusal, conflict, done};

const KIND: &str = "virtualmachine";
/// Why a machine whose disks are half copied is not started on them.
const RECOVERY: &str = "VM recovery required: Volume migration failed, leaving some volumes pointing to non-consistent \
                        targets; manual intervention is needed to reassign them to their original volumes.";
/// How often a decision is taken again when the machine changes meanwhile.
const ATTEMPTS: u32 = 5;

/// What a request comes to.
#[derive(Debug, Default, PartialEq)]
struct Change {
    spec: Option<Value>,
    requests: Option<Value>,
    grace: Option<i64>,
}

fn strategy(vm: &VirtualMachine) -> &str {
    match (vm.spec.run_strategy.as_deref(), vm.spec.running) {
        (Some(strategy), _) if !strategy.is_empty() => strategy,
        (_, Some(true)) => run_strategy::ALWAYS,
        _ => run_strategy::HALTED,
    }
}

/// The patch that turns the machine on or off for good, in the words its owner chose.
fn switched(vm: &VirtualMachine, on: bool) -> Value {
    if vm.spec.running.is_some() && vm.spec.run_strategy.is_none() {
        return json!({ "spec": { "running": on } });
    }
    json!({ "spec": { "runStrategy": if on { run_strategy::ALWAYS } else { run_strategy::HALTED } } })
}

fn alive(vmi: Option<&VirtualMachineInstance>) -> Option<&VirtualMachineInstance> {
    vmi.filter(|vmi| {
        let phase = vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        phase != phase::SUCCEEDED && phase != phase::FAILED
    })
}

fn holds(vm: &VirtualMachine, condition: &str) -> bool {
    let mut conditions = vm.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|held| held.type_ == condition && held.status == "True")
}

fn pending(vm: &VirtualMachine) -> bool {
    vm.status.as_ref().is_some_and(|status| !status.state_change_requests.is_empty())
}

/// Only a stop is pending, and its guest has ended: the machine counts as stopped, though its instance is not gone yet.
fn stop_is_done(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
    let requests = vm.status.as_ref().map(|status| status.state_change_requests.as_slice()).unwrap_or_default();
    matches!(requests, [only] if only.action == "Stop") && alive(vmi).is_none()
}

fn started(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, paused: bool) -> Result<Change, &'static str> {
    if alive(vmi).is_some() {
        return Err("VM is already running");
    }
    if holds(vm, condition::MANUAL_RECOVERY_REQUIRED) {
        return Err(RECOVERY);
    }
    if pending(vm) && !stop_is_done(vm, vmi) {
        return Err("unable to complete request: stop/start already underway");
    }
    let mut request = json!({ "action": "Start" });
    if paused {
        request["data"] = json!({ "paused": "true" });
    }
    let failed = vmi.and_then(|vmi| vmi.status.as_ref()?.phase.as_deref()) == Some(phase::FAILED);
    match strategy(vm) {
        run_strategy::RERUN_ON_FAILURE if failed => {
            Err("RerunOnFailure does not support starting VM from failed state")
        }
        run_strategy::HALTED => {
            let requests = paused.then(|| json!([request]));
            Ok(Change { spec: Some(switched(vm, true)), requests, grace: None })
        }
        run_strategy::MANUAL | run_strategy::RERUN_ON_FAILURE => {
            Ok(Change { requests: Some(json!([request])), ..Default::default() })
        }
        run_strategy::ALWAYS => Err("Always does not support manual start requests"),
        run_strategy::ONCE => Err("Once does not support manual start requests"),
        _ => Err("WaitAsReceiver does not support manual start requests"),
    }
}

fn stopped(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    grace: Option<i64>,
) -> Result<Change, &'static str> {
    let running = alive(vmi);
    let own = running.and_then(|vmi| vmi.spec.termination_grace_period_seconds).unwrap_or(30);
    let shorter = grace.filter(|asked| *asked >= 0 && *asked < own);
    match strategy(vm) {
        run_strategy::HALTED => match (running, shorter) {
            (Some(_), Some(_)) => Ok(Change { grace: shorter, ..Default::default() }),
            (Some(_), None) => Err("Halted only supports manual stop requests with a shorter graceperiod"),
            (None, _) => Err("VM is not running"),
        },
        // These keep their strategy: only this instance ends.
        run_strategy::MANUAL | run_strategy::RERUN_ON_FAILURE => match running {
            Some(vmi) => {
                let requests = json!([{ "action": "Stop", "uid": vmi.metadata.uid }]);
                Ok(Change { requests: Some(requests), grace: shorter, spec: None })
            }
            // What waits to be started again after a crash is stopped by not starting it.
            None if pending(vm) => Ok(Change { requests: Some(json!([])), ..Default::default() }),
            None => Err("VM is not running"),
        },
        // A machine that should always run is stopped by saying that it should not, whether it runs now or not.
        _ => Ok(Change { spec: Some(switched(vm, false)), grace: shorter, requests: None }),
    }
}

fn restarted(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    grace: Option<i64>,
) -> Result<Change, &'static str> {
    if holds(vm, condition::VOLUMES_CHANGE) {
        return Err(RECOVERY);
    }
    match strategy(vm) {
        run_strategy::HALTED => return Err("RunStategy Halted does not support manual restart requests"),
        run_strategy::ONCE => return Err("RunStategy Once does not support manual restart requests"),
        _ => {}
    }
    let vmi = vmi.ok_or("VM is not running: Halted")?;
    if pending(vm) {
        return Err("unable to complete request: stop/start already underway");
    }
    let requests = json!([{ "action": "Stop", "uid": vmi.metadata.uid }, { "action": "Start" }]);
    Ok(Change { requests: Some(requests), grace, spec: None })
}

pub(super) async fn start(context: &Context, object: &Object, body: &Bytes) -> Result<Response, Refusal> {
    let options = Options::of(body)?;
    change(context, object, &options, |vm, vmi| started(vm, vmi, options.paused)).await
}

pub(super) async fn stop(context: &Context, object: &Object, body: &Bytes) -> Result<Response, Refusal> {
    let options = Options::of(body)?;
    change(context, object, &options, |vm, vmi| stopped(vm, vmi, options.grace_period)).await
}

pub(super) async fn restart(context: &Context, object: &Object, body: &Bytes) -> Result<Response, Refusal> {
    let options = Options::of(body)?;
    if options.grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        return Err(Refusal::bad_request("gracePeriod has to be greater or equal to 0"));
    }
    if options.grace_period_seconds.is_some_and(|seconds| seconds > 0) {
        return Err(Refusal::bad_request(
            "For force restart, only gracePeriod=0 is supported for now: leave it out for an orderly restart",
        ));
    }
    change(context, object, &options, |vm, vmi| restarted(vm, vmi, options.grace_period_seconds)).await
}

async fn change<F>(context: &Context, object: &Object, options: &Options, plan: F) -> Result<Response, Refusal>
where
    F: Fn(&VirtualMachine, Option<&VirtualMachineInstance>) -> Result<Change, &'static str>,
{
    let client = &context.client;
    let dry_run = options.is_dry_run();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let vm = cluster::vm(client, &object.namespace, &object.name).await?;
        let vmi = cluster::find_vmi(client, &object.namespace, &object.name).await?;
        let change = plan(&vm, vmi.as_ref()).map_err(|message| conflict(KIND, &object.name, message))?;
        match write(context, &vm, vmi.as_ref(), change, dry_run).await {
            Ok(()) => break,
            // The controller wrote the status in between: the decision is taken again on what it wrote.
            Err(refusal) if refusal.code == StatusCode::CONFLICT && attempt < ATTEMPTS => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let mut response = done();
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

async fn write(
    context: &Context,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    change: Change,
    dry_run: bool,
) -> Result<(), Refusal> {
    let client = &context.client;
    // The grace period first: the instance may be deleted as soon as the request is there.
    if let (Some(seconds), Some(vmi)) = (change.grace, vmi) {
        let patch = json!({ "spec": { "terminationGracePeriodSeconds": seconds } });
        cluster::patch_vmi(client, vmi, patch, dry_run).await?;
    }
    if let Some(requests) = change.requests {
        let patch = json!({ "status": { "stateChangeRequests": requests } });
        cluster::patch_vm_status(client, vm, patch, dry_run).await?;
    }
    if let Some(spec) = change.spec {
        cluster::patch_vm(client, vm, spec, dry_run).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(strategy: &str) -> VirtualMachine {
        serde_json::from_value(json!({ "spec": { "runStrategy": strategy, "template": {} } })).unwrap()
    }

    fn vmi(phase: &str) -> VirtualMachineInstance {
        serde_json::from_value(json!({ "metadata": { "uid": "u" }, "status": { "phase": phase } })).unwrap()
    }

    #[test]
    fn start() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(strategy: &str, phase: Option<&str>, expect: Result<Change, &str>) {
            assert_eq!(started(&vm(strategy), phase.map(vmi).as_ref(), false), expect);
        }
        let on = json!({ "spec": { "runStrategy": "Always" } });
        check("Halted", None, Ok(Change { spec: Some(on), ..Default::default() }));
        let asked = || Change { requests: Some(json!([{ "action": "Start" }])), ..Default::default() };
        check("Manual", None, Ok(asked()));
        check("Manual", Some("Succeeded"), Ok(asked()));
        check("Manual", Some("Running"), Err("VM is already running"));
        check("RerunOnFailure", None, Ok(asked()));
        check("Always", None, Err("Always does not support manual start requests"));
        check("RerunOnFailure", Some("Failed"), Err("RerunOnFailure does not support starting VM from failed state"));
    }

    /// What is printed as Stopped can be started, though the controller has still to see to the ended instance.
    #[test]
    fn start_after_a_stop() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(requests: Value, phase: Option<&str>, expect: Result<(), &str>) {
            let mut vm = vm("Manual");
            vm.status = serde_json::from_value(json!({ "stateChangeRequests": requests })).unwrap();
            let asked = Change { requests: Some(json!([{ "action": "Start" }])), ..Default::default() };
            assert_eq!(started(&vm, phase.map(vmi).as_ref(), false), expect.map(|()| asked));
        }
        let (stop, start) = (json!({ "action": "Stop", "uid": "u" }), json!({ "action": "Start" }));
        let underway = "unable to complete request: stop/start already underway";
        check(json!([stop]), Some("Succeeded"), Ok(()));
        check(json!([stop]), None, Ok(()));
        check(json!([stop]), Some("Running"), Err("VM is already running"));
        check(json!([stop, start]), Some("Succeeded"), Err(underway));
        check(json!([start]), None, Err(underway));
    }

    #[test]
    fn stop() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(strategy: &str, phase: Option<&str>, grace: Option<i64>, expect: Result<Change, &str>) {
            assert_eq!(stopped(&vm(strategy), phase.map(vmi).as_ref(), grace), expect);
        }
        let off = || Some(json!({ "spec": { "runStrategy": "Halted" } }));
        check("Always", Some("Running"), None, Ok(Change { spec: off(), ..Default::default() }));
        check("Always", Some("Running"), Some(0), Ok(Change { spec: off(), grace: Some(0), requests: None }));
        check("Always", Some("Running"), Some(99), Ok(Change { spec: off(), ..Default::default() }));
        let asked = json!([{ "action": "Stop", "uid": "u" }]);
        for strategy in ["Manual", "RerunOnFailure"] {
            let asked = Change { requests: Some(asked.clone()), ..Default::default() };
            check(strategy, Some("Running"), None, Ok(asked));
            check(strategy, None, None, Err("VM is not running"));
        }
        check("Once", None, None, Ok(Change { spec: off(), ..Default::default() }));
        let mut crashed = vm("RerunOnFailure");
        crashed.status = serde_json::from_value(json!({ "stateChangeRequests": [{ "action": "Start" }] })).unwrap();
        let nothing = Change { requests: Some(json!([])), ..Default::default() };
        assert_eq!(stopped(&crashed, Some(&vmi("Failed")), None), Ok(nothing));
        check("Halted", None, None, Err("VM is not running"));
        check("Halted", Some("Running"), Some(0), Ok(Change { grace: Some(0), ..Default::default() }));
    }

    #[test]
    fn restart() {
        let both = json!([{ "action": "Stop", "uid": "u" }, { "action": "Start" }]);
        let expect = Change { requests: Some(both), ..Default::default() };
        assert_eq!(restarted(&vm("Always"), Some(&vmi("Running")), None), Ok(expect));
        assert_eq!(restarted(&vm("Always"), None, None), Err("VM is not running: Halted"));
        for strategy in ["Halted", "Once"] {
            let refused = format!("RunStategy {strategy} does not support manual restart requests");
            assert_eq!(restarted(&vm(strategy), Some(&vmi("Running")), None), Err(refused.as_str()));
        }
    }

    #[test]
    fn legacy_running_stays_legacy() {
        let legacy: VirtualMachine =
            serde_json::from_value(json!({ "spec": { "running": true, "template": {} } })).unwrap();
        assert_eq!(switched(&legacy, false), json!({ "spec": { "running": false } }));
    }
}
