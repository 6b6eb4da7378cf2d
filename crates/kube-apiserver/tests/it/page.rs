//! The page of what is served names every kind, and none besides.

use std::collections::BTreeSet;

use http::Request;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::networking::v1::Ingress;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, from_value, json};

use super::server;

async fn get(client: &Client, path: &str) -> Value {
    client.request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

/// `group/version Kind` of all that discovery shows.
async fn discovered(client: &Client) -> BTreeSet<String> {
    let mut places = vec![("v1".to_owned(), "/api/v1".to_owned())];
    for group in get(client, "/apis").await["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let name = version["groupVersion"].as_str().unwrap();
            places.push((name.to_owned(), format!("/apis/{name}")));
        }
    }
    let mut found = BTreeSet::new();
    for (name, path) in places {
        for resource in get(client, &path).await["resources"].as_array().unwrap() {
            if !resource["name"].as_str().unwrap().contains('/') {
                found.insert(format!("{name} {}", resource["kind"].as_str().unwrap()));
            }
        }
    }
    found
}

/// The same, out of the page's table of kinds.
fn documented() -> BTreeSet<String> {
    let path = "../../docs/kubernetes.md";
    let page = std::fs::read_to_string(path).unwrap();
    let table = page.split("\n## ").find(|part| part.starts_with("Kinds")).unwrap();
    let mut found = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        found.extend(cells[2].split(", ").map(|kind| format!("{} {kind}", cells[1])));
    }
    found
}

#[tokio::test]
async fn the_page_names_every_kind_that_is_served() {
    let served = discovered(&server().await.client()).await;
    let documented = documented();
    let missing: Vec<_> = served.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&served).collect();
    assert!(missing.is_empty() && invented.is_empty(), "docs/kubernetes.md lacks {missing:?}, invents {invented:?}");
}

#[tokio::test]
async fn some_kinds_are_only_stored() {
    let client = server().await.client();
    let rule = json!({"host": "a.example", "http": {"paths": [{"path": "/", "pathType": "Prefix",
        "backend": {"service": {"name": "a", "port": {"number": 80}}}}]}});
    let ingress = from_value(json!({"metadata": {"name": "a"}, "spec": {"rules": [rule]}})).unwrap();
    let ingresses = Api::<Ingress>::namespaced(client.clone(), "default");
    ingresses.create(&PostParams::default(), &ingress).await.unwrap();
    let stored = ingresses.get("a").await.unwrap();
    assert!(stored.status.unwrap().load_balancer.unwrap().ingress.is_none());
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"});
    let scaler =
        from_value(json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "scaleTargetRef": target}})).unwrap();
    let scalers = Api::<HorizontalPodAutoscaler>::namespaced(client, "default");
    scalers.create(&PostParams::default(), &scaler).await.unwrap();
    assert!(scalers.get("a").await.unwrap().status.unwrap_or_default().conditions.is_none());
}
