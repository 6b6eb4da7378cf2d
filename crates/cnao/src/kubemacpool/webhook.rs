//! The webhooks: what needs an address gets one.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use k8s_openapi::api::core::v1::Namespace;
use kit::admission::{self, Request, Verdict};
use kit::{Chain, clock};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::collect::owner;
use super::mac::Mac;
use super::machine::{self, Plan};
use super::pod::Networks;
use super::pool::{Pool, Unavailable};

/// Where VirtualMachines are judged.
pub(super) const MACHINES: &str = "/mutate-virtualmachines";
/// Where pods are judged.
pub(super) const PODS: &str = "/mutate-pods";
/// The label of a namespace, and the webhook's name: `ignore` leaves its machines alone.
pub(super) const MACHINES_LABEL: &str = "mutatevirtualmachines.kubemacpool.io";
/// The same of pods: `allocate` gives them addresses.
pub(super) const PODS_LABEL: &str = "mutatepods.kubemacpool.io";

/// Largest review: two objects of the API server's own limit.
const REVIEW: usize = 4 << 20;

pub(super) fn router(client: &Client, pool: &Arc<Pool>) -> Router {
    let (asked, from) = (client.clone(), pool.clone());
    let machines = move |request: Request| {
        let (client, pool) = (asked.clone(), from.clone());
        async move { judge_machine(&client, &pool, &request).await }
    };
    let (asked, from) = (client.clone(), pool.clone());
    let pods = move |request: Request| {
        let (client, pool) = (asked.clone(), from.clone());
        async move { judge_pod(&client, &pool, &request).await }
    };
    let router = admission::route_looking(Router::new(), MACHINES, machines);
    admission::route_looking(router, PODS, pods).layer(DefaultBodyLimit::max(REVIEW))
}

async fn judge_machine(client: &Client, pool: &Pool, request: &Request) -> Verdict {
    if request.object.pointer("/metadata/deletionTimestamp").is_some() {
        return Verdict::allow();
    }
    match label(client, &request.namespace, MACHINES_LABEL).await {
        Ok(label) if label == "ignore" => return Verdict::allow(),
        Ok(_) => {}
        Err(error) => return unanswered(&error),
    }
    let plan = match machine::plan(&request.object, &request.old_object) {
        Ok(plan) => plan,
        Err(causes) => return Verdict::Invalid(causes),
    };
    let owner = owner("vm", &request.namespace, &request.name);
    match addresses(pool, &owner, plan, request.dry_run).await {
        Ok(addresses) => match machine::patch(&request.object, &addresses, &clock::now().to_string()) {
            Some(patch) => Verdict::Patch(patch),
            None => Verdict::allow(),
        },
        Err(refused) => refused,
    }
}

async fn judge_pod(client: &Client, pool: &Pool, request: &Request) -> Verdict {
    // Pods of machines have the addresses of their machines.
    if request.object.pointer("/metadata/labels/kubevirt.io").is_some() {
        return Verdict::allow();
    }
    let Some(networks) = Networks::of(&request.object) else { return Verdict::allow() };
    match label(client, &request.namespace, PODS_LABEL).await {
        Ok(label) if label == "allocate" => {}
        Ok(_) => return Verdict::allow(),
        Err(error) => return unanswered(&error),
    }
    let generated = request.object.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or_default();
    let name = if request.name.is_empty() { generated } else { &request.name };
    let plan = Plan { given: networks.given(), kept: Vec::new(), wanted: networks.wanted() };
    match addresses(pool, &owner("pod", &request.namespace, name), plan, request.dry_run).await {
        Ok(addresses) => networks.patch(&addresses).map_or_else(Verdict::allow, Verdict::Patch),
        Err(refused) => refused,
    }
}

/// The addresses of the interfaces that have none, by their index. A dry run takes none.
async fn addresses(pool: &Pool, owner: &str, plan: Plan, dry_run: bool) -> Result<Vec<(usize, Mac)>, Verdict> {
    let mut out = plan.kept;
    if dry_run {
        return Ok(out);
    }
    for mac in plan.given {
        // What is given and cannot be noted now is noted when it is seen.
        if let Err(error) = pool.note(mac, owner).await {
            tracing::debug!(%mac, owner, error = %Chain(&error), "not noted");
        }
    }
    let mut taken = Vec::new();
    for index in plan.wanted {
        match pool.take(owner).await {
            Ok(mac) => {
                taken.push(mac);
                out.push((index, mac));
            }
            Err(error) => {
                pool.undo(&taken).await;
                return Err(refuse(&error));
            }
        }
    }
    Ok(out)
}

fn refuse(error: &Unavailable) -> Verdict {
    match error {
        Unavailable::Full(_) | Unavailable::NoRange(_) => {
            Verdict::Deny { code: 403, reason: "Forbidden", message: error.to_string() }
        }
        Unavailable::Contended | Unavailable::Refused(_) => {
            Verdict::Deny { code: 503, reason: "ServiceUnavailable", message: Chain(error).to_string() }
        }
    }
}

fn unanswered(error: &kube::Error) -> Verdict {
    let message = format!("cannot tell whether the namespace wants MAC addresses: {}", Chain(error));
    Verdict::Deny { code: 503, reason: "ServiceUnavailable", message }
}

/// What a namespace says of itself. The webhook's configuration selects by it as well: here it holds whatever that was changed to.
async fn label(client: &Client, namespace: &str, key: &str) -> Result<String, kube::Error> {
    let found = Api::<Namespace>::all(client.clone()).get_metadata_opt(namespace).await?;
    Ok(found.and_then(|found| found.labels().get(key).cloned()).unwrap_or_default())
}
