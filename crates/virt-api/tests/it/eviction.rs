//! The eviction webhook over the real API server: what it answers, and what it leaves in the VMI.

use api::kubevirt::v1::VirtualMachineInstance;
use axum::body::Body;
use axum::http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{Setup, setup};

/// A guest on node1 with this strategy, and the pod it runs in.
async fn guest(setup: &Setup, strategy: &str) -> Api<VirtualMachineInstance> {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(setup.client.clone(), "default");
    let vmi = json!({
        "metadata": { "name": "vm" },
        "spec": { "domain": { "devices": {} }, "evictionStrategy": strategy },
        "status": {
            "phase": "Running", "nodeName": "node1", "conditions": [{ "type": "LiveMigratable", "status": "True" }],
        },
    });
    vmis.create(&PostParams::default(), &serde_json::from_value(vmi).unwrap()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(setup.client.clone(), "default");
    let pod = json!({
        "metadata": {
            "name": "virt-launcher-vm-x", "labels": { "kubevirt.io": "virt-launcher" },
            "annotations": { "kubevirt.io/domain": "vm" },
        },
        "spec": { "nodeName": "node1", "containers": [{ "name": "compute", "image": "i" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    vmis
}

/// Asks for the pod's eviction: allowed, code and message.
async fn evict(setup: &Setup, pod: &str, options: Value) -> (bool, u64, String) {
    let review = json!({ "request": {
        "uid": "1", "operation": "CREATE", "namespace": "default", "name": pod, "subResource": "eviction",
        "object": { "metadata": { "name": pod }, "deleteOptions": options },
    } });
    let request = Request::post("/pod-eviction-validate").body(Body::from(review.to_string())).unwrap();
    let response = setup.router.clone().oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    let status = &answer["response"]["status"];
    (
        answer["response"]["allowed"].as_bool().unwrap(),
        status["code"].as_u64().unwrap_or(0),
        status["message"].as_str().unwrap_or_default().to_owned(),
    )
}

async fn mark(vmis: &Api<VirtualMachineInstance>) -> Option<String> {
    vmis.get("vm").await.unwrap().status.and_then(|status| status.evacuation_node_name.clone())
}

const TRIGGERED: &str = "Eviction triggered evacuation of VMI \"default/vm\"";

#[tokio::test]
async fn an_eviction_sets_the_guest_moving() {
    let setup = setup().await;
    let vmis = guest(&setup, "LiveMigrate").await;
    let launcher = "virt-launcher-vm-x";
    let dry = json!({ "dryRun": ["All"] });
    assert_eq!(evict(&setup, launcher, dry).await, (false, 429, TRIGGERED.to_owned()));
    assert_eq!(mark(&vmis).await, None);
    assert_eq!(evict(&setup, launcher, json!(null)).await, (false, 429, TRIGGERED.to_owned()));
    assert_eq!(mark(&vmis).await.as_deref(), Some("node1"));
    let again = format!("Evacuation in progress: {TRIGGERED}");
    assert_eq!(evict(&setup, launcher, json!(null)).await, (false, 429, again));

    // The guest has left; its old pod is only in the way of whoever asks.
    let moved = Patch::Merge(json!({ "status": { "nodeName": "node2" } }));
    vmis.patch("vm", &PatchParams::default(), &moved).await.unwrap();
    let target = "Eviction request for target Pod".to_owned();
    assert_eq!(evict(&setup, launcher, json!(null)).await, (false, 429, target));
}

#[tokio::test]
async fn pods_of_nobody_and_guests_that_do_not_care_go() {
    let setup = setup().await;
    let vmis = guest(&setup, "None").await;
    assert!(evict(&setup, "virt-launcher-vm-x", json!(null)).await.0);
    assert!(evict(&setup, "virt-launcher-of-nobody", json!(null)).await.0);
    assert_eq!(mark(&vmis).await, None);
}

#[tokio::test]
async fn a_pod_that_holds_volumes_goes_with_the_launcher_and_not_before() {
    let setup = setup().await;
    guest(&setup, "None").await;
    let pods: Api<Pod> = Api::namespaced(setup.client.clone(), "default");
    let launcher = pods.get("virt-launcher-vm-x").await.unwrap();
    let holder = |name: &str, app: &str, uid: &str| {
        json!({
            "metadata": { "name": name, "labels": { "kubevirt.io": app }, "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": "virt-launcher-vm-x", "uid": uid, "controller": true,
            }] },
            "spec": { "containers": [{ "name": "hotplug-disk", "image": "i" }] },
        })
    };
    let uid = launcher.metadata.uid.clone().unwrap();
    for (name, app, uid) in [
        ("hp-volume-a", "hotplug-disk", uid.as_str()),
        ("hp-volume-old", "hotplug-disk", "of-a-launcher-before"),
        ("somebodys", "app", uid.as_str()),
    ] {
        pods.create(&PostParams::default(), &serde_json::from_value(holder(name, app, uid)).unwrap()).await.unwrap();
    }
    let (allowed, code, message) = evict(&setup, "hp-volume-a", json!(null)).await;
    assert_eq!((allowed, code), (false, 429), "{message}");
    assert!(message.contains("holds volumes of VMI \"default/vm\": it ends with pod virt-launcher-vm-x"), "{message}");
    assert!(evict(&setup, "hp-volume-old", json!(null)).await.0);
    assert!(evict(&setup, "somebodys", json!(null)).await.0);
    let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    pods.patch_status("virt-launcher-vm-x", &PatchParams::default(), &ended).await.unwrap();
    assert!(evict(&setup, "hp-volume-a", json!(null)).await.0);
}
