//! The first Task of the Pipelines of Windows.

use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, cluster, refusal};

fn params(eula: &str, answers: &str) -> [(&'static str, Value); 5] {
    [
        ("acceptEula", json!(eula)),
        ("useBiosMode", json!("false")),
        ("autounattendConfigMapName", json!(answers)),
        ("baseDvName", json!("win11")),
        ("baseDvNamespace", json!("golden")),
    ]
}

async fn maps(cluster: &Cluster) -> Vec<Value> {
    let all = cluster.get(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps")).await.unwrap();
    let ours = |map: &&Value| map["metadata"]["name"].as_str().unwrap().starts_with("windows");
    all["items"].as_array().unwrap().iter().filter(ours).cloned().collect()
}

#[tokio::test]
async fn nothing_is_made_before_the_params_are_right() {
    let cluster = cluster().await;
    let said = refusal(cluster.run("prepare-windows", &params("false", "windows11-autounattend")).await);
    assert!(said.contains("param acceptEula: the licence of Windows is not accepted, so nothing is done"), "{said}");
    let said = refusal(cluster.run("prepare-windows", &params("true", "mine")).await);
    assert!(said.contains("there is no ConfigMap ci/mine: make it"), "{said}");
    assert!(maps(&cluster).await.is_empty());
}

#[tokio::test]
async fn answers_are_where_the_machine_is() {
    let cluster = cluster().await;
    cluster.run("prepare-windows", &params("true", "windows11-autounattend")).await.unwrap();
    let made = maps(&cluster).await;
    assert_eq!(made.len(), 1);
    assert_eq!(cluster.result("answers"), made[0]["metadata"]["name"]);
    assert!(made[0]["data"]["autounattend.xml"].as_str().unwrap().contains("unattend"));
    assert_eq!(made[0]["metadata"]["ownerReferences"][0]["name"], "step", "they go with the run");
    assert!(cluster.result("rootDisk").starts_with("win11-"), "the boot source is in another namespace");
    let own = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "windows11-autounattend", "namespace": NAMESPACE },
    });
    cluster.apply(own).await;
    cluster.run("prepare-windows", &params("true", "windows11-autounattend")).await.unwrap();
    assert_eq!(cluster.result("answers"), "windows11-autounattend", "those of the user come before ours");
}
