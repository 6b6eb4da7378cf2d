//! Eviction of pods that do not tolerate a NoExecute taint of their node, at once or after their tolerationSeconds.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock;
use kit::controller::{self, During, Result, gone_is_none, placement, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::context::Context;

const COMPONENT: &str = "taint-eviction-controller";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (nodes, pods) = (ctx.store::<Node>(), ctx.store::<Pod>());
    nodes.on_change({
        let (queue, pods) = (queue.clone(), pods.clone());
        move |old, new| {
            let taints = |node: &Arc<Node>| placement::taints(node).to_vec();
            if old.map(taints).unwrap_or_default() == new.map(taints).unwrap_or_default() {
                return;
            }
            let name = new.or(old).map(|node| node.name_any());
            for pod in pods.all().iter().filter(|pod| pod::node_name(pod) == name.as_deref()) {
                queue.add(Key::of(pod.as_ref()));
            }
        }
    });
    pods.on_change({
        let (queue, nodes) = (queue.clone(), nodes.clone());
        move |old, new| {
            let Some(pod) = new.filter(|pod| pod::node_name(pod).is_some()) else { return };
            let node = nodes.get(&Key::new("", pod::node_name(pod).unwrap_or_default()));
            let tainted = node.is_some_and(|node| placement::taints(&node).iter().any(|t| t.effect == "NoExecute"));
            let fresh = old.is_none_or(|old| {
                placement::tolerations(old) != placement::tolerations(pod) || pod::node_name(old).is_none()
            });
            if tainted && fresh {
                queue.add(Key::of(pod.as_ref()));
            }
        }
    });
    nodes.synced().await;
    pods.synced().await;
    controller::work(&queue, "taint-eviction", 8, |key| reconcile(&ctx, key)).await;
}

/// In how many seconds a pod must leave; `None` when it may stay.
fn leaves_in(tolerations: &[Toleration], taints: &[Taint], now: &Time) -> Option<i64> {
    let mut soonest = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let covering: Vec<&Toleration> = tolerations.iter().filter(|t| placement::tolerates(t, taint)).collect();
        if covering.is_empty() {
            return Some(0);
        }
        let Some(seconds) = covering.iter().filter_map(|t| t.toleration_seconds).min() else { continue };
        let since = taint.time_added.as_ref().map_or(0, |added| clock::seconds_between(added, now));
        let left = (seconds - since).max(0);
        soonest = Some(soonest.map_or(left, |s: i64| s.min(left)));
    }
    soonest
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(pod) = ctx.store::<Pod>().get(&key).filter(|pod| pod::is_active(pod)) else { return Ok(Next::Wait) };
    let node = ctx.store::<Node>().get(&Key::new("", pod::node_name(&pod).unwrap_or_default()));
    let Some(node) = node else { return Ok(Next::Wait) };
    match leaves_in(placement::tolerations(&pod), placement::taints(&node), &clock::time()) {
        None => Ok(Next::Wait),
        Some(0) => {
            let change = json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True",
                "reason": "DeletionByTaintManager", "message": "Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": clock::time()}]}});
            let api: kube::Api<Pod> = ctx.api(&key.namespace);
            let patched = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(&change)).await;
            gone_is_none(patched.during("write status of pod", &key))?;
            let text = format!("Marking for deletion Pod {key}");
            ctx.events.record(COMPONENT, pod.as_ref(), Severity::Normal, "TaintManagerEviction", text);
            ctx.delete("evict pod", pod.as_ref(), DeleteParams::default()).await?;
            Ok(Next::Wait)
        }
        Some(seconds) => Ok(Next::After(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tolerations: serde_json::Value, expect: Option<i64>) {
        let time = |text: &str| -> Time { serde_json::from_value(json!(text)).unwrap() };
        let taint = Taint {
            key: "node.kubernetes.io/unreachable".into(),
            effect: "NoExecute".into(),
            time_added: Some(time("2026-01-01T00:00:00Z")),
            value: None,
        };
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).unwrap();
        assert_eq!(leaves_in(&tolerations, &[taint], &time("2026-01-01T00:01:00Z")), expect);
    }

    #[test]
    fn toleration_seconds_count_from_the_taint() {
        let covering = |seconds: Option<i64>| json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": seconds});
        check(json!([]), Some(0));
        check(json!([covering(Some(300))]), Some(240));
        check(json!([covering(Some(30))]), Some(0));
        check(json!([covering(None)]), None);
        check(json!([covering(Some(300)), covering(Some(100))]), Some(40));
    }
}
