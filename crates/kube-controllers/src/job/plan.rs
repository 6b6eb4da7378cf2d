//! The next steps of a job: what its finished pods count for, how many pods run, when it is over. Pure.
//!
//! ```text
//!  pod finished --> uncounted (status written) --> finalizer off --> counted --> enough: Complete, too many failed: Failed
//! ```
//!
//! A pod is counted exactly once: it keeps a finalizer until the status names it.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock::seconds_between;
use kit::controller::pod;

use super::index::{self, completion_index};
use super::policy::{self, Verdict};

pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// What to do now, in this order: status, finalizers, deletions, creations.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The status to write.
    pub(crate) status: JobStatus,
    /// Finished pods that are in the status and may lose the finalizer.
    pub(crate) release: Vec<Arc<Pod>>,
    /// Running pods to delete.
    pub(crate) delete: Vec<Arc<Pod>>,
    /// Pods to create: their index in an indexed job.
    pub(crate) create: Vec<Option<i32>>,
    /// Look again after so many seconds.
    pub(crate) wake: Option<i64>,
    /// Reason and message of the end, when this plan ends the job.
    pub(crate) ended: Option<(&'static str, String)>,
    /// Whether the job was suspended (`Some(true)`) or resumed by this plan.
    pub(crate) suspended: Option<bool>,
}

const POLICY: &str = "PodFailurePolicy";
const SUCCESS: &str = "SuccessPolicy";
const MANY_INDEXES: &str = "MaxFailedIndexesExceeded";
const INDEXES: &str = "FailedIndexes";

/// The end of a job: type of condition, reason, message.
type End = (&'static str, &'static str, String);

pub(crate) fn is_over(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

pub(crate) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == TRACKING)
}

/// Whether a pod counts as failed: also one that is deleted before it ended, unless only ended pods are replaced.
fn is_failed(spec: &JobSpec, pod: &Pod) -> bool {
    // How a pod ended decides what its failure counts for, so a policy waits for the end as well.
    let only_ended = spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some();
    match pod::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pod::is_terminating(pod) && !only_ended,
    }
}

struct Tally {
    succeeded: i32,
    failed: i32,
    completed: BTreeSet<i32>,
    /// Indexes that get no further try.
    lost: BTreeSet<i32>,
    /// Why a policy ends the job.
    fatal: Option<String>,
    active: Vec<Arc<Pod>>,
}

/// What the job needs now.
pub(crate) fn plan(job: &Job, pods: &[Arc<Pod>], now: &Time) -> Plan {
    let mut plan = Plan { status: job.status.clone().unwrap_or_default(), ..Plan::default() };
    let Some(spec) = &job.spec else { return plan };
    if let Some(over) = is_over(job) {
        plan.release = pods.iter().filter(|p| is_tracked(p)).cloned().collect();
        plan.wake = spec.ttl_seconds_after_finished.map(|ttl| {
            let since = over.last_transition_time.as_ref().map_or(0, |time| seconds_between(time, now));
            (i64::from(ttl) - since).max(0)
        });
        return plan;
    }
    let suspended = spec.suspend.unwrap_or(false);
    let was_suspended = condition(&plan.status, "Suspended").is_some_and(|c| c.status == "True");
    if plan.status.start_time.is_none() && !suspended {
        plan.status.start_time = Some(now.clone());
    }
    let tally = count(spec, &mut plan, pods);
    let end = end(spec, &plan.status, &tally, now);
    if let Some((type_, reason, message)) = end {
        finish(&mut plan, &tally, (type_, reason, message), now);
        return plan;
    }
    if suspended != was_suspended {
        let (state, reason, message) =
            if suspended { ("True", "JobSuspended", "Job suspended") } else { ("False", "JobResumed", "Job resumed") };
        set(&mut plan.status, "Suspended", state, reason, message, now);
        plan.suspended = Some(suspended);
        plan.status.start_time = (!suspended).then(|| now.clone());
    }
    if suspended {
        plan.delete = tally.active;
        (plan.status.active, plan.status.ready) = (None, Some(0));
        return plan;
    }
    schedule(spec, &mut plan, tally, pods, now);
    if let (Some(limit), Some(start)) = (spec.active_deadline_seconds, &plan.status.start_time) {
        let left = (limit - seconds_between(start, now)).max(1);
        plan.wake = Some(plan.wake.map_or(left, |wake| wake.min(left)));
    }
    plan
}

/// Moves finished pods through the status and counts.
fn count(spec: &JobSpec, plan: &mut Plan, pods: &[Arc<Pod>]) -> Tally {
    let status = &mut plan.status;
    let uncounted = status.uncounted_terminated_pods.take().unwrap_or_default();
    let (mut succeeded_uids, mut failed_uids) =
        (uncounted.succeeded.unwrap_or_default(), uncounted.failed.unwrap_or_default());
    let mut completed = index::parse(status.completed_indexes.as_deref().unwrap_or_default());
    let still_tracked: BTreeSet<&str> =
        pods.iter().filter(|p| is_tracked(p)).filter_map(|p| p.metadata.uid.as_deref()).collect();
    // Those whose finalizer is gone are in no other place any more: now they become part of the counts.
    let settle = |uids: &mut Vec<String>, count: &mut Option<i32>, by_index: bool| {
        let before = uids.len();
        uids.retain(|uid| still_tracked.contains(uid.as_str()));
        let settled = i32::try_from(before - uids.len()).unwrap_or(0);
        if settled > 0 && !by_index {
            *count = Some(count.unwrap_or(0) + settled);
        }
    };
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    settle(&mut succeeded_uids, &mut status.succeeded, indexed);
    settle(&mut failed_uids, &mut status.failed, false);
    let mut lost = index::parse(status.failed_indexes.as_deref().unwrap_or_default());
    let mut fatal = None;
    let mut active = Vec::new();
    for pod in pods {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let (succeeded, failed) = (pod::phase(pod) == "Succeeded", is_failed(spec, pod));
        if !succeeded && !failed {
            if !pod::is_terminating(pod) {
                active.push(pod.clone());
            }
            continue;
        }
        if !is_tracked(pod) {
            continue;
        }
        let uids = if succeeded { &mut succeeded_uids } else { &mut failed_uids };
        if uids.contains(&uid) {
            plan.release.push(pod.clone());
            continue;
        }
        if failed {
            if let Some(index) = completion_index(pod).filter(|index| policy::index_is_lost(spec, pods, pod, *index)) {
                lost.insert(index);
            }
            match policy::verdict(spec, pod) {
                Verdict::Ignore => {
                    plan.release.push(pod.clone());
                    continue;
                }
                Verdict::FailJob(why) => fatal = fatal.or(Some(why)),
                Verdict::Count | Verdict::FailIndex => {}
            }
        }
        if succeeded && indexed {
            // Indexes are a set: they need no second step.
            let wanted = completion_index(pod).filter(|index| *index < spec.completions.unwrap_or(0));
            completed.extend(wanted);
            plan.release.push(pod.clone());
        } else {
            uids.push(uid);
            plan.release.push(pod.clone());
        }
    }
    if indexed {
        status.succeeded = Some(i32::try_from(completed.len()).unwrap_or(i32::MAX)).filter(|n| *n > 0);
        status.completed_indexes = Some(index::format(&completed)).filter(|text| !text.is_empty());
        lost.retain(|index| !completed.contains(index));
        status.failed_indexes = spec.backoff_limit_per_index.map(|_| index::format(&lost));
    }
    let length = |uids: &Vec<String>| i32::try_from(uids.len()).unwrap_or(i32::MAX);
    let succeeded = status.succeeded.unwrap_or(0) + length(&succeeded_uids);
    let failed = status.failed.unwrap_or(0) + length(&failed_uids);
    let list = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
    status.uncounted_terminated_pods =
        Some(UncountedTerminatedPods { succeeded: list(succeeded_uids), failed: list(failed_uids) });
    status.active = i32::try_from(active.len()).ok().filter(|n| *n > 0);
    status.ready = Some(i32::try_from(active.iter().filter(|p| pod::is_ready(p)).count()).unwrap_or(0));
    let terminating = pods.iter().filter(|p| pod::is_terminating(p) && !pod::is_finished(p)).count();
    status.terminating = Some(i32::try_from(terminating).unwrap_or(0));
    Tally { succeeded, failed, completed, lost, fatal, active }
}

/// Whether the job is over, and how.
fn end(spec: &JobSpec, status: &JobStatus, tally: &Tally, now: &Time) -> Option<End> {
    let target = condition(status, "FailureTarget").filter(|c| c.status == "True");
    if let Some(target) = target {
        let known = ["DeadlineExceeded", POLICY, MANY_INDEXES, INDEXES];
        let reason = known.into_iter().find(|known| target.reason.as_deref() == Some(known));
        return Some(("Failed", reason.unwrap_or("BackoffLimitExceeded"), target.message.clone().unwrap_or_default()));
    }
    let met =
        condition(status, "SuccessCriteriaMet").filter(|c| c.status == "True" && c.reason.as_deref() == Some(SUCCESS));
    if let Some(met) = met {
        return Some(("Complete", SUCCESS, met.message.clone().unwrap_or_default()));
    }
    if let Some(why) = &tally.fatal {
        return Some(("Failed", POLICY, why.clone()));
    }
    let limit = spec.backoff_limit.unwrap_or(6);
    let restarting = spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure");
    let restarts: i32 = tally.active.iter().map(|p| pod::restarts(p)).sum();
    if tally.failed > limit || (restarting && restarts > 0 && restarts >= limit) {
        return Some(("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit".into()));
    }
    if let (Some(limit), Some(start)) = (spec.active_deadline_seconds, &status.start_time)
        && seconds_between(start, now) >= limit
        && !spec.suspend.unwrap_or(false)
    {
        return Some(("Failed", "DeadlineExceeded", "Job was active longer than specified deadline".into()));
    }
    if let Some(why) = policy::met(spec, &tally.completed) {
        return Some(("Complete", SUCCESS, why));
    }
    if !tally.lost.is_empty() {
        let length = |set: &BTreeSet<i32>| i32::try_from(set.len()).unwrap_or(i32::MAX);
        if spec.max_failed_indexes.is_some_and(|limit| length(&tally.lost) > limit) {
            let why = "Job has exceeded the specified maximal number of failed indexes";
            return Some(("Failed", MANY_INDEXES, why.into()));
        }
        if length(&tally.lost) + length(&tally.completed) >= spec.completions.unwrap_or(0) {
            return Some(("Failed", INDEXES, "Job has failed indexes".into()));
        }
    }
    let enough = match spec.completions {
        Some(completions) => tally.succeeded >= completions,
        None => tally.succeeded > 0 && tally.active.is_empty(),
    };
    enough.then(|| ("Complete", "CompletionsReached", "Reached expected number of succeeded pods".to_owned()))
}

/// Ends the job: first the remaining pods and the counting, then the last condition.
fn finish(plan: &mut Plan, tally: &Tally, (type_, reason, message): End, now: &Time) {
    plan.delete.clone_from(&tally.active);
    let target = if type_ == "Complete" { "SuccessCriteriaMet" } else { "FailureTarget" };
    if condition(&plan.status, target).is_none() {
        set(&mut plan.status, target, "True", reason, &message, now);
    }
    let counting = plan.status.uncounted_terminated_pods.as_ref();
    let counted = counting.is_none_or(|u| u.succeeded.is_none() && u.failed.is_none());
    if !counted || !plan.delete.is_empty() || plan.status.terminating.unwrap_or(0) > 0 {
        return;
    }
    (plan.status.active, plan.status.ready) = (None, Some(0));
    set(&mut plan.status, type_, "True", reason, &message, now);
    if type_ == "Complete" {
        plan.status.completion_time = Some(now.clone());
    }
    plan.ended = Some((reason, message));
}

/// Starts or stops pods so that as many run as wanted, later after each failure.
fn schedule(spec: &JobSpec, plan: &mut Plan, tally: Tally, pods: &[Arc<Pod>], now: &Time) {
    let parallelism = spec.parallelism.unwrap_or(1);
    let active = i32::try_from(tally.active.len()).unwrap_or(i32::MAX);
    let wanted = match spec.completions {
        None if tally.succeeded > 0 => active.min(parallelism),
        None => parallelism,
        Some(completions) => {
            let lost = i32::try_from(tally.lost.len()).unwrap_or(i32::MAX);
            parallelism.min(completions - tally.succeeded - lost).max(0)
        }
    };
    if active > wanted {
        let mut surplus = tally.active;
        surplus.sort_by(|a, b| pod::by_deletion_preference(a, b));
        surplus.truncate(usize::try_from(active - wanted).unwrap_or(0));
        plan.delete = surplus;
        return;
    }
    // With the policy Failed a leaving pod is replaced only when it is gone.
    let leaving = if spec.pod_replacement_policy.as_deref() == Some("Failed") {
        i32::try_from(pods.iter().filter(|p| pod::is_terminating(p) && !pod::is_finished(p)).count()).unwrap_or(0)
    } else {
        0
    };
    let missing = wanted - active - leaving;
    if missing <= 0 {
        return;
    }
    let per_index = spec.backoff_limit_per_index.is_some();
    if !per_index && let Some(left) = back_off(pods.iter(), now) {
        plan.wake = Some(left);
        return;
    }
    if spec.completion_mode.as_deref() != Some("Indexed") {
        plan.create = (0..missing).map(|_| None).collect();
        return;
    }
    let running: BTreeSet<i32> = tally.active.iter().filter_map(|p| completion_index(p)).collect();
    let taken = |i: &i32| tally.completed.contains(i) || tally.lost.contains(i) || running.contains(i);
    let mut waits = None;
    let free = (0..spec.completions.unwrap_or(0)).filter(|i| !taken(i)).filter(|index| {
        // Where each index has tries of its own, each waits by itself.
        let theirs = pods.iter().filter(|pod| per_index && completion_index(pod) == Some(*index));
        let left = back_off(theirs, now);
        waits = [waits, left].into_iter().flatten().min();
        left.is_none()
    });
    plan.create = free.take(usize::try_from(missing).unwrap_or(0)).map(Some).collect();
    plan.wake = waits;
}

/// Seconds until the next attempt: 10, 20, 40… after the last of a row of failures, at most ten minutes.
fn back_off<'a>(pods: impl Iterator<Item = &'a Arc<Pod>> + Clone, now: &Time) -> Option<i64> {
    let ended = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
        let times =
            statuses.into_iter().flatten().filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.clone());
        times
            .max()
            .or_else(|| pod.metadata.deletion_timestamp.clone())
            .or_else(|| pod.metadata.creation_timestamp.clone())
    };
    let last_success = pods.clone().filter(|p| pod::phase(p) == "Succeeded").filter_map(|p| ended(p)).max();
    let failures = pods.filter(|p| pod::phase(p) == "Failed").filter_map(|p| ended(p));
    let failures: Vec<Time> =
        failures.filter(|time| last_success.as_ref().is_none_or(|success| time > success)).collect();
    let last = failures.iter().max()?;
    let exponent = u32::try_from(failures.len() - 1).unwrap_or(u32::MAX).min(6);
    let delay = (10i64 << exponent).min(600);
    let left = delay - seconds_between(last, now);
    (left > 0).then_some(left)
}

pub(crate) fn condition<'a>(status: &'a JobStatus, type_: &str) -> Option<&'a JobCondition> {
    status.conditions.as_ref()?.iter().find(|c| c.type_ == type_)
}

fn set(status: &mut JobStatus, type_: &str, state: &str, reason: &str, message: &str, now: &Time) {
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|c| c.type_ != type_);
    conditions.push(JobCondition {
        type_: type_.into(),
        status: state.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    });
}

#[cfg(test)]
mod tests;
