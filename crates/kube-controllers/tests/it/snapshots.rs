//! VolumeSnapshots and what claims are filled from, with a CSI driver that brings no snapshotter.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tonic::Status;

use crate::cluster::Cluster;
use crate::driver::Driver;
use crate::storage::{NAME, claim, class, cluster, node, phase_is, pod, said};

pub(crate) fn api(cluster: &Cluster, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
    let resource = ApiResource::from_gvk(&kind);
    if kind.kind == "VolumeSnapshot" {
        Api::namespaced_with(cluster.client.clone(), "default", &resource)
    } else {
        Api::all_with(cluster.client.clone(), &resource)
    }
}

pub(crate) async fn make(cluster: &Cluster, kind: &str, name: &str, more: Value) {
    let mut value = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object: DynamicObject = serde_json::from_value(value).unwrap();
    api(cluster, kind).create(&PostParams::default(), &object).await.unwrap();
}

/// Waits until the object is as wanted; null when it is gone.
#[track_caller]
pub(crate) fn until(
    cluster: &Cluster,
    kind: &str,
    name: &str,
    wanted: impl Fn(&Value) -> bool,
) -> impl Future<Output = Value> {
    let (api, name, caller) = (api(cluster, kind), name.to_owned(), std::panic::Location::caller());
    async move {
        let seen = |object: Option<&DynamicObject>| serde_json::to_value(object).unwrap();
        let wait = await_condition(api.clone(), &name, |object: Option<&DynamicObject>| wanted(&seen(object)));
        match tokio::time::timeout(std::time::Duration::from_secs(20), wait).await {
            Ok(found) => seen(found.unwrap().as_ref()),
            Err(_) => panic!("{caller}: {name} never came to that state: {:#?}", api.get_opt(&name).await),
        }
    }
}

pub(crate) fn is_ready(snapshot: &Value) -> bool {
    snapshot["status"]["readyToUse"] == true
}

pub(crate) fn of_claim(name: &str) -> Value {
    json!({"spec": {"source": {"persistentVolumeClaimName": name}}})
}

pub(crate) fn restored(name: &str, snapshot: &str) -> Value {
    claim(
        name,
        "now",
        &json!({"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}}),
    )
}

pub(crate) async fn snapshot_class(cluster: &Cluster, policy: &str) {
    let default = json!({"name": "fast", "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"}});
    let parameters = json!({"tier": "x", "csi.storage.k8s.io/snapshotter-list-secret-name": "unused"});
    let more = json!({"metadata": default, "driver": NAME, "deletionPolicy": policy, "parameters": parameters});
    make(cluster, "VolumeSnapshotClass", "fast", more).await;
}

/// A claim that is bound, in a cluster of two nodes.
async fn scene(driver: &Driver, policy: &str) -> Cluster {
    let cluster = cluster(driver).await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    class(&cluster, "now", json!({})).await;
    class(&cluster, "late", json!({"volumeBindingMode": "WaitForFirstConsumer"})).await;
    snapshot_class(&cluster, policy).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "now", &json!({}))).await;
    cluster.until(cluster.api(), "c", phase_is("Bound")).await;
    cluster
}

#[tokio::test]
async fn a_snapshot_is_taken_restored_and_deleted() {
    let driver = Driver::new(true);
    let cluster = scene(&driver, "Delete").await;
    make(&cluster, "VolumeSnapshot", "s", of_claim("c")).await;
    let taken = until(&cluster, "VolumeSnapshot", "s", is_ready).await;
    assert_eq!(taken["spec"]["volumeSnapshotClassName"], "fast");
    assert_eq!(taken["status"]["restoreSize"], "1Gi");
    assert_eq!(taken["status"]["creationTime"], "2026-01-01T00:00:00Z");
    let uid = taken["metadata"]["uid"].as_str().unwrap();
    let name = format!("snapcontent-{uid}");
    assert_eq!(taken["status"]["boundVolumeSnapshotContentName"], name.as_str());
    let content = until(&cluster, "VolumeSnapshotContent", &name, |content| {
        is_ready(content)
            && content["metadata"]["annotations"]["snapshot.storage.kubernetes.io/volumesnapshot-being-created"]
                .is_null()
    });
    let content = content.await;
    assert_eq!(content["status"]["snapshotHandle"], format!("id-snapshot-{uid}"));
    let node = content["metadata"]["labels"]["snapshot.storage.kubernetes.io/managed-by"].as_str().unwrap().to_owned();
    assert!(driver.calls("CreateSnapshot").iter().all(|call| call.ends_with(&node)), "taken elsewhere");
    said(&cluster, "CreatingSnapshot", "Waiting for a snapshot default/s to be created by the CSI driver.").await;
    said(&cluster, "SnapshotReady", "Snapshot default/s is ready to use.").await;
    let free = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| !claim.finalizers().iter().any(|name| name.contains("as-source")))
    };
    cluster.until(cluster.api(), "c", free).await;

    cluster.create::<PersistentVolumeClaim>(restored("r", "s")).await;
    cluster.until(cluster.api(), "r", phase_is("Bound")).await;
    let asked = driver.state.lock().unwrap().created.clone().unwrap();
    assert!(format!("{:?}", asked.volume_content_source).contains(&format!("id-snapshot-{uid}")));
    let first = &asked.accessibility_requirements.unwrap().preferred[0];
    assert_eq!(first.segments["test/host"], node, "made where the snapshot is not");

    api(&cluster, "VolumeSnapshot").delete("s", &DeleteParams::default()).await.unwrap();
    until(&cluster, "VolumeSnapshot", "s", Value::is_null).await;
    until(&cluster, "VolumeSnapshotContent", &name, Value::is_null).await;
    assert_eq!(driver.calls("DeleteSnapshot"), [format!("DeleteSnapshot id-snapshot-{uid} {node}")]);
}

#[tokio::test]
async fn failures_are_said_and_cleared() {
    let driver = Driver::new(true);
    driver.fail("CreateSnapshot", Status::internal("the disk is on fire"));
    let cluster = scene(&driver, "Delete").await;
    make(&cluster, "VolumeSnapshot", "s", of_claim("c")).await;
    let failed = until(&cluster, "VolumeSnapshot", "s", |s| !s["status"]["error"].is_null()).await;
    let message = failed["status"]["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("Failed to create snapshot: ") && message.contains("the disk is on fire"), "{message}");
    assert_eq!(failed["status"]["readyToUse"], false);
    let taken = until(&cluster, "VolumeSnapshot", "s", is_ready).await;
    assert!(taken["status"]["error"].is_null());
    said(&cluster, "SnapshotCreationFailed", "the disk is on fire").await;

    make(&cluster, "VolumeSnapshot", "early", of_claim("none")).await;
    said(&cluster, "SetDefaultSnapshotClassFailed", "persistentvolumeclaim \"none\" not found").await;
    cluster.create::<PersistentVolumeClaim>(claim("none", "now", &json!({}))).await;
    until(&cluster, "VolumeSnapshot", "early", is_ready).await;
}

#[tokio::test]
async fn a_snapshot_whose_answer_was_lost_is_found_and_deleted() {
    let driver = Driver::new(true);
    driver.lose("CreateSnapshot");
    let cluster = scene(&driver, "Delete").await;
    make(&cluster, "VolumeSnapshot", "s", of_claim("c")).await;
    until(&cluster, "VolumeSnapshot", "s", |s| !s["status"]["error"].is_null()).await;
    api(&cluster, "VolumeSnapshot").delete("s", &DeleteParams::default()).await.unwrap();
    driver.state.lock().unwrap().lost.clear();
    until(&cluster, "VolumeSnapshot", "s", Value::is_null).await;
    driver.until(|state| state.snapshots.is_empty()).await;
}

#[tokio::test]
async fn a_retained_snapshot_is_taken_over_by_another() {
    let driver = Driver::new(true);
    let cluster = scene(&driver, "Retain").await;
    make(&cluster, "VolumeSnapshot", "s", of_claim("c")).await;
    let taken = until(&cluster, "VolumeSnapshot", "s", is_ready).await;
    let name = taken["status"]["boundVolumeSnapshotContentName"].as_str().unwrap().to_owned();
    api(&cluster, "VolumeSnapshot").delete("s", &DeleteParams::default()).await.unwrap();
    until(&cluster, "VolumeSnapshot", "s", Value::is_null).await;
    until(&cluster, "VolumeSnapshotContent", &name, |content| !content.is_null()).await;
    api(&cluster, "VolumeSnapshotContent").delete(&name, &DeleteParams::default()).await.unwrap();
    until(&cluster, "VolumeSnapshotContent", &name, Value::is_null).await;
    assert!(driver.calls("DeleteSnapshot").is_empty());

    // It is on the second node: it is found by asking both.
    driver.state.lock().unwrap().snapshots.insert("kept-on-n2".into(), "id".into());
    make(&cluster, "VolumeSnapshot", "again", json!({"spec": {"source": {"volumeSnapshotContentName": "kept"}}})).await;
    said(&cluster, "SnapshotContentMissing", "VolumeSnapshotContent is missing").await;
    let content = json!({"spec": {"deletionPolicy": "Delete", "driver": NAME, "source": {"snapshotHandle": "kept-on-n2"},
        "volumeSnapshotRef": {"namespace": "default", "name": "again"}}});
    make(&cluster, "VolumeSnapshotContent", "kept", content).await;
    let again = until(&cluster, "VolumeSnapshot", "again", is_ready).await;
    let content = until(&cluster, "VolumeSnapshotContent", "kept", |content| {
        content["spec"]["volumeSnapshotRef"]["uid"] == again["metadata"]["uid"]
    });
    assert_eq!(content.await["metadata"]["labels"]["snapshot.storage.kubernetes.io/managed-by"], "n2");
    api(&cluster, "VolumeSnapshot").delete("again", &DeleteParams::default()).await.unwrap();
    until(&cluster, "VolumeSnapshotContent", "kept", Value::is_null).await;
    assert_eq!(driver.calls("DeleteSnapshot"), ["DeleteSnapshot kept-on-n2 n2"]);
}

#[tokio::test]
async fn a_snapshot_stays_while_a_claim_is_made_of_it() {
    let driver = Driver::new(false);
    let cluster = scene(&driver, "Delete").await;
    make(&cluster, "VolumeSnapshot", "s", of_claim("c")).await;
    until(&cluster, "VolumeSnapshot", "s", is_ready).await;
    let mut waiting = restored("w", "s");
    waiting["spec"]["storageClassName"] = "late".into();
    cluster.create::<PersistentVolumeClaim>(waiting).await;
    cluster.until(cluster.api(), "w", phase_is("Pending")).await;
    api(&cluster, "VolumeSnapshot").delete("s", &DeleteParams::default()).await.unwrap();
    said(&cluster, "SnapshotDeletePending", "Snapshot is being used to restore a PVC").await;
    assert!(driver.calls("DeleteSnapshot").is_empty());
    cluster.api::<PersistentVolumeClaim>().delete("w", &DeleteParams::default()).await.unwrap();
    until(&cluster, "VolumeSnapshot", "s", Value::is_null).await;
}

#[tokio::test]
async fn copies_are_made_where_the_original_is() {
    let driver = Driver::new(true);
    let cluster = scene(&driver, "Delete").await;
    cluster.run_pods();
    let here = json!({"nodeSelector": {"test/host": "n2"}});
    cluster.create::<PersistentVolumeClaim>(claim("first", "late", &json!({}))).await;
    cluster.create::<Pod>(pod("user", "first", &here)).await;
    cluster.until(cluster.api(), "first", phase_is("Bound")).await;
    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "first"}});
    cluster.create::<PersistentVolumeClaim>(claim("copy", "late", &source)).await;
    // Nothing but the original keeps this pod from the other node.
    cluster.create::<Pod>(pod("another", "copy", &json!({}))).await;
    cluster.until(cluster.api(), "copy", phase_is("Bound")).await;
    let placed = cluster.api::<Pod>().get("another").await.unwrap();
    assert_eq!(placed.spec.unwrap().node_name.as_deref(), Some("n2"));
    // And a pod that must not be where the original is finds no node.
    cluster.create::<PersistentVolumeClaim>(claim("third", "late", &source)).await;
    cluster.create::<Pod>(pod("strange", "third", &json!({"nodeSelector": {"test/host": "n1"}}))).await;
    said(&cluster, "FailedScheduling", "node(s) had volume node affinity conflict").await;
}

#[tokio::test]
async fn claims_of_populators_are_left_to_them() {
    let driver = Driver::new(true);
    let cluster = scene(&driver, "Delete").await;
    let source =
        json!({"dataSourceRef": {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "import"}});
    cluster.create::<PersistentVolumeClaim>(claim("p", "now", &source)).await;
    said(&cluster, "Provisioning", "Assuming an external populator will provision the volume").await;
    // The populator has a volume of another claim made, and gives it to this one.
    cluster.create::<PersistentVolumeClaim>(claim("prime", "now", &json!({}))).await;
    let prime = cluster.until(cluster.api(), "prime", phase_is("Bound")).await.unwrap();
    let volume = prime.spec.unwrap().volume_name.unwrap();
    let target = cluster.api::<PersistentVolumeClaim>().get("p").await.unwrap();
    let reference = json!({"spec": {"claimRef": {"name": "p", "namespace": "default", "uid": target.metadata.uid, "resourceVersion": target.metadata.resource_version}}});
    let volumes = cluster.all::<k8s_openapi::api::core::v1::PersistentVolume>();
    volumes.patch(&volume, &PatchParams::default(), &Patch::Merge(reference)).await.unwrap();
    let bound = cluster.until(cluster.api(), "p", phase_is("Bound")).await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name, Some(volume));
    cluster.until(cluster.api(), "prime", phase_is("Lost")).await;
    cluster.api::<PersistentVolumeClaim>().delete("prime", &DeleteParams::default()).await.unwrap();
    cluster.until(cluster.api::<PersistentVolumeClaim>(), "prime", |claim| claim.is_none()).await;
    assert!(driver.calls("DeleteVolume").is_empty(), "the volume was deleted with the claim it was taken from");
}

#[tokio::test]
async fn a_snapshot_controller_of_somebody_elses_is_left_alone() {
    let driver = Driver::new(true);
    let cluster = scene(&driver, "Delete").await;
    let theirs = json!({"metadata": {"name": "snapshot-controller"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
            {"name": "c", "image": "registry.k8s.io/sig-storage/snapshot-controller:v8.2.0"}]}}}});
    cluster.create::<Deployment>(theirs).await;
    let seen = |deployment: Option<&Deployment>| deployment.is_some();
    cluster.until(cluster.api(), "snapshot-controller", seen).await;
    let store = cluster.ctx.store::<Deployment>();
    let known = async {
        while store.all().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), known).await.unwrap();
    make(&cluster, "VolumeSnapshot", "s", of_claim("c")).await;
    // Another claim is made meanwhile, so that the controllers have had their turn.
    cluster.create::<PersistentVolumeClaim>(claim("other", "now", &json!({}))).await;
    cluster.until(cluster.api(), "other", phase_is("Bound")).await;
    assert!(api(&cluster, "VolumeSnapshotContent").list(&ListParams::default()).await.unwrap().items.is_empty());
}
