//! Admission webhooks, served by a real HTTPS server in the test.

use std::sync::Arc;

use axum::Json;
use base64::Engine;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client, Error};
use kube_apiserver::pki::Pki;
use kube_apiserver::serve::serve;
use kube_apiserver::serve::tls::Tls;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::served::refused;

fn encode(bytes: impl AsRef<[u8]>) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Adds a label to every object, refuses those called `bad`, warns about those called `odd`.
async fn judge(Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let name = request["object"]["metadata"]["name"].as_str().unwrap_or_default();
    let mut response = json!({"uid": request["uid"], "allowed": name != "bad"});
    if name == "bad" {
        response["status"] = json!({"message": "no bad ones", "code": 403});
    }
    if name == "odd" {
        response["warnings"] = json!(["this is odd"]);
    }
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

async fn label(Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let patch = if request["object"]["metadata"].get("labels").is_some() {
        json!([{"op": "add", "path": "/metadata/labels/by", "value": "hook"}])
    } else {
        json!([{"op": "add", "path": "/metadata/labels", "value": {"by": "hook"}}])
    };
    let response =
        json!({"uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": encode(patch.to_string())});
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

async fn hooks(shutdown: CancellationToken) -> (u16, String) {
    use axum::routing::post;
    let router = axum::Router::new()
        .route("/judge", post(judge))
        .route("/label", post(label))
        .route("/hang", post(hang))
        .route("/count", post(count))
        .route("/broken", post(broken));
    listen(router, shutdown).await
}

/// Never answers.
async fn hang() -> Json<Value> {
    std::future::pending().await
}

/// Counts its calls in a label, so that it asks to be called again.
async fn count(Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let labels = &request["object"]["metadata"]["labels"];
    let seen: u64 = labels["seen"].as_str().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut all = labels.as_object().cloned().unwrap_or_default();
    all.insert("seen".to_owned(), (seen + 1).to_string().into());
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": all}]);
    let response =
        json!({"uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": encode(patch.to_string())});
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

/// What is wrong with an answer is the object's name.
async fn broken(Json(review): Json<Value>) -> String {
    let request = &review["request"];
    let uid = &request["uid"];
    let answer = |response: Value| {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).to_string()
    };
    match request["object"]["metadata"]["name"].as_str().unwrap() {
        "deep" => "[".repeat(100_000),
        "text" => "no json".to_owned(),
        "strange" => answer(json!({"uid": "another", "allowed": true})),
        "empty" => json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).to_string(),
        "kind" => json!({"response": {"uid": uid, "allowed": true}}).to_string(),
        "nested" => {
            let deeper =
                |levels| json!({"op": "add", "path": format!("/metadata{}", "/a".repeat(levels)), "value": {}});
            let patch: Vec<Value> = (1..=200).map(deeper).collect();
            answer(
                json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": encode(json!(patch).to_string())}),
            )
        }
        "doubled" => {
            let twice = json!({"op": "copy", "from": "/metadata", "path": "/metadata/l/-"});
            let mut patch = vec![json!({"op": "add", "path": "/metadata/l", "value": []})];
            patch.extend(std::iter::repeat_n(twice, 60));
            answer(
                json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": encode(json!(patch).to_string())}),
            )
        }
        "untyped" => answer(json!({"uid": uid, "allowed": true, "patch": encode("[]")})),
        _ => answer(json!({"uid": uid, "allowed": true, "patchType": "JSONPatch",
            "patch": encode(r#"[{"op": "remove", "path": "/no/such"}]"#)})),
    }
}

/// The port and the CA bundle of a server of hooks.
pub(crate) async fn listen(router: axum::Router, shutdown: CancellationToken) -> (u16, String) {
    let pki = Pki::open(None).unwrap();
    let pair = pki.server("hook", "hook", "", &["127.0.0.1".into(), "hook.default.svc".into()]).unwrap();
    let tls = Tls::from_pem(&pair.certificate, &pair.key, pki.ca_pem()).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve(vec![listener], Arc::new(tls), router, shutdown));
    (port, encode(pki.ca_pem()))
}

async fn configure(client: &Client, kind: &str, name: &str, hook: Value) {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}");
    let mut hook = hook;
    hook["name"] = format!("{name}.example.com").into();
    hook["sideEffects"] = "None".into();
    hook["admissionReviewVersions"] = json!(["v1"]);
    if hook.get("rules").is_none() {
        hook["rules"] = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE", "UPDATE"]}]);
    }
    let body = json!({"metadata": {"name": name}, "webhooks": [hook]});
    let request =
        http::Request::post(path).header("content-type", "application/json").body(body.to_string().into_bytes());
    client.request::<Value>(request.unwrap()).await.unwrap();
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

async fn create(client: &Client, name: &str) -> Result<ConfigMap, Error> {
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &map(name)).await
}

const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";

#[tokio::test]
async fn hooks_change_refuse_and_warn() {
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let (port, ca) = hooks(shutdown).await;
    let server = super::server().await;
    let client = server.client();
    let url = |path: &str| json!({"url": format!("https://127.0.0.1:{port}/{path}"), "caBundle": ca});
    configure(&client, MUTATING, "label", json!({"clientConfig": url("label")})).await;
    configure(&client, VALIDATING, "judge", json!({"clientConfig": url("judge")})).await;
    let made = create(&client, "good").await.unwrap();
    assert_eq!(made.metadata.labels.unwrap()["by"], "hook");
    refused(
        create(&client, "bad").await,
        403,
        "admission webhook \"judge.example.com\" denied the request: no bad ones",
    );
    let request = http::Request::post("/api/v1/namespaces/default/configmaps")
        .header("content-type", "application/json")
        .body(kube::client::Body::from(json!({"metadata": {"name": "odd"}}).to_string().into_bytes()))
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.headers()["warning"], "299 - \"this is odd\"");
}

#[tokio::test]
async fn a_service_is_reached_at_its_ready_pod() {
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let (port, ca) = hooks(shutdown).await;
    let server = super::server().await;
    let client = server.client();
    let service = json!({"clientConfig": {"service": {"namespace": "default", "name": "hook", "path": "/judge"}, "caBundle": ca}});
    configure(&client, VALIDATING, "judge", service).await;
    let failed = "Internal error occurred: failed calling webhook \"judge.example.com\": failed to call webhook: Post \"https://hook.default.svc:443/judge?timeout=10s\": ";
    refused(create(&client, "bad").await, 500, &format!("{failed}service \"hook\" not found"));
    expose(&client, "hook", 443, port).await;
    refused(
        create(&client, "bad").await,
        403,
        "admission webhook \"judge.example.com\" denied the request: no bad ones",
    );
    create(&client, "good").await.unwrap();
}

/// A Service with one ready pod at 127.0.0.1.
pub(crate) async fn expose(client: &Client, name: &str, port: u16, target: u16) {
    let post = |path: String, body: Value| {
        let request =
            http::Request::post(path).header("content-type", "application/json").body(body.to_string().into_bytes());
        let client = client.clone();
        async move { client.request::<Value>(request.unwrap()).await.unwrap() }
    };
    post(
        "/api/v1/namespaces/default/services".into(),
        json!({"metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port, "targetPort": target}]}}),
    )
    .await;
    post(
        "/api/v1/namespaces/default/pods".into(),
        json!({"metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
    .await;
    let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let request = http::Request::patch(format!("/api/v1/namespaces/default/pods/{name}/status"))
        .header("content-type", "application/merge-patch+json")
        .body(status.to_string().into_bytes());
    client.request::<Value>(request.unwrap()).await.unwrap();
}

/// One of two endpoints is on a node that has just been lost, and still counts as ready: the other one is asked.
#[tokio::test]
async fn an_endpoint_that_cannot_be_connected_to_is_passed_over() {
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let (port, ca) = hooks(shutdown).await;
    let client = super::server().await.client();
    expose(&client, "hook", 443, port).await;
    let pod = json!({"metadata": {"name": "lost", "labels": {"app": "hook"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    // The hook listens on another address.
    let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.2", "podIPs": [{"ip": "127.0.0.2"}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status("lost", &Default::default(), &kube::api::Patch::Merge(status)).await.unwrap();
    let service = json!({"namespace": "default", "name": "hook", "port": 443, "path": "/label"});
    // Each has connections of its own, and begins with either endpoint.
    for n in 0..12 {
        let config = json!({"clientConfig": {"service": service, "caBundle": ca}});
        configure(&client, MUTATING, &format!("label-{n}"), config).await;
    }
    assert_eq!(create(&client, "a").await.unwrap().metadata.labels.unwrap()["by"], "hook");
}

#[tokio::test]
async fn failures_follow_the_policy_and_conditions_select() {
    let server = super::server().await;
    let client = server.client();
    let (_, ca) = hooks(CancellationToken::new()).await;
    // Nobody listens on port 1.
    let dead = json!({"url": "https://127.0.0.1:1/", "caBundle": ca});
    configure(&client, VALIDATING, "ignored", json!({"clientConfig": dead, "failurePolicy": "Ignore"})).await;
    create(&client, "a").await.unwrap();
    let conditions = json!([{"name": "only-b", "expression": "object.metadata.name == 'b'"}]);
    configure(
        &client,
        VALIDATING,
        "strict",
        json!({"clientConfig": dead, "failurePolicy": "Fail", "matchConditions": conditions}),
    )
    .await;
    create(&client, "c").await.unwrap();
    let outcome = create(&client, "b").await;
    let Err(Error::Api(status)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(status.code, 500);
    assert!(status.message.contains("failed calling webhook \"strict.example.com\""), "{}", status.message);
}

#[tokio::test]
async fn a_webhook_that_hangs_holds_nobody_else() {
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let (port, ca) = hooks(shutdown).await;
    let client = super::server().await.client();
    let config = json!({"url": format!("https://127.0.0.1:{port}/hang"), "caBundle": ca});
    let only_slow = json!([{"name": "slow", "expression": "object.metadata.name.startsWith('slow')"}]);
    let hook = json!({"clientConfig": config, "timeoutSeconds": 1, "matchConditions": only_slow});
    configure(&client, VALIDATING, "hang", hook).await;
    let slow: Vec<_> = (0..20)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { create(&client, &format!("slow-{n}")).await })
        })
        .collect();
    for n in 0..20 {
        create(&client, &format!("fast-{n}")).await.unwrap();
    }
    assert!(slow.iter().all(|task| !task.is_finished()), "the hanging ones still wait");
    for task in slow {
        let expect = format!(
            "Internal error occurred: failed calling webhook \"hang.example.com\": failed to call webhook: Post \"https://127.0.0.1:{port}/hang?timeout=1s\": context deadline exceeded"
        );
        refused(task.await.unwrap(), 500, &expect);
    }
}

#[tokio::test]
async fn a_hook_sees_again_what_a_later_one_changed() {
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let (port, ca) = hooks(shutdown).await;
    let client = super::server().await.client();
    let url = |path: &str| json!({"url": format!("https://127.0.0.1:{port}/{path}"), "caBundle": ca});
    configure(&client, MUTATING, "a-count", json!({"clientConfig": url("count"), "reinvocationPolicy": "IfNeeded"}))
        .await;
    let labels = create(&client, "alone").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels["seen"], "1");
    configure(&client, MUTATING, "b-label", json!({"clientConfig": url("label")})).await;
    let labels = create(&client, "changed").await.unwrap().metadata.labels.unwrap();
    assert_eq!((labels["seen"].as_str(), labels["by"].as_str()), ("2", "hook"));
}

#[tokio::test]
async fn a_policy_runs_before_hooks_and_again_after_what_they_changed() {
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let (port, ca) = hooks(shutdown).await;
    let client = super::server().await.client();
    let url = json!({"url": format!("https://127.0.0.1:{port}/label"), "caBundle": ca});
    configure(&client, MUTATING, "label", json!({"clientConfig": url})).await;
    let sees =
        "Object{metadata: Object.metadata{labels: {'saw-' + object.metadata.?labels.?by.orValue('nobody'): 'x'}}}";
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules},
        "reinvocationPolicy": "IfNeeded",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": sees}}]}});
    for (kind, body) in [
        ("mutatingadmissionpolicies", policy),
        ("mutatingadmissionpolicybindings", json!({"metadata": {"name": "b"}, "spec": {"policyName": "p"}})),
    ] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}");
        let request = http::Request::post(path).header("content-type", "application/json");
        client.request::<Value>(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    }
    let labels = create(&client, "a").await.unwrap().metadata.labels.unwrap();
    assert_eq!(json!(labels), json!({"by": "hook", "saw-nobody": "x", "saw-hook": "x"}));
}

#[tokio::test]
async fn answers_that_are_none_are_told() {
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    let (port, ca) = hooks(shutdown).await;
    let client = super::server().await.client();
    let config = json!({"url": format!("https://127.0.0.1:{port}/broken"), "caBundle": ca});
    configure(&client, MUTATING, "broken", json!({"clientConfig": config})).await;
    for (name, expect) in [
        ("deep", "failed calling webhook \"broken.example.com\": failed to call webhook: couldn't decode response: "),
        ("text", "failed calling webhook \"broken.example.com\": failed to call webhook: couldn't decode response: "),
        ("strange", "received invalid webhook response: expected response.uid="),
        ("empty", "received invalid webhook response: webhook response was absent"),
        (
            "kind",
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got , Kind=",
        ),
        ("untyped", "received invalid webhook response: webhook returned response.patch but not response.patchType"),
        ("nested", "sent a patch that does not apply: the JSON patch nests the object too deeply"),
        ("doubled", "the copy operations of a JSON patch may add 3145728 bytes at most"),
        ("patch", "admission webhook \"broken.example.com\" sent a patch that does not apply: "),
    ] {
        let outcome = create(&client, name).await;
        let Err(Error::Api(status)) = outcome else { panic!("{name}: {outcome:?}") };
        assert_eq!(status.code, 500, "{name}");
        assert!(status.message.contains(expect), "{name}: {}", status.message);
    }
}
