//! Pods nobody will end: those bound to a node that does not exist, those that never ran and are to go, and finished ones
//! in excess.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kit::clock;
use kit::controller::{self, During, Result, gone_is_none, placement, pod};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use crate::context::Context;

/// How long a node may be missing before its pods are given up.
const QUARANTINE: Duration = Duration::from_secs(40);
/// How many finished pods are kept.
const FINISHED_KEPT: usize = 12_500;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Work {
    /// The pods of a node.
    Node(String),
    /// One pod that is going away.
    Leaving(Key),
    /// The number of finished pods.
    Finished,
}

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (nodes, pods) = (ctx.store::<Node>(), ctx.store::<Pod>());
    nodes.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(node) = new.filter(|node| out_of_service(node)).or(old.filter(|_| new.is_none())) {
                queue.add(Work::Node(node.name_any()));
            }
        }
    });
    nodes.synced().await;
    pods.on_change({
        let (queue, nodes) = (queue.clone(), nodes.clone());
        move |old, new| {
            let Some(pod) = new else { return };
            match pod::node_name(pod) {
                None if pod::is_terminating(pod) => queue.add(Work::Leaving(Key::of(pod.as_ref()))),
                Some(node) => {
                    let known = nodes.get(&Key::new("", node));
                    let given_up = known.as_ref().is_some_and(|node| out_of_service(node)) && pod::is_terminating(pod);
                    if known.is_none() || given_up {
                        queue.add(Work::Node(node.to_owned()));
                    }
                }
                None => {}
            }
            if pod::is_finished(pod) && old.is_none_or(|old| !pod::is_finished(old)) {
                queue.add_after(Work::Finished, Duration::from_secs(1));
            }
        }
    });
    pods.synced().await;
    let missing = std::sync::Mutex::new(HashMap::new());
    controller::work(&queue, "pod-garbage-collector", 1, |work| reconcile(&ctx, &missing, work)).await;
}

async fn reconcile(ctx: &Context, missing: &std::sync::Mutex<HashMap<String, Instant>>, work: Work) -> Result<Next> {
    let pods = ctx.store::<Pod>();
    match work {
        Work::Leaving(key) => {
            if let Some(pod) = pods.get(&key).filter(|pod| pod::is_terminating(pod) && pod::node_name(pod).is_none()) {
                force(ctx, &pod, None).await?;
            }
        }
        Work::Finished => {
            let mut finished: Vec<_> = pods.all().into_iter().filter(|pod| pod::is_finished(pod)).collect();
            let surplus = finished.len().saturating_sub(FINISHED_KEPT);
            finished.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
            for pod in finished.iter().take(surplus) {
                force(ctx, pod, None).await?;
            }
        }
        Work::Node(name) => {
            let node = ctx.store::<Node>().get(&Key::new("", &name));
            let here: Vec<_> = pods.all().into_iter().filter(|pod| pod::node_name(pod) == Some(&name)).collect();
            if let Some(node) = node {
                // Somebody vouches for it that nothing runs there any more.
                let lost = out_of_service(&node);
                for pod in here.iter().filter(|pod| lost && pod::is_terminating(pod)) {
                    force(ctx, pod, None).await?;
                }
                missing.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&name);
                return Ok(Next::Wait);
            }
            if here.is_empty() {
                return Ok(Next::Wait);
            }
            let since = {
                let mut missing = missing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                missing.entry(name.clone()).or_insert_with(Instant::now).elapsed()
            };
            if since < QUARANTINE {
                return Ok(Next::After(QUARANTINE.saturating_sub(since)));
            }
            let api: Api<Node> = Api::all(ctx.client.clone());
            if api.get_metadata_opt(&name).await.during("read node", &name)?.is_some() {
                return Ok(Next::Wait);
            }
            for pod in &here {
                force(ctx, pod, Some("PodGC: node no longer exists")).await?;
            }
            missing.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&name);
        }
    }
    Ok(Next::Wait)
}

/// A node that does not answer and was declared out of service: nothing on it will come back.
fn out_of_service(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    !ready && placement::taints(node).iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Deletes a pod without waiting for a node; one that was not finished failed, and says so if it was disrupted.
async fn force(ctx: &Context, pod: &Pod, disrupted: Option<&str>) -> Result<()> {
    let key = Key::of(pod);
    if !pod::is_finished(pod) && pod::node_name(pod).is_some() {
        let mut change = json!({"status": {"phase": "Failed"}});
        if let Some(why) = disrupted {
            change["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
                "reason": "DeletionByPodGC", "message": why, "lastTransitionTime": clock::time()}]);
        }
        let api: Api<Pod> = ctx.api(&key.namespace);
        let patched = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(&change)).await;
        gone_is_none(patched.during("write status of pod", &key))?;
    }
    ctx.delete("delete pod", pod, DeleteParams::default().grace_period(0)).await
}
