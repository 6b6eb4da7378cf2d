//! Which size a claim's volume is to get, and what the claim's status says meanwhile. Pure.
//!
//! ```text
//!  asked > has --> ControllerResizeInProgress --grown--> (done) or NodeResizePending --node agent--> (done)
//!                     |  impossible
//!                     v
//!            ControllerResizeInfeasible --asked for less--> ControllerResizeInProgress
//! ```

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock::seconds_between;
use kit::controller::quantity::{self, Milli};
use serde_json::{Value, json};
use tonic::Code;

use super::super::facts;

/// The controller's part is under way.
pub(crate) const IN_PROGRESS: &str = "ControllerResizeInProgress";
/// The driver says it can never be done.
pub(crate) const INFEASIBLE: &str = "ControllerResizeInfeasible";
/// The node's part is to come.
pub(crate) const NODE_PENDING: &str = "NodeResizePending";

/// What is allocated for the claim beyond what it has.
fn allocated(claim: &PersistentVolumeClaim) -> Option<Milli> {
    claim.status.as_ref()?.allocated_resources.as_ref()?.get("storage").map(quantity::of)
}

/// How far an expansion is, empty when none is under way.
pub(crate) fn state(claim: &PersistentVolumeClaim) -> &str {
    let states = claim.status.as_ref().and_then(|s| s.allocated_resource_statuses.as_ref());
    states.and_then(|s| s.get("storage")).map_or("", String::as_str)
}

/// What is to be done about a bound claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    None,
    /// The driver is to grow the volume to this.
    Grow(Milli),
    /// The volume is as large already: the node is to grow the file system, or the claim's status to follow.
    Finish(Milli),
}

/// What is to be done about a bound claim and its volume.
pub(crate) fn step(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Step {
    let (asked, has, size) = (facts::requested(claim), facts::has(claim), facts::capacity(volume));
    if asked <= has || state(claim).starts_with("NodeResize") && allocated(claim) == Some(asked) {
        return Step::None;
    }
    if state(claim).starts_with("NodeResize") {
        // The node's part comes first: two expansions at a time would not be told apart.
        return Step::None;
    }
    // What was begun is finished before anything else is, unless it cannot be.
    let target = match allocated(claim) {
        Some(begun) if state(claim) == IN_PROGRESS && begun > asked => begun,
        _ => asked,
    };
    if size >= target { Step::Finish(target) } else { Step::Grow(target) }
}

/// For how many seconds more the same impossible size is not tried again; `None` when it may be.
pub(crate) fn rests(claim: &PersistentVolumeClaim, now: &Time, interval: i64) -> Option<i64> {
    let conditions = claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let failure = conditions.iter().find(|c| c.type_ == "ControllerResizeError")?;
    let same = state(claim) == INFEASIBLE && allocated(claim) == Some(facts::requested(claim));
    let left = interval - seconds_between(failure.last_transition_time.as_ref()?, now);
    Some(left).filter(|left| same && *left > 0)
}

/// Whether a failure means that no further try can succeed.
pub(crate) fn is_infeasible(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound | Code::Unimplemented)
}

/// The claim's conditions with one of them put in or left out.
pub(crate) fn conditions(claim: &PersistentVolumeClaim, without: &[&str], with: Option<Value>) -> Value {
    let known = claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let kept = known.iter().filter(|c: &&PersistentVolumeClaimCondition| !without.contains(&c.type_.as_str()));
    let mut list: Vec<Value> = kept.map(|c| json!(c)).collect();
    list.extend(with);
    json!(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(asked: &str, has: &str, size: &str, status: Value, expect: Step) {
        let mut value = json!({"metadata": {}, "spec": {"resources": {"requests": {"storage": asked}}},
            "status": {"capacity": {"storage": has}}});
        for (key, part) in status.as_object().unwrap() {
            value["status"][key] = part.clone();
        }
        let volume = json!({"metadata": {}, "spec": {"capacity": {"storage": size}}});
        let step = step(&serde_json::from_value(value).unwrap(), &serde_json::from_value(volume).unwrap());
        assert_eq!(step, expect);
    }

    const GI: Milli = (1 << 30) * 1000;

    #[test]
    fn steps() {
        let none = json!({});
        let begun = |size: &str, state: &str| json!({"allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": state}});
        check("1Gi", "1Gi", "1Gi", none.clone(), Step::None);
        check("2Gi", "1Gi", "1Gi", none.clone(), Step::Grow(2 * GI));
        check("2Gi", "1Gi", "2Gi", none, Step::Finish(2 * GI));
        check("2Gi", "1Gi", "2Gi", begun("2Gi", NODE_PENDING), Step::None);
        check("9Gi", "1Gi", "2Gi", begun("2Gi", NODE_PENDING), Step::None);
        check("2Gi", "1Gi", "1Gi", begun("9Gi", INFEASIBLE), Step::Grow(2 * GI));
        check("2Gi", "1Gi", "1Gi", begun("9Gi", IN_PROGRESS), Step::Grow(9 * GI));
    }

    #[test]
    fn infeasible_codes_are_told_from_retriable_ones() {
        assert!(is_infeasible(Code::OutOfRange));
        assert!(!is_infeasible(Code::Unavailable));
    }
}
