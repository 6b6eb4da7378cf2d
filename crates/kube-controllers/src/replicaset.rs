//! ReplicaSets: keeps as many pods of a template as wanted.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kit::clock;
use kit::controller::owner::{controlled_by, controller_key, selects, workload_selector};
use kit::controller::{self, Error, Result, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};

use crate::claim;
use crate::context::Context;

const COMPONENT: &str = "replicaset-controller";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (sets, pods) = (ctx.store::<ReplicaSet>(), ctx.store::<Pod>());
    sets.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(set) = new {
                queue.add(Key::of(set.as_ref()));
            }
        }
    });
    pods.on_change({
        let (queue, sets) = (queue.clone(), sets.clone());
        move |old, new| {
            for pod in [old, new].into_iter().flatten() {
                if let Some(key) = controller_key::<ReplicaSet>(pod.meta()) {
                    queue.add(key);
                }
            }
            if let Some(orphan) = new.filter(|pod| pod.owner_references().is_empty()) {
                for set in sets.in_namespace(&orphan.namespace().unwrap_or_default()) {
                    if selects(set.spec.as_ref().map(|s| &s.selector), pod::labels(orphan.meta())) {
                        queue.add(Key::of(set.as_ref()));
                    }
                }
            }
        }
    });
    sets.synced().await;
    pods.synced().await;
    controller::work(&queue, "replicaset", 8, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(set) = ctx.store::<ReplicaSet>().get(&key) else { return Ok(Next::Wait) };
    let Some(spec) = &set.spec else { return Ok(Next::Wait) };
    let selector = workload_selector(&spec.selector, set.as_ref())?;
    let pods: Vec<Arc<Pod>> = claim::children(ctx, set.as_ref(), &selector).await?;
    let outcome = match plan::step(&set, &pods) {
        plan::Step::Nothing => Ok(()),
        plan::Step::Create(count) => create_pods(ctx, &set, count).await,
        plan::Step::Delete(victims) => delete_pods(ctx, &set, &victims).await,
    };
    let failure = outcome.as_ref().err().map(|error| match plan::step(&set, &pods) {
        plan::Step::Delete(_) => ("FailedDelete", error.message()),
        _ => ("FailedCreate", error.message()),
    });
    let pods = ctx.store::<Pod>().owned_by(&set.uid().unwrap_or_default());
    let (status, wake) = plan::status(&set, &pods, failure, &clock::time());
    ctx.set_status::<ReplicaSet, _>("write status of replicaset", &key, set.status.as_ref(), &status).await?;
    outcome?;
    Ok(wake.and_then(|s| u64::try_from(s).ok()).map_or(Next::Wait, |s| Next::After(Duration::from_secs(s))))
}

/// Creates pods in growing batches, so that a template nobody admits costs one failed request and not hundreds.
async fn create_pods(ctx: &Context, set: &ReplicaSet, count: usize) -> Result<()> {
    let Some(template) = set.spec.as_ref().and_then(|s| s.template.as_ref()) else { return Ok(()) };
    let pod = pod::from_template(template, &set.namespace().unwrap_or_default(), &set.name_any(), controlled_by(set));
    let (mut left, mut batch) = (count, 1);
    while left > 0 {
        let now = batch.min(left);
        let results = futures::future::join_all((0..now).map(|_| ctx.create("create pod", &pod))).await;
        for result in results {
            match result {
                Ok(created) => {
                    let text = format!("Created pod: {}", created.name_any());
                    ctx.events.record(COMPONENT, set, Severity::Normal, "SuccessfulCreate", text);
                }
                // The namespace is going away; nothing can be created there any more.
                Err(error) if error.code() == 403 && error.message().contains("being terminated") => return Ok(()),
                Err(error) => return Err(failed_to_create(ctx, set, error)),
            }
        }
        left -= now;
        batch *= 2;
    }
    Ok(())
}

fn failed_to_create(ctx: &Context, set: &ReplicaSet, error: Error) -> Error {
    let text = format!("Error creating: {}", error.message());
    ctx.events.record(COMPONENT, set, Severity::Warning, "FailedCreate", text);
    error
}

async fn delete_pods(ctx: &Context, set: &ReplicaSet, victims: &[Arc<Pod>]) -> Result<()> {
    let delete = |pod: Arc<Pod>| async move {
        ctx.delete("delete pod", pod.as_ref(), DeleteParams::default()).await?;
        let text = format!("Deleted pod: {}", pod.name_any());
        ctx.events.record(COMPONENT, set, Severity::Normal, "SuccessfulDelete", text);
        Ok(())
    };
    futures::future::join_all(victims.iter().cloned().map(delete)).await.into_iter().collect()
}
