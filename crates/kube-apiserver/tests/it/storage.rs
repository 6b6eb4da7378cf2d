//! Claims, volumes, classes and snapshots as the API server judges them.

use kube::Client;
use serde_json::{Value, json};

use super::server;

async fn send(client: &Client, method: &str, path: &str, body: Value) -> Result<Value, (u16, String)> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
    let request = request.body(serde_json::to_vec(&body).unwrap()).unwrap();
    match client.request::<Value>(request).await {
        Ok(value) => Ok(value),
        Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
        Err(other) => panic!("{other}"),
    }
}

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

fn claim(name: &str, class: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}}})
}

#[tokio::test]
async fn claims_get_the_default_class_and_grow_only_when_they_may() {
    let client = server().await.client();
    let class = |name: &str, grows: bool, default: bool| {
        json!({"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()}},
            "provisioner": "d", "allowVolumeExpansion": grows})
    };
    send(&client, "POST", CLASSES, class("std", true, true)).await.unwrap();
    send(&client, "POST", CLASSES, class("fixed", false, false)).await.unwrap();
    let made = send(&client, "POST", CLAIMS, claim("c", Value::Null)).await.unwrap();
    assert_eq!(made["spec"]["storageClassName"], "std");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let made = send(&client, "POST", CLAIMS, claim("none", json!(""))).await.unwrap();
    assert_eq!(made["spec"]["storageClassName"], "");
    send(&client, "POST", CLAIMS, claim("fixed", json!("fixed"))).await.unwrap();
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let grow = async |name: &str| send(&client, "PATCH", &format!("{CLAIMS}/{name}"), more.clone()).await;
    let (code, message) = grow("c").await.unwrap_err();
    assert_eq!(code, 422, "{message}");
    for name in ["c", "fixed"] {
        let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        send(&client, "PATCH", &format!("{CLAIMS}/{name}/status"), bound).await.unwrap();
    }
    grow("c").await.unwrap();
    let why = "persistentvolumeclaims \"fixed\" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    assert_eq!(grow("fixed").await.unwrap_err(), (403, why.to_owned()));
    let less = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
    let (code, message) = send(&client, "PATCH", &format!("{CLAIMS}/c"), less).await.unwrap_err();
    assert_eq!(code, 422);
    assert!(
        message.contains("spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"),
        "{message}"
    );
}

#[tokio::test]
async fn snapshots_are_served() {
    let client = server().await.client();
    let snapshots = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
    let kind =
        |kind: &str| json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": kind, "metadata": {"name": "s"}});
    let with = |mut object: Value, field: &str, value: Value| {
        object[field] = value;
        object
    };
    let of = |source: Value| with(kind("VolumeSnapshot"), "spec", json!({"source": source}));
    let made = send(&client, "POST", snapshots, of(json!({"persistentVolumeClaimName": "c"}))).await.unwrap();
    assert!(made["status"].is_null());
    let ready = json!({"status": {"readyToUse": true, "restoreSize": "1Gi", "boundVolumeSnapshotContentName": "x"}});
    let ready = send(&client, "PATCH", &format!("{snapshots}/s/status"), ready).await.unwrap();
    assert_eq!(ready["status"]["restoreSize"], "1Gi");
    let other = json!({"spec": {"source": {"persistentVolumeClaimName": "d"}}});
    let (code, message) = send(&client, "PATCH", &format!("{snapshots}/s"), other).await.unwrap_err();
    assert!(code == 422 && message.contains("persistentVolumeClaimName is immutable"), "{message}");
    let (code, _) = send(&client, "POST", snapshots, of(json!({}))).await.unwrap_err();
    assert_eq!(code, 422);
    let class = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "s"},
        "driver": "d", "deletionPolicy": "Delete"});
    send(&client, "POST", "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses", class).await.unwrap();
    let list =
        send(&client, "GET", "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents", Value::Null).await.unwrap();
    assert_eq!(list["kind"], "VolumeSnapshotContentList");
}
