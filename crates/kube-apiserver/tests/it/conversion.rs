//! Conversion webhooks, served by a real HTTPS server in the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use futures::TryStreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Api, Client, Error};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::webhooks::listen;

/// `spec.size` of v1 is `spec.count` of v2. The name of an object makes the webhook misbehave.
async fn convert(State(calls): State<Arc<AtomicUsize>>, Json(review): Json<Value>) -> Json<Value> {
    calls.fetch_add(1, Ordering::SeqCst);
    let request = &review["request"];
    let wanted = request["desiredAPIVersion"].as_str().unwrap();
    let names = if wanted.ends_with("v2") { ("size", "count") } else { ("count", "size") };
    let mut failure = None;
    let converted: Vec<Value> = request["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| {
            let mut object = object.clone();
            object["apiVersion"] = wanted.into();
            if let Some(value) = object["spec"].as_object_mut().and_then(|spec| spec.remove(names.0)) {
                object["spec"][names.1] = value;
            }
            object["metadata"]["annotations"] = json!({"converted-to": wanted});
            object["metadata"]["generation"] = json!(99);
            match object["metadata"]["name"].as_str().unwrap() {
                "renamed" => object["metadata"]["name"] = "other".into(),
                "refused" => failure = Some("that one has no other form"),
                _ => {}
            }
            object
        })
        .collect();
    let result = match failure {
        Some(message) => json!({"status": "Failure", "message": message}),
        None => json!({"status": "Success"}),
    };
    Json(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "response": {"uid": request["uid"], "result": result, "convertedObjects": converted}}))
}

fn definition(port: u16, ca: &str) -> CustomResourceDefinition {
    let version = |name: &str, field: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": {field: {"type": "integer"},
                "mode": {"type": "string", "default": name}, "note": {"type": "string"}}}}}}})
    };
    serde_json::from_value(json!({"metadata": {"name": "parts.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "parts", "kind": "Part"},
            "versions": [version("v1", "size", true), version("v2", "count", false)],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": {"url": format!("https://127.0.0.1:{port}/convert"), "caBundle": ca}}}}}))
    .unwrap()
}

/// An admission webhook that knows v2 alone: it adds one to `spec.count`.
async fn grow(Json(review): Json<Value>) -> Json<Value> {
    use base64::Engine;
    let request = &review["request"];
    let count = request["object"]["spec"]["count"].as_i64().unwrap_or(-1);
    assert_eq!(request["object"]["apiVersion"], "example.com/v2");
    let patch = json!([{"op": "replace", "path": "/spec/count", "value": count + 1}]).to_string();
    let response = json!({"uid": request["uid"], "allowed": request["requestKind"]["version"] == "v1", "patchType": "JSONPatch",
        "patch": base64::engine::general_purpose::STANDARD.encode(patch)});
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

pub(super) struct Parts {
    client: Client,
    calls: Arc<AtomicUsize>,
    hooks: (u16, String),
    _running: tokio_util::sync::DropGuard,
}

impl Parts {
    pub(super) async fn start() -> Self {
        let running = CancellationToken::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let router =
            axum::Router::new().route("/convert", post(convert)).route("/grow", post(grow)).with_state(calls.clone());
        let (port, ca) = listen(router, running.clone()).await;
        let client = super::server().await.client();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions.create(&PostParams::default(), &definition(port, &ca)).await.unwrap();
        Self { client, calls, hooks: (port, ca), _running: running.drop_guard() }
    }

    /// Reviews the webhook has had.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn version(&self, version: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", version, "Part"), "parts");
        Api::default_namespaced_with(self.client.clone(), &kind)
    }

    async fn create(&self, version: &str, name: &str, spec: Value) -> Result<DynamicObject, Error> {
        let object = json!({"apiVersion": format!("example.com/{version}"), "kind": "Part", "metadata": {"name": name}, "spec": spec});
        self.version(version).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
    }
}

#[tokio::test]
async fn objects_are_written_and_read_in_any_version() {
    let parts = Parts::start().await;
    let (v1, v2) = (parts.version("v1"), parts.version("v2"));
    let made = parts.create("v2", "a", json!({"count": 3})).await.unwrap();
    assert_eq!(made.data["spec"], json!({"count": 3, "mode": "v2"}));
    assert_eq!(made.metadata.generation, Some(1), "a webhook changes labels and annotations alone");
    let read = v1.get("a").await.unwrap();
    assert_eq!(read.data["spec"], json!({"size": 3, "mode": "v2"}));
    assert_eq!(read.metadata.annotations.unwrap()["converted-to"], "example.com/v1");
    parts.create("v1", "b", json!({"size": 4})).await.unwrap();
    let before = parts.calls.load(Ordering::SeqCst);
    let listed = v2.list(&ListParams::default()).await.unwrap();
    let counts: Vec<&Value> = listed.items.iter().map(|item| &item.data["spec"]["count"]).collect();
    assert_eq!(counts, [&json!(3), &json!(4)]);
    assert_eq!(parts.calls.load(Ordering::SeqCst), before + 1, "a list is one review");
    let patched = v2.patch("b", &PatchParams::default(), &Patch::Merge(json!({"spec": {"count": 5}}))).await.unwrap();
    assert_eq!(patched.data["spec"]["count"], 5);
    assert_eq!(v1.get("b").await.unwrap().data["spec"]["size"], 5);
    let applied = json!({"apiVersion": "example.com/v2", "kind": "Part", "spec": {"count": 6}});
    v2.patch("b", &PatchParams::apply("me").force(), &Patch::Apply(&applied)).await.unwrap();
    let stored = v1.get("b").await.unwrap();
    assert_eq!(stored.data["spec"]["size"], 6);
    assert!(
        stored
            .metadata
            .managed_fields
            .unwrap()
            .iter()
            .any(|entry| entry.manager.as_deref() == Some("me")
                && entry.api_version.as_deref() == Some("example.com/v2"))
    );
}

#[tokio::test]
async fn watches_convert() {
    let parts = Parts::start().await;
    parts.create("v1", "a", json!({"size": 1})).await.unwrap();
    let v2 = parts.version("v2");
    let mut events = Box::pin(v2.watch(&WatchParams::default(), "0").await.unwrap());
    let mut next = async || match events.try_next().await.unwrap().unwrap() {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => object.data["spec"]["count"].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(next().await, json!(1));
    let patch = Patch::Merge(json!({"spec": {"size": 2}}));
    parts.version("v1").patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(next().await, json!(2));
}

#[tokio::test]
async fn a_new_storage_version_reads_what_the_old_one_wrote() {
    let parts = Parts::start().await;
    parts.create("v1", "a", json!({"size": 1})).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(parts.client.clone());
    let mut moved = definitions.get("parts.example.com").await.unwrap();
    moved.spec.versions[0].storage = false;
    moved.spec.versions[1].storage = true;
    let moved = definitions.replace("parts.example.com", &PostParams::default(), &moved).await.unwrap();
    assert_eq!(moved.status.unwrap().stored_versions.unwrap(), ["v1", "v2"]);
    assert_eq!(parts.version("v2").get("a").await.unwrap().data["spec"]["count"], 1);
    assert_eq!(parts.version("v1").get("a").await.unwrap().data["spec"]["size"], 1);
    // Writing it back unchanged moves it, which is how versions are retired.
    let object = parts.version("v2").get("a").await.unwrap();
    parts.version("v2").replace("a", &PostParams::default(), &object).await.unwrap();
    let before = parts.calls.load(Ordering::SeqCst);
    parts.version("v2").get("a").await.unwrap();
    assert_eq!(parts.calls.load(Ordering::SeqCst), before);
    let retire = Patch::Merge(json!({"status": {"storedVersions": ["v2"]}}));
    let retired = definitions.patch_status("parts.example.com", &PatchParams::default(), &retire).await.unwrap();
    assert_eq!(retired.status.unwrap().stored_versions.unwrap(), ["v2"]);
}

#[tokio::test]
async fn a_webhook_that_misbehaves_is_told() {
    let parts = Parts::start().await;
    let refused = |outcome: Result<DynamicObject, Error>| match outcome {
        Err(Error::Api(status)) => (status.code, status.message),
        other => panic!("expected a refusal, got {other:?}"),
    };
    assert_eq!(
        refused(parts.create("v2", "refused", json!({"count": 1})).await),
        (500, "conversion webhook for example.com/v2, Kind=Part failed: that one has no other form".to_owned())
    );
    assert_eq!(
        refused(parts.create("v2", "renamed", json!({"count": 1})).await),
        (
            500,
            "conversion webhook for example.com/v2, Kind=Part returned invalid converted object at index 0: must have the same name: renamed != other"
                .to_owned()
        )
    );
    let definitions: Api<CustomResourceDefinition> = Api::all(parts.client.clone());
    let gone =
        Patch::Merge(json!({"spec": {"conversion": {"webhook": {"clientConfig": {"url": "https://127.0.0.1:1/"}}}}}));
    definitions.patch("parts.example.com", &PatchParams::default(), &gone).await.unwrap();
    parts.create("v1", "a", json!({"size": 1})).await.unwrap();
    let (code, message) = refused(parts.version("v2").get("a").await);
    assert_eq!(code, 500);
    let expect = "conversion webhook for example.com/v1, Kind=Part failed: Post \"https://127.0.0.1:1/?timeout=30s\": dial tcp 127.0.0.1:1: ";
    assert!(message.starts_with(expect), "{message}");
}

#[tokio::test]
async fn admission_sees_the_version_it_asks_for() {
    let parts = Parts::start().await;
    let (port, ca) = &parts.hooks;
    let rules = json!([{"apiGroups": ["example.com"], "apiVersions": ["v2"], "resources": ["parts"], "operations": ["CREATE"]}]);
    let hook = json!({"name": "grow.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": rules,
        "clientConfig": {"url": format!("https://127.0.0.1:{port}/grow"), "caBundle": ca}});
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "object.spec.count < 10", "messageExpression": "string(object.spec.count) + ' is too many'"}]}});
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    let double = json!({"metadata": {"name": "double"}, "spec": {"matchConstraints": {"resourceRules": rules},
        "reinvocationPolicy": "Never", "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration":
            {"expression": "Object{spec: Object.spec{count: object.spec.count * 2}}"}}]}});
    for (kind, body) in [
        ("mutatingwebhookconfigurations", json!({"metadata": {"name": "grow"}, "webhooks": [hook]})),
        ("mutatingadmissionpolicies", double),
        ("mutatingadmissionpolicybindings", json!({"metadata": {"name": "d"}, "spec": {"policyName": "double"}})),
        ("validatingadmissionpolicies", policy),
        ("validatingadmissionpolicybindings", binding),
    ] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}");
        let request = http::Request::post(path).header("content-type", "application/json");
        parts.client.request::<Value>(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    }
    let made = parts.create("v1", "a", json!({"size": 3})).await.unwrap();
    // Doubled by the policy before the webhook sees it.
    assert_eq!(made.data["spec"]["size"], 7);
    match parts.create("v1", "b", json!({"size": 9})).await {
        Err(Error::Api(status)) => {
            assert!(status.message.ends_with("denied request: 19 is too many"), "{}", status.message);
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}
