//! Probing of extension API servers: the Available condition of each APIService, and its discovery document. Those that answer
//! are asked for their OpenAPI documents too, beside the probes.

mod fetch;
mod specifications;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use apimachinery::pointer::{items, text};

use crate::ApiServer;
use crate::registry::Aggregated;
use crate::view::View;
use specifications::Fetching;

const GROUP: &str = "apiregistration.k8s.io";
const FAST: Duration = Duration::from_millis(500);
const SLOW: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);
/// Bytes of a discovery document.
const LARGEST: usize = 4 << 20;

/// Probes until `shutdown`: twice a second while something is not available or has just changed, else every ten seconds.
pub async fn run(server: ApiServer, shutdown: CancellationToken) {
    let mut seen: HashMap<String, (bool, String)> = HashMap::new();
    let mut revision = u64::MAX;
    let mut waited = SLOW;
    let mut fetching = Fetching::default();
    loop {
        let changed = View::revision(&**server.store(), GROUP, "apiservices");
        let due = changed != revision || waited >= SLOW;
        if due {
            revision = changed;
            waited = Duration::ZERO;
        }
        if due || seen.values().any(|(available, _)| !available) {
            let available = round(&server, &mut seen).await;
            fetching.begin(&server, &available);
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(fetched) = fetching.running.join_next() => fetching.take(&server, fetched),
            () = tokio::time::sleep(FAST) => waited += FAST,
        }
    }
}

/// Probes all once; the available ones.
async fn round(server: &ApiServer, seen: &mut HashMap<String, (bool, String)>) -> Vec<Aggregated> {
    let mut available = Vec::new();
    let registry = server.registry();
    let delegation = &server.edges().delegation;
    delegation.documents.retain(|g, v| registry.aggregated.iter().any(|a| a.group == g && a.version == v));
    seen.retain(|name, _| registry.aggregated.iter().any(|a| service_name(a) == *name));
    for target in &registry.aggregated {
        let probed = tokio::time::timeout(PROBE, probe(server, target)).await;
        let outcome = match probed {
            Ok(Ok(document)) => {
                delegation.documents.keep(&target.group, &target.version, document);
                available.push(target.clone());
                (true, "Passed", "all checks passed".to_owned())
            }
            Ok(Err((reason, message))) => (false, reason, message),
            Err(_) => (false, "FailedDiscoveryCheck", "failing or missing response: timed out".to_owned()),
        };
        let name = service_name(target);
        let now = (outcome.0, format!("{}: {}", outcome.1, outcome.2));
        if seen.get(&name) != Some(&now) && record(server, &name, outcome.0, outcome.1, &outcome.2).await {
            seen.insert(name, now);
        }
    }
    available
}

fn service_name(target: &Aggregated) -> String {
    format!("{}.{}", target.version, target.group)
}

async fn probe(server: &ApiServer, target: &Aggregated) -> Result<Value, (&'static str, String)> {
    use crate::dial::DialError;
    let failing = |e: &dyn std::fmt::Display| ("FailedDiscoveryCheck", format!("failing or missing response: {e}"));
    let (namespace, name, _) = &target.service;
    let path = format!("/apis/{}/{}", target.group, target.version);
    let answer = fetch::get(&server.edges().delegation, target, &path, LARGEST).await;
    let (status, body) = answer.map_err(|e| match e {
        DialError::NoService(_) => ("ServiceNotFound", format!("service/{name} in {namespace:?} is not present")),
        DialError::NoEndpoints(_) => {
            ("MissingEndpoints", format!("endpoints for service/{name} in {namespace:?} have no addresses"))
        }
        DialError::NoPort(port, _) => {
            ("ServicePortError", format!("service/{name} in {namespace:?} is not listening on port {port}"))
        }
        other => failing(&other),
    })?;
    if !status.is_success() {
        return Err(failing(&format!("bad status from {path}: {}", status.as_u16())));
    }
    let document: Value = serde_json::from_slice(&body).map_err(|e| failing(&e))?;
    if document.get("resources").is_none_or(|r| !r.is_array()) {
        return Err(failing(&"the answer is not an APIResourceList"));
    }
    Ok(document)
}

/// Writes the condition when it differs; false when the write failed and must be tried again.
async fn record(server: &ApiServer, name: &str, available: bool, reason: &str, message: &str) -> bool {
    let Some(object) = View::get(&**server.store(), GROUP, "apiservices", "", name) else { return true };
    let status = if available { "True" } else { "False" };
    let current = items(&object, "/status/conditions").iter().find(|c| text(c, "/type") == "Available");
    if current
        .is_some_and(|c| text(c, "/status") == status && text(c, "/reason") == reason && text(c, "/message") == message)
    {
        return true;
    }
    let since = current
        .filter(|c| text(c, "/status") == status)
        .map(|c| text(c, "/lastTransitionTime").to_owned())
        .filter(|t| !t.is_empty())
        .unwrap_or_else(|| kit::clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let patch = json!({"status": {"conditions": [{"type": "Available", "status": status, "reason": reason,
        "message": message, "lastTransitionTime": since}]}});
    let request = http::Request::patch(format!("/apis/{GROUP}/v1/apiservices/{name}/status"))
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(patch.to_string().into_bytes());
    let Ok(request) = request else { return false };
    match server.client().request::<Value>(request).await {
        Ok(_) => true,
        Err(error) => {
            tracing::debug!(%error, %name, "APIService status not written");
            false
        }
    }
}
