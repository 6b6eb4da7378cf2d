//! The legacy provisioner on the real API server.

use std::time::Duration;

use hpp::legacy::{Args, NAME, start};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::shutdown::CancellationToken;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube_apiserver::ApiServer;
use serde_json::json;

#[tokio::test]
async fn a_directory_is_made_and_removed() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let dir = tempfile::tempdir().unwrap();
    let args = Args { node_name: "n1".into(), pv_dir: dir.path().join("pv"), use_naming_prefix: true };
    let _tasks = start(client.clone(), args, &CancellationToken::new()).unwrap();
    let class: StorageClass = serde_json::from_value(
        json!({"metadata": {"name": "old"}, "provisioner": NAME, "volumeBindingMode": "Immediate"}),
    )
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &class).await.unwrap();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "data", "annotations": {
        "volume.kubernetes.io/storage-provisioner": NAME, "kubevirt.io/provisionOnNode": "n1"}}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "old", "resources": {"requests": {"storage": "1Gi"}}}}))
    .unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let claim = claims.create(&PostParams::default(), &claim).await.unwrap();
    let name = format!("pvc-{}", claim.metadata.uid.unwrap());
    let volumes: Api<PersistentVolume> = Api::all(client);
    let made = await_condition(volumes.clone(), &name, |volume: Option<&PersistentVolume>| volume.is_some());
    let made = tokio::time::timeout(Duration::from_secs(20), made).await.unwrap().unwrap().unwrap();
    let path = made.spec.unwrap().host_path.unwrap().path;
    assert!(path.ends_with(&format!("/pv/data-{name}")), "{path}");
    std::fs::write(format!("{path}/f"), "data").unwrap();

    let released = json!({"status": {"phase": "Released"}});
    volumes.patch_status(&name, &PatchParams::default(), &Patch::Merge(released)).await.unwrap();
    let gone = await_condition(volumes.clone(), &name, |volume: Option<&PersistentVolume>| {
        volume.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some())
    });
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap().unwrap();
    assert!(!std::path::Path::new(&path).exists() && dir.path().join("pv").exists());
}
