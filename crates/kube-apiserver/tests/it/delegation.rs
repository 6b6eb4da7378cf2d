//! Extension API servers: identity, availability, discovery and upgrades.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube_apiserver::pki::Pki;
use kube_apiserver::serve::serve;
use kube_apiserver::serve::tls::Tls;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::served::Served;
use super::webhooks::expose;

/// Answers discovery, tells who called, echoes on an upgraded connection.
async fn extension(mut request: Request) -> Response {
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; 5];
            io.read_exact(&mut buffer).await.unwrap();
            io.write_all(&buffer).await.unwrap();
        });
        let head = [("connection", "Upgrade"), ("upgrade", "echo")];
        return (http::StatusCode::SWITCHING_PROTOCOLS, head).into_response();
    }
    if request.uri().path() == "/apis/demo.example.com/v1" {
        return axum::Json(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "demo.example.com/v1",
            "resources": [{"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get"]}]}))
        .into_response();
    }
    let header =
        |name: &str| request.headers().get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>();
    axum::Json(json!({"kind": "Seen", "path": request.uri().path(), "user": header("x-remote-user"), "groups": header("x-remote-group"),
        "authorization": header("authorization")}))
    .into_response()
}

async fn delegated(client: &Client, front_ca: &str, shutdown: CancellationToken) {
    let router = axum::Router::new().fallback(extension);
    delegate(client, front_ca, "extension", "demo.example.com", router, shutdown).await;
}

/// Serves `router` as the extension server of `group`, behind the Service `name`.
pub(crate) async fn delegate(
    client: &Client,
    front_ca: &str,
    name: &str,
    group: &str,
    router: axum::Router,
    shutdown: CancellationToken,
) {
    let pki = Pki::open(None).unwrap();
    let pair = pki.server(name, name, "", &[format!("{name}.default.svc")]).unwrap();
    let tls = Tls::from_pem(&pair.certificate, &pair.key, front_ca).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve(vec![listener], Arc::new(tls), router, shutdown));
    expose(client, name, 443, port).await;
    use base64::Engine;
    let service = json!({"metadata": {"name": format!("v1.{group}")}, "spec": {"group": group, "version": "v1",
        "groupPriorityMinimum": 1000, "versionPriority": 10, "service": {"namespace": "default", "name": name, "port": 443},
        "caBundle": base64::engine::general_purpose::STANDARD.encode(pki.ca_pem())}});
    let request = http::Request::post("/apis/apiregistration.k8s.io/v1/apiservices")
        .header("content-type", "application/json")
        .body(service.to_string().into_bytes());
    client.request::<Value>(request.unwrap()).await.unwrap();
}

#[tokio::test]
async fn requests_carry_the_identity_and_availability_is_reported() {
    let served = Served::start().await;
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let client = served.server.client();
    delegated(&client, served.server.edges().pki.front_proxy_ca_pem(), shutdown.clone()).await;
    tokio::spawn(kube_apiserver::availability::run(served.server.clone(), shutdown.clone()));
    let admin = served.with_certificate(&served.server.edges().pki.admin().unwrap()).await;
    let request = http::Request::get("/apis/demo.example.com/v1/namespaces/default/things/x")
        .header("x-remote-user", "somebody-else")
        .body(Vec::new());
    let seen: Value = admin.request(request.unwrap()).await.unwrap();
    assert_eq!(seen["user"], json!(["kubernetes-admin"]));
    assert_eq!(seen["groups"], json!(["system:masters", "system:authenticated"]));
    assert_eq!(seen["authorization"], json!([]));
    let available = async {
        loop {
            let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.demo.example.com";
            let object: Value = client.request(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Available" && c["status"] == "True") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), available).await.unwrap();
    let document = served.server.edges().delegation.documents.resources("demo.example.com", "v1").unwrap();
    assert_eq!(document["resources"][0]["name"], "things");
}

#[tokio::test]
async fn upgrades_pass_byte_for_byte() {
    let served = Served::start().await;
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let pki = &served.server.edges().pki;
    delegated(&served.server.client(), pki.front_proxy_ca_pem(), shutdown).await;
    let admin = pki.admin().unwrap();
    let config =
        kube_apiserver::dial::tls_config(Some(pki.ca_pem().as_bytes()), Some((&admin.certificate, &admin.key)))
            .unwrap();
    let address = served.url.trim_start_matches("https://").parse().unwrap();
    let mut stream = kube_apiserver::dial::connect(address, "127.0.0.1", config).await.unwrap();
    let head = "GET /apis/demo.example.com/v1/namespaces/default/things/x/console HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\nhello") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        got.push(byte[0]);
    }
    assert!(got.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&got));
}
