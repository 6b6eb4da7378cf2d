//! What the webhook and the policy refuse.

use hco::render::NAME;
use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, PATH, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_object_in_one_namespace() {
    let cluster = Cluster::new().await;
    let object = |name: &str, namespace: &str| {
        json!({
            "apiVersion": "hco.kubevirt.io/v1", "kind": "HyperConverged", "metadata": { "name": name, "namespace": namespace },
            "spec": {},
        })
    };
    let elsewhere = "/apis/hco.kubevirt.io/v1/namespaces/default/hyperconvergeds";
    let message = refusal(cluster.call(Method::POST, elsewhere, &object(NAME, "default")).await);
    assert!(message.contains("can only be created in the 'kubevirt-hyperconverged' namespace"), "{message}");
    let message = refusal(cluster.call(Method::POST, PATH, &object("other", NAMESPACE)).await);
    assert!(message.contains("should match 'kubevirt-hyperconverged'"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_values_are_refused_by_field() {
    let cluster = Cluster::new().await;
    let spec = json!({ "security": { "certConfig": { "ca": { "duration": "1m" } } } });
    let message = refusal(cluster.create(&spec).await);
    assert!(message.contains("value is too small"), "{message}");
    let spec = json!({ "virtualization": { "tuningPolicy": "annotation" } });
    assert!(refusal(cluster.create(&spec).await).contains("both above 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_operator_refuses_is_refused_at_once() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    let expression = "!has(object.spec.configuration.cpuModel) || object.spec.configuration.cpuModel != 'bad'";
    cluster.forbid(("kubevirt.io", "kubevirts"), "UPDATE", expression, "bad is no CPU").await;
    let change = |model: &str| json!({ "spec": { "virtualization": { "virtualMachineOptions": { "defaultCPUModel": model } } } });
    crate::cluster::until("the policy holds", async || {
        let refused = cluster.merge(&change("bad")).await;
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("bad is no CPU")).then_some(())
    })
    .await;
    cluster.merge(&change("Haswell")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_object_stays_while_kubevirt_protects_machines() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    cluster.forbid(("kubevirt.io", "kubevirts"), "DELETE", "false", "there are still Virtual Machines present").await;
    let address = format!("{PATH}/{NAME}");
    // The policy holds a moment after it was made: a dry run shows when.
    crate::cluster::until("the policy holds", async || {
        let refused = cluster.call(Method::DELETE, &format!("{address}?dryRun=All"), &Value::Null).await;
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("still Virtual Machines"))
            .then_some(())
    })
    .await;
    assert!(
        refusal(cluster.call(Method::DELETE, &address, &Value::Null).await)
            .contains("KubeVirt kubevirt-kubevirt-hyperconverged")
    );
    assert!(cluster.object().await.unwrap().pointer("/metadata/deletionTimestamp").is_none());
}
