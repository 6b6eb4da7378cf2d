//! ResourceQuotas: how much of each limit a namespace uses, written into the status that admission checks against.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, ResourceExt};
use tokio::sync::broadcast::error::RecvError;

use crate::context::Context;
use crate::error::{During, Result};
use crate::pod;
use crate::quantity::{self, Milli};
use crate::queue::{Queue, Wake};
use crate::resources::{Served, discover};
use crate::store::Key;

/// How often kinds nobody watches here are counted again.
const RECOUNT: Duration = Duration::from_secs(300);

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(Queue::new());
    let quotas = ctx.store::<ResourceQuota>();
    let (pods, services, claims) = (ctx.store::<Pod>(), ctx.store::<Service>(), ctx.store::<PersistentVolumeClaim>());
    quotas.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(quota) = new {
                queue.push(Key::of(quota.as_ref()));
            }
        }
    });
    let wake = {
        let (queue, quotas) = (queue.clone(), quotas.clone());
        move |namespace: &str| {
            for quota in quotas.in_namespace(namespace) {
                queue.push(Key::of(quota.as_ref()));
            }
        }
    };
    pods.on_change({
        let wake = wake.clone();
        move |old, new| {
            let counted = |pod: Option<&Arc<Pod>>| pod.is_some_and(|pod| !pod::is_finished(pod));
            if counted(old) != counted(new) || old.is_some() != new.is_some() {
                wake(&new.or(old).and_then(|pod| pod.namespace()).unwrap_or_default());
            }
        }
    });
    services.on_change({
        let wake = wake.clone();
        move |old, new| wake(&new.or(old).and_then(|service| service.namespace()).unwrap_or_default())
    });
    claims.on_change({
        let wake = wake.clone();
        move |old, new| wake(&new.or(old).and_then(|claim| claim.namespace()).unwrap_or_default())
    });
    let mut removals = ctx.removals();
    ctx.spawn(async move {
        loop {
            match removals.recv().await {
                Ok(namespace) => wake(&namespace),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    quotas.synced().await;
    pods.synced().await;
    services.synced().await;
    claims.synced().await;
    queue.work("resourcequota", 1, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Wake> {
    let Some(quota) = ctx.store::<ResourceQuota>().get(&key) else { return Ok(Wake::OnChange) };
    let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
    let pods: Vec<_> = ctx.store::<Pod>().in_namespace(&key.namespace);
    let pods: Vec<_> = pods.into_iter().filter(|p| !pod::is_finished(p) && in_scope(&quota, p)).collect();
    let mut used = BTreeMap::new();
    let mut wake = Wake::OnChange;
    let mut served: Option<Vec<Served>> = None;
    for name in hard.keys() {
        let amount = match known(ctx, &key.namespace, name, &pods) {
            Some(amount) => amount,
            None => {
                if served.is_none() {
                    served = Some(discover(&ctx.client).await?);
                }
                wake = Wake::After(RECOUNT);
                count(ctx, &key.namespace, name, served.as_deref().unwrap_or_default()).await?
            }
        };
        let binary = name.ends_with("memory") || name.ends_with("storage");
        used.insert(name.clone(), quantity::format(amount, binary));
    }
    let status = ResourceQuotaStatus { hard: Some(hard), used: Some(used) };
    let operation = "write status of resourcequota";
    ctx.set_status::<ResourceQuota, _>(operation, &key, quota.status.as_ref(), &status).await?;
    Ok(wake)
}

fn in_scope(quota: &ResourceQuota, pod: &Pod) -> bool {
    let scopes = quota.spec.as_ref().and_then(|s| s.scopes.as_deref()).unwrap_or_default();
    let spec = pod.spec.as_ref();
    let terminating = spec.is_some_and(|s| s.active_deadline_seconds.is_some());
    let best_effort = spec.is_some_and(|s| {
        let none = |c: &Container| {
            let resources = c.resources.as_ref();
            resources.is_none_or(|r| {
                r.requests.as_ref().is_none_or(BTreeMap::is_empty) && r.limits.as_ref().is_none_or(BTreeMap::is_empty)
            })
        };
        s.containers.iter().chain(s.init_containers.iter().flatten()).all(none)
    });
    scopes.iter().all(|scope| match scope.as_str() {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        _ => true,
    })
}

/// What can be told from the stores.
fn known(ctx: &Context, namespace: &str, name: &str, pods: &[Arc<Pod>]) -> Option<Milli> {
    let whole = |count: usize| i128::try_from(count).unwrap_or(i128::MAX).saturating_mul(1000);
    let services = |kind: Option<&str>| {
        let services = ctx.store::<Service>().in_namespace(namespace);
        let fits = |s: &Arc<Service>| kind.is_none() || s.spec.as_ref().and_then(|s| s.type_.as_deref()) == kind;
        whole(services.iter().filter(|s| fits(s)).count())
    };
    Some(match name {
        "pods" | "count/pods" => whole(pods.len()),
        "services" | "count/services" => services(None),
        "services.loadbalancers" => services(Some("LoadBalancer")),
        "services.nodeports" => services(Some("NodePort")) + services(Some("LoadBalancer")),
        "persistentvolumeclaims" | "count/persistentvolumeclaims" => {
            whole(ctx.store::<PersistentVolumeClaim>().in_namespace(namespace).len())
        }
        "requests.storage" => {
            let claims = ctx.store::<PersistentVolumeClaim>().in_namespace(namespace);
            let requests = claims.iter().filter_map(|c| c.spec.as_ref()?.resources.as_ref()?.requests.clone());
            requests.filter_map(|requests| requests.get("storage").map(quantity::of)).sum()
        }
        "cpu" | "memory" | "ephemeral-storage" => sum(pods, name, false),
        _ => {
            if let Some(resource) = name.strip_prefix("requests.") {
                sum(pods, resource, false)
            } else if let Some(resource) = name.strip_prefix("limits.") {
                sum(pods, resource, true)
            } else {
                return None;
            }
        }
    })
}

/// Requests or limits of all pods: the containers together, or the largest init container.
fn sum(pods: &[Arc<Pod>], resource: &str, limits: bool) -> Milli {
    let of = |container: &Container| {
        let resources = container.resources.as_ref();
        let list: Option<&BTreeMap<String, Quantity>> =
            resources.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() });
        list.and_then(|list| list.get(resource)).map_or(0, quantity::of)
    };
    let pod_sum = |pod: &Arc<Pod>| {
        let Some(spec) = &pod.spec else { return 0 };
        let running: Milli = spec.containers.iter().map(of).sum();
        let starting = spec.init_containers.iter().flatten().map(of).max().unwrap_or(0);
        let overhead = spec.overhead.as_ref().and_then(|o| o.get(resource)).map_or(0, quantity::of);
        running.max(starting) + overhead
    };
    pods.iter().map(pod_sum).sum()
}

/// Counts the objects of `count/<resource>.<group>`, or of one of the old short names.
async fn count(ctx: &Context, namespace: &str, name: &str, served: &[Served]) -> Result<Milli> {
    let resource = name.strip_prefix("count/").unwrap_or(name);
    let Some(served) = served.iter().find(|s| s.namespaced && s.group_resource() == resource) else { return Ok(0) };
    let api: Api<PartialObjectMeta<DynamicObject>> = served.within(&ctx.client, namespace);
    let list = api.list(&ListParams::default()).await.during("count", name)?;
    Ok(i128::try_from(list.items.len()).unwrap_or(i128::MAX).saturating_mul(1000))
}
