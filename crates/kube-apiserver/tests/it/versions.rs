//! Owners who write in different versions of one kind, which a webhook converts.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Error};
use serde_json::{Value, json};

use super::conversion::Parts;

async fn apply(parts: &Parts, manager: &str, version: &str, spec: Value) -> Result<DynamicObject, Error> {
    let wish = json!({"apiVersion": format!("example.com/{version}"), "kind": "Part", "metadata": {"name": "a"}, "spec": spec});
    parts.version(version).patch("a", &PatchParams::apply(manager), &Patch::Apply(&wish)).await
}

async fn update(parts: &Parts, manager: &str, version: &str, spec: Value) -> DynamicObject {
    let writer = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    parts.version(version).patch("a", &writer, &Patch::Merge(json!({"spec": spec}))).await.unwrap()
}

/// `manager version: field …` for each owner.
fn owners(object: &DynamicObject) -> Vec<String> {
    let entries = object.metadata.managed_fields.iter().flatten();
    let told = entries.map(|entry| {
        let fields = &entry.fields_v1.as_ref().unwrap().0["f:spec"];
        let names: Vec<&str> = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let version = entry.api_version.as_deref().unwrap().trim_start_matches("example.com/");
        format!("{} {version}: {}", entry.manager.as_deref().unwrap(), names.join(" "))
    });
    told.collect()
}

#[track_caller]
fn conflict(outcome: Result<DynamicObject, Error>, expect: &str) {
    match outcome {
        Err(Error::Api(status)) => {
            assert_eq!(
                (status.code, status.message.as_str()),
                (409, &*format!("Apply failed with 1 conflict: {expect}"))
            );
        }
        other => panic!("expected a conflict, got {other:?}"),
    }
}

#[tokio::test]
async fn owners_speak_their_own_versions() {
    let parts = Parts::start().await;
    let made = apply(&parts, "a", "v1", json!({"size": 1, "note": "x"})).await.unwrap();
    assert_eq!(owners(&made), ["a v1: f:note f:size"]);
    let updated = update(&parts, "k", "v2", json!({"count": 2})).await;
    assert_eq!(owners(&updated), ["a v1: f:note", "k v2: f:count"]);
    // What others own is compared in their words, whichever version is written in.
    let by_k = "conflict with \"k\" using example.com/v2: .spec.count";
    conflict(apply(&parts, "a", "v1", json!({"size": 3, "note": "x"})).await, by_k);
    conflict(apply(&parts, "b", "v2", json!({"count": 3})).await, by_k);
    conflict(apply(&parts, "b", "v2", json!({"note": "y"})).await, "conflict with \"a\": .spec.note");
    let shared = apply(&parts, "a", "v1", json!({"size": 2, "note": "x"})).await.unwrap();
    assert_eq!(owners(&shared), ["a v1: f:note f:size", "k v2: f:count"]);
    let again = apply(&parts, "a", "v1", json!({"size": 2, "note": "x"})).await.unwrap();
    assert_eq!(again.metadata.resource_version, shared.metadata.resource_version);
    conflict(apply(&parts, "b", "v1", json!({"note": "y"})).await, "conflict with \"a\": .spec.note");
    // An applier that changes its version is the same applier: what it says no more goes.
    let moved = apply(&parts, "a", "v2", json!({"count": 2})).await.unwrap();
    assert_eq!(moved.data["spec"], json!({"count": 2, "mode": "v1"}));
    assert_eq!(owners(&moved), ["a v2: f:count", "k v2: f:count"]);
    let seen = parts.version("v1").get("a").await.unwrap();
    assert_eq!((owners(&seen), &seen.data["spec"]["size"]), (owners(&moved), &json!(2)));
    let removed = update(&parts, "l", "v1", json!({"size": null})).await;
    assert_eq!(owners(&removed), Vec::<String>::new());
}

#[tokio::test]
async fn one_review_shows_both_states_to_an_owner() {
    let parts = Parts::start().await;
    update_after_apply(&parts).await;
    let before = parts.calls();
    update(&parts, "l", "v1", json!({"note": "z"})).await;
    assert_eq!(parts.calls(), before + 1, "an owner in v2 costs a write in v1, the stored version, one review");
    let definitions: Api<CustomResourceDefinition> = Api::all(parts.client());
    let none = Patch::Merge(json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}}));
    definitions.patch("parts.example.com", &PatchParams::default(), &none).await.unwrap();
    update(&parts, "l", "v1", json!({"note": "y"})).await;
    assert_eq!(parts.calls(), before + 1, "versions that differ in name only are not converted");
}

async fn update_after_apply(parts: &Parts) {
    apply(parts, "a", "v1", json!({"size": 1})).await.unwrap();
    update(parts, "k", "v2", json!({"note": "x"})).await;
}

#[tokio::test]
async fn a_version_that_is_gone_takes_its_owners_with_it() {
    let parts = Parts::start().await;
    update_after_apply(&parts).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(parts.client());
    let mut changed = definitions.get("parts.example.com").await.unwrap();
    changed.spec.versions[1].served = false;
    definitions.replace("parts.example.com", &Default::default(), &changed).await.unwrap();
    // It is still declared, and what was written in it is known.
    conflict(
        apply(&parts, "b", "v1", json!({"note": "y"})).await,
        "conflict with \"k\" using example.com/v2: .spec.note",
    );
    let mut changed = definitions.get("parts.example.com").await.unwrap();
    changed.spec.versions.pop();
    definitions.replace("parts.example.com", &Default::default(), &changed).await.unwrap();
    let applied = apply(&parts, "b", "v1", json!({"note": "y"})).await.unwrap();
    assert_eq!(owners(&applied), ["a v1: f:size", "b v1: f:note"]);
}

#[tokio::test]
async fn owners_outlive_the_absence_of_the_webhook() {
    let parts = Parts::start().await;
    update_after_apply(&parts).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(parts.client());
    let gone =
        Patch::Merge(json!({"spec": {"conversion": {"webhook": {"clientConfig": {"url": "https://127.0.0.1:1/"}}}}}));
    definitions.patch("parts.example.com", &PatchParams::default(), &gone).await.unwrap();
    let updated = update(&parts, "l", "v1", json!({"size": 2})).await;
    assert_eq!(owners(&updated), ["k v2: f:note", "l v1: f:size"]);
    match apply(&parts, "b", "v1", json!({"note": "y"})).await {
        Err(Error::Api(status)) => assert!(status.message.contains("conversion webhook for"), "{}", status.message),
        other => panic!("expected a failure, got {other:?}"),
    }
}
