//! CronJobs: jobs at the times of a schedule.

mod plan;
mod schedule;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock;
use kit::controller::owner::{controlled_by, controller_key};
use kit::controller::{self, Result};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Resource, ResourceExt};

use crate::context::Context;
use crate::job::outcome;
use schedule::Schedule;

const COMPONENT: &str = "cronjob-controller";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (crons, jobs) = (ctx.store::<CronJob>(), ctx.store::<Job>());
    crons.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(cron) = new {
                queue.add(Key::of(cron.as_ref()));
            }
        }
    });
    jobs.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(key) = new.or(old).and_then(|job| controller_key::<CronJob>(job.meta())) {
                queue.add(key);
            }
        }
    });
    crons.synced().await;
    jobs.synced().await;
    controller::work(&queue, "cronjob", 2, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(cron) = ctx.store::<CronJob>().get(&key) else { return Ok(Next::Wait) };
    let Some(spec) = cron.spec.as_ref().filter(|_| cron.metadata.deletion_timestamp.is_none()) else {
        return Ok(Next::Wait);
    };
    let jobs = ctx.store::<Job>().owned_by(&cron.uid().unwrap_or_default());
    cut_history(ctx, &cron, &jobs).await?;
    let now = clock::time();
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
    saw_ended(ctx, &cron, &jobs);
    let schedule = match Schedule::parse(&spec.schedule, spec.time_zone.as_deref()) {
        Ok(schedule) => schedule,
        Err(why) => {
            let zone = spec.time_zone.as_deref().filter(|zone| why.ends_with(&format!("unknown time zone {zone}")));
            let (reason, text) = match zone {
                Some(zone) => ("UnknownTimeZone", format!("invalid timeZone: {zone:?}: {why}")),
                None => ("UnparseableSchedule", format!("unparseable schedule: {} : {why}", spec.schedule)),
            };
            ctx.events.record(COMPONENT, cron.as_ref(), Severity::Warning, reason, text);
            return write(ctx, &key, &cron, &status).await.map(|()| Next::Wait);
        }
    };
    if spec.suspend.unwrap_or(false) {
        return write(ctx, &key, &cron, &status).await.map(|()| Next::Wait);
    }
    let due = plan::due(&cron, &schedule, &now);
    if let Some(missed) = due.missed {
        let text = format!(
            "too many missed start times: {missed}. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        );
        ctx.events.record(COMPONENT, cron.as_ref(), Severity::Warning, "TooManyMissedTimes", text);
    }
    if let Some(time) = due.time {
        start(ctx, &cron, &active, &schedule, Time(time), &mut status).await?;
    }
    write(ctx, &key, &cron, &status).await?;
    let wake = due.next.and_then(|next| u64::try_from(next.as_second() - clock::now().as_second()).ok());
    Ok(wake.map_or(Next::Wait, |s| Next::After(Duration::from_secs(s.max(1)))))
}

/// Tells of each job that the status still called active, and that has ended.
fn saw_ended(ctx: &Context, cron: &CronJob, jobs: &[Arc<Job>]) {
    let known = cron.status.as_ref().and_then(|status| status.active.as_deref()).unwrap_or_default();
    let was_active = |job: &&Arc<Job>| known.iter().any(|reference| reference.uid == job.metadata.uid);
    for job in jobs.iter().filter(was_active) {
        if let Some(succeeded) = outcome(job) {
            let condition = if succeeded { "Complete" } else { "Failed" };
            let text = format!("Saw completed job: {}, condition: {condition}", job.name_any());
            ctx.events.record(COMPONENT, cron, Severity::Normal, "SawCompletedJob", text);
        }
    }
}

/// Starts the job of a due time, as the concurrency policy allows.
async fn start(
    ctx: &Context,
    cron: &CronJob,
    active: &[Arc<Job>],
    schedule: &Schedule,
    time: Time,
    status: &mut CronJobStatus,
) -> Result<()> {
    let how = plan::start(cron, active.len());
    if how == plan::Start::Later {
        let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
        ctx.events.record(COMPONENT, cron, Severity::Normal, "JobAlreadyActive", text);
        return Ok(());
    }
    let mut running = active.to_vec();
    if how == plan::Start::Instead {
        for job in running.drain(..) {
            ctx.delete("delete job", job.as_ref(), DeleteParams::background()).await?;
            let text = format!("Deleted job {}", job.name_any());
            ctx.events.record(COMPONENT, cron, Severity::Normal, "SuccessfulDelete", text);
        }
    }
    let job = new_job(cron, schedule, &time);
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

fn new_job(cron: &CronJob, schedule: &Schedule, time: &Time) -> Job {
    let template = cron.spec.as_ref().map(|s| s.job_template.clone()).unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    let mut annotations: BTreeMap<String, String> = given.annotations.unwrap_or_default();
    annotations.insert("batch.kubernetes.io/cronjob-scheduled-timestamp".into(), schedule.shown(time.0));
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
    for job in plan::surplus(cron, jobs) {
        ctx.delete("delete job", job.as_ref(), DeleteParams::background()).await?;
        let text = format!("Deleted job {}", job.name_any());
        ctx.events.record(COMPONENT, cron, Severity::Normal, "SuccessfulDelete", text);
    }
    Ok(())
}
