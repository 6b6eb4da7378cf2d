//! Claims on devices as they are written: what is refused, who may use devices beside others, and what a node may write.

use apimachinery::request::User;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};

fn kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", kind))
}

fn claims(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &kind("ResourceClaim"))
}

fn object(kind: &str, name: &str, spec: Value) -> DynamicObject {
    let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

fn admin() -> Value {
    json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": true}}]}})
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>, code: u16, part: &str) {
    let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
    assert_eq!(status.code, code, "{}", status.message);
    assert!(status.message.contains(part), "{}", status.message);
}

#[tokio::test]
async fn access_beside_others_needs_the_namespaces_label() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let templates: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind("ResourceClaimTemplate"));
    let create = PostParams::default();
    let needs = "requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
    refused(claims(&client, "default").create(&create, &object("ResourceClaim", "a", admin())).await, 422, needs);
    let template = object("ResourceClaimTemplate", "a", json!({"spec": admin()}));
    refused(templates.create(&create, &template).await, 422, needs);
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    claims(&client, "default").create(&create, &object("ResourceClaim", "a", admin())).await.unwrap();
    templates.create(&create, &template).await.unwrap();
}

#[tokio::test]
async fn a_claim_is_what_it_was_and_its_status_is_not_its_users() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let api = claims(&client, "default");
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let mut claim = object("ResourceClaim", "a", json!({"devices": {"requests": [request]}}));
    claim.data["status"] = json!({"allocation": {"devices": {"results": []}}});
    let made = api.create(&PostParams::default(), &claim).await.unwrap();
    assert_eq!(made.data["status"], json!({}));
    assert_eq!(made.data["spec"]["devices"]["requests"][0]["exactly"]["count"], 1);
    let change = json!({"spec": {"devices": {"requests": []}}});
    refused(api.patch("a", &PatchParams::default(), &Patch::Merge(change)).await, 422, "spec: Invalid value");
    let given = json!({"status": {"allocation": {"devices": {"results": [
        {"request": "r", "driver": "d.io", "pool": "p", "device": "x"}]}}}});
    api.patch("a", &PatchParams::default(), &Patch::Merge(&given)).await.unwrap();
    assert_eq!(api.get("a").await.unwrap().data["status"], json!({}));
    api.patch_status("a", &PatchParams::default(), &Patch::Merge(&given)).await.unwrap();
    assert_eq!(api.get("a").await.unwrap().data["status"]["allocation"]["devices"]["results"][0]["device"], "x");
}

#[tokio::test]
async fn a_node_publishes_its_own_devices() {
    let server = ApiServer::in_memory().await.unwrap();
    let node = User {
        name: "system:node:n1".into(),
        groups: vec!["system:nodes".into(), "system:authenticated".into()],
        ..User::default()
    };
    let (own, all) = (server.client_as(node), server.client());
    let slices = |client: &Client| -> Api<DynamicObject> { Api::all_with(client.clone(), &kind("ResourceSlice")) };
    let of = |name: &str, node: &str| {
        object(
            "ResourceSlice",
            name,
            json!({"driver": "d.io", "nodeName": node, "devices": [{"name": "a"}],
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}),
        )
    };
    let create = PostParams::default();
    slices(&own).create(&create, &of("mine", "n1")).await.unwrap();
    refused(slices(&own).create(&create, &of("theirs", "n2")).await, 403, "with spec.nodeName set to itself");
    slices(&all).create(&create, &of("theirs", "n2")).await.unwrap();
    refused(slices(&own).delete("theirs", &Default::default()).await, 403, "with spec.nodeName set to itself");
    refused(slices(&own).list(&ListParams::default()).await, 403, "field selector");
    let mine = slices(&own).list(&ListParams::default().fields("spec.nodeName=n1")).await.unwrap();
    assert_eq!(mine.items.len(), 1);
    slices(&own).delete("mine", &Default::default()).await.unwrap();
    let counters = json!({"spec": {"devices": null, "sharedCounters": [{"name": "s", "counters": {}}]}});
    let changed = slices(&all).patch("theirs", &PatchParams::default(), &Patch::Merge(counters)).await;
    refused(changed, 422, "devices that share counters are not served");
}
