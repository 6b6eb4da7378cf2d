//! An API server in this process, and what the tests ask of it.

use std::path::Path;
use std::time::Duration;

use http::{Method, Request, header};
use kit::apply::{self, Applied};
use kube::Client;
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::Value;

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
    /// One with these documents.
    pub(crate) async fn with(mut all: Vec<Value>) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        all.retain(|document| !document.is_null());
        let by = Applied::by("kubectl");
        until("all is applied", async || apply::all(&client, &by, &all).await.ok()).await;
        Cluster { server, client }
    }

    /// The client of a service account.
    pub(crate) fn account_in(&self, namespace: &str, name: &str) -> Client {
        self.server.client_as(user(namespace, name))
    }

    /// The same, with a token that a node is named in.
    pub(crate) fn on_node(&self, namespace: &str, name: &str, node: &str) -> Client {
        let extra = [("authentication.kubernetes.io/node-name".to_owned(), vec![node.to_owned()])];
        self.server.client_as(User { extra: extra.into(), ..user(namespace, name) })
    }

    pub(crate) async fn get(&self, address: &str) -> Option<Value> {
        match self.call(Method::GET, address, &Value::Null).await {
            Ok(found) => Some(found),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{address}: {error}"),
        }
    }

    pub(crate) async fn call(&self, method: Method, address: &str, body: &Value) -> kube::Result<Value> {
        Self::call_as(&self.client, method, address, body).await
    }

    pub(crate) async fn call_as(client: &Client, method: Method, address: &str, body: &Value) -> kube::Result<Value> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(address).header(header::CONTENT_TYPE, kind).body(body);
        client.request(request.unwrap()).await
    }
}

fn user(namespace: &str, name: &str) -> User {
    User {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
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
