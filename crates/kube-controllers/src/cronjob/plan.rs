//! What a CronJob does at a moment: which time is due, which jobs end for it, which are history. Pure.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kit::clock;
use kube::ResourceExt;

use super::schedule::Schedule;
use crate::job::outcome;

/// Times missed beyond this many are not made up for one by one.
const TOO_MANY: usize = 100;

/// What is due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// The last time that has come and was not served.
    pub(super) time: Option<Timestamp>,
    /// How many such times there were, when they are too many to be right.
    pub(super) missed: Option<usize>,
    /// The time to come.
    pub(super) next: Option<Timestamp>,
}

/// The times since the last one served (or the beginning), within the deadline.
pub(super) fn due(cron: &CronJob, schedule: &Schedule, now: &Time) -> Due {
    let Some(spec) = &cron.spec else { return Due::default() };
    let served = cron.status.as_ref().and_then(|status| status.last_schedule_time.clone());
    let mut since = served.or_else(|| cron.metadata.creation_timestamp.clone()).unwrap_or_else(|| now.clone());
    if let Some(deadline) = spec.starting_deadline_seconds {
        since = since.max(clock::plus_seconds(now, -deadline));
    }
    let (mut due, mut missed, mut from) = (Due::default(), 0, since.0);
    loop {
        match schedule.next(from) {
            Some(time) if time <= now.0 => {
                missed += 1;
                due.time = Some(time);
                from = time;
                // Far behind: jump close to the present instead of walking through every missed time.
                if missed == TOO_MANY {
                    from = from.max(Timestamp::from_second(now.0.as_second() - 86_400).unwrap_or(from));
                }
            }
            next => {
                due.next = next;
                due.missed = Some(missed).filter(|missed| *missed > TOO_MANY);
                return due;
            }
        }
    }
}

/// How the concurrency policy lets a time be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Beside those that run.
    Concurrently,
    /// Instead of those that run.
    Instead,
    /// Not while one runs.
    Later,
}

/// What the policy says while so many jobs run.
pub(super) fn start(cron: &CronJob, running: usize) -> Start {
    match cron.spec.as_ref().and_then(|spec| spec.concurrency_policy.as_deref()) {
        Some("Forbid") if running > 0 => Start::Later,
        Some("Replace") => Start::Instead,
        _ => Start::Concurrently,
    }
}

/// Finished jobs beyond the limits of the history, the oldest first.
pub(super) fn surplus(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let Some(spec) = &cron.spec else { return Vec::new() };
    let limits =
        [(true, spec.successful_jobs_history_limit.unwrap_or(3)), (false, spec.failed_jobs_history_limit.unwrap_or(1))];
    let beyond = limits.into_iter().flat_map(|(succeeded, limit)| {
        let mut finished: Vec<_> = jobs.iter().filter(|job| outcome(job) == Some(succeeded)).cloned().collect();
        finished.sort_by_key(|job| (job.metadata.creation_timestamp.clone(), job.name_any()));
        finished.truncate(finished.len().saturating_sub(usize::try_from(limit).unwrap_or(0)));
        finished
    });
    beyond.filter(|job| job.metadata.deletion_timestamp.is_none()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cron(spec: Value, served: Option<&str>) -> CronJob {
        let mut spec = spec;
        spec["jobTemplate"] = json!({});
        serde_json::from_value(json!({"metadata": {"name": "c", "creationTimestamp": "2026-01-15T10:00:00Z"},
            "spec": spec, "status": {"lastScheduleTime": served}}))
        .unwrap()
    }

    /// `expect` is `due missed next`.
    #[track_caller]
    fn check(spec: Value, served: Option<&str>, now: &str, expect: &str) {
        let cron = cron(spec, served);
        let spec = cron.spec.as_ref().unwrap();
        let schedule = Schedule::parse(&spec.schedule, spec.time_zone.as_deref()).unwrap();
        let due = due(&cron, &schedule, &Time(now.parse().unwrap()));
        let shown =
            |time: Option<Timestamp>| time.map_or("-".to_owned(), |time| schedule.shown(time)[5..16].to_owned());
        let missed = due.missed.map_or("-".to_owned(), |missed| missed.to_string());
        assert_eq!(format!("{} {missed} {}", shown(due.time), shown(due.next)), expect);
    }

    #[test]
    fn the_last_time_that_came_is_due() {
        let hourly = json!({"schedule": "0 * * * *"});
        check(hourly.clone(), None, "2026-01-15T10:30:00Z", "- - 01-15T11:00");
        check(hourly.clone(), None, "2026-01-15T11:00:00Z", "01-15T11:00 - 01-15T12:00");
        check(hourly.clone(), Some("2026-01-15T11:00:00Z"), "2026-01-15T11:00:30Z", "- - 01-15T12:00");
        check(hourly.clone(), None, "2026-01-15T13:59:00Z", "01-15T13:00 - 01-15T14:00");
        check(hourly, None, "2026-01-25T10:30:00Z", "01-25T10:00 124 01-25T11:00");
    }

    #[test]
    fn a_deadline_forgets_what_is_too_late() {
        let late = |deadline: i64| json!({"schedule": "0 * * * *", "startingDeadlineSeconds": deadline});
        check(late(600), None, "2026-01-15T11:05:00Z", "01-15T11:00 - 01-15T12:00");
        check(late(600), None, "2026-01-15T11:30:00Z", "- - 01-15T12:00");
        check(late(3600), None, "2026-03-15T11:30:00Z", "03-15T11:00 - 03-15T12:00");
    }

    #[test]
    fn a_zone_moves_the_times() {
        let morning = json!({"schedule": "0 9 * * *", "timeZone": "Etc/GMT-2"});
        check(morning.clone(), None, "2026-01-16T06:59:00Z", "- - 01-16T09:00");
        check(morning, None, "2026-01-16T07:00:00Z", "01-16T09:00 - 01-17T09:00");
    }

    #[test]
    fn policies_say_how_a_time_is_served() {
        let check = |policy: &str, running: usize, expect: Start| {
            let cron = cron(json!({"schedule": "* * * * *", "concurrencyPolicy": policy}), None);
            assert_eq!(start(&cron, running), expect, "{policy} {running}");
        };
        check("Allow", 2, Start::Concurrently);
        check("Forbid", 1, Start::Later);
        check("Forbid", 0, Start::Concurrently);
        check("Replace", 1, Start::Instead);
    }

    #[test]
    fn history_is_cut_from_its_old_end() {
        let job = |name: &str, outcome: &str| -> Arc<Job> {
            let at = format!("2026-01-15T10:0{}:00Z", &name[1..]);
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": at},
                "status": {"conditions": [{"type": outcome, "status": "True"}]}}))
                .unwrap(),
            )
        };
        let jobs = [
            job("j3", "Complete"),
            job("j1", "Complete"),
            job("j2", "Failed"),
            job("j4", "Suspended"),
            job("j5", "Failed"),
        ];
        let check = |limits: Value, expect: &[&str]| {
            let mut spec = limits;
            spec["schedule"] = "* * * * *".into();
            let names: Vec<_> = surplus(&cron(spec, None), &jobs).iter().map(|job| job.name_any()).collect();
            assert_eq!(names, expect);
        };
        check(json!({}), &["j2"]);
        check(json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 2}), &["j1"]);
        check(json!({"successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 0}), &["j1", "j3", "j2", "j5"]);
    }
}
