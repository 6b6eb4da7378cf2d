//! Probing of extension API servers: the Available condition of each APIService, and its discovery document.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::ApiServer;
use crate::authz::view::{View, items, text};
use crate::registry::Aggregated;

const GROUP: &str = "apiregistration.k8s.io";
const FAST: Duration = Duration::from_millis(500);
const SLOW: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);

/// Probes until `shutdown`: twice a second while something is not available or has just changed, else every ten seconds.
pub async fn run(server: ApiServer, shutdown: CancellationToken) {
    let mut seen: HashMap<String, (bool, String)> = HashMap::new();
    let mut revision = u64::MAX;
    let mut waited = SLOW;
    loop {
        let changed = View::revision(&**server.store(), GROUP, "apiservices");
        if changed != revision || waited >= SLOW {
            revision = changed;
            waited = Duration::ZERO;
            round(&server, &mut seen).await;
        } else if seen.values().any(|(available, _)| !available) {
            round(&server, &mut seen).await;
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(FAST) => waited += FAST,
        }
    }
}

async fn round(server: &ApiServer, seen: &mut HashMap<String, (bool, String)>) {
    let registry = server.registry();
    let delegation = &server.edges().delegation;
    delegation.documents.retain(|g, v| registry.aggregated.iter().any(|a| a.group == g && a.version == v));
    seen.retain(|name, _| registry.aggregated.iter().any(|a| service_name(a) == *name));
    for target in &registry.aggregated {
        let probed = tokio::time::timeout(PROBE, probe(server, target)).await;
        let outcome = match probed {
            Ok(Ok(document)) => {
                delegation.documents.keep(&target.group, &target.version, document);
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
}

fn service_name(target: &Aggregated) -> String {
    format!("{}.{}", target.version, target.group)
}

async fn probe(server: &ApiServer, target: &Aggregated) -> Result<Value, (&'static str, String)> {
    use super::dial::DialError;
    let failing = |e: &dyn std::fmt::Display| ("FailedDiscoveryCheck", format!("failing or missing response: {e}"));
    let (namespace, name, _) = &target.service;
    let stream = server.edges().delegation.connect(target).await.map_err(|e| match e {
        DialError::NoService(_) => ("ServiceNotFound", format!("service/{name} in {namespace:?} is not present")),
        DialError::NoEndpoints(_) => {
            ("MissingEndpoints", format!("endpoints for service/{name} in {namespace:?} have no addresses"))
        }
        DialError::NoPort(port, _) => {
            ("ServicePortError", format!("service/{name} in {namespace:?} is not listening on port {port}"))
        }
        other => failing(&other),
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failing(&e))?;
    tokio::spawn(connection);
    let request = http::Request::get(format!("/apis/{}/{}", target.group, target.version))
        .header(http::header::HOST, format!("{name}.{namespace}.svc"))
        .header(http::header::ACCEPT, "application/json")
        .header("x-remote-user", "system:kube-aggregator")
        .header("x-remote-group", "system:masters")
        .body(Full::new(Bytes::new()))
        .map_err(|e| failing(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failing(&e))?;
    let status = response.status();
    if !status.is_success() {
        return Err(failing(&format!(
            "bad status from /apis/{}/{}: {}",
            target.group,
            target.version,
            status.as_u16()
        )));
    }
    let body = Limited::new(response.into_body(), 4 << 20).collect().await.map_err(|e| failing(&e))?;
    let document: Value = serde_json::from_slice(&body.to_bytes()).map_err(|e| failing(&e))?;
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
        .unwrap_or_else(|| jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
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
