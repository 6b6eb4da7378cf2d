//! What guards the object is there before it, is put back when somebody takes it away, and an operator that ends at any moment is
//! replaced by one that goes on.

use std::sync::{Arc, Mutex};

use axum::extract::Request;
use hco::child::Child;
use hco::render::NAME;
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, PATH, condition, until};

/// Where each kind of object lies that the operator applies for itself.
fn addresses() -> Vec<String> {
    let admission = |plural: &str, name: &str| format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
    let core = |plural: &str, name: &str| format!("/api/v1/namespaces/{NAMESPACE}/{plural}/{name}");
    vec![
        admission("validatingwebhookconfigurations", "validate-hco.kubevirt.io"),
        admission("mutatingwebhookconfigurations", "mutate-hco.kubevirt.io"),
        admission("validatingadmissionpolicies", "hyperconverged-namespace-policy"),
        admission("validatingadmissionpolicybindings", "hyperconverged-namespace-policy"),
        core("services", "hyperconverged-cluster-webhook-service"),
        core("secrets", "hyperconverged-cluster-webhook-signer"),
        core("secrets", "hyperconverged-cluster-webhook-service-cert"),
        core("configmaps", "hyperconverged-cluster-webhook-bundle"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_guards_the_object_is_put_back_when_it_is_deleted_or_edited() {
    let cluster = Cluster::new().await;
    for address in addresses() {
        let was = cluster.get(&address).await.unwrap_or_else(|| panic!("{address}"));
        let edit = match was["kind"].as_str().unwrap() {
            "ValidatingAdmissionPolicy" => json!({ "spec": { "failurePolicy": "Ignore" } }),
            "ValidatingAdmissionPolicyBinding" => json!({ "spec": { "validationActions": ["Audit"] } }),
            "Service" => json!({ "spec": { "selector": { "name": "nobody" } } }),
            "Secret" | "ConfigMap" => {
                json!({ "data": was["data"].as_object().unwrap().keys().map(|key| (key.clone(), json!(""))).collect::<serde_json::Map<_, _>>() })
            }
            _ => json!({ "webhooks": [] }),
        };
        let good = |now: &Value| match now["kind"].as_str().unwrap_or_default() {
            "Secret" | "ConfigMap" => {
                now["data"].as_object().is_some_and(|data| data.values().all(|value| value != ""))
            }
            "Service" => now["spec"]["selector"] == was["spec"]["selector"],
            "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => now["spec"] == was["spec"],
            _ => now["webhooks"].as_array().map(Vec::len) == was["webhooks"].as_array().map(Vec::len),
        };
        let start = std::time::Instant::now();
        cluster.call(Method::PATCH, &address, &edit).await.unwrap();
        until("the edit is put right", async || cluster.get(&address).await.filter(|now| good(now)).map(drop)).await;
        cluster.call(Method::DELETE, &address, &Value::Null).await.unwrap();
        until("it is back", async || cluster.get(&address).await.filter(|now| good(now)).map(drop)).await;
        assert!(start.elapsed().as_secs() < 10, "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_guards_the_object_goes_with_its_definition() {
    let cluster = Cluster::new().await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hyperconvergeds.hco.kubevirt.io";
    let definition = cluster.get(definition).await.unwrap();
    for address in addresses().into_iter().filter(|address| !address.contains("/namespaces/")) {
        let owners = cluster.get(&address).await.unwrap()["metadata"]["ownerReferences"].clone();
        assert_eq!(owners[0]["uid"], definition["metadata"]["uid"], "{address}: {owners}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_conversion_is_put_back_when_the_definition_is_applied_without_it() {
    let cluster = Cluster::new().await;
    let address = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hyperconvergeds.hco.kubevirt.io";
    let none = json!({ "spec": { "conversion": { "strategy": "None", "webhook": null } } });
    cluster.call(Method::PATCH, address, &none).await.unwrap();
    until("it converts again", async || {
        let conversion = cluster.get(address).await?["spec"]["conversion"].clone();
        conversion.pointer("/webhook/clientConfig/caBundle").map(drop)
    })
    .await;
}

/// A client of the operator whose owner is as good as dead after so many writes: none that follows is answered, or arrives.
fn dying(cluster: &Cluster, after: usize) -> (Client, Arc<Mutex<usize>>) {
    let written: Arc<Mutex<usize>> = Arc::default();
    let seen = written.clone();
    let count = axum::middleware::map_request(move |request: Request| {
        let ended = request.method() != Method::GET && {
            let mut seen = seen.lock().unwrap();
            *seen += 1;
            *seen > after
        };
        async move {
            if ended {
                std::future::pending::<()>().await;
            }
            request
        }
    });
    let user = axum::Extension(Cluster::user("hyperconverged-cluster-operator"));
    (Client::new(cluster.server.router().layer(count).layer(user), "default"), written)
}

/// Operators that end after one write, after two, and so on, until one of them is done.
async fn crash_until(cluster: &mut Cluster, what: &str, done: impl AsyncFn(&Cluster) -> bool) {
    for after in 1..40 {
        let (client, written) = dying(cluster, after);
        cluster.start_as(client, "v1");
        let ended = until(what, async || {
            let ended = *written.lock().unwrap() > after;
            (done(cluster).await || ended).then_some(ended)
        })
        .await;
        if !ended {
            return;
        }
    }
    panic!("{what}: never, however long an operator lived");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_ends_at_any_step_is_replaced_by_one_that_goes_on() {
    let mut cluster = Cluster::new().await;
    cluster.play("v1");
    cluster.create(&json!({})).await.unwrap();
    crash_until(&mut cluster, "all is available", async |cluster| {
        let object = cluster.object().await.unwrap();
        condition(&object, "Available")["status"] == "True"
    })
    .await;
    cluster.call(Method::DELETE, &format!("{PATH}/{NAME}"), &Value::Null).await.unwrap();
    crash_until(&mut cluster, "all is removed", async |cluster| cluster.object().await.is_none()).await;
    for child in Child::ALL {
        assert!(cluster.child(child).await.is_none(), "{child:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_of_others_outlive_the_operators() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    cluster
        .merge(&json!({ "metadata": { "finalizers": ["example.com/a", "kubevirt.io/hyperconverged"] } }))
        .await
        .unwrap();
    cluster.call(Method::DELETE, &format!("{PATH}/{NAME}"), &Value::Null).await.unwrap();
    until("only the other's is left", async || {
        (cluster.object().await?["metadata"]["finalizers"] == json!(["example.com/a"])).then_some(())
    })
    .await;
}
