//! What to do about a VMI, given what is known of its launcher and its domain. Pure.
//!
//! ```text
//! Scheduled --connect, plug, Sync--> (domain runs) Running --guest ends--> Succeeded | Failed
//!                                        |  deleted: Shutdown, after the grace period Kill
//! ```

use std::time::Duration;

use api::kubevirt::constants::phase;
use api::kubevirt::v1::VirtualMachineInstance;
use jiff::{SignedDuration, Timestamp};

/// KubeVirt's grace period when the VMI names none.
const GRACE_SECONDS: i64 = 30;

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Find the launcher and connect.
    Connect,
    /// Make the interfaces.
    Plug,
    /// Hand the VMI to the launcher.
    Sync,
    /// Press the power button.
    Shutdown,
    /// End the domain now.
    Kill,
}

/// What is known of the launcher's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Connected.
    pub connected: bool,
    /// The interfaces exist.
    pub plugged: bool,
    /// The launcher has accepted the VMI, and nothing that it acts on has changed since.
    pub handed_over: bool,
    /// The power button was pressed.
    pub shutdown_sent: bool,
    /// The domain exists and has not ended.
    pub domain: bool,
}

/// Steps in order, and when to look again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What to do.
    pub steps: Vec<Step>,
    /// When to look again even if nothing happens.
    pub again: Option<Duration>,
}

/// Whether this node has anything to do with the VMI.
pub(crate) fn concerns(vmi: &VirtualMachineInstance, node: &str) -> bool {
    let status = vmi.status.clone().unwrap_or_default();
    let here = status.node_name.as_deref() == Some(node);
    here && matches!(status.phase.as_deref(), Some(phase::SCHEDULED | phase::RUNNING))
}

/// The plan.
pub(crate) fn plan(vmi: &VirtualMachineInstance, known: Known, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if !known.connected {
        plan.steps.push(Step::Connect);
    }
    if let Some(deleted) = vmi.metadata.deletion_timestamp.as_ref() {
        if known.connected && !known.domain {
            // Nothing runs: the launcher only has to be told that nothing will.
            plan.steps.push(Step::Kill);
            return plan;
        }
        let grace = vmi.spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS).max(0);
        // The moment of the deletion is cut to whole seconds: the guest has what it was promised, and not less.
        let cut = i64::from(grace > 0);
        let left = SignedDuration::from_secs(grace.saturating_add(cut)) - now.duration_since(deleted.0);
        if left.is_positive() {
            if !known.shutdown_sent {
                plan.steps.push(Step::Shutdown);
            }
            plan.again = Duration::try_from(left).ok();
        } else {
            plan.steps.push(Step::Kill);
            plan.again = Some(Duration::from_secs(2));
        }
        return plan;
    }
    if !known.plugged {
        plan.steps.push(Step::Plug);
    }
    if !known.connected || !known.handed_over {
        plan.steps.push(Step::Sync);
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vmi(deleted_seconds_ago: Option<i64>, grace: Option<i64>) -> VirtualMachineInstance {
        let deletion = deleted_seconds_ago.map(|s| (now() - SignedDuration::from_secs(s)).to_string());
        serde_json::from_value(json!({
            "metadata": {"name": "a", "generation": 3, "deletionTimestamp": deletion},
            "spec": {"domain": {"devices": {}}, "terminationGracePeriodSeconds": grace},
        }))
        .unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    #[track_caller]
    fn check(vmi: &VirtualMachineInstance, known: Known, steps: &[Step], again: Option<u64>) {
        let plan = plan(vmi, known, now());
        assert_eq!((plan.steps.as_slice(), plan.again), (steps, again.map(Duration::from_secs)));
    }

    #[test]
    fn plans() {
        let fresh = Known::default();
        let connected = Known { connected: true, ..fresh };
        let running = Known { connected: true, plugged: true, handed_over: true, domain: true, ..fresh };
        let alive = vmi(None, None);
        check(&alive, fresh, &[Step::Connect, Step::Plug, Step::Sync], None);
        check(&alive, Known { plugged: true, handed_over: true, ..fresh }, &[Step::Connect, Step::Sync], None);
        check(&alive, running, &[], None);
        check(&alive, Known { handed_over: false, ..running }, &[Step::Sync], None);
        check(&vmi(Some(5), None), running, &[Step::Shutdown], Some(26));
        check(&vmi(Some(5), None), Known { shutdown_sent: true, ..running }, &[], Some(26));
        check(&vmi(Some(31), None), running, &[Step::Kill], Some(2));
        check(&vmi(Some(0), Some(0)), running, &[Step::Kill], Some(2));
        check(&vmi(Some(5), Some(60)), running, &[Step::Shutdown], Some(56));
        check(&vmi(Some(5), None), connected, &[Step::Kill], None);
    }
}
