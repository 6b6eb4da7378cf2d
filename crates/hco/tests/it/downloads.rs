//! virtctl is offered for download.

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::cluster::{Cluster, NAMESPACE, PATH, until};

const NAME: &str = "hyperconverged-cluster-cli-download";

#[tokio::test]
async fn what_lies_beneath_the_directory_is_served_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let offered = dir.path().join("offered");
    std::fs::create_dir_all(offered.join("amd64/linux")).unwrap();
    assert!(hco::downloads::router(&offered).is_err(), "there is nothing to offer");
    std::fs::write(offered.join("amd64/linux/virtctl.tar.gz"), "packed").unwrap();
    std::fs::write(offered.join("SHA256SUMS"), "sums").unwrap();
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), offered.join("link")).unwrap();
    let router = hco::downloads::router(&offered).unwrap();
    let ask = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let kind = answer.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let code = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (code, kind.unwrap_or_default(), String::from_utf8(body.to_vec()).unwrap())
    };
    let archive = ask("/amd64/linux/virtctl.tar.gz").await;
    assert_eq!(archive, (200, "application/gzip".to_owned(), "packed".to_owned()));
    assert_eq!(ask("/SHA256SUMS").await.2, "sums");
    assert!(ask("/").await.2.contains("href=\"/amd64/linux/virtctl.tar.gz\""));
    assert_eq!((ask("/health").await.0, ask("/readyz").await.0), (200, 200));
    for path in ["/amd64", "/../secret", "/%2e%2e/secret", "/amd64/linux/../../../secret", "/link", "//SHA256SUMS"] {
        assert_eq!(ask(path).await.0, 404, "{path}");
    }
}

/// A kind of OpenShift, whose controllers the test plays.
fn kind(group: &str, kind: &str, plural: &str, scope: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": scope, "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_offers_it_where_there_is_one() {
    let mut cluster = Cluster::new().await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for (group, name, plural, scope) in [
        ("route.openshift.io", "Route", "routes", "Namespaced"),
        ("console.openshift.io", "ConsoleCLIDownload", "consoleclidownloads", "Cluster"),
    ] {
        cluster.call(Method::POST, definitions, &kind(group, name, plural, scope)).await.unwrap();
        let served = format!("/apis/{group}/v1");
        until("the kind is served", async || cluster.get(&served).await.map(drop)).await;
    }
    cluster.available(json!({})).await;
    let deployment = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}");
    let deployed = until("it is deployed", async || cluster.get(&deployment).await).await;
    let pod = &deployed["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false, "it asks the API server nothing");
    let route = format!("/apis/route.openshift.io/v1/namespaces/{NAMESPACE}/routes/{NAME}");
    let made = until("it is seen from outside", async || cluster.get(&route).await).await;
    assert_eq!(made["spec"]["tls"]["termination"], "reencrypt");
    assert!(made["spec"]["tls"]["destinationCACertificate"].as_str().unwrap().contains("BEGIN CERTIFICATE"));
    let admitted = json!({ "status": { "ingress": [
        { "host": "downloads.example", "conditions": [{ "type": "Admitted", "status": "True" }] },
    ] } });
    cluster.call(Method::PATCH, &format!("{route}/status"), &admitted).await.unwrap();
    let offer = "/apis/console.openshift.io/v1/consoleclidownloads/virtctl-clidownloads-kubevirt-hyperconverged";
    let made = until("it is offered", async || cluster.get(offer).await).await;
    assert_eq!(made["spec"]["links"][0]["href"], "https://downloads.example/amd64/linux/virtctl.tar.gz");
    cluster.call(Method::DELETE, &format!("{PATH}/kubevirt-hyperconverged"), &Value::Null).await.unwrap();
    for address in [offer, &route, &deployment] {
        until("it is taken away", async || cluster.get(address).await.is_none().then_some(())).await;
    }
}
