//! PodDisruptionBudgets: how many pods may be evicted right now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kit::clock::{self, seconds_between};
use kit::controller::owner::{controller_key, controller_of, selects};
use kit::controller::{self, During, Result, gone_is_none, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::core::DynamicObject;
use kube::{Api, Resource, ResourceExt};
use meta::conditions;

use crate::context::Context;
use crate::deployment::resolve;
use crate::resources;

const COMPONENT: &str = "controllermanager";
/// An eviction that was granted counts as happening for so long.
const GRANTED_FOR: i64 = 120;

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (budgets, pods) = (ctx.store::<PodDisruptionBudget>(), ctx.store::<Pod>());
    let (sets, deployments, stateful) =
        (ctx.store::<ReplicaSet>(), ctx.store::<Deployment>(), ctx.store::<StatefulSet>());
    budgets.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(budget) = new {
                queue.add(Key::of(budget.as_ref()));
            }
        }
    });
    pods.on_change({
        let (queue, budgets) = (queue.clone(), budgets.clone());
        move |old, new| {
            let Some(namespace) = new.or(old).and_then(|pod| pod.namespace()) else { return };
            for budget in budgets.in_namespace(&namespace) {
                let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
                let concerned = |pod: &Arc<Pod>| selects(selector, pod::labels(pod.meta()));
                if old.is_some_and(concerned) || new.is_some_and(concerned) {
                    queue.add(Key::of(budget.as_ref()));
                }
            }
        }
    });
    budgets.synced().await;
    pods.synced().await;
    sets.synced().await;
    deployments.synced().await;
    stateful.synced().await;
    controller::work(&queue, "disruption", 2, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(budget) = ctx.store::<PodDisruptionBudget>().get(&key) else { return Ok(Next::Wait) };
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    let pods: Vec<_> = ctx.store::<Pod>().in_namespace(&key.namespace);
    let pods: Vec<_> =
        pods.into_iter().filter(|p| selects(selector, pod::labels(p.meta())) && !pod::is_finished(p)).collect();
    let expected = expected(ctx, &budget, &pods).await?;
    let (status, wake) = match expected {
        Ok(expected) => status(&budget, &pods, expected, &clock::time()),
        Err(why) => {
            ctx.events.record(
                COMPONENT,
                budget.as_ref(),
                Severity::Warning,
                "CalculateExpectedPodCountFailed",
                format!("Failed to calculate the number of expected pods: {why}"),
            );
            (failed(&budget, &why, &clock::time()), None)
        }
    };
    let operation = "write status of poddisruptionbudget";
    // An eviction notes itself in the status, perhaps since the counting: to undo that would allow a second one.
    ctx.set_status_unless_changed(operation, budget.as_ref(), budget.status.as_ref(), &status).await?;
    Ok(wake.and_then(|s| u64::try_from(s).ok()).map_or(Next::Wait, |s| Next::After(Duration::from_secs(s))))
}

/// How many pods the controllers of these pods want in total, or why that is not known. Only a budget that is relative
/// to it asks; pods without a controller are not wanted by anybody and count for nothing then.
async fn expected(
    ctx: &Context,
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
) -> Result<std::result::Result<i32, String>> {
    let spec = budget.spec.as_ref();
    let absolute =
        spec.and_then(|s| s.min_available.as_ref()).is_some_and(|least| matches!(least, IntOrString::Int(_)));
    if absolute {
        return Ok(Ok(0));
    }
    let mut wanted = BTreeMap::<String, i32>::new();
    for pod in pods {
        let Some(owner) = controller_of(pod.meta()).filter(|owner| !wanted.contains_key(&owner.uid)) else { continue };
        let set = controller_key::<ReplicaSet>(pod.meta()).and_then(|key| ctx.store::<ReplicaSet>().get(&key));
        let deployment = set.as_ref().and_then(|s| controller_key::<Deployment>(s.meta()));
        let deployment = deployment.and_then(|key| ctx.store::<Deployment>().get(&key));
        let stateful = controller_key::<StatefulSet>(pod.meta()).and_then(|key| ctx.store::<StatefulSet>().get(&key));
        if let Some(deployment) = deployment {
            let size = deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
            wanted.insert(deployment.uid().unwrap_or_default(), size);
        } else if let Some(set) = set {
            let size = set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
            wanted.insert(owner.uid.clone(), size);
        } else if let Some(stateful) = stateful {
            let size = stateful.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
            wanted.insert(owner.uid.clone(), size);
        } else {
            match scale(ctx, owner, &pod.namespace().unwrap_or_default()).await? {
                Ok(size) => wanted.insert(owner.uid.clone(), size),
                Err(why) => return Ok(Err(why)),
            };
        }
    }
    Ok(Ok(wanted.values().sum()))
}

/// How many pods a controller of any kind wants, by its scale.
async fn scale(ctx: &Context, owner: &OwnerReference, namespace: &str) -> Result<std::result::Result<i32, String>> {
    let served = resources::discover(&ctx.client).await?;
    let Some(kind) = served.iter().find(|served| served.is_kind(&owner.api_version, &owner.kind)) else {
        return Ok(Err(format!("no matches for kind {:?} in version {:?}", owner.kind, owner.api_version)));
    };
    let api: Api<DynamicObject> = kind.within(&ctx.client, namespace);
    match gone_is_none(api.get_subresource("scale", &owner.name).await.during("read scale", &owner.name))? {
        Some(scale) => {
            let size = scale.data.pointer("/spec/replicas").and_then(serde_json::Value::as_i64).unwrap_or(0);
            Ok(Ok(i32::try_from(size).unwrap_or(i32::MAX)))
        }
        None => Ok(Err(format!("{} does not implement the scale subresource", kind.group_resource()))),
    }
}

/// Nothing may be evicted while it is not known how many pods there should be.
fn failed(budget: &PodDisruptionBudget, why: &str, now: &Time) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = 0;
    status.observed_generation = budget.metadata.generation;
    set_allowed(&mut status, "False", "SyncFailed", why, budget, now);
    status
}

fn set_allowed(
    status: &mut PodDisruptionBudgetStatus,
    state: &str,
    reason: &str,
    message: &str,
    budget: &PodDisruptionBudget,
    now: &Time,
) {
    let list = status.conditions.get_or_insert_default();
    let mut condition = conditions::said(list, "DisruptionAllowed", state, Some(reason), Some(message), now);
    condition.observed_generation = budget.metadata.generation;
    conditions::remove(list, "DisruptionAllowed");
    list.push(condition);
}

/// The status, and in how many seconds a granted eviction that did not happen expires.
fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    expected: i32,
    now: &Time,
) -> (PodDisruptionBudgetStatus, Option<i64>) {
    let old = budget.status.clone().unwrap_or_default();
    let spec = budget.spec.clone().unwrap_or_default();
    let mut granted = old.disrupted_pods.clone().unwrap_or_default();
    granted.retain(|name, since| {
        let waiting = pods.iter().any(|p| p.metadata.name.as_deref() == Some(name) && !pod::is_terminating(p));
        waiting && seconds_between(since, now) < GRANTED_FOR
    });
    let wake = granted.values().map(|since| GRANTED_FOR - seconds_between(since, now)).min();
    let healthy = pods.iter().filter(|p| {
        pod::is_ready(p)
            && !pod::is_terminating(p)
            && !granted.contains_key(p.metadata.name.as_deref().unwrap_or_default())
    });
    let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
    let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => (expected, (expected - resolve(most, expected, true)).max(0)),
        (None, Some(IntOrString::Int(least))) => (count, *least),
        (None, Some(least)) => (expected, resolve(least, expected, true)),
        (None, None) => (expected, expected),
    };
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let (state, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let mut status = PodDisruptionBudgetStatus {
        conditions: old.conditions,
        current_healthy: healthy,
        desired_healthy: desired,
        disrupted_pods: (!granted.is_empty()).then_some(granted),
        disruptions_allowed: allowed,
        expected_pods: expected,
        observed_generation: budget.metadata.generation,
    };
    set_allowed(&mut status, state, reason, "", budget, now);
    (status, wake)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, ready: usize, unready: usize, expected: i32, expect: (i32, i32, i32)) {
        let pod = |(index, ready): (usize, &str)| {
            let value = json!({"metadata": {"name": format!("p{index}")},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            Arc::new(serde_json::from_value::<Pod>(value).unwrap())
        };
        let states = std::iter::repeat_n("True", ready).chain(std::iter::repeat_n("False", unready));
        let pods: Vec<_> = states.enumerate().map(pod).collect();
        let budget = serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": spec})).unwrap();
        let (status, _) = status(&budget, &pods, expected, &clock::time());
        assert_eq!((status.current_healthy, status.desired_healthy, status.disruptions_allowed), expect);
    }

    #[test]
    fn budgets() {
        check(json!({"minAvailable": 2}), 3, 0, 3, (3, 2, 1));
        check(json!({"minAvailable": 2}), 2, 1, 3, (2, 2, 0));
        check(json!({"minAvailable": "50%"}), 3, 0, 3, (3, 2, 1));
        check(json!({"maxUnavailable": 1}), 3, 0, 3, (3, 2, 1));
        check(json!({"maxUnavailable": "0%"}), 3, 0, 3, (3, 3, 0));
        check(json!({"maxUnavailable": 1}), 2, 0, 3, (2, 2, 0));
        check(json!({"minAvailable": 0}), 0, 0, 0, (0, 0, 0));
    }
}
