//! ResourceQuotas: how much of each limit a namespace uses, written into the status that admission checks against.

mod scope;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service};
use kit::controller::quantity::{self, Milli};
use kit::controller::{self, During, Result, pod};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, ResourceExt};
use tokio::sync::broadcast::error::RecvError;

use crate::context::Context;
use crate::held::{self, Quantities};
use crate::resources::{Served, discover};

/// How often kinds nobody watches here are counted again.
const RECOUNT: Duration = Duration::from_secs(300);

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let quotas = ctx.store::<ResourceQuota>();
    let (pods, services, claims) = (ctx.store::<Pod>(), ctx.store::<Service>(), ctx.store::<PersistentVolumeClaim>());
    quotas.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(quota) = new {
                queue.add(Key::of(quota.as_ref()));
            }
        }
    });
    let wake = {
        let (queue, quotas) = (queue.clone(), quotas.clone());
        move |namespace: &str| {
            for quota in quotas.in_namespace(namespace) {
                queue.add(Key::of(quota.as_ref()));
            }
        }
    };
    pods.on_change({
        let wake = wake.clone();
        move |old, new| {
            let counted = |pod: Option<&Arc<Pod>>| pod.is_some_and(|pod| !pod::is_finished(pod));
            let resized = || old.zip(new).is_some_and(|(old, new)| held::differs(old, new));
            if counted(old) != counted(new) || old.is_some() != new.is_some() || resized() {
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
    controller::work(&queue, "resourcequota", 1, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(quota) = ctx.store::<ResourceQuota>().get(&key) else { return Ok(Next::Wait) };
    let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
    let pods: Vec<_> = ctx.store::<Pod>().in_namespace(&key.namespace);
    let pods: Vec<_> = pods.into_iter().filter(|p| scope::covers(&quota, p)).collect();
    let scoped = scope::is_scoped(&quota);
    let mut used = BTreeMap::new();
    let mut wake = Next::Wait;
    let mut served: Option<Vec<Served>> = None;
    for name in hard.keys() {
        let amount = match known(ctx, &quota, &key.namespace, name, &pods) {
            // Nothing else has a scope, so nothing else is counted by a quota that has one.
            _ if scoped && !of_pods(name) && !of_claims(name) => 0,
            Some(amount) => amount,
            None => {
                if served.is_none() {
                    served = Some(discover(&ctx.client).await?);
                }
                wake = Next::After(RECOUNT);
                count(ctx, &key.namespace, name, served.as_deref().unwrap_or_default()).await?
            }
        };
        let binary = name.ends_with("memory") || name.ends_with("storage");
        used.insert(name.clone(), quantity::format(amount, binary));
    }
    let status = ResourceQuotaStatus { hard: Some(hard), used: Some(used) };
    let operation = "write status of resourcequota";
    // Admission notes each write that the quota lets pass, perhaps since the counting.
    ctx.set_status_unless_changed(operation, quota.as_ref(), quota.status.as_ref(), &status).await?;
    Ok(wake)
}

/// Whether a bound speaks of pods.
fn of_pods(name: &str) -> bool {
    let elsewhere = name.starts_with("count/") && name != "count/pods"
        || name.starts_with("services")
        || of_claims(name)
        || matches!(name, "secrets" | "configmaps" | "replicationcontrollers" | "resourcequotas");
    !elsewhere
}

/// Whether a bound speaks of claims.
fn of_claims(name: &str) -> bool {
    name.contains("persistentvolumeclaims") || name.contains("requests.storage")
}

/// What can be told from the stores.
fn known(ctx: &Context, quota: &ResourceQuota, namespace: &str, name: &str, pods: &[Arc<Pod>]) -> Option<Milli> {
    let all = pods.len();
    let whole = |count: usize| i128::try_from(count).unwrap_or(i128::MAX).saturating_mul(1000);
    let services = || ctx.store::<Service>().in_namespace(namespace);
    let claims = || {
        let mut claims = ctx.store::<PersistentVolumeClaim>().in_namespace(namespace);
        claims.retain(|claim| scope::covers_claim(quota, claim));
        claims
    };
    let unfinished: Vec<Arc<Pod>> = pods.iter().filter(|pod| !pod::is_finished(pod)).cloned().collect();
    let storage = |claims: Vec<Arc<PersistentVolumeClaim>>| -> Milli {
        let requests = claims.iter().filter_map(|c| c.spec.as_ref()?.resources.as_ref()?.requests.clone());
        requests.filter_map(|requests| requests.get("storage").map(quantity::of)).sum()
    };
    if let Some((class, what)) = name.split_once(".storageclass.storage.k8s.io/") {
        let mut claims = claims();
        claims.retain(|c| c.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()) == Some(class));
        return match what {
            "persistentvolumeclaims" => Some(whole(claims.len())),
            "requests.storage" => Some(storage(claims)),
            _ => Some(0),
        };
    }
    let pods = unfinished.as_slice();
    Some(match name {
        "pods" => whole(pods.len()),
        "count/pods" => whole(all),
        "services" | "count/services" => whole(services().len()),
        "services.loadbalancers" => whole(services().iter().filter(|s| kind_of(s) == "LoadBalancer").count()),
        "services.nodeports" => whole(services().iter().map(|s| node_ports(s)).sum()),
        "persistentvolumeclaims" | "count/persistentvolumeclaims" => whole(claims().len()),
        "requests.storage" => storage(claims()),
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

fn kind_of(service: &Service) -> &str {
    service.spec.as_ref().and_then(|s| s.type_.as_deref()).unwrap_or_default()
}

/// Ports of nodes that a Service takes.
fn node_ports(service: &Service) -> usize {
    let Some(spec) = &service.spec else { return 0 };
    let ports = spec.ports.as_deref().unwrap_or_default();
    match kind_of(service) {
        "NodePort" => ports.len(),
        "LoadBalancer" if spec.allocate_load_balancer_node_ports != Some(false) => ports.len(),
        "LoadBalancer" => ports.iter().filter(|port| port.node_port.unwrap_or(0) != 0).count(),
        _ => 0,
    }
}

/// Requests or limits of all pods: the containers together, or the largest init container.
fn sum(pods: &[Arc<Pod>], resource: &str, limits: bool) -> Milli {
    let pod_sum = |pod: &Arc<Pod>| {
        let of = |container: &Container| {
            let amount = |list: &Quantities| list.get(resource).map(quantity::of);
            let most = if limits {
                held::limits(pod, container).filter_map(amount).max()
            } else {
                held::requests(pod, container).filter_map(amount).max()
            };
            most.unwrap_or(0)
        };
        let Some(spec) = &pod.spec else { return 0 };
        let mut running: Milli = spec.containers.iter().map(of).sum();
        let (mut sidecars, mut starting) = (0, 0);
        for init in spec.init_containers.iter().flatten() {
            if init.restart_policy.as_deref() == Some("Always") {
                running += of(init);
                sidecars += of(init);
                starting = starting.max(sidecars);
            } else {
                starting = starting.max(sidecars + of(init));
            }
        }
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
