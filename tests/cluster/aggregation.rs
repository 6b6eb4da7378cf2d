//! Aggregation: a group served by somebody else, with the caller's identity passed on, and one whose server is away.

use anyhow::{Result, ensure};
use axum::Json;
use axum::http::HeaderMap;
use axum::routing::get;
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::https::Served;

pub(crate) const TESTS: &[Test] = &[("a_group_is_served_by_another_server", a_group_is_served_by_another_server)];

const GROUP: &str = "aggregated.example.org";

struct Registered<'a>(&'a Namespace);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "apiservice", &format!("v1.{GROUP}"), "--ignore-not-found"]);
    }
}

fn a_group_is_served_by_another_server() -> Result<()> {
    let space = Namespace::new("aggregation")?;
    let base = format!("/apis/{GROUP}/v1");
    let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": [
        {"name": "words", "singularName": "word", "namespaced": true, "kind": "Word", "verbs": ["get", "list"]}
    ]});
    let word = |headers: HeaderMap| async move {
        let user = headers.get("x-remote-user").and_then(|user| user.to_str().ok()).unwrap_or_default().to_owned();
        Json(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Word", "metadata": {"name": "hello"}, "user": user}))
    };
    let router = axum::Router::new()
        .route(&base, get(move || async move { Json(resources) }))
        .route(&format!("{base}/namespaces/{{namespace}}/words/hello"), get(word));
    let served = Served::start(&space, router)?;
    let service = |name: &str| {
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": format!("v1.{GROUP}")},
               "spec": {"group": GROUP, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100, "caBundle": served.bundle(),
                        "service": {"name": name, "namespace": space.name()}}})
        .to_string()
    };
    let _registered = Registered(&space);
    space.apply(&service("hook"))?;
    space.kubectl(&["wait", "apiservice", &format!("v1.{GROUP}"), "--for=condition=Available", "--timeout=60s"])?;
    let object = until("kubectl knew the new kind", || Ok(Some(space.get("words", "hello")?)))?;
    ensure!(
        object["user"] == "kubernetes-admin" || object["user"] == "admin" || object["user"] == "system:admin",
        "{object}"
    );
    let denied = space.output(&["get", "words", "hello", "--as=bob"])?;
    ensure!(crate::pods::text(&denied.stderr).contains("(Forbidden)"), "{denied:?}");

    space.apply(&service("away"))?;
    let away = space.wait("apiservice", &format!("v1.{GROUP}"), "was unavailable", |object| {
        let conditions = object["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|c| c["type"] == "Available" && c["status"] == "False")
    })?;
    ensure!(away["status"]["conditions"][0]["reason"] == "ServiceNotFound", "{away}");
    let path = format!("{base}/namespaces/{}/words/hello", space.name());
    let refused = space.output(&["get", "--raw", &path])?;
    ensure!(crate::pods::text(&refused.stderr).contains("ServiceUnavailable"), "{refused:?}");
    // Everything else goes on.
    let pods: Value = serde_json::from_str(&space.kubectl(&["get", "pods", "-o", "json"])?)?;
    ensure!(pods["items"].is_array(), "{pods}");
    Ok(())
}
