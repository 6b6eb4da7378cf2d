//! The webhook of restores over the real API server, under the rights that virt-api is installed with.

use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::{VirtualMachineSnapshot, VirtualMachineSnapshotContent};
use axum::body::Body;
use axum::http::Request;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{Setup, setup};

/// What is said of a restore of the snapshot "s" to the machine `target`; nothing when it is allowed.
async fn said(setup: &Setup, target: &str) -> Option<String> {
    let target = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": target });
    let restore = json!({ "spec": { "target": target, "virtualMachineSnapshotName": "s" } });
    let review = json!({ "request": {
        "uid": "1", "operation": "CREATE", "namespace": "default", "name": "r", "object": restore,
    } });
    let request = Request::post("/virtualmachinerestores-validate").body(Body::from(review.to_string())).unwrap();
    let response = setup.router.clone().oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    answer["response"]["status"]["message"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn the_snapshot_content_decides_whether_another_vm_may_be_the_target() {
    let setup = setup().await;
    assert_eq!(said(&setup, "vm").await, None, "a snapshot that is not there yet is waited for");

    let template = json!({ "spec": { "domain": { "devices": { "tpm": { "persistent": true } } } } });
    let vm = json!({ "metadata": { "name": "vm" }, "spec": { "runStrategy": "Halted", "template": template } });
    let vms: Api<VirtualMachine> = Api::namespaced(setup.client.clone(), "default");
    let made = vms.create(&PostParams::default(), &serde_json::from_value(vm.clone()).unwrap()).await.unwrap();
    let kept = json!({ "metadata": { "name": "c" }, "spec": { "source": { "virtualMachine": vm } } });
    let contents: Api<VirtualMachineSnapshotContent> = Api::namespaced(setup.client.clone(), "default");
    contents.create(&PostParams::default(), &serde_json::from_value(kept).unwrap()).await.unwrap();
    let source = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" });
    let status = json!({ "sourceUID": made.uid(), "virtualMachineSnapshotContentName": "c" });
    let snapshot = json!({ "metadata": { "name": "s" }, "spec": { "source": source } });
    let snapshots: Api<VirtualMachineSnapshot> = Api::namespaced(setup.client.clone(), "default");
    snapshots.create(&PostParams::default(), &serde_json::from_value(snapshot).unwrap()).await.unwrap();
    let taken = Patch::Merge(json!({ "status": status }));
    snapshots.patch_status("s", &PatchParams::default(), &taken).await.unwrap();

    assert_eq!(said(&setup, "vm").await, None);
    let refused = said(&setup, "twin").await.unwrap();
    assert!(refused.contains("Restore to a different VM is not supported"), "{refused}");
}
