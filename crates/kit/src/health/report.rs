//! What `/healthz` says of a component that works by an object of the cluster: whether the API server answers, and which version
//! of that object is in force.
//!
//! Guarantees: an answer comes within [`PATIENCE`]; however often it is asked for, the API server is asked once in [`FRESH`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::Chain;
use crate::store::Store;

/// Less than the kubelet gives a probe.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long what the API server said holds. The answer is anybody's who reaches the port.
const FRESH: Duration = Duration::from_secs(5);

/// See the module; cheap to clone.
#[derive(Clone)]
pub struct Report(Arc<Inner>);

struct Inner {
    client: Client,
    copies: Mutex<Vec<Version>>,
    learnt: tokio::sync::Mutex<Option<Learnt>>,
}

type Version = Box<dyn Fn() -> Option<String> + Send>;

/// The API server's version, or why it is not known, and when that was.
struct Learnt {
    at: Instant,
    version: Result<Value, String>,
}

impl Report {
    /// Of a component that reaches the API server by `client`.
    pub fn new(client: Client) -> Self {
        Report(Arc::new(Inner { client, copies: Mutex::default(), learnt: tokio::sync::Mutex::default() }))
    }

    /// From now on the component works by the object in `store`, too. A version is in force when every such copy has it.
    pub fn obeys<K>(&self, store: &Store<K>)
    where
        K: Resource + DeserializeOwned + Serialize + 'static,
    {
        let store = store.clone();
        let version = move || store.list().first().and_then(ResourceExt::resource_version);
        self.0.copies.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(version));
    }

    /// The answer to a request: 200, or 500 while the API server cannot be reached.
    pub async fn answer(&self) -> Response {
        let learnt = self.version().await;
        let (code, server) = match learnt {
            Ok(version) => (StatusCode::OK, json!({ "connectivity": "ok", "version": version })),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, json!({ "connectivity": "failed", "error": error })),
        };
        (code, Json(json!({ "apiserver": server, "config-resource-version": self.version_in_force() }))).into_response()
    }

    /// The oldest version among the copies; empty while one of them has none.
    pub fn version_in_force(&self) -> String {
        let copies = self.0.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Option<Vec<String>> = copies.iter().map(|version| version()).collect();
        all.and_then(|all| all.into_iter().min_by_key(|version| version.parse::<u64>().unwrap_or(0)))
            .unwrap_or_default()
    }

    async fn version(&self) -> Result<Value, String> {
        // Whoever comes while somebody asks waits for that answer.
        let mut learnt = self.0.learnt.lock().await;
        if let Some(learnt) = learnt.as_ref().filter(|learnt| learnt.at.elapsed() < FRESH) {
            return learnt.version.clone();
        }
        let asked = async {
            let request = Request::get("/version").body(Vec::new()).map_err(|error| error.to_string())?;
            self.0.client.request(request).await.map_err(|error| Chain(&error).to_string())
        };
        let late = || Err(format!("the API server did not answer within {} s", PATIENCE.as_secs()));
        let version = timeout(PATIENCE, asked).await.unwrap_or_else(|_| late());
        *learnt = Some(Learnt { at: Instant::now(), version: version.clone() });
        version
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::{Body, to_bytes};
    use futures::future::join_all;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    use super::*;

    /// An API server that answers what it is told to, and the count of what it was asked.
    fn server(code: u16, body: &'static str) -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let service = tower::service_fn(move |_: Request<kube::client::Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let answer = http::Response::builder().status(code).body(Body::from(body));
            async move { Ok::<_, Infallible>(answer.unwrap_or_default()) }
        });
        (Client::new(service, "default"), asked)
    }

    async fn read(report: &Report) -> (u16, Value) {
        let answer = report.answer().await;
        let code = answer.status().as_u16();
        (code, serde_json::from_slice(&to_bytes(answer.into_body(), 1 << 20).await.unwrap()).unwrap())
    }

    fn holding(version: &str) -> Store<ConfigMap> {
        let store = Store::default();
        renew(&store, version);
        store
    }

    fn renew(store: &Store<ConfigMap>, version: &str) {
        let metadata = ObjectMeta {
            name: Some("configuration".into()),
            resource_version: Some(version.into()),
            ..Default::default()
        };
        store.put(&ConfigMap { metadata, ..Default::default() }, vec![]);
    }

    #[tokio::test]
    async fn the_version_in_force_is_the_one_that_every_copy_has() {
        let (client, _) = server(200, r#"{"gitVersion":"v1.33.0"}"#);
        let report = Report::new(client);
        let expect = |version: &str| {
            json!({
                "apiserver": { "connectivity": "ok", "version": { "gitVersion": "v1.33.0" } },
                "config-resource-version": version,
            })
        };
        assert_eq!(read(&report).await, (200, expect("")));
        let first = holding("9");
        report.obeys(&first);
        assert_eq!(read(&report).await.1, expect("9"));
        let second = holding("9");
        report.obeys(&second);
        renew(&first, "10");
        assert_eq!(read(&report).await.1, expect("9"), "the other copy is behind");
        renew(&second, "11");
        assert_eq!(read(&report).await.1, expect("10"));
        report.obeys(&Store::<ConfigMap>::default());
        assert_eq!(read(&report).await.1, expect(""), "one copy has not come yet");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_probes_is_one_question() {
        let (client, asked) = server(200, "{}");
        let report = Report::new(client);
        join_all((0..100).map(|_| report.answer())).await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(FRESH).await;
        read(&report).await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn an_api_server_that_fails_is_told_of() {
        let (client, _) = server(503, r#"{"kind":"Status","status":"Failure","message":"closing","code":503}"#);
        let report = Report::new(client);
        report.obeys(&holding("7"));
        let (code, told) = read(&report).await;
        assert_eq!((code, &told["config-resource-version"]), (500, &json!("7")));
        assert_eq!(told["apiserver"]["connectivity"], "failed");
        assert!(told["apiserver"]["error"].as_str().unwrap().contains("closing"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_hangs_hangs_nobody() {
        let silent = tower::service_fn(|_: Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<Body>, Infallible>>()
        });
        let client = Client::new(silent, "default");
        let before = Instant::now();
        let (code, told) = read(&Report::new(client)).await;
        assert_eq!((code, before.elapsed()), (500, PATIENCE));
        assert_eq!(told["apiserver"]["error"], "the API server did not answer within 2 s");
    }
}
