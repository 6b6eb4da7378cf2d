//! States that usually last a moment, and are written only when they last: two writes fewer for every VMI. Pure.

use std::time::Duration;

use api::kubevirt::constants::{condition, phase};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use jiff::{SignedDuration, Timestamp};

/// Times of objects are whole seconds: this is between one second and two.
const MOMENT: SignedDuration = SignedDuration::from_secs(2);

/// How long `wanted` may wait to be written because what it says probably changes first: that the pod of a new VMI was made
/// and nothing is wrong with it, or that the guest of a deleted VMI is on its way out.
pub(super) fn brief(
    vmi: &VirtualMachineInstance,
    wanted: &VirtualMachineInstanceStatus,
    now: Timestamp,
) -> Option<Duration> {
    let old = vmi.status.as_deref().cloned().unwrap_or_default();
    let since = match &vmi.metadata.deletion_timestamp {
        Some(deleted) if only_readiness_changes(&old, wanted) => deleted,
        None if only_has_a_pod(&old, wanted) => vmi.metadata.creation_timestamp.as_ref()?,
        _ => return None,
    };
    let left = MOMENT - now.duration_since(since.0);
    left.is_positive().then(|| Duration::try_from(left).ok()).flatten()
}

fn only_readiness_changes(old: &VirtualMachineInstanceStatus, wanted: &VirtualMachineInstanceStatus) -> bool {
    let rest = |status: &VirtualMachineInstanceStatus| {
        let mut rest = status.clone();
        rest.conditions.retain(|c| c.type_ != condition::READY);
        rest
    };
    rest(old) == rest(wanted)
}

fn only_has_a_pod(old: &VirtualMachineInstanceStatus, wanted: &VirtualMachineInstanceStatus) -> bool {
    let before = old.phase.as_deref().unwrap_or_default();
    matches!(before, phase::UNSET | phase::PENDING)
        && wanted.phase.as_deref() == Some(phase::SCHEDULING)
        && wanted.conditions.iter().all(|c| c.type_ == condition::READY)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(metadata: Value, old: Value, wanted: Value, at: &str, expect: Option<u64>) {
        let vmi = serde_json::from_value(json!({ "metadata": metadata, "status": old })).unwrap();
        let wanted = serde_json::from_value(wanted).unwrap();
        let now = format!("2026-01-01T00:00:{at}Z").parse().unwrap();
        assert_eq!(brief(&vmi, &wanted, now), expect.map(Duration::from_millis));
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({ "type": kind, "status": status, "reason": reason })
    }

    #[test]
    fn a_new_pod_is_told_when_it_takes_its_time_or_is_in_trouble() {
        let new = json!({ "creationTimestamp": "2026-01-01T00:00:00Z" });
        let pending = json!({ "phase": "Pending" });
        let waits = json!({ "phase": "Scheduling", "conditions": [condition("Ready", "False", "GuestNotRunning")] });
        check(new.clone(), pending.clone(), waits.clone(), "00.5", Some(1500));
        check(new.clone(), json!({}), waits.clone(), "01", Some(1000));
        check(new.clone(), pending.clone(), waits, "02", None);
        let trouble = [condition("PodScheduled", "False", "Unschedulable")];
        let unschedulable = json!({ "phase": "Scheduling", "conditions": trouble });
        check(new.clone(), pending.clone(), unschedulable, "00.5", None);
        check(new.clone(), pending, json!({ "phase": "Scheduled" }), "00.5", None);
        let told = json!({ "phase": "Scheduling" });
        check(new, told.clone(), told, "00.5", None);
    }

    #[test]
    fn a_guest_on_its_way_out_is_told_when_it_takes_its_time() {
        let going = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let runs = json!({ "phase": "Running", "conditions": [condition("Ready", "True", "")] });
        let ends = json!({ "phase": "Running", "conditions": [condition("Ready", "False", "PodTerminating")] });
        check(going.clone(), runs.clone(), ends.clone(), "00.2", Some(1800));
        check(going.clone(), runs.clone(), ends.clone(), "03", None);
        let failed = json!({ "phase": "Failed", "conditions": [condition("Ready", "False", "PodTerminating")] });
        check(going, runs.clone(), failed, "00.2", None);
        check(json!({}), runs, ends, "00.2", None);
    }
}
