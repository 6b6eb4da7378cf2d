//! Server-side apply and ownership over REST.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Error, ResourceExt};
use serde_json::json;

use super::server;

#[tokio::test]
async fn apply_creates_then_conflicts_then_forces() {
    let maps: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let map =
        |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": value}});
    let apply =
        async |who: &str, value: &str| maps.patch("m", &PatchParams::apply(who), &Patch::Apply(map(value))).await;
    let created = apply("a", "1").await.unwrap();
    assert_eq!(created.managed_fields()[0].manager.as_deref(), Some("a"));
    let again = apply("a", "1").await.unwrap();
    assert_eq!(again.resource_version(), created.resource_version());
    let Err(Error::Api(status)) = apply("b", "2").await else { panic!("a conflict is expected") };
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"a\": .data.k");
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let forced = maps.patch("m", &PatchParams::apply("b").force(), &Patch::Apply(map("2"))).await.unwrap();
    let owners: Vec<_> = forced.managed_fields().iter().filter_map(|e| e.manager.clone()).collect();
    assert_eq!(owners, ["b"]);
}

#[tokio::test]
async fn status_is_applied_by_its_own_endpoint() {
    let deployments: Api<Deployment> = Api::default_namespaced(server().await.client());
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let object = |part: &str, value: serde_json::Value| json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, part: value});
    deployments.patch("d", &PatchParams::apply("user"), &Patch::Apply(object("spec", spec))).await.unwrap();
    let status = object("status", json!({"readyReplicas": 1, "replicas": 1}));
    let seen = deployments.patch_status("d", &PatchParams::apply("controller"), &Patch::Apply(status)).await.unwrap();
    assert_eq!(seen.status.as_ref().unwrap().ready_replicas, Some(1));
    assert_eq!(seen.spec.as_ref().unwrap().replicas, Some(1));
    let entries: Vec<_> = seen
        .managed_fields()
        .iter()
        .map(|e| (e.manager.as_deref().unwrap(), e.subresource.as_deref().unwrap_or("")))
        .collect();
    assert!(entries.contains(&("user", "")) && entries.contains(&("controller", "status")), "{entries:?}");
}

#[tokio::test]
async fn an_apply_needs_a_name() {
    let maps: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let request = http::Request::patch("/api/v1/namespaces/default/configmaps/m")
        .header("Content-Type", "application/apply-patch+yaml")
        .body(map.to_string().into_bytes())
        .unwrap();
    let Err(Error::Api(status)) = maps.into_client().request::<ConfigMap>(request).await else {
        panic!("a refusal is expected")
    };
    assert_eq!(status.code, 422);
    assert!(status.message.contains("fieldManager: Required value"), "{}", status.message);
}
