//! A machine is started and stopped: its run strategy says what its controller does by itself, and what it has to be asked for.
//!
//! | strategy | to start | to stop |
//! |---|---|---|
//! | Always | nothing | ask, whether it runs or not: it would be started again |
//! | Once | nothing; what has ended never starts again | ask, unless it has ended |
//! | RerunOnFailure | ask, unless it has failed and is started again anyway | ask, unless it has ended well |
//! | Manual | ask | ask, if it runs or is to be started |
//! | Halted | ask | nothing |
//! | WaitAsReceiver | cannot be: a migration starts it | ask |

use std::time::Duration;

use api::kubevirt::constants::{condition, phase, run_strategy};
use kit::backoff::Backoff;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::{VM, VMI, is_true, what};
use crate::{Cluster, Error};

/// A refusal may be of a stop that is underway, or of a guest that was started meanwhile: it is decided again.
const RETRIES: Backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(10) };
/// How long a machine is given to stop.
pub(super) const END: Duration = Duration::from_secs(5 * 60);

/// The run strategy of a VirtualMachine's `spec`, which may be said in the older word `running`.
fn strategy(spec: &Value) -> &str {
    match spec["runStrategy"].as_str() {
        Some(strategy) if !strategy.is_empty() => strategy,
        _ if spec["running"] == true => run_strategy::ALWAYS,
        _ => run_strategy::HALTED,
    }
}

/// Whether a machine that is new has to be asked to start.
///
/// # Errors
/// When it cannot be started by being asked, in a sentence.
pub(super) fn new_is_asked(spec: &Value) -> Result<bool, &'static str> {
    match strategy(spec) {
        run_strategy::ALWAYS | run_strategy::ONCE | run_strategy::RERUN_ON_FAILURE => Ok(false),
        run_strategy::WAIT_AS_RECEIVER => Err(RECEIVES),
        _ => Ok(true),
    }
}

const RECEIVES: &str = "its run strategy is WaitAsReceiver, which a migration starts and nothing else";

/// Whether the machine has to be asked to start.
fn start_is_asked(machine: &DynamicObject, instance: Option<&DynamicObject>) -> Result<bool, &'static str> {
    let leaves = |instance: &DynamicObject| instance.metadata.deletion_timestamp.is_some();
    if instance.is_some_and(|instance| !has_ended(instance) && !leaves(instance)) {
        return Ok(false);
    }
    if is_true(machine, condition::MANUAL_RECOVERY_REQUIRED) {
        return Err("its disks are half moved: put its volumes right by hand");
    }
    let failed = instance.is_some_and(|instance| phase_of(instance) == phase::FAILED);
    match strategy(&machine.data["spec"]) {
        run_strategy::ALWAYS => Ok(false),
        run_strategy::ONCE if instance.is_some_and(has_ended) => {
            Err("its run strategy is Once, and it has run: choose another strategy to have it run again")
        }
        run_strategy::ONCE => Ok(false),
        run_strategy::RERUN_ON_FAILURE => Ok(!failed && !is_requested(machine, "Start")),
        run_strategy::WAIT_AS_RECEIVER => Err(RECEIVES),
        _ => Ok(!is_requested(machine, "Start")),
    }
}

/// Whether the machine has to be asked to stop.
fn stop_is_asked(machine: &DynamicObject, instance: Option<&DynamicObject>) -> Result<bool, &'static str> {
    let runs = instance.is_some_and(|instance| !has_ended(instance));
    let failed = instance.is_some_and(|instance| phase_of(instance) == phase::FAILED);
    Ok(match strategy(&machine.data["spec"]) {
        run_strategy::HALTED => false,
        run_strategy::ONCE => !instance.is_some_and(has_ended),
        run_strategy::RERUN_ON_FAILURE => runs || failed || is_requested(machine, "Start"),
        run_strategy::MANUAL => runs || is_requested(machine, "Start"),
        _ => true,
    })
}

fn is_requested(machine: &DynamicObject, action: &str) -> bool {
    let requests = machine.data["status"]["stateChangeRequests"].as_array();
    requests.into_iter().flatten().any(|request| request["action"] == action)
}

fn phase_of(instance: &DynamicObject) -> &str {
    instance.data["status"]["phase"].as_str().unwrap_or_default()
}

/// Whether the guest has ended.
pub(super) fn has_ended(instance: &DynamicObject) -> bool {
    [phase::SUCCEEDED, phase::FAILED].contains(&phase_of(instance))
}

/// Has the machine start, if it does not run, and does not wait until it does.
///
/// # Errors
/// When there is none, it cannot be started, or the cluster refuses for longer than `patience`.
pub(super) async fn start(cluster: &Cluster, namespace: &str, name: &str, patience: Duration) -> Result<(), Error> {
    ask(cluster, (namespace, name), "start", patience.min(END), start_is_asked).await
}

/// Stops the machine, and waits until its guest has ended.
///
/// # Errors
/// When there is none, the cluster refuses, or the guest does not end.
pub(super) async fn stop(cluster: &Cluster, namespace: &str, name: &str) -> Result<(), Error> {
    ask(cluster, (namespace, name), "stop", END, stop_is_asked).await?;
    let late = format!("{} had not stopped", what(VM, namespace, name));
    let gone = |object: Option<&DynamicObject>| object.is_none_or(has_ended);
    cluster.until(VMI, namespace, name, gone, END, late).await.map(drop)
}

type Plan = fn(&DynamicObject, Option<&DynamicObject>) -> Result<bool, &'static str>;

async fn ask(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    verb: &'static str,
    patience: Duration,
    plan: Plan,
) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    let mut refusals = 0;
    loop {
        let machine = cluster.need(VM, namespace, name).await?;
        let instance = cluster.get(VMI, namespace, name).await?;
        let asked = plan(&machine, instance.as_ref());
        let why = |why: &str| Error::Failed(format!("cannot {verb} {}: {why}", what(VM, namespace, name)));
        if !asked.map_err(why)? {
            return Ok(());
        }
        match cluster.power(namespace, name, verb).await {
            Err(error) if error.is_conflict() && Instant::now() < deadline => {
                refusals += 1;
                tracing::info!("{}", kit::Chain(&error));
                tokio::time::sleep(RETRIES.jittered(refusals)).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(data: Value) -> DynamicObject {
        serde_json::from_value(data).unwrap()
    }

    #[track_caller]
    fn check(strategy: &str, phase: Option<&str>, start: Result<bool, &str>, stop: bool) {
        let machine = object(json!({ "metadata": {}, "spec": { "runStrategy": strategy } }));
        let instance = phase.map(|phase| object(json!({ "metadata": {}, "status": { "phase": phase } })));
        match (start_is_asked(&machine, instance.as_ref()), start) {
            (Ok(asked), Ok(expect)) => assert_eq!(asked, expect, "start of {strategy}, {phase:?}"),
            (Err(why), Err(expect)) => assert!(why.contains(expect), "{why}"),
            (found, expect) => panic!("start of {strategy}, {phase:?}: {found:?}, not {expect:?}"),
        }
        assert_eq!(stop_is_asked(&machine, instance.as_ref()), Ok(stop), "stop of {strategy}, {phase:?}");
    }

    #[test]
    fn only_what_the_controller_does_not_do_is_asked_for() {
        for strategy in ["Always", "Once", "RerunOnFailure", "Manual"] {
            check(strategy, Some("Running"), Ok(false), true);
        }
        check("Always", None, Ok(false), true);
        check("Always", Some("Failed"), Ok(false), true);
        check("Once", None, Ok(false), true);
        check("Once", Some("Succeeded"), Err("it has run"), false);
        check("RerunOnFailure", None, Ok(true), false);
        check("RerunOnFailure", Some("Failed"), Ok(false), true);
        check("RerunOnFailure", Some("Succeeded"), Ok(true), false);
        check("Manual", None, Ok(true), false);
        check("Manual", Some("Failed"), Ok(true), false);
        check("Halted", None, Ok(true), false);
        check("Halted", Some("Running"), Ok(false), false);
        check("WaitAsReceiver", None, Err("which a migration starts"), true);
    }

    #[test]
    fn what_is_underway_is_not_asked_for_again() {
        let mut machine = object(json!({ "metadata": {}, "spec": { "running": false } }));
        machine.data["status"] = json!({ "stateChangeRequests": [{ "action": "Start" }] });
        assert_eq!(start_is_asked(&machine, None), Ok(false));
        machine.data["spec"] = json!({ "runStrategy": "Manual" });
        assert_eq!(stop_is_asked(&machine, None), Ok(true), "it is stopped by not being started");
        // An instance that leaves is none: the machine starts behind it.
        let metadata = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let leaving = object(json!({ "metadata": metadata, "status": { "phase": "Running" } }));
        machine.data["status"] = Value::Null;
        assert_eq!(start_is_asked(&machine, Some(&leaving)), Ok(true));
    }

    #[test]
    fn half_moved_disks_are_not_started_on() {
        let conditions = json!([{ "type": "ManualRecoveryRequired", "status": "True" }]);
        let spec = json!({ "runStrategy": "Manual" });
        let machine = object(json!({ "metadata": {}, "spec": spec, "status": { "conditions": conditions } }));
        assert!(start_is_asked(&machine, None).is_err());
    }
}
