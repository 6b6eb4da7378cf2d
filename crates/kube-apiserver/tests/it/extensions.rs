//! OpenAPI of extension servers, the honest and the others.

use std::time::Duration;

use axum::body::Body;
use axum::routing::get;
use axum::{Json, Router};
use kube::Client;
use kube_apiserver::ApiServer;
use kube_apiserver::availability;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::delegation::delegate;

const PATIENCE: Duration = Duration::from_secs(20);

async fn read(client: &Client, path: &str) -> Value {
    client.request(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

/// An extension server with the discovery document of `group`.
fn discoverable(group: &'static str) -> Router {
    let resources =
        json!([{"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get"]}]);
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1"), "resources": resources});
    Router::new().route(&format!("/apis/{group}/v1"), get(move || async move { Json(list) }))
}

/// One that describes itself in both dialects, and claims what is not its own.
fn described(group: &'static str) -> Router {
    let path = format!("/apis/{group}/v1/namespaces/{{namespace}}/things/{{name}}/start");
    let body = |to: &str| json!([{"name": "body", "in": "body", "schema": {"$ref": to}}]);
    let v2 = json!({"swagger": "2.0", "paths": {
            (path.clone()): {"put": {"operationId": "start", "parameters": body("#/definitions/io.k8s.api.core.v1.Pod"),
                "responses": {"200": {"description": "OK"}}}},
            "/api/v1/namespaces/{namespace}/pods": {"get": {"description": "not yours"}},
        },
        "definitions": {"io.k8s.api.core.v1.Pod": {"type": "string", "description": "not yours"}}});
    let v3 = json!({"openapi": "3.0.0", "info": {"title": "demo", "version": "v1"}, "components": {},
        "paths": {(path): {"put": {"responses": {"200": {"description": "OK"}}}}, "/api/v1/pods": {}}});
    let address = format!("/openapi/v3/apis/{group}/v1?hash=ABC");
    let index = json!({"paths": {(format!("apis/{group}/v1")): {"serverRelativeURL": address}, "api/v1": {"serverRelativeURL": address}}});
    discoverable(group)
        .route("/openapi/v2", get(move || async move { Json(v2) }))
        .route("/openapi/v3", get(move || async move { Json(index) }))
        .route(&format!("/openapi/v3/apis/{group}/v1"), get(move || async move { Json(v3) }))
}

struct Scene {
    server: ApiServer,
    client: Client,
    shutdown: CancellationToken,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Scene {
    async fn start() -> Self {
        let server = super::server().await;
        let (client, shutdown) = (server.client(), CancellationToken::new());
        tokio::spawn(availability::run(server.clone(), shutdown.clone()));
        Self { server, client, shutdown }
    }

    async fn serve(&self, name: &str, group: &str, router: Router) {
        let front = self.server.edges().pki.front_proxy_ca_pem();
        delegate(&self.client, front, name, group, router, self.shutdown.clone()).await;
    }

    /// Waits until `document` is so.
    async fn until(&self, document: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let found = read(&self.client, document).await;
                if holds(&found) {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never {what}"))
    }

    async fn available(&self, group: &str) {
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/v1.{group}");
        let conditions = |service: &Value| service["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_true = |condition: &Value| condition["type"] == "Available" && condition["status"] == "True";
        self.until(&path, "available", |service| conditions(service).iter().any(is_true)).await;
    }
}

#[tokio::test]
async fn openapi_of_an_extension_server_is_part_of_ours() {
    let scene = Scene::start().await;
    let before = read(&scene.client, "/openapi/v2").await;
    scene.serve("extension", "demo.example.com", described("demo.example.com")).await;
    let path = "/apis/demo.example.com/v1/namespaces/{namespace}/things/{name}/start";
    let index = scene
        .until("/openapi/v3", "in /openapi/v3", |index| index["paths"]["apis/demo.example.com/v1"].is_object())
        .await;
    let all = read(&scene.client, "/openapi/v2").await;
    let schema = &all["paths"][path]["put"]["parameters"][0]["schema"]["$ref"];
    assert_eq!(schema, "#/definitions/io.k8s.api.core.v1.Pod_v2");
    assert_eq!(all["definitions"]["io.k8s.api.core.v1.Pod_v2"]["type"], "string");
    for part in ["paths", "definitions"] {
        for (name, value) in before[part].as_object().unwrap() {
            assert_eq!(&all[part][name], value, "{name}");
        }
    }

    let address = index["paths"]["apis/demo.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert!(address.starts_with("/openapi/v3/apis/demo.example.com/v1?hash="), "{address}");
    let document = read(&scene.client, address).await;
    assert_eq!(document["paths"].as_object().unwrap().keys().collect::<Vec<_>>(), [path]);
    assert!(!index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().contains("ABC"));

    // With its APIService it goes from all of them.
    let service = "/apis/apiregistration.k8s.io/v1/apiservices/v1.demo.example.com";
    let request = http::Request::delete(service).body(Vec::new()).unwrap();
    scene.client.request::<Value>(request).await.unwrap();
    assert_eq!(read(&scene.client, "/openapi/v2").await, before);
    assert!(read(&scene.client, "/openapi/v3").await["paths"]["apis/demo.example.com/v1"].is_null());
}

#[tokio::test]
async fn an_extension_server_that_is_not_available_has_no_part() {
    let scene = Scene::start().await;
    let group = "demo.example.com";
    scene.serve("extension", group, described(group)).await;
    let has = |index: &Value| index["paths"]["apis/demo.example.com/v1"].is_object();
    scene.until("/openapi/v3", "in /openapi/v3", has).await;
    let service = "/apis/apiregistration.k8s.io/v1/apiservices/v1.demo.example.com";
    // To a Service that does not exist.
    let request = http::Request::patch(service)
        .header("content-type", "application/merge-patch+json")
        .body(json!({"spec": {"service": {"name": "gone"}}}).to_string().into_bytes());
    scene.client.request::<Value>(request.unwrap()).await.unwrap();
    scene.until("/openapi/v3", "left out of /openapi/v3", |index| !has(index)).await;
}

#[tokio::test]
async fn extension_servers_that_hang_or_flood_or_lie_hold_nobody_up() {
    let scene = Scene::start().await;
    let before = read(&scene.client, "/openapi/v2").await;
    let hung = discoverable("hung.example.com").route("/openapi/{*rest}", get(std::future::pending::<String>));
    let endless = || async {
        Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>("{\"a\":[ ".repeat(1000))))
    };
    let flood = discoverable("flood.example.com").route("/openapi/{*rest}", get(endless));
    let lie = json!({"swagger": "2.0", "paths": {"/apis/liar.example.com/v1/things": {"get": {"parameters": 5}}}});
    let elsewhere = json!({"paths": {"apis/liar.example.com/v1": {"serverRelativeURL": "/metrics"}}});
    let liar = discoverable("liar.example.com")
        .route("/openapi/v2", get(move || async move { Json(lie) }))
        .route("/openapi/v3", get(move || async move { Json(elsewhere) }));
    for (name, group, router) in
        [("hung", "hung.example.com", hung), ("flood", "flood.example.com", flood), ("liar", "liar.example.com", liar)]
    {
        scene.serve(name, group, router).await;
        scene.available(group).await;
    }
    // One that comes after them is not kept waiting by them.
    scene.serve("honest", "demo.example.com", described("demo.example.com")).await;
    let index = scene
        .until("/openapi/v3", "in /openapi/v3", |index| index["paths"]["apis/demo.example.com/v1"].is_object())
        .await;
    for group in ["hung", "flood", "liar"] {
        assert!(index["paths"][format!("apis/{group}.example.com/v1")].is_null(), "{group}");
    }
    let asked = std::time::Instant::now();
    let all = read(&scene.client, "/openapi/v2").await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    let new = all["paths"].as_object().unwrap().keys().filter(|path| before["paths"].get(*path).is_none());
    assert!(new.clone().all(|path| path.starts_with("/apis/demo.example.com/v1")), "{:?}", new.collect::<Vec<_>>());
}
