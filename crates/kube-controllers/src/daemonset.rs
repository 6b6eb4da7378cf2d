//! DaemonSets: one pod on every node that fits, updated node by node.

mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kit::clock;
use kit::controller::owner::{controlled_by, controller_key, workload_selector};
use kit::controller::{self, Result, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};

use crate::context::Context;
use crate::{claim, revision};

const COMPONENT: &str = "daemonset-controller";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (sets, pods, nodes) = (ctx.store::<DaemonSet>(), ctx.store::<Pod>(), ctx.store::<Node>());
    let revisions = ctx.store::<ControllerRevision>();
    sets.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(set) = new {
                queue.add(Key::of(set.as_ref()));
            }
        }
    });
    pods.on_change({
        let queue = queue.clone();
        move |old, new| {
            for pod in [old, new].into_iter().flatten() {
                if let Some(key) = controller_key::<DaemonSet>(pod.meta()) {
                    queue.add(key);
                }
            }
        }
    });
    nodes.on_change({
        let (queue, sets) = (queue.clone(), sets.clone());
        move |old, new| {
            let same = |(old, new): (&Arc<Node>, &Arc<Node>)| {
                old.metadata.labels == new.metadata.labels
                    && old.spec.as_ref().map(|s| &s.taints) == new.spec.as_ref().map(|s| &s.taints)
            };
            if !old.zip(new).is_some_and(same) {
                for set in sets.all() {
                    queue.add(Key::of(set.as_ref()));
                }
            }
        }
    });
    sets.synced().await;
    pods.synced().await;
    nodes.synced().await;
    revisions.synced().await;
    controller::work(&queue, "daemonset", 4, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(set) = ctx.store::<DaemonSet>().get(&key) else { return Ok(Next::Wait) };
    let Some(spec) = &set.spec else { return Ok(Next::Wait) };
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    let selector = workload_selector(&spec.selector, set.as_ref())?;
    let pods: Vec<Arc<Pod>> = claim::children(ctx, set.as_ref(), &selector).await?;
    let (current, revisions) = revision::sync(ctx, set.as_ref(), &selector, &spec.template).await?;
    let hash = revision::hash_of(&current).to_owned();
    let (nodes, now) = (ctx.store::<Node>().all(), clock::time());
    let observed = plan::Observed { set: &set, nodes: &nodes, pods: &pods, hash: &hash, now: &now };
    let steps = plan::steps(&observed);
    let outcome = execute(ctx, &set, &hash, &steps).await;
    let pods = ctx.store::<Pod>().owned_by(&set.uid().unwrap_or_default());
    let (status, wake) = plan::status(&plan::Observed { pods: &pods, ..observed });
    ctx.set_status::<DaemonSet, _>("write status of daemonset", &key, set.status.as_ref(), &status).await?;
    outcome?;
    let in_use: BTreeSet<&str> =
        pods.iter().filter_map(|p| pod::labels(p.meta()).get(revision::HASH_LABEL)).map(String::as_str).collect();
    let limit = spec.revision_history_limit.unwrap_or(10);
    revision::cut_history(ctx, &revisions, &current, &in_use, limit).await?;
    let wake = wake.into_iter().chain(steps.wake).min().and_then(|s| u64::try_from(s).ok());
    Ok(wake.map_or(Next::Wait, |s| Next::After(Duration::from_secs(s))))
}

async fn execute(ctx: &Context, set: &DaemonSet, hash: &str, steps: &plan::Steps) -> Result<()> {
    for pod in &steps.delete {
        let failed = pod::phase(pod) == "Failed";
        ctx.delete("delete pod", pod.as_ref(), DeleteParams::default()).await?;
        let text = format!("Deleted pod: {}", pod.name_any());
        ctx.events.record(COMPONENT, set, Severity::Normal, "SuccessfulDelete", text);
        if failed {
            let node = pod::node_name(pod).unwrap_or_default();
            let text = format!("Found failed daemon pod {} on node {node}, will try to kill it", Key::of(pod.as_ref()));
            ctx.events.record(COMPONENT, set, Severity::Warning, "FailedDaemonPod", text);
        }
    }
    let results = futures::future::join_all(steps.create.iter().map(|node| create(ctx, set, hash, node))).await;
    results.into_iter().collect()
}

async fn create(ctx: &Context, set: &DaemonSet, hash: &str, node: &str) -> Result<()> {
    let Some(spec) = &set.spec else { return Ok(()) };
    let mut pod =
        pod::from_template(&spec.template, &set.namespace().unwrap_or_default(), &set.name_any(), controlled_by(set));
    if let Some(spec) = &mut pod.spec {
        plan::confine(spec, node);
    }
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(revision::HASH_LABEL.into(), hash.into());
    if let Some(generation) = set.metadata.generation {
        labels.insert("pod-template-generation".into(), generation.to_string());
    }
    match ctx.create("create pod", &pod).await {
        Ok(created) => {
            let text = format!("Created pod: {}", created.name_any());
            ctx.events.record(COMPONENT, set, Severity::Normal, "SuccessfulCreate", text);
            Ok(())
        }
        Err(error) if error.code() == 403 && error.message().contains("being terminated") => Ok(()),
        Err(error) => {
            let text = format!("Error creating: {}", error.message());
            ctx.events.record(COMPONENT, set, Severity::Warning, "FailedCreate", text);
            Err(error)
        }
    }
}
