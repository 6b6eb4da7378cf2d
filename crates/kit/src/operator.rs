//! What every operator does, whatever it deploys. Functions that an operator calls from its own loop:
//!
//! ```text
//! lead ──> Requests (one object counts; hold, status, release)
//!            │
//!            ├─ install: first ──> definitions and the rest          ┐
//!            ├─ repair:  every kind that is rendered is watched ─────┴─ Applied: nothing is sent twice
//!            └─ remove:  definitions with their objects, then what was rendered
//! ```
//!
//! What is rendered, what its readiness is and what the status says are the operator's own.

mod install;
pub mod manifests;
mod object;
mod process;
mod remove;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Client;
use serde_json::Value;

pub use self::install::{Phases, accounts_first, install, repair};
pub use self::object::{Requests, Status};
pub use self::process::Process;
pub use self::remove::{definitions_are_gone, delete};
use crate::Chain;
use crate::lease;
use crate::shutdown::CancellationToken;

/// Waits until this replica leads `lease`, calls `start`, and holds what that returns for as long as it leads. False when
/// leadership was lost: the caller must end the process.
///
/// # Errors
/// When the API server cannot be reached.
pub async fn lead<T>(
    process: &Process,
    manager: &str,
    (namespace, lease): (&str, &str),
    identity: &str,
    stop: &CancellationToken,
    start: impl FnOnce() -> T,
) -> Result<bool, crate::client::Error> {
    // Renewals do not wait behind whatever else is asked of the API server.
    let apart = process.connect(manager).await?;
    let Ok(leader) = lease::acquire(apart, namespace, lease, identity, stop).await else { return Ok(true) };
    let _running = start();
    Ok(leader.run(stop).await)
}

/// True when the cluster serves all `kinds` of a version of a group.
///
/// # Errors
/// When the API server cannot say.
pub async fn serves(client: &Client, api_version: &str, kinds: &[&str]) -> Result<bool, kube::Error> {
    match client.list_api_group_resources(api_version).await {
        Ok(known) => Ok(kinds.iter().all(|kind| known.resources.iter().any(|resource| resource.kind == *kind))),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Why the last attempt to install failed, as a condition says it.
pub fn failure(error: &(dyn std::error::Error + 'static)) -> String {
    format!("An error occurred during deployment: {}", Chain(error))
}

/// True when every replica of `deployment` is available and as the Deployment says now.
pub fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) >= wanted
        && status.available_replicas.unwrap_or(0) >= wanted
}

/// On how many nodes a DaemonSet's pod is available and as the set says now, and on how many it is to run.
pub fn rolled_out_on(set: &DaemonSet) -> (i32, i32) {
    let Some(status) = &set.status else { return (0, 0) };
    if status.observed_generation < set.metadata.generation {
        return (0, status.desired_number_scheduled);
    }
    let updated = status.updated_number_scheduled.unwrap_or(0);
    (updated.min(status.number_available.unwrap_or(0)), status.desired_number_scheduled)
}

/// Merges `labels` into a manifest's; its own win.
pub fn label(manifest: &mut Value, labels: &Value) {
    let own = manifest.pointer("/metadata/labels").cloned();
    let mut merged = labels.clone();
    if let (Some(Value::Object(own)), Value::Object(all)) = (own, &mut merged) {
        all.extend(own);
    }
    manifest["metadata"]["labels"] = merged;
}
