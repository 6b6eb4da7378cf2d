//! An API server in this process, on which the test plays the controllers of workloads.

use std::path::Path;
use std::time::Duration;

use kit::apply::{self, Applied};
use kube::Client;
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn documents(file: &str) -> Vec<Value> {
    let path = Path::new("../../deploy").join(file);
    let all: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    all.into_iter().filter(|document| !document.is_null()).collect()
}

/// Until it holds.
pub(crate) async fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let held = async {
        loop {
            if let Some(found) = holds().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("{what}: never"))
}

pub(crate) async fn applied(client: &Client, file: &str) -> Vec<Value> {
    let (documents, by) = (documents(file), Applied::by("kubectl"));
    // A kind whose definition was applied a moment ago is served a moment later.
    until(file, async || apply::all(client, &by, &documents).await.ok()).await;
    documents
}

pub(crate) async fn list(client: &Client, path: &str) -> Vec<Value> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let mut found: Value = client.request(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_value(found["items"].take()).unwrap()
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The account that the Deployment of these documents runs under.
pub(crate) fn account(server: &ApiServer, documents: &[Value]) -> Client {
    let deployment = documents.iter().find(|document| document["kind"] == "Deployment").unwrap();
    let namespace = text(deployment, "/metadata/namespace");
    server.client_as(User {
        name: format!(
            "system:serviceaccount:{namespace}:{}",
            text(deployment, "/spec/template/spec/serviceAccountName")
        ),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    })
}

pub(crate) const WORKLOADS: [&str; 2] = ["deployments", "daemonsets"];

/// What the controllers of workloads report: everything runs.
pub(crate) async fn play(client: Client) {
    loop {
        for kind in WORKLOADS {
            for found in list(&client, &format!("/apis/apps/v1/{kind}")).await {
                let generation = &found["metadata"]["generation"];
                if found["status"]["observedGeneration"] == *generation {
                    continue;
                }
                let wanted = &found["spec"]["replicas"];
                let status = json!({ "status": match kind {
                    "deployments" => json!({
                        "observedGeneration": generation, "replicas": wanted, "updatedReplicas": wanted,
                        "readyReplicas": wanted, "availableReplicas": wanted,
                    }),
                    _ => json!({
                        "observedGeneration": generation, "currentNumberScheduled": 1, "numberMisscheduled": 0,
                        "desiredNumberScheduled": 1, "numberReady": 1, "updatedNumberScheduled": 1, "numberAvailable": 1,
                    }),
                } });
                let (namespace, name) = (text(&found, "/metadata/namespace"), text(&found, "/metadata/name"));
                let request =
                    http::Request::patch(format!("/apis/apps/v1/namespaces/{namespace}/{kind}/{name}/status"))
                        .header("content-type", "application/merge-patch+json")
                        .body(status.to_string().into_bytes());
                // The operator may have changed it meanwhile; then there is a next time.
                let _ = client.request::<Value>(request.unwrap()).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub(crate) async fn available(client: &Client, path: &str) {
    until(path, async || {
        let found = list(client, path).await;
        let conditions: Vec<_> = found.iter().flat_map(|one| items(one, "/status/conditions")).collect();
        conditions.iter().any(|c| c["type"] == "Available" && c["status"] == "True").then_some(())
    })
    .await;
}
