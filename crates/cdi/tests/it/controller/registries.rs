//! Registries without a certificate that is known.

use api::cdi::v1beta1::{CDI, DataImportCron};
use axum::{Router, routing::get};
use cdi::controller::cron::poll::{Digests, Image, Registries};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use sha2::Digest;

use crate::controller::{
    cluster::{Cluster, PLAIN, start_with, there, volume, wait},
    crons::says,
};

/// Whether the importer of an image at `host` looks at certificates.
async fn looks(cluster: &Cluster, name: &str, host: &str) -> bool {
    let source = json!({ "registry": { "url": format!("docker://{host}/gold:1") } });
    cluster.create(&volume(name, PLAIN, &source)).await;
    cluster.provision(&cluster.claims, name).await;
    let pod: Pod = wait(&cluster.pods, &format!("importer-{name}"), "made", there()).await.unwrap();
    let variables = pod.spec.unwrap().containers.remove(0).env.unwrap();
    let insecure = variables.into_iter().find(|one| one.name == "INSECURE_TLS").unwrap();
    insecure.value.as_deref() == Some("false")
}

#[tokio::test]
async fn registries_may_be_listed_as_insecure() {
    let cluster = start_with(json!({ "insecureRegistries": ["listed:5000"] })).await;
    let map = |name: &str, data: Value| json!({ "metadata": { "name": name, "namespace": "cdi" }, "data": data });
    cluster.make("v1", "ConfigMap", map("cdi-insecure-registries", json!({ "mine": "mapped:5000" }))).await;
    assert!(looks(&cluster, "other", "other:5000").await);
    assert!(looks(&cluster, "port", "listed").await);
    assert!(!looks(&cluster, "listed", "listed:5000").await);
    assert!(!looks(&cluster, "mapped", "mapped:5000").await);
}

#[tokio::test]
async fn an_insecure_registry_is_asked_what_is_new() {
    let cluster = start_with(json!({})).await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let cron = json!({ "metadata": { "name": "gold-cron" }, "spec": {
        "managedDataSource": "gold", "schedule": "* * * * *",
        "template": { "metadata": {}, "spec": {
            "source": { "registry": { "url": "docker://own:5000/gold:aaaaaaaaaaaaaaaa" } },
            "storage": { "storageClassName": PLAIN, "resources": { "requests": { "storage": "16Mi" } } },
        } },
    } });
    crons.create(&PostParams::default(), &serde_json::from_value(cron).unwrap()).await.unwrap();
    wait(&crons, "gold-cron", "told of the certificate", says("UpToDate", "NoDigest")).await;
    let cdis: Api<CDI> = Api::all(cluster.client.clone());
    let listed = json!({ "spec": { "config": { "insecureRegistries": ["own:5000"] } } });
    cdis.patch("cdi", &PatchParams::default(), &Patch::Merge(listed)).await.unwrap();
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await;
}

/// One without TLS, which many are that nobody but their owners reach.
#[tokio::test]
async fn a_registry_without_tls_says_what_an_image_is() {
    let text = r#"{"schemaVersion":2,"manifests":[]}"#;
    let digest = format!("sha256:{:x}", sha2::Sha256::digest(text));
    // What it says of itself is not what counts: an import is held against what was found.
    let answer = [("docker-content-digest", format!("sha256:{}", "0".repeat(64)))];
    let (private, refusal) = ("the words of a neighbour", http::StatusCode::FORBIDDEN);
    let router = Router::new()
        .route("/v2/", get(|| async { "{}" }))
        .route("/v2/gold/manifests/1", get(move || async move { (answer, text) }))
        .route("/v2/closed/manifests/1", get(move || async move { (refusal, private) }))
        .route("/v2/large/manifests/1", get(|| async { vec![b' '; 5 << 20] }))
        .route("/v2/round/manifests/1", get(|| async { axum::response::Redirect::temporary("/v2/round/manifests/1") }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let image = |name: &str, insecure| Image { url: format!("docker://{host}/{name}:1"), insecure, ..Image::default() };
    assert_eq!(Registries.of(image("gold", true)).await, Ok(digest));
    for (name, insecure, expect) in [
        ("gold", false, "cannot connect"),
        ("closed", true, "it answered 403 Forbidden"),
        ("large", true, "more than 4194304 bytes"),
        ("round", true, "leads elsewhere without an end"),
    ] {
        let why = Registries.of(image(name, insecure)).await.unwrap_err();
        assert!(why.contains("does not say what it is") && why.contains(expect), "{why}");
        assert!(!why.contains(private), "{why}");
    }
}
