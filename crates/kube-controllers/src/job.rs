//! Jobs: pods that are to succeed a number of times.

mod index;
mod plan;
mod policy;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use kit::clock;
use kit::controller::owner::{controlled_by, controller_key, controller_of};
use kit::controller::{self, Result, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::context::Context;

const COMPONENT: &str = "job-controller";
/// In `managedBy`: this controller.
const MANAGER: &str = "kubernetes.io/job-controller";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (jobs, pods) = (ctx.store::<Job>(), ctx.store::<Pod>());
    jobs.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(job) = new.or(old) {
                queue.add(Key::of(job.as_ref()));
            }
        }
    });
    pods.on_change({
        let queue = queue.clone();
        move |old, new| {
            for pod in [old, new].into_iter().flatten() {
                if let Some(key) = controller_key::<Job>(pod.meta()) {
                    queue.add(key);
                }
            }
            if let Some(pod) = new.filter(|pod| is_orphan(pod)) {
                queue.add(Key::new(pod.namespace().unwrap_or_default(), ""));
            }
        }
    });
    jobs.synced().await;
    pods.synced().await;
    controller::work(&queue, "job", 4, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(job) = ctx.store::<Job>().get(&key) else { return release_orphans(ctx, &key).await };
    if job.spec.as_ref().and_then(|s| s.managed_by.as_deref()).is_some_and(|manager| manager != MANAGER) {
        return Ok(Next::Wait);
    }
    let pods = ctx.store::<Pod>().owned_by(&job.uid().unwrap_or_default());
    if job.metadata.deletion_timestamp.is_some() {
        return release(ctx, &pods).await.map(|()| Next::Wait);
    }
    let now = clock::time();
    let mut plan = plan::plan(&job, &pods, &now);
    if plan::is_over(&job).is_some() {
        release(ctx, &plan.release).await?;
        let ttl = job.spec.as_ref().and_then(|s| s.ttl_seconds_after_finished);
        return match plan.wake {
            Some(0) if ttl.is_some() => {
                ctx.delete("delete job", job.as_ref(), DeleteParams::foreground()).await?;
                Ok(Next::Wait)
            }
            Some(seconds) => Ok(wake(Some(seconds))),
            None => Ok(Next::Wait),
        };
    }
    // Pods made in this round are part of the same status write.
    let mut created = Ok(0);
    if !plan.create.is_empty() {
        created = create(ctx, &job, &pods, &plan.create).await;
    }
    if let Ok(count) = created {
        plan.status.active = Some(plan.status.active.unwrap_or(0) + count).filter(|n| *n > 0);
    }
    for pod in &plan.delete {
        ctx.delete("delete pod", pod.as_ref(), DeleteParams::default()).await?;
        let text = format!("Deleted pod: {}", pod.name_any());
        ctx.events.record(COMPONENT, job.as_ref(), Severity::Normal, "SuccessfulDelete", text);
    }
    ctx.set_status::<Job, _>("write status of job", &key, job.status.as_ref(), &plan.status).await?;
    release(ctx, &plan.release).await?;
    announce(ctx, &job, &plan);
    created?;
    Ok(wake(plan.wake))
}

fn wake(seconds: Option<i64>) -> Next {
    seconds.and_then(|s| u64::try_from(s).ok()).map_or(Next::Wait, |s| Next::After(Duration::from_secs(s)))
}

fn announce(ctx: &Context, job: &Job, plan: &plan::Plan) {
    match plan.suspended {
        Some(true) => ctx.events.record(COMPONENT, job, Severity::Normal, "Suspended", "Job suspended"),
        Some(false) if plan::condition(&job.status.clone().unwrap_or_default(), "Suspended").is_some() => {
            ctx.events.record(COMPONENT, job, Severity::Normal, "Resumed", "Job resumed");
        }
        _ => {}
    }
    match &plan.ended {
        Some(("CompletionsReached" | "SuccessPolicy", _)) => {
            ctx.events.record(COMPONENT, job, Severity::Normal, "Completed", "Job completed");
        }
        Some((reason, message)) => {
            ctx.events.record(COMPONENT, job, Severity::Warning, reason, message.clone());
        }
        None => {}
    }
}

/// Takes the tracking finalizer off.
async fn release(ctx: &Context, pods: &[Arc<Pod>]) -> Result<()> {
    for pod in pods.iter().filter(|pod| plan::is_tracked(pod)) {
        let left: Vec<_> = pod.finalizers().iter().filter(|f| *f != plan::TRACKING).collect();
        let change =
            json!({"metadata": {"uid": pod.uid(), "resourceVersion": pod.resource_version(), "finalizers": left}});
        let result = ctx.merge::<Pod>("release pod", &Key::of(pod.as_ref()), &change).await;
        match result {
            Ok(Some(current))
                if current.meta().deletion_timestamp.is_some() && left.is_empty() && pod::is_finished(pod) =>
            {
                // The finalizer was the last thing that held it.
                ctx.store::<Pod>().observe(current);
            }
            other => other.map(drop)?,
        }
    }
    Ok(())
}

/// Whether a pod is tracked for a job that has let it go.
fn is_orphan(pod: &Pod) -> bool {
    plan::is_tracked(pod) && controller_of(pod.meta()).is_none()
}

/// Pods whose job is gone, or has let them go, must not be held by it.
async fn release_orphans(ctx: &Context, key: &Key) -> Result<Next> {
    let pods = ctx.store::<Pod>().in_namespace(&key.namespace);
    let theirs = |pod: &Arc<Pod>| is_orphan(pod) || controller_key::<Job>(pod.meta()).as_ref() == Some(key);
    let pods: Vec<_> = pods.into_iter().filter(theirs).collect();
    release(ctx, &pods).await.map(|()| Next::Wait)
}

async fn create(ctx: &Context, job: &Job, pods: &[Arc<Pod>], indexes: &[Option<i32>]) -> Result<i32> {
    let results = futures::future::join_all(indexes.iter().map(|index| create_one(ctx, job, pods, *index))).await;
    let mut count = 0;
    for result in results {
        count += result?;
    }
    Ok(count)
}

async fn create_one(ctx: &Context, job: &Job, pods: &[Arc<Pod>], index: Option<i32>) -> Result<i32> {
    let Some(spec) = &job.spec else { return Ok(0) };
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let mut pod = pod::from_template(&spec.template, &namespace, &name, controlled_by(job));
    pod.metadata.finalizers.get_or_insert_default().push(plan::TRACKING.into());
    if let Some(index) = index {
        number(&mut pod, &name, index);
        if spec.backoff_limit_per_index.is_some() {
            let (failures, ignored) = policy::failures(spec, pods, index);
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(policy::FAILURES.into(), failures.to_string());
            if ignored > 0 {
                annotations.insert(policy::IGNORED.into(), ignored.to_string());
            }
        }
    }
    match ctx.create("create pod", &pod).await {
        Ok(created) => {
            let text = format!("Created pod: {}", created.name_any());
            ctx.events.record(COMPONENT, job, Severity::Normal, "SuccessfulCreate", text);
            Ok(1)
        }
        Err(error) if error.code() == 403 && error.message().contains("being terminated") => Ok(0),
        Err(error) => {
            let text = format!("Error creating: {}", error.message());
            ctx.events.record(COMPONENT, job, Severity::Warning, "FailedCreate", text);
            Err(error)
        }
    }
}

/// Gives a pod of an indexed job its number: in the name, the labels and the environment.
fn number(pod: &mut Pod, job: &str, index: i32) {
    let text = index.to_string();
    pod.metadata.generate_name = Some(format!("{job}-{text}-"));
    pod.metadata.annotations.get_or_insert_default().insert(index::INDEX.into(), text.clone());
    pod.metadata.labels.get_or_insert_default().insert(index::INDEX.into(), text.clone());
    let Some(spec) = &mut pod.spec else { return };
    spec.hostname.get_or_insert_with(|| format!("{job}-{text}"));
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let env = container.env.get_or_insert_default();
        if !env.iter().any(|variable| variable.name == "JOB_COMPLETION_INDEX") {
            env.push(EnvVar { name: "JOB_COMPLETION_INDEX".into(), value: Some(text.clone()), value_from: None });
        }
    }
}

/// Whether a finished job succeeded; `None` while it is not over.
pub(crate) fn outcome(job: &Job) -> Option<bool> {
    plan::is_over(job).map(|condition| condition.type_ == "Complete")
}
