//! Which networks a machine may be put on, over the real API server.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{Setup, setup};

/// What the webhook at `path` answers when `user` makes this.
async fn review(setup: &Setup, path: &str, user: Value, object: &Value) -> Value {
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": "tenant", "userInfo": user, "object": object,
    } });
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(review.to_string()));
    let response = setup.router.clone().oneshot(request.unwrap()).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    answer["response"].clone()
}

#[tokio::test]
async fn a_network_of_another_namespace_is_for_those_who_may_read_its_definition() {
    let setup = setup().await;
    let spec = |network: &str| {
        json!({
            "domain": {
                "resources": { "requests": { "memory": "64Mi" } },
                "devices": { "interfaces": [{ "name": "red", "bridge": {} }] },
            },
            "networks": [{ "name": "red", "multus": { "networkName": network } }],
        })
    };
    let eve = json!({ "username": "eve", "groups": ["system:authenticated"] });
    let admin = json!({ "username": "admin", "groups": ["system:masters", "system:authenticated"] });
    let controller = json!({ "username": "system:serviceaccount:kubevirt:kubevirt-controller" });
    let kinds = |network: &str| {
        let vm = json!({ "metadata": { "name": "a", "namespace": "tenant" },
            "spec": { "runStrategy": "Always", "template": { "spec": spec(network) } } });
        let vmi = json!({ "metadata": { "name": "a", "namespace": "tenant" }, "spec": spec(network) });
        [("/virtualmachines-validate", vm), ("/virtualmachineinstances-validate-create", vmi)]
    };
    for (path, object) in kinds("victim/red") {
        let refused = review(&setup, path, eve.clone(), &object).await;
        let message = refused["status"]["message"].as_str().unwrap_or_default();
        assert!(refused["allowed"] == false && message.contains("victim/red is of another namespace"), "{refused}");
        for user in [&admin, &controller] {
            let allowed = review(&setup, path, user.clone(), &object).await;
            assert_eq!(allowed["allowed"], true, "{allowed}");
        }
    }
    for network in ["red", "tenant/red", "default/red"] {
        for (path, object) in kinds(network) {
            let allowed = review(&setup, path, eve.clone(), &object).await;
            assert_eq!(allowed["allowed"], true, "{allowed}");
        }
    }
}
