//! An API server in this process, and what the tests ask of it.

use std::path::Path;
use std::time::Duration;

use http::{Method, Request, header};
use kit::apply::{self, Applied};
use kube::Client;
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "kubevirt-hyperconverged";
const PATIENCE: Duration = Duration::from_secs(60);

/// The documents of a file below deploy/.
pub(crate) fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new("../../deploy").join(file)).unwrap();
    let all: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    all.into_iter().filter(|document| !document.is_null()).collect()
}

/// Until it holds.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let held = async {
            loop {
                if let Some(found) = holds().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("{caller}: {what}: never"))
    }
}

pub(crate) struct Cluster {
    server: ApiServer,
    /// An administrator's.
    pub(crate) client: Client,
}

impl Cluster {
    /// One with these documents, and the namespace of the product.
    pub(crate) async fn with(mut all: Vec<Value>) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        for name in [NAMESPACE, "default"] {
            all.insert(0, json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": name } }));
        }
        all.insert(0, json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }));
        let by = Applied::by("kubectl");
        until("all is applied", async || apply::all(&client, &by, &all).await.ok()).await;
        Cluster { server, client }
    }

    /// The client of a service account of the pool's namespace.
    pub(crate) fn account(&self, name: &str) -> Client {
        self.account_in(NAMESPACE, name)
    }

    /// The client of a service account.
    pub(crate) fn account_in(&self, namespace: &str, name: &str) -> Client {
        self.server.client_as(User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
            ..User::default()
        })
    }

    pub(crate) async fn apply(&self, all: &[Value]) {
        apply::all(&self.client, &Applied::by("test"), all).await.unwrap();
    }

    /// A pod of the product's namespace that is ready, at a port of this machine.
    pub(crate) async fn pod(&self, name: &str, labels: &Value, port: u16) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
            "spec": { "containers": [{ "name": "c", "image": "i", "ports": [{ "name": "https", "containerPort": port }] }] },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.call(Method::POST, &pods, &pod).await.unwrap();
        self.ready(name, true).await;
    }

    pub(crate) async fn ready(&self, name: &str, ready: bool) {
        let status = json!({ "status": {
            "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }], "phase": "Running",
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        } });
        self.call(Method::PATCH, &format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/status"), &status).await.unwrap();
    }

    pub(crate) async fn get(&self, address: &str) -> Option<Value> {
        match self.call(Method::GET, address, &Value::Null).await {
            Ok(found) => Some(found),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{address}: {error}"),
        }
    }

    pub(crate) async fn call(&self, method: Method, address: &str, body: &Value) -> kube::Result<Value> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(address).header(header::CONTENT_TYPE, kind).body(body);
        self.client.request(request.unwrap()).await
    }
}

/// The message of a refusal.
#[track_caller]
pub(crate) fn refusal(result: kube::Result<Value>) -> String {
    match result {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("{other:?}"),
    }
}
