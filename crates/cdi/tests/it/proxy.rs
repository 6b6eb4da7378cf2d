//! The upload proxy between a client with a token and the upload server of a claim.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use cdi::token::{self, Payload, Resource, Signer, operation};
use cdi::uploadproxy::{Keys, router};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::upload::{Party, Running};

struct Scene {
    claims: Api<PersistentVolumeClaim>,
    signer: Signer,
    proxy: Router,
}

impl Scene {
    /// A proxy that reaches upload servers at `dial`.
    async fn new(party: &Party, dial: SocketAddr) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({ "metadata": { "name": "ns" } })).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let (private, public) = token::generate().unwrap();
        let at = |name: &str, text: &str| {
            let path = party.dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        at("tls.crt", &party.client.certificate);
        at("tls.key", &party.client.key);
        let keys = Keys {
            client: party.dir.path().to_owned(),
            authorities: at("authorities.crt", party.authorities()),
            public_key: None,
            public_key_file: at("id_rsa.pub", &public),
            port: 443,
            dial: Some(dial),
        };
        let proxy = router(client.clone(), keys);
        Self { claims: Api::namespaced(client, "ns"), signer: Signer::new(&private).unwrap(), proxy }
    }

    async fn claim(&self, name: &str, annotations: Value) {
        let noted: serde_json::Map<_, _> = annotations
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (format!("cdi.kubevirt.io/{key}"), value.clone()))
            .collect();
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": name, "annotations": noted },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "8Mi" } } },
        });
        self.claims.patch(name, &PatchParams::apply("test"), &Patch::Apply(claim)).await.unwrap();
    }

    fn token(&self, name: &str, change: impl FnOnce(&mut Payload), age: i64) -> String {
        let mut payload = Payload {
            operation: operation::UPLOAD.into(),
            name: name.into(),
            namespace: "ns".into(),
            resource: Resource::claims(),
            ..Payload::default()
        };
        change(&mut payload);
        let from = kit::clock::now() - jiff::SignedDuration::from_secs(age);
        format!("Bearer {}", self.signer.sign(token::ISSUER_APISERVER, payload, from, token::LIFETIME).unwrap())
    }

    async fn ask(&self, request: Request<Body>) -> (StatusCode, String) {
        let answer = self.proxy.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&text).into_owned())
    }

    async fn post(&self, token: Option<&str>, body: impl Into<Body>) -> (StatusCode, String) {
        let mut request = Request::post("/v1beta1/upload");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        self.ask(request.body(body.into()).unwrap()).await
    }
}

fn nowhere() -> SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_goes_through_to_the_server_of_its_claim() {
    let party = Party::new("cdi-upload-prime-u.ns.svc");
    let server = Running::start(party.args()).await;
    let scene = Scene::new(&party, ([127, 0, 0, 1], server.port).into()).await;
    scene.claim("disk", json!({ "storage.populator.pvcPrime": "prime-u" })).await;
    scene.claim("prime-u", json!({ "storage.upload.target": "", "storage.pod.ready": "true" })).await;
    let token = scene.token("disk", |_| {}, 0);
    let (status, text) = scene.post(Some(&token), vec![7; 16 << 20]).await;
    assert!(status == StatusCode::BAD_REQUEST && text.contains("A larger PVC is required"), "{status} {text}");
    let (status, text) = scene.post(Some(&token), vec![7; 1 << 20]).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, ""));
    server.ended.await.unwrap().unwrap();
    let stored = std::fs::read(party.disk()).unwrap();
    assert!(stored.len() == 8 << 20 && stored[..1 << 20].iter().all(|byte| *byte == 7));
    let (status, text) = scene.post(Some(&token), "x").await;
    assert!(
        status == StatusCode::BAD_GATEWAY && text.contains("cannot connect to cdi-upload-prime-u.ns.svc"),
        "{text}"
    );
}

/// What `curl` makes of an upload of many bytes: the status, and what it shows.
async fn curl(port: u16, version: &str, token: &str, file: &std::path::Path) -> (String, String) {
    let mut command = tokio::process::Command::new("curl");
    command.args(["-sS", version, "--insecure", "--max-time", "60", "-w", "\n%{http_code}"]);
    command.args(["-H", &format!("Authorization: {token}"), "-H", "Content-Type: application/octet-stream"]);
    let url = format!("https://127.0.0.1:{port}/v1beta1/upload");
    let output = command.arg("--data-binary").arg(format!("@{}", file.display())).arg(url).output().await.unwrap();
    assert!(output.status.success(), "{version}: {}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).unwrap();
    let (said, status) = shown.rsplit_once('\n').unwrap();
    (status.to_owned(), said.to_owned())
}

/// Whoever is refused before all is read sees why, however much there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_still_sends_sees_why_it_is_refused() {
    let party = Party::new("cdi-upload-disk.ns.svc");
    let server = Running::start(party.args()).await;
    let scene = Scene::new(&party, ([127, 0, 0, 1], server.port).into()).await;
    scene.claim("disk", json!({ "storage.upload.target": "", "storage.pod.ready": "true" })).await;
    let material = kit::tls::Material::new();
    material.set(&party.client).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = kit::tls::server(material, None).unwrap();
    let stop = kit::shutdown::CancellationToken::new();
    let serving = tokio::spawn(kit::server::serve_tls(listener, config, scene.proxy.clone(), stop.clone()));
    let file = party.dir.path().join("large");
    // More than what all buffers on the way hold.
    std::fs::write(&file, vec![7; 96 << 20]).unwrap();
    for version in ["--http1.1", "--http2"] {
        let late = scene.token("disk", |_| {}, 3600);
        let (status, said) = curl(port, version, &late, &file).await;
        assert!(status == "401" && said.contains("the token is not good at this time"), "{version}: {status} {said}");
        let (status, said) = curl(port, version, &scene.token("missing", |_| {}, 0), &file).await;
        assert!(status == "503" && said.contains("PVC missing that doesn&#39;t exist"), "{version}: {status} {said}");
        let (status, said) = curl(port, version, &scene.token("disk", |_| {}, 0), &file).await;
        assert!(status == "400" && said.contains("A larger PVC is required"), "{version}: {status} {said}");
    }
    stop.cancel();
    serving.await.unwrap();
    server.ended.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_good_tokens_open_the_way() {
    let party = Party::new("localhost");
    let scene = Scene::new(&party, nowhere()).await;
    let status = async |token: Option<&str>| scene.post(token, "x").await.0.as_u16();
    assert_eq!(status(None).await, 400);
    assert_eq!(status(Some("Basic bWU6c2VjcmV0")).await, 400);
    assert_eq!(status(Some("Bearer a.b.c")).await, 401);
    assert_eq!(status(Some(&scene.token("disk", |_| {}, 3600))).await, 401, "expired");
    assert_eq!(status(Some(&scene.token("disk", |_| {}, -3600))).await, 401, "not yet good");
    assert_eq!(status(Some(&scene.token("disk", |p| p.operation = operation::CLONE.into(), 0))).await, 400);
    let pods = Resource::new("", "v1", "pods");
    assert_eq!(status(Some(&scene.token("disk", |p| p.resource = pods, 0))).await, 400);
    let other = token::generate().unwrap();
    let forged = Scene { signer: Signer::new(&other.0).unwrap(), claims: scene.claims.clone(), proxy: Router::new() };
    assert_eq!(status(Some(&forged.token("disk", |_| {}, 0))).await, 401, "of another key");
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_a_server_is_not_uploaded_to() {
    let party = Party::new("localhost");
    let scene = Scene::new(&party, nowhere()).await;
    scene.claim("plain", json!({})).await;
    scene.claim("done", json!({ "storage.upload.target": "", "storage.pod.phase": "Succeeded" })).await;
    scene.claim("starting", json!({ "storage.upload.target": "", "storage.pod.ready": "false" })).await;
    for (name, expect) in [
        ("missing", "rejecting Upload Request for PVC missing that doesn&#39;t exist"),
        ("plain", "PVC plain is not an upload target"),
        ("done", "rejecting Upload Request for PVC done that already finished uploading"),
        ("starting", "timed out waiting for the condition: the upload server of PVC starting is not ready"),
    ] {
        let (status, text) = scene.post(Some(&scene.token(name, |_| {}, 0)), "x").await;
        assert_eq!((status, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, expect));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_of_any_origin_may_ask() {
    let party = Party::new("localhost");
    let scene = Scene::new(&party, nowhere()).await;
    let preflight = Request::options("/v1beta1/upload")
        .header(header::ORIGIN, "https://console.example")
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
        .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "authorization")
        .body(Body::empty())
        .unwrap();
    let answer = scene.proxy.clone().oneshot(preflight).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    assert_eq!(answer.headers()["access-control-allow-headers"], "authorization");
    let post = Request::post("/v1beta1/upload").header(header::ORIGIN, "https://console.example");
    let answer = scene.proxy.clone().oneshot(post.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    let (status, text) = scene.ask(Request::get("/healthz").body(Body::empty()).unwrap()).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "OK"));
    let probe = Request::head("/v1beta1/upload-async").body(Body::empty()).unwrap();
    assert_eq!(scene.ask(probe).await.0, StatusCode::OK);
}
