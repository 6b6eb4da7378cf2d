//! Pods of machines ask for the resources of their networks.

use hco::injector::{ANNOTATION, PROGRAM};
use http::Method;
use kit::apply::{self, Applied};
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, condition, refusal, until};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kubevirt-hyperconverged/deployments/virt-network-resources-injector";
const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/virt-network-resources-injector-config.k8s.io";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The definition of networks, as multus brings it.
fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "network-attachment-definitions.k8s.cni.cncf.io" },
        "spec": {
            "group": "k8s.cni.cncf.io", "scope": "Namespaced",
            "names": { "kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions", "singular": "network-attachment-definition" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            } } }],
        },
    })
}

/// Plays the controller of Deployments: the injector's pods run, and from then on it is asked.
async fn roll_out(cluster: &Cluster) {
    let deployment = until("it is deployed", async || cluster.get(DEPLOYMENT).await).await;
    let status = json!({ "status": {
        "observedGeneration": deployment["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
        "availableReplicas": 1,
    } });
    cluster.call(Method::PATCH, &format!("{DEPLOYMENT}/status"), &status).await.unwrap();
    until("it is asked", async || cluster.get(CONFIGURATION).await.map(drop)).await;
}

fn pod(name: &str, label: &str, networks: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "kubevirt.io": label }, "annotations": { (ANNOTATION): networks } },
        "spec": { "containers": [{ "name": "compute", "image": "i" }] },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_while_the_object_asks_for_it_and_the_status_says_so() {
    let mut cluster = Cluster::new().await;
    assert!(cluster.get(DEPLOYMENT).await.is_none());
    cluster.available(json!({})).await;
    let said = async || Some(condition(&cluster.object().await?, "VirtNetworkResourcesInjectorReady"));
    until("its pods are waited for", async || (said().await?["reason"] == "DeploymentNotReady").then_some(())).await;
    assert!(cluster.get(CONFIGURATION).await.is_none(), "nobody would answer");
    roll_out(&cluster).await;
    until("it is ready", async || (said().await?["status"] == "True").then_some(())).await;
    cluster.merge(&json!({ "spec": { "deployment": { "deployNetworkResourcesInjector": false } } })).await.unwrap();
    until("it is taken away", async || {
        let gone = cluster.get(DEPLOYMENT).await.is_none() && cluster.get(CONFIGURATION).await.is_none();
        (gone && said().await?.is_null()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_machine_asks_for_what_its_networks_take() {
    let mut cluster = Cluster::new().await;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": "default" } });
    apply::all(&cluster.client, &Applied::by("test"), &[definition(), account]).await.unwrap();
    cluster.available(json!({})).await;
    roll_out(&cluster).await;
    let router = hco::injector::router(cluster.account(PROGRAM));
    cluster.serve_program(PROGRAM, "virt-network-resources-injector-cert", router).await;
    let networks = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions";
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "blue", "annotations": { "k8s.v1.cni.cncf.io/resourceName": "bridge.network.kubevirt.io/br1" } },
    });
    until("networks can be made", async || cluster.call(Method::POST, networks, &network).await.ok()).await;
    let made = cluster.call(Method::POST, PODS, &pod("vm", "virt-launcher", "blue,blue@net2")).await.unwrap();
    let resources = &made["spec"]["containers"][0]["resources"];
    let expect = json!({ "bridge.network.kubevirt.io/br1": "2" });
    assert_eq!((&resources["requests"], &resources["limits"]), (&expect, &expect));
    // Pods of others are none of its business.
    let made = cluster.call(Method::POST, PODS, &pod("other", "", "blue")).await.unwrap();
    assert_eq!(made["spec"]["containers"][0]["resources"], json!({}));
    // A network that is not there, one that no name could have, and a list that is none.
    let message = refusal(cluster.call(Method::POST, PODS, &pod("bad", "virt-launcher", "red")).await);
    assert!(message.contains("default/red in its annotation") && message.contains("make it first"), "{message}");
    let path = format!("../{NAMESPACE}/secrets");
    assert!(
        refusal(cluster.call(Method::POST, PODS, &pod("bad", "virt-launcher", &path)).await).contains("is not the")
    );
    assert!(
        refusal(cluster.call(Method::POST, PODS, &pod("bad", "virt-launcher", "[{}]")).await)
            .contains("not a JSON list")
    );
}
