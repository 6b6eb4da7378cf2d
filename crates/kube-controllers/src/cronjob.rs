//! CronJobs: jobs at the times of a schedule.

mod schedule;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Resource, ResourceExt};

use crate::clock;
use crate::context::Context;
use crate::error::Result;
use crate::events::Severity;
use crate::job::outcome;
use crate::owner::{controlled_by, controller_key};
use crate::queue::{Queue, Wake};
use crate::store::Key;
use schedule::Schedule;

const COMPONENT: &str = "cronjob-controller";
/// Times missed beyond this many are not made up for one by one.
const TOO_MANY: usize = 100;

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(Queue::new());
    let (crons, jobs) = (ctx.store::<CronJob>(), ctx.store::<Job>());
    crons.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(cron) = new {
                queue.push(Key::of(cron.as_ref()));
            }
        }
    });
    jobs.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(key) = new.or(old).and_then(|job| controller_key::<CronJob>(job.meta())) {
                queue.push(key);
            }
        }
    });
    crons.synced().await;
    jobs.synced().await;
    queue.work("cronjob", 2, |key| reconcile(&ctx, key)).await;
}

/// The last time that is due and the next one to come.
fn due(schedule: &Schedule, since: Timestamp, now: Timestamp) -> (Option<Timestamp>, usize, Option<Timestamp>) {
    let (mut last, mut missed, mut from) = (None, 0, since);
    loop {
        match schedule.next(from) {
            Some(time) if time <= now => {
                missed += 1;
                last = Some(time);
                from = time;
                // Far behind: jump close to the present instead of walking through every missed time.
                if missed == TOO_MANY {
                    from = from.max(Timestamp::from_second(now.as_second() - 86_400).unwrap_or(from));
                }
            }
            next => return (last, missed, next),
        }
    }
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Wake> {
    let Some(cron) = ctx.store::<CronJob>().get(&key) else { return Ok(Wake::OnChange) };
    let Some(spec) = cron.spec.as_ref().filter(|_| cron.metadata.deletion_timestamp.is_none()) else {
        return Ok(Wake::OnChange);
    };
    let jobs = ctx.store::<Job>().owned_by(&cron.uid().unwrap_or_default());
    cut_history(ctx, &cron, &jobs).await?;
    let now = clock::now();
    let mut status = cron.status.clone().unwrap_or_default();
    if let Some(done) = jobs
        .iter()
        .filter(|job| outcome(job) == Some(true))
        .filter_map(|job| job.status.as_ref().and_then(|s| s.completion_time.clone()))
        .max()
    {
        status.last_successful_time = status.last_successful_time.max(Some(done));
    }
    let active: Vec<_> = jobs.iter().filter(|job| outcome(job).is_none()).cloned().collect();
    status.active = references(&active);
    let schedule = match Schedule::parse(&spec.schedule, spec.time_zone.as_deref()) {
        Ok(schedule) => schedule,
        Err(why) => {
            let text = format!("unparseable schedule: {} : {why}", spec.schedule);
            ctx.events.record(COMPONENT, cron.as_ref(), Severity::Warning, "UnparseableSchedule", text);
            return write(ctx, &key, &cron, &status).await.map(|()| Wake::OnChange);
        }
    };
    if spec.suspend.unwrap_or(false) {
        return write(ctx, &key, &cron, &status).await.map(|()| Wake::OnChange);
    }
    let mut since =
        status.last_schedule_time.clone().or_else(|| cron.metadata.creation_timestamp.clone()).unwrap_or(now.clone());
    if let Some(deadline) = spec.starting_deadline_seconds {
        since = since.max(clock::plus_seconds(&now, -deadline));
    }
    let (last, missed, next) = due(&schedule, since.0, now.0);
    if missed > TOO_MANY {
        let text = format!(
            "too many missed start times: {missed}. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        );
        ctx.events.record(COMPONENT, cron.as_ref(), Severity::Warning, "TooManyMissedTimes", text);
    }
    if let Some(time) = last {
        start(ctx, &cron, &active, Time(time), &mut status).await?;
    }
    write(ctx, &key, &cron, &status).await?;
    let wake = next.and_then(|next| u64::try_from(next.as_second() - Timestamp::now().as_second()).ok());
    Ok(wake.map_or(Wake::OnChange, |s| Wake::After(Duration::from_secs(s.max(1)))))
}

/// Starts the job of a due time, as the concurrency policy allows.
async fn start(
    ctx: &Context,
    cron: &CronJob,
    active: &[Arc<Job>],
    time: Time,
    status: &mut CronJobStatus,
) -> Result<()> {
    let Some(spec) = &cron.spec else { return Ok(()) };
    if !active.is_empty() && spec.concurrency_policy.as_deref() == Some("Forbid") {
        let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
        ctx.events.record(COMPONENT, cron, Severity::Normal, "JobAlreadyActive", text);
        return Ok(());
    }
    let mut running = active.to_vec();
    if spec.concurrency_policy.as_deref() == Some("Replace") {
        for job in running.drain(..) {
            ctx.delete("delete job", job.as_ref(), DeleteParams::background()).await?;
            let text = format!("Deleted job {}", job.name_any());
            ctx.events.record(COMPONENT, cron, Severity::Normal, "SuccessfulDelete", text);
        }
    }
    let job = new_job(cron, &time);
    match ctx.create("create job", &job).await {
        Ok(created) => {
            let text = format!("Created job {}", created.name_any());
            ctx.events.record(COMPONENT, cron, Severity::Normal, "SuccessfulCreate", text);
            running.push(Arc::new(created));
        }
        // The job of this time exists; only the status was not written then.
        Err(error) if error.code() == 409 => {}
        Err(error) if error.code() == 403 && error.message().contains("being terminated") => return Ok(()),
        Err(error) => {
            let text = format!("Error creating job: {}", error.message());
            ctx.events.record(COMPONENT, cron, Severity::Warning, "FailedCreate", text);
            return Err(error);
        }
    }
    status.active = references(&running);
    status.last_schedule_time = Some(time);
    Ok(())
}

fn new_job(cron: &CronJob, time: &Time) -> Job {
    let template = cron.spec.as_ref().map(|s| s.job_template.clone()).unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    let mut annotations: BTreeMap<String, String> = given.annotations.unwrap_or_default();
    annotations.insert("batch.kubernetes.io/cronjob-scheduled-timestamp".into(), time.0.to_string());
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", cron.name_any(), time.0.as_second() / 60)),
            namespace: cron.namespace(),
            labels: given.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controlled_by(cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

fn references(jobs: &[Arc<Job>]) -> Option<Vec<ObjectReference>> {
    let reference = |job: &Arc<Job>| ObjectReference {
        api_version: Some("batch/v1".into()),
        kind: Some("Job".into()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        ..ObjectReference::default()
    };
    (!jobs.is_empty()).then(|| jobs.iter().map(reference).collect())
}

async fn write(ctx: &Context, key: &Key, cron: &CronJob, status: &CronJobStatus) -> Result<()> {
    ctx.set_status::<CronJob, _>("write status of cronjob", key, cron.status.as_ref(), status).await
}

async fn cut_history(ctx: &Context, cron: &CronJob, jobs: &[Arc<Job>]) -> Result<()> {
    let Some(spec) = &cron.spec else { return Ok(()) };
    let limits =
        [(true, spec.successful_jobs_history_limit.unwrap_or(3)), (false, spec.failed_jobs_history_limit.unwrap_or(1))];
    for (succeeded, limit) in limits {
        let mut finished: Vec<_> = jobs.iter().filter(|job| outcome(job) == Some(succeeded)).collect();
        finished.sort_by_key(|job| job.metadata.creation_timestamp.clone());
        let surplus = finished.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        for job in finished.into_iter().take(surplus) {
            if job.metadata.deletion_timestamp.is_none() {
                ctx.delete("delete job", job.as_ref(), DeleteParams::background()).await?;
            }
        }
    }
    Ok(())
}
