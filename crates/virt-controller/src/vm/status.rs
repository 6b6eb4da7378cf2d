//! The status of a virtual machine, from its instance and its plan. Pure.

use api::kubevirt::constants::{condition, phase, printable};
use api::kubevirt::v1::{
    VirtualMachine, VirtualMachineCondition, VirtualMachineInstance, VirtualMachineStatus, VolumeSnapshotStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::{remove, set};

use super::chosen::References;
use super::plan::{Plan, STOP, unserved_requests};
use crate::facts::data_volumes::Readiness;
use crate::facts::instance::{is_final, phase_of};
use crate::facts::machine::strategy;
use crate::facts::migration_state;
use crate::facts::nodes::NODE_UNRESPONSIVE;
use crate::tracking::{self, Wanted};
use crate::volumes_update;
use crate::volumes_update::plan::Update;

/// Conditions that the machine has of its own: those of the instance do not replace them.
const OWN: [&str; 4] =
    [condition::READY, condition::FAILURE, condition::RESTART_REQUIRED, condition::MANUAL_RECOVERY_REQUIRED];

/// What is known beyond the objects themselves.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The last attempt to create or delete the instance failed so.
    pub failure: Option<(&'static str, String)>,
    /// The template differs from what the instance was started with, and in what.
    pub restart_required: Option<String>,
    /// What follows from changed volumes.
    pub volumes: Update,
    /// What its data volumes mean for it.
    pub data: Readiness,
    /// Which of its volumes a snapshot would include.
    pub snapshots: Vec<VolumeSnapshotStatus>,
    /// Whether what changes on its disks is to be tracked.
    pub tracking: Wanted,
    /// Where its instance type and its preference are kept.
    pub references: References,
}

/// The status `vm` should have.
pub fn status(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    plan: &Plan,
    facts: &Facts,
    now: Timestamp,
) -> VirtualMachineStatus {
    let mut status = vm.status.as_deref().cloned().unwrap_or_default();
    status.created = Some(vmi.is_some());
    status.ready = Some(vmi.is_some_and(ready));
    status.desired_generation = vm.metadata.generation;
    status.observed_generation = match vmi {
        Some(vmi) => generation(vmi).or(status.observed_generation),
        None => vm.metadata.generation,
    };
    status.run_strategy = Some(strategy(vm).to_owned());
    status.state_change_requests = unserved_requests(&plan.requests, vmi).to_vec();
    status.start_failure.clone_from(&plan.failure);
    status.volume_snapshot_statuses.clone_from(&facts.snapshots);
    status.instancetype_ref.clone_from(&facts.references.instancetype);
    status.preference_ref.clone_from(&facts.references.preference);
    status.changed_block_tracking = tracking::status(vm, vmi, facts.tracking);
    conditions(&mut status.conditions, vmi, facts, now);
    volumes_update::tell(vm, vmi, &facts.volumes, &mut status, now);
    status.printable_status = Some(printable(vm, vmi, plan, facts).to_owned());
    status
}

/// The phase is told by the node, and readiness by the pod: a guest that has just ended may still be said to be ready.
fn ready(vmi: &VirtualMachineInstance) -> bool {
    !is_final(vmi) && find(vmi, condition::READY).is_some_and(|(value, _)| value == "True")
}

fn find<'a>(vmi: &'a VirtualMachineInstance, kind: &str) -> Option<(&'a str, &'a str)> {
    let found = vmi.status.as_ref()?.conditions.iter().find(|c| c.type_ == kind)?;
    Some((found.status.as_str(), found.reason.as_deref().unwrap_or_default()))
}

fn generation(vmi: &VirtualMachineInstance) -> Option<i64> {
    let annotations = vmi.metadata.annotations.as_ref()?;
    annotations.get(api::kubevirt::constants::annotation::VM_GENERATION)?.parse().ok()
}

fn conditions(
    held: &mut Vec<VirtualMachineCondition>,
    vmi: Option<&VirtualMachineInstance>,
    facts: &Facts,
    now: Timestamp,
) {
    let now = Time(now);
    let instance =
        vmi.and_then(|vmi| vmi.status.as_ref()).map(|status| status.conditions.as_slice()).unwrap_or_default();
    match instance.iter().find(|c| c.type_ == condition::READY) {
        Some(told) if told.status != "True" || vmi.is_some_and(ready) => {
            set(held, condition::READY, &told.status, told.reason.as_deref(), told.message.as_deref(), &now);
        }
        _ if vmi.is_some() => {
            let (reason, message) = ("GuestNotRunning", "Guest VM is not reported as running");
            set(held, condition::READY, "False", Some(reason), Some(message), &now);
        }
        _ => {
            let (reason, message) = ("VMINotExists", "VMI does not exist");
            set(held, condition::READY, "False", Some(reason), Some(message), &now);
        }
    }
    held.retain(|c| OWN.contains(&c.type_.as_str()) || instance.iter().any(|i| i.type_ == c.type_));
    for condition in instance.iter().filter(|c| !OWN.contains(&c.type_.as_str())) {
        let (reason, message) = (condition.reason.as_deref(), condition.message.as_deref());
        set(held, &condition.type_, &condition.status, reason, message, &now);
    }
    match &facts.failure {
        Some((reason, message)) => {
            set(held, condition::FAILURE, "True", Some(reason), Some(message), &now);
        }
        None => remove(held, condition::FAILURE),
    }
    match &facts.restart_required {
        Some(message) => {
            set(held, condition::RESTART_REQUIRED, "True", Some("RestartRequired"), Some(message), &now);
        }
        None => remove(held, condition::RESTART_REQUIRED),
    }
}

/// The one word for people. The first that fits, in this order.
fn printable(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, plan: &Plan, facts: &Facts) -> &'static str {
    if vm.metadata.deletion_timestamp.is_some() {
        return printable::TERMINATING;
    }
    let Some(vmi) = vmi else {
        if facts.data.failed.is_some() {
            return printable::DATA_VOLUME_ERROR;
        }
        if facts.data.filling.is_some() {
            return printable::PROVISIONING;
        }
        // A count of failures alone says nothing: who stopped the machine since then does not wait for its next start.
        return match plan.again {
            Some(_) if facts.failure.is_none() => printable::CRASH_LOOP_BACK_OFF,
            // What is refused to be made is not on its way.
            _ if starting(plan) && facts.failure.is_some() => printable::UNSCHEDULABLE,
            _ if starting(plan) => printable::STARTING,
            _ => printable::STOPPED,
        };
    };
    let stopping = plan.requests.first().is_some_and(|r| r.action == STOP && r.uid == vmi.metadata.uid);
    if !is_final(vmi) && (vmi.metadata.deletion_timestamp.is_some() || stopping) {
        return printable::STOPPING;
    }
    let migrating =
        migration_state::of(vmi).is_some_and(|state| migration_state::started(state) && !migration_state::over(state));
    if phase_of(vmi) == phase::RUNNING {
        if let Some((_, NODE_UNRESPONSIVE)) = find(vmi, condition::READY) {
            return printable::UNKNOWN;
        }
        if migrating {
            return printable::MIGRATING;
        }
        let paused = find(vmi, condition::PAUSED).is_some_and(|(value, _)| value == "True");
        return if paused { printable::PAUSED } else { printable::RUNNING };
    }
    if phase_of(vmi) == phase::WAITING_FOR_SYNC {
        return printable::WAITING_FOR_RECEIVER;
    }
    if is_final(vmi) {
        let failing = phase_of(vmi) == phase::FAILED && plan.failure.is_some();
        return if failing { printable::CRASH_LOOP_BACK_OFF } else { printable::STOPPED };
    }
    let synchronized = find(vmi, condition::SYNCHRONIZED);
    // There is no pod yet that could be scheduled.
    let claimless = matches!(synchronized, Some(("False", "FailedPvcNotFound")));
    if let Some(("False", "Unschedulable")) = find(vmi, condition::POD_SCHEDULED).filter(|_| !claimless) {
        return printable::UNSCHEDULABLE;
    }
    match synchronized {
        _ if facts.data.failed.is_some() => printable::DATA_VOLUME_ERROR,
        _ if facts.data.waiting.is_some() => printable::WAITING_FOR_VOLUME_BINDING,
        _ if facts.data.filling.is_some() => printable::PROVISIONING,
        Some(("False", "FailedPvcNotFound")) => printable::PVC_NOT_FOUND,
        Some(("False", "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName")) => printable::ERR_IMAGE_PULL,
        Some(("False", "ImagePullBackOff")) => printable::IMAGE_PULL_BACK_OFF,
        _ => printable::STARTING,
    }
}

fn starting(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, super::plan::Step::Start { .. }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(vmi: Option<Value>, plan: &Plan, word: &str, ready: bool) {
        let vm = json!({ "metadata": { "generation": 3 }, "spec": { "runStrategy": "Always", "template": {} } });
        let vm: VirtualMachine = serde_json::from_value(vm).unwrap();
        let vmi: Option<VirtualMachineInstance> = vmi.map(|vmi| serde_json::from_value(vmi).unwrap());
        let status = status(&vm, vmi.as_ref(), plan, &Facts::default(), Timestamp::UNIX_EPOCH);
        assert_eq!((status.printable_status.as_deref(), status.ready), (Some(word), Some(ready)));
        assert_eq!(status.created, Some(vmi.is_some()));
        let told = status.conditions.iter().find(|one| one.type_ == "Ready").map(|one| one.status == "True");
        assert_eq!(told, Some(ready), "the condition says what the field says");
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn vmi(phase: &str, conditions: Value) -> Option<Value> {
        Some(json!({ "metadata": { "uid": "u" }, "status": { "phase": phase, "conditions": conditions } }))
    }

    #[test]
    fn one_word_for_each_state() {
        let none = Plan::default();
        check(None, &none, "Stopped", false);
        check(vmi("Pending", json!([])), &none, "Starting", false);
        check(vmi("Running", json!([{ "type": "Ready", "status": "True" }])), &none, "Running", true);
        check(vmi("Running", json!([{ "type": "Paused", "status": "True" }])), &none, "Paused", false);
        let moving = |state: Value| {
            let mut vmi = vmi("Running", json!([{ "type": "Ready", "status": "True" }])).unwrap();
            vmi["status"]["migrationState"] = state;
            Some(vmi)
        };
        check(moving(json!({ "migrationUid": "m" })), &none, "Running", true);
        let started = "2026-01-01T00:00:00Z";
        check(moving(json!({ "startTimestamp": started })), &none, "Migrating", true);
        check(moving(json!({ "startTimestamp": started, "completed": true })), &none, "Running", true);
        let trouble = |kind: &str, reason: &str| {
            vmi("Scheduling", json!([{ "type": kind, "status": "False", "reason": reason }]))
        };
        check(trouble("PodScheduled", "Unschedulable"), &none, "ErrorUnschedulable", false);
        check(trouble("Synchronized", "ErrImagePull"), &none, "ErrImagePull", false);
        check(trouble("Synchronized", "ImagePullBackOff"), &none, "ImagePullBackOff", false);
        let lost = json!([{ "type": "Ready", "status": "False", "reason": "NodeUnresponsive" }]);
        check(vmi("Running", lost), &none, "Unknown", false);
        check(vmi("Succeeded", json!([])), &none, "Stopped", false);
        check(vmi("Succeeded", json!([{ "type": "Ready", "status": "True" }])), &none, "Stopped", false);
        let crashed = Plan {
            failure: Some(api::kubevirt::v1::VirtualMachineStartFailure {
                consecutive_fail_count: Some(1),
                ..Default::default()
            }),
            ..Default::default()
        };
        check(vmi("Failed", json!([])), &crashed, "CrashLoopBackOff", false);
        check(None, &crashed, "Stopped", false);
        check(None, &Plan { again: Some(Duration::from_secs(10)), ..crashed }, "CrashLoopBackOff", false);
        let refused = Plan { steps: vec![super::super::plan::Step::Start { paused: false }], ..none.clone() };
        let failure = Some(("FailedCreate", "the quota is used up".to_owned()));
        let vm: VirtualMachine = serde_json::from_value(json!({ "spec": { "template": {} } })).unwrap();
        for (failure, word) in [(failure, "ErrorUnschedulable"), (None, "Starting")] {
            let facts = Facts { failure: failure.clone(), ..Facts::default() };
            let status = status(&vm, None, &refused, &facts, Timestamp::UNIX_EPOCH);
            assert_eq!(status.printable_status.as_deref(), Some(word));
            let said = status.conditions.iter().find(|one| one.type_ == "Failure").and_then(|one| one.message.clone());
            assert_eq!(said, failure.map(|(_, message)| message));
        }
        let mut going = vmi("Running", json!([])).unwrap();
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        check(Some(going), &none, "Stopping", false);
    }
}
