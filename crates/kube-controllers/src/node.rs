//! Nodes: pod CIDRs, heartbeats, and the taints that keep or drive pods away.
//!
//! ```text
//!  lease renewed --> heard --(40 s of silence)--> Ready=Unknown --> taint unreachable --> pods evicted (see `eviction`)
//! ```
//!
//! When many nodes are lost at once it is rather the network, or this process: see [`zone`] for when nobody is evicted.

mod condition;
mod plan;
mod zone;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kit::clock;
use kit::controller::{self, During, Result, gone_is_none, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::context::Context;

const COMPONENT: &str = "node-controller";
/// How long a node may be silent.
const GRACE: Duration = Duration::from_secs(40);

/// When each node was last heard of, by our own clock.
type Heard = Arc<Mutex<HashMap<String, Instant>>>;

fn hear(heard: &Heard, name: String) {
    heard.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Instant::now());
}

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let heard = Heard::default();
    let (nodes, leases, pods) = (ctx.store::<Node>(), ctx.store::<Lease>(), ctx.store::<Pod>());
    nodes.on_change({
        let (queue, heard, others) = (queue.clone(), heard.clone(), nodes.clone());
        move |old, new| {
            let Some(node) = new else {
                if let Some(node) = old {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).remove(&node.name_any());
                }
                return;
            };
            if old.is_none_or(|old| heartbeats(old) != heartbeats(node)) {
                hear(&heard, node.name_any());
            }
            queue.add(node.name_any());
            // Whether pods are driven off a lost node depends on how the others are.
            if old.is_none_or(|old| condition::state(old, "Ready") != condition::state(node, "Ready")) {
                for other in others.all().iter().filter(|other| condition::state(other, "Ready") != "True") {
                    queue.add(other.name_any());
                }
            }
        }
    });
    leases.on_change({
        let (queue, heard) = (queue.clone(), heard.clone());
        move |old, new| {
            let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|s| s.renew_time.clone());
            if let Some(lease) = new
                && old.is_none_or(|old| renewed(old) != renewed(lease))
            {
                hear(&heard, lease.name_any());
                queue.add_after(lease.name_any(), GRACE);
            }
        }
    });
    nodes.synced().await;
    leases.synced().await;
    pods.synced().await;
    // One at a time: two nodes must not be given the same CIDR.
    let paces = Mutex::new(zone::Paces::default());
    controller::work(&queue, "node", 1, |name| reconcile(&ctx, &heard, &paces, name)).await;
}

/// What only the node agent writes into the status.
fn heartbeats(node: &Node) -> Option<Vec<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    Some(conditions.iter().filter_map(|c| c.last_heartbeat_time.as_ref()).collect())
}

async fn reconcile(ctx: &Context, heard: &Heard, paces: &Mutex<zone::Paces>, name: String) -> Result<Next> {
    let nodes = ctx.store::<Node>();
    let key = Key::new("", &name);
    let Some(mut node) = nodes.get(&key) else { return Ok(Next::Wait) };
    if let Some(cidrs) = missing_cidrs(ctx, &node) {
        let change = json!({"spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}});
        patch(ctx, &name, "assign pod CIDRs to node", &change).await?;
        let Some(current) = nodes.get(&key) else { return Ok(Next::Wait) };
        node = current;
    }
    let silence = {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.entry(name.clone()).or_insert_with(Instant::now).elapsed()
    };
    let now = clock::time();
    let mut wake = Next::Wait;
    if silence >= GRACE {
        if let Some(conditions) = plan::silent(&node, &now) {
            if condition::state(&node, "Ready") == "True" {
                let text = format!("Node {name} status is now: NodeNotReady");
                ctx.events.record(COMPONENT, node.as_ref(), Severity::Normal, "NodeNotReady", text);
            }
            patch_status(ctx, &name, &json!({"status": {"conditions": conditions}})).await?;
            let Some(current) = nodes.get(&key) else { return Ok(Next::Wait) };
            node = current;
        }
    } else {
        wake = Next::After(GRACE.saturating_sub(silence));
    }
    // An agent that speaks says itself how its pods are, also before it has said how the node is.
    if silence >= GRACE && condition::state(&node, "Ready") != "True" {
        mark_pods_not_ready(ctx, &name).await?;
    }
    let (evict, again) = {
        let mut paces = paces.lock().unwrap_or_else(PoisonError::into_inner);
        paces.evict(&node, &nodes.all(), Instant::now())
    };
    if let Some(again) = again {
        wake = match wake {
            Next::After(sooner) if sooner < again => wake,
            _ => Next::After(again),
        };
    }
    if let Some(taints) = plan::taints(&node, evict, &now) {
        // A node without taints has no list of them.
        let taints = (!taints.is_empty()).then_some(taints);
        let change = json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": taints}});
        patch(ctx, &name, "taint node", &change).await?;
    }
    Ok(wake)
}

async fn patch(ctx: &Context, name: &str, operation: &'static str, change: &Value) -> Result<()> {
    let api: Api<Node> = Api::all(ctx.client.clone());
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
    if let Some(node) = gone_is_none(patched.during(operation, name))? {
        ctx.store::<Node>().observe(node);
    }
    Ok(())
}

async fn patch_status(ctx: &Context, name: &str, change: &Value) -> Result<()> {
    let api: Api<Node> = Api::all(ctx.client.clone());
    let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await;
    if let Some(node) = gone_is_none(patched.during("write status of node", name))? {
        ctx.store::<Node>().observe(node);
    }
    Ok(())
}

/// One CIDR of each cluster range for a node that has none.
fn missing_cidrs(ctx: &Context, node: &Node) -> Option<Vec<String>> {
    let has = |node: &Node| node.spec.as_ref().and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
    if ctx.options.pod_cidrs.is_empty() || !has(node).is_empty() {
        return None;
    }
    let taken: Vec<IpNet> =
        ctx.store::<Node>().all().iter().flat_map(|node| has(node)).filter_map(|cidr| cidr.parse().ok()).collect();
    let subnets = ctx.options.pod_cidrs.iter().map(|(cluster, length)| plan::free_subnet(*cluster, *length, &taken));
    let subnets: Option<Vec<String>> = subnets.map(|subnet| subnet.map(|s| s.to_string())).collect();
    if subnets.is_none() {
        let text = format!("Node {} status is now: CIDRNotAvailable", node.name_any());
        ctx.events.record(COMPONENT, node, Severity::Normal, "CIDRNotAvailable", text);
    }
    subnets
}

/// Takes the pods of a lost node out of service.
async fn mark_pods_not_ready(ctx: &Context, node: &str) -> Result<()> {
    for pod in ctx.store::<Pod>().all() {
        if pod::node_name(&pod) != Some(node) || !pod::is_ready(&pod) {
            continue;
        }
        let change = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": clock::time()}]}});
        let key = Key::of(pod.as_ref());
        let api: Api<Pod> = ctx.api(&key.namespace);
        let patched = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(&change)).await;
        if let Some(current) = gone_is_none(patched.during("write status of pod", &key))? {
            ctx.store::<Pod>().observe(current);
            let text = "Node is not ready";
            ctx.events.record(COMPONENT, pod.as_ref(), Severity::Warning, "NodeNotReady", text);
        }
    }
    Ok(())
}
