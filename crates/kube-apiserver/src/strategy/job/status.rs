//! The status of a job: counts that only grow, an end that stays and comes after everything that leads to it.
//!
//! A rule is asked only where something that it speaks of has changed, so that a status which was stored can be gone on with.

use serde_json::Value;

use super::super::field::{Causes, Field, NOT_NEGATIVE, check};
use super::count_indexes;

const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";
const FAILURE_TARGET: &str = "FailureTarget";
const SUCCESS_CRITERIA: &str = "SuccessCriteriaMet";

/// A job before and after a change of its status.
struct Change<'a> {
    old: &'a Value,
    new: &'a Value,
}

impl<'a> Change<'a> {
    fn status(&self) -> Field<'a> {
        Field::new("status", &self.new["status"])
    }

    fn changes(&self, field: &str) -> bool {
        self.old["status"][field] != self.new["status"][field]
    }

    fn is(&self, condition: &str) -> bool {
        holds(self.new, condition)
    }

    /// Whether one of the conditions has begun or ceased to hold.
    fn turns(&self, conditions: &[&str]) -> bool {
        conditions.iter().any(|condition| holds(self.old, condition) != holds(self.new, condition))
    }

    fn over(&self) -> bool {
        self.is(COMPLETE) || self.is(FAILED)
    }

    fn ends(&self) -> bool {
        (holds(self.old, COMPLETE) || holds(self.old, FAILED)) != self.over()
    }
}

fn holds(job: &Value, condition: &str) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == "True")
}

/// Checks the status of a job that was `old`.
pub(in super::super) fn status(old: &Value, new: &Value, causes: &mut Causes) {
    let change = Change { old, new };
    let counts = ["active", "succeeded", "failed", "ready", "terminating"].map(|count| (count, NOT_NEGATIVE));
    check(&change.status(), &counts, causes);
    let ready = change.status().get("ready");
    if (change.changes("ready") || change.changes("active"))
        && ready.is_set()
        && ready.number() > change.status().get("active").number()
    {
        ready.invalid("cannot set more ready pods than active", causes);
    }
    counters(&change, causes);
    indexes(&change, causes);
    end(&change, causes);
    times(&change, causes);
    conditions(&change, causes);
}

fn counters(change: &Change<'_>, causes: &mut Causes) {
    let spec = &change.new["spec"];
    // An indexed job that is made smaller loses what its last indexes have come to.
    let elastic = spec["completionMode"] == "Indexed" && spec["completions"] == spec["parallelism"];
    for counter in ["succeeded", "failed"] {
        let (before, now) = (&change.old["status"][counter], change.status().get(counter));
        if now.number() < before.as_i64().unwrap_or(0) && !(elastic && counter == "succeeded") {
            now.invalid(&format!("cannot decrease the {counter} counter"), causes);
        }
    }
}

fn indexes(change: &Change<'_>, causes: &mut Causes) {
    let spec = Field::new("spec", &change.new["spec"]);
    let (completed, failed) = (change.status().get("completedIndexes"), change.status().get("failedIndexes"));
    let indexed = spec.get("completionMode").text() == "Indexed";
    if change.changes("completedIndexes") && !completed.is_empty() && !indexed {
        completed.invalid("cannot set non-empty completedIndexes when non-indexed completion mode", causes);
    }
    if change.changes("failedIndexes") && failed.is_set() && !spec.get("backoffLimitPerIndex").is_set() {
        failed.invalid("cannot set non-null failedIndexes when backoffLimitPerIndex is null", causes);
    }
    for (name, indexes) in [("completedIndexes", completed), ("failedIndexes", failed)] {
        if !change.changes(name) || !spec.get("completions").is_set() {
            continue;
        }
        if let Err(why) = count_indexes(indexes.text(), spec.get("completions").number()) {
            indexes.invalid(&format!("error parsing {name}: {why}"), causes);
        }
    }
}

/// A job that is over has no pods left that could change it.
fn end(change: &Change<'_>, causes: &mut Causes) {
    for left in ["active", "terminating"] {
        let count = change.status().get(left);
        if (change.ends() || change.changes(left)) && change.over() && count.number() > 0 {
            count.invalid(&format!("{left}>0 is invalid for finished job"), causes);
        }
    }
    let uncounted = change.status().get("uncountedTerminatedPods");
    let some = ["succeeded", "failed"].iter().any(|list| !uncounted.get(list).is_empty());
    if (change.ends() || change.changes("uncountedTerminatedPods")) && change.over() && some {
        uncounted.invalid("uncountedTerminatedPods needs to be empty for finished job", causes);
    }
}

fn times(change: &Change<'_>, causes: &mut Causes) {
    let (start, completion) = (change.status().get("startTime"), change.status().get("completionTime"));
    let before = |field: &str| &change.old["status"][field];
    if (change.ends() || change.changes("startTime")) && change.over() && !start.is_set() {
        start.required("startTime is required for finished job", causes);
    }
    if change.changes("startTime") && !before("startTime").is_null() && change.new["spec"]["suspend"] != true {
        match start.is_set() {
            true => start.invalid("startTime cannot be modified for unsuspended job", causes),
            false => start.required("startTime cannot be removed for unsuspended job", causes),
        }
    }
    if change.changes("completionTime") && completion.is_set() && !before("completionTime").is_null() {
        completion.invalid("completionTime cannot be mutated", causes);
    }
    if change.turns(&[COMPLETE]) || change.changes("completionTime") {
        match (change.is(COMPLETE), completion.is_set()) {
            (true, false) => completion.required("completionTime is required for Complete jobs", causes),
            (false, true) => {
                completion.invalid("cannot set completionTime when there is no Complete=True condition", causes);
            }
            _ => {}
        }
    }
    let time = |field: &Field<'_>| field.text().parse::<jiff::Timestamp>().ok();
    if (change.changes("startTime") || change.changes("completionTime"))
        && let (Some(began), Some(ended)) = (time(&start), time(&completion))
        && ended < began
    {
        completion.invalid("completionTime cannot be set before startTime", causes);
    }
}

fn conditions(change: &Change<'_>, causes: &mut Causes) {
    let field = change.status().get("conditions");
    let mut refuse = |why: String| field.invalid(&why, causes);
    for condition in [COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA] {
        if holds(change.old, condition) && !change.is(condition) {
            refuse(format!("cannot disable the terminal {condition}=True condition"));
        }
    }
    for (end, first) in [(FAILED, FAILURE_TARGET), (COMPLETE, SUCCESS_CRITERIA)] {
        if change.turns(&[end, first]) && change.is(end) && !change.is(first) {
            refuse(format!("cannot set {end}=True condition without the {first}=True condition"));
        }
    }
    let opposites = [
        (COMPLETE, FAILED),
        (COMPLETE, FAILURE_TARGET),
        (SUCCESS_CRITERIA, FAILED),
        (SUCCESS_CRITERIA, FAILURE_TARGET),
    ];
    for (one, other) in opposites {
        if change.turns(&[one, other]) && change.is(one) && change.is(other) {
            refuse(format!("cannot set {one}=True and {other}=True conditions"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(before: Value, after: Value, expect: &[&str]) {
        let job = |status: Value| json!({"spec": {"completions": 3, "parallelism": 2}, "status": status});
        let mut causes = Vec::new();
        status(&job(before), &job(after), &mut causes);
        let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let fits = got.len() == expect.len() && got.iter().zip(expect).all(|(got, part)| got.contains(part));
        assert!(fits, "{got:#?} instead of {expect:#?}");
    }

    fn over(conditions: &[&str]) -> Value {
        let conditions: Vec<Value> = conditions.iter().map(|c| json!({"type": c, "status": "True"})).collect();
        json!({"startTime": "2026-01-01T00:00:00Z", "conditions": conditions})
    }

    #[test]
    fn a_job_goes_through_its_end_step_by_step() {
        let mut complete = over(&[SUCCESS_CRITERIA, COMPLETE]);
        complete["completionTime"] = "2026-01-01T00:00:01Z".into();
        check(over(&[]), over(&[SUCCESS_CRITERIA]), &[]);
        check(over(&[SUCCESS_CRITERIA]), complete.clone(), &[]);
        check(over(&[FAILURE_TARGET]), over(&[FAILURE_TARGET, FAILED]), &[]);
        check(
            over(&[]),
            over(&[COMPLETE]),
            &[
                "status.completionTime: Required value",
                "cannot set Complete=True condition without the SuccessCriteriaMet",
            ],
        );
        check(over(&[]), over(&[FAILED]), &["cannot set Failed=True condition without the FailureTarget=True"]);
        check(complete.clone(), over(&[SUCCESS_CRITERIA]), &["cannot disable the terminal Complete=True"]);
        complete["active"] = 1.into();
        check(
            over(&[SUCCESS_CRITERIA]),
            complete,
            &["status.active: Invalid value: 1: active>0 is invalid for finished job"],
        );
    }

    #[test]
    fn counts_and_times_fit_together() {
        check(json!({}), json!({"active": -1}), &["status.active: Invalid value: -1"]);
        check(json!({}), json!({"active": 1, "ready": 2}), &["status.ready: Invalid value: 2: cannot set more ready"]);
        check(json!({"failed": 2}), json!({"failed": 1}), &["cannot decrease the failed counter"]);
        check(json!({}), json!({"completedIndexes": "0"}), &["when non-indexed completion mode"]);
        check(over(&[]), json!({}), &["status.startTime: Required value: startTime cannot be removed"]);
        check(
            over(&[]),
            json!({"startTime": "2026-01-01T00:00:00Z", "completionTime": "2025-01-01T00:00:00Z"}),
            &["when there is no Complete=True", "cannot be set before startTime"],
        );
    }

    #[test]
    fn invalid_stored_status_can_be_kept() {
        let mut odd = over(&[COMPLETE, FAILED]);
        let before = odd.clone();
        odd["failed"] = 3.into();
        check(before, odd, &[]);
    }
}
