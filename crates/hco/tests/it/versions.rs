//! Version v1beta1, and certificates that change while it is asked for.

use hco::render::NAME;
use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, PATH, until};

const OLD: &str = "/apis/hco.kubevirt.io/v1beta1/namespaces/kubevirt-hyperconverged/hyperconvergeds";

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_are_one_object() {
    let cluster = Cluster::new().await;
    let object = json!({
        "apiVersion": "hco.kubevirt.io/v1beta1", "kind": "HyperConverged",
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": { "evictionStrategy": "None", "featureGates": { "alignCPUs": true }, "vddkInitImage": "x" },
    });
    // The API server takes in a moment after it was written who vouches for the webhook.
    until("it converts", async || cluster.call(Method::POST, OLD, &object).await.ok()).await;
    let new = cluster.object().await.unwrap();
    assert_eq!(new["spec"]["virtualization"]["evictionStrategy"], "None");
    assert_eq!(new["spec"]["featureGates"], json!([{ "name": "alignCPUs", "state": "Enabled" }]));
    let change = json!({ "spec": { "observability": { "allowedAlerts": ["none"] } } });
    cluster.merge(&change).await.unwrap();
    let old = cluster.get(&format!("{OLD}/{NAME}")).await.unwrap();
    assert_eq!((&old["spec"]["evictionStrategy"], &old["spec"]["vddkInitImage"]), (&json!("None"), &json!("x")));
    assert_eq!(old["spec"]["featureGates"]["alignCPUs"], true);
    // A client of the old version writes what it read, with one change, and again when the operator wrote meanwhile.
    until("it is written", async || {
        let mut written = cluster.get(&format!("{OLD}/{NAME}")).await?;
        written["spec"]["featureGates"]["alignCPUs"] = json!(false);
        cluster.call(Method::PUT, &format!("{OLD}/{NAME}"), &written).await.ok()
    })
    .await;
    let new = cluster.object().await.unwrap();
    assert_eq!(new["spec"]["featureGates"], Value::Null);
    assert_eq!(new["spec"]["observability"]["allowedAlerts"], json!(["none"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_pass_while_the_certificate_is_renewed() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    let secret = format!("/api/v1/namespaces/{NAMESPACE}/secrets/hyperconverged-cluster-webhook-service-cert");
    for round in 0..5 {
        let before = cluster.get(&secret).await.unwrap()["data"].clone();
        // Whoever deletes it has it made anew, by the same authority; or put back, when the operator had just read it.
        until("there is a new one", async || {
            cluster.merge(&json!({ "metadata": { "labels": { "round": round.to_string() } } })).await.unwrap();
            let held = cluster.get(&secret).await?;
            if held["data"] == before {
                let _ = cluster.call(Method::DELETE, &secret, &Value::Null).await;
            }
            (held["data"] != before).then_some(())
        })
        .await;
        let old = cluster.call(Method::GET, &format!("{OLD}/{NAME}"), &Value::Null).await.unwrap();
        assert_eq!(old["metadata"]["labels"]["round"], round.to_string());
    }
    assert!(cluster.call(Method::GET, PATH, &Value::Null).await.is_ok());
}
