//! Admission webhooks: one that changes, one that refuses, one that is away and one that takes too long.

use anyhow::{Result, ensure};
use axum::Json;
use axum::routing::post;
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::https::Served;

pub(crate) const TESTS: &[Test] = &[
    ("webhooks_change_and_refuse", webhooks_change_and_refuse),
    ("a_webhook_that_fails_is_treated_as_it_says", a_webhook_that_fails_is_treated_as_it_says),
];

fn configuration(space: &Namespace, kind: &str, hook: &Value) -> Value {
    let base = json!({
        "name": "hook.e2e.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "hook", "namespace": space.name(), "path": "/"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name()}},
        "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]
    });
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": space.name()},
           "webhooks": [crate::pods::with(base, hook)]})
}

/// Takes the configuration away whatever happens: it would outlive its namespace.
struct Configured<'a>(&'a Namespace, &'static str);

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", self.1, self.0.name(), "--ignore-not-found"]);
    }
}

async fn change(Json(review): Json<Value>) -> Json<Value> {
    // [{"op":"add","path":"/data/added","value":"by the webhook"}]
    let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEvYWRkZWQiLCJ2YWx1ZSI6ImJ5IHRoZSB3ZWJob29rIn1d";
    let response = json!({"uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch});
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

async fn judge(Json(review): Json<Value>) -> Json<Value> {
    let bad = review["request"]["object"]["data"]["word"] == "bad";
    let mut response = json!({"uid": review["request"]["uid"], "allowed": !bad, "warnings": ["looked at"]});
    if bad {
        response["status"] = json!({"message": "the word is bad", "code": 422, "reason": "Invalid"});
    }
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

fn webhooks_change_and_refuse() -> Result<()> {
    let space = Namespace::new("webhook")?;
    let served =
        Served::start(&space, axum::Router::new().route("/change", post(change)).route("/judge", post(judge)))?;
    let at = |path: &str| json!({"clientConfig": {"caBundle": served.bundle(), "service": {"path": path}}});
    space.apply(&configuration(&space, "MutatingWebhookConfiguration", &at("/change")).to_string())?;
    let _mutating = Configured(&space, "mutatingwebhookconfiguration");
    space.apply(&configuration(&space, "ValidatingWebhookConfiguration", &at("/judge")).to_string())?;
    let _validating = Configured(&space, "validatingwebhookconfiguration");
    let map = |name: &str, word: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"word": word}}).to_string()
    };
    let good = space.feed(&["apply", "-f", "-"], map("good", "good").as_bytes())?;
    let warned = crate::pods::text(&good.stderr);
    ensure!(good.status.success() && warned.contains("Warning: looked at"), "{good:?}");
    ensure!(space.get("cm", "good")?["data"]["added"] == "by the webhook", "the webhook's change is not there");
    let why = space.refused(&map("bad", "bad"))?;
    ensure!(why.contains("admission webhook \"hook.e2e.example.org\" denied the request: the word is bad"), "{why}");
    Ok(())
}

async fn never(Json(_): Json<Value>) -> Json<Value> {
    std::future::pending().await
}

fn a_webhook_that_fails_is_treated_as_it_says() -> Result<()> {
    let space = Namespace::new("failing")?;
    let served = Served::start(&space, axum::Router::new().route("/", post(never)))?;
    let _validating = Configured(&space, "validatingwebhookconfiguration");
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string();
    let hook = |policy: &str, service: &str| {
        let hook = json!({"failurePolicy": policy, "timeoutSeconds": 1, "clientConfig": {"caBundle": served.bundle(), "service": {"name": service}}});
        space.apply(&configuration(&space, "ValidatingWebhookConfiguration", &hook).to_string())
    };
    hook("Fail", "hook")?;
    let why = space.refused(&map("slow"))?;
    ensure!(
        why.contains("failed calling webhook \"hook.e2e.example.org\"") && why.contains("deadline exceeded"),
        "{why}"
    );
    hook("Ignore", "hook")?;
    space.apply(&map("slow"))?;
    hook("Fail", "absent")?;
    let why = space.refused(&map("absent"))?;
    ensure!(why.contains("failed calling webhook") && why.contains("absent"), "{why}");
    hook("Ignore", "absent")?;
    space.apply(&map("absent"))?;
    Ok(())
}
