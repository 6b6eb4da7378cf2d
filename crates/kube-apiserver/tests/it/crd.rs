//! Custom resources.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::{Value, json};

use super::server;

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": "gadgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is fixed"}]}},
                        "x-kubernetes-validations": [{"rule": "self.size < 100", "message": "too big"}]},
                    "status": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}},
                {"name": "v1beta1", "served": true, "storage": false,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}
    }))
    .unwrap()
}

fn gadgets(client: &Client, version: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", version, "Gadget"), "gadgets");
    Api::default_namespaced_with(client.clone(), &kind)
}

fn gadget(version: &str, name: &str, spec: Value) -> DynamicObject {
    serde_json::from_value(json!({"apiVersion": format!("example.com/{version}"), "kind": "Gadget", "metadata": {"name": name}, "spec": spec})).unwrap()
}

#[track_caller]
fn message(outcome: Result<DynamicObject, Error>) -> String {
    match outcome {
        Err(Error::Api(status)) => format!("{} {}", status.code, status.message),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

async fn with_gadgets() -> Client {
    let client = server().await.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let created = definitions.create(&PostParams::default(), &definition()).await.unwrap();
    let status = created.status.unwrap();
    assert!(status.conditions.unwrap().iter().any(|c| c.type_ == "Established" && c.status == "True"));
    assert_eq!(status.stored_versions, Some(vec!["v1".to_owned()]));
    client
}

#[tokio::test]
async fn schemas_default_prune_and_validate() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    let post = PostParams::default();
    let created = api.create(&post, &gadget("v1", "g", json!({"size": 3, "unknown": 1}))).await.unwrap();
    assert_eq!(created.data["spec"], json!({"size": 3, "mode": "a"}));
    assert_eq!(created.metadata.generation, Some(1));
    let refusals = [
        (json!({"size": 0}), "Gadget.example.com \"x\" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"),
        (json!({"size": 1, "mode": "c"}), "Gadget.example.com \"x\" is invalid: spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\""),
        (json!({}), "Gadget.example.com \"x\" is invalid: spec.size: Required value"),
        (json!({"size": 100}), "Gadget.example.com \"x\" is invalid: spec: Invalid value: too big"),
    ];
    for (spec, expect) in refusals {
        let got = message(api.create(&post, &gadget("v1", "x", spec)).await);
        assert_eq!(got, format!("422 {expect}"));
    }
}

#[tokio::test]
async fn transition_rules_see_the_old_value() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3, "fixed": "x"}))).await.unwrap();
    let change = |value: &str| json!({"spec": {"fixed": value, "size": 4}});
    api.patch("g", &PatchParams::default(), &Patch::Merge(change("x"))).await.unwrap();
    let got = message(api.patch("g", &PatchParams::default(), &Patch::Merge(change("y"))).await);
    assert!(got.contains("spec.fixed: Invalid value: \"y\": fixed is fixed"), "{got}");
}

#[tokio::test]
async fn versions_share_their_objects() {
    let client = with_gadgets().await;
    gadgets(&client, "v1").create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3}))).await.unwrap();
    let old = gadgets(&client, "v1beta1");
    assert_eq!(old.get("g").await.unwrap().types.unwrap().api_version, "example.com/v1beta1");
    let listed = old.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items[0].data["spec"]["size"], 3);
}

#[tokio::test]
async fn subresources_follow_the_definition() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3}))).await.unwrap();
    let both = json!({"spec": {"size": 9}, "status": {"size": 2}});
    let patched = api.patch_status("g", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!((&patched.data["spec"]["size"], &patched.data["status"]["size"]), (&json!(3), &json!(2)));
    let scale = api.get_scale("g").await.unwrap();
    assert_eq!((scale.spec.unwrap().replicas, scale.status.unwrap().replicas), (Some(3), 2));
}

#[tokio::test]
async fn a_definition_takes_its_objects_with_it() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    let mut held = gadget("v1", "held", json!({"size": 3}));
    held.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    api.create(&PostParams::default(), &gadget("v1", "free", json!({"size": 3}))).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete("gadgets.example.com", &DeleteParams::default()).await.unwrap();
    // Deletion proceeds in the background; each step is a state to wait for.
    let deleting = |o: Option<&DynamicObject>| o.is_some_and(|o| o.metadata.deletion_timestamp.is_some());
    kube::runtime::wait::await_condition(api.clone(), "held", deleting).await.unwrap();
    let patch = json!({"metadata": {"finalizers": null}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    let gone = |o: Option<&CustomResourceDefinition>| o.is_none();
    kube::runtime::wait::await_condition(definitions, "gadgets.example.com", gone).await.unwrap();
}
