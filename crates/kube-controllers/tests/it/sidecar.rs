//! The controllers of a driver beside it on each of its nodes, in a cluster whose control plane serves no drivers.

use csi_controllers::Drivers;
use csi_controllers::node_deployment::{self, Sidecar};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube_controllers::{protection, scheduler, volumes};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::Cluster;
use crate::driver::Driver;
use crate::snapshots;
use crate::storage::{NAME, claim, class, node, phase_is, pod, wide};

/// A cluster of two nodes that both run the driver and its controllers.
async fn scene(driver: &Driver) -> (Cluster, DropGuard) {
    let cluster = Cluster::with(Drivers::default()).await;
    cluster.start(volumes::run);
    cluster.start(protection::run);
    cluster.start(scheduler::run);
    wide::<CSIDriver>(
        &cluster,
        json!({"metadata": {"name": NAME}, "spec": {"attachRequired": false, "storageCapacity": true}}),
    )
    .await;
    let stop = CancellationToken::new();
    for name in ["n1", "n2"] {
        node(&cluster, name).await;
        let sidecar = Sidecar { driver: NAME.into(), node: name.into(), namespace: "default".into() };
        tokio::spawn(node_deployment::run(cluster.client.clone(), driver.drivers(), sidecar, stop.clone()));
    }
    class(&cluster, "now", json!({})).await;
    class(&cluster, "late", json!({"volumeBindingMode": "WaitForFirstConsumer"})).await;
    (cluster, stop.drop_guard())
}

/// The node a claim's volume is on.
async fn place(cluster: &Cluster, claim: &str) -> String {
    let bound = cluster.until(cluster.api(), claim, phase_is("Bound")).await.unwrap();
    let volume: PersistentVolume =
        cluster.all().get(bound.spec.unwrap().volume_name.as_deref().unwrap()).await.unwrap();
    let terms = serde_json::to_value(volume.spec.unwrap().node_affinity).unwrap();
    terms["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_node_makes_what_is_to_be_on_it() {
    let driver = Driver::new(true);
    let (cluster, _stop) = scene(&driver).await;
    for wanted in ["n2", "n1"] {
        let name = format!("on-{wanted}");
        cluster.create::<PersistentVolumeClaim>(claim(&name, "late", &json!({}))).await;
        let selector = json!({"nodeSelector": {"test/host": wanted}});
        cluster.create::<Pod>(pod(&format!("p-{wanted}"), &name, &selector)).await;
        assert_eq!(place(&cluster, &name).await, wanted);
    }
    // Those that may be anywhere are made once, wherever that is.
    let mut volumes = 2;
    for name in ["a", "b", "c", "d"] {
        cluster.create::<PersistentVolumeClaim>(claim(name, "now", &json!({}))).await;
        place(&cluster, name).await;
        volumes += 1;
    }
    let mut made = driver.calls("CreateVolume");
    made.sort();
    made.dedup();
    assert_eq!((made.len(), driver.calls("CreateVolume").len()), (volumes, volumes), "two nodes made one volume");

    let grow = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let claims = cluster.api::<PersistentVolumeClaim>();
    claims.patch("a", &PatchParams::default(), &Patch::Merge(grow)).await.unwrap();
    let grown = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| serde_json::to_value(&claim.status).unwrap()["capacity"]["storage"] == "2Gi")
    };
    cluster.until(cluster.api(), "a", grown).await;
    assert_eq!(driver.calls("Expand").len(), 1, "{:?}", driver.calls("Expand"));

    claims.delete("a", &DeleteParams::default()).await.unwrap();
    driver.until(|state| state.volumes.len() == volumes - 1).await;
}

#[tokio::test]
async fn room_is_said_by_the_node_that_has_it_and_goes_with_the_driver() {
    let driver = Driver::new(true);
    let (cluster, _stop) = scene(&driver).await;
    let rooms = cluster.until_all::<CSIStorageCapacity>(|rooms| rooms.len() == 4).await;
    for room in rooms {
        assert_eq!(
            (room.namespace().as_deref(), room.owner_references()[0].kind.as_str()),
            (Some("default"), "CSIDriver")
        );
        assert_eq!(room.labels()["csi.storage.k8s.io/managed-by"], "csi-controller");
    }
    let asked = driver.calls("GetCapacity");
    assert!(
        asked.iter().any(|call| call.ends_with("n1")) && asked.iter().any(|call| call.ends_with("n2")),
        "{asked:?}"
    );
    wide_delete(&cluster).await;
    cluster.until_all::<CSIStorageCapacity>(<[_]>::is_empty).await;
}

async fn wide_delete(cluster: &Cluster) {
    cluster.all::<CSIDriver>().delete(NAME, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn snapshots_are_taken_where_the_volume_is() {
    let driver = Driver::new(true);
    let (cluster, _stop) = scene(&driver).await;
    snapshots::snapshot_class(&cluster, "Delete").await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "late", &json!({}))).await;
    cluster.create::<Pod>(pod("p", "c", &json!({"nodeSelector": {"test/host": "n2"}}))).await;
    assert_eq!(place(&cluster, "c").await, "n2");
    snapshots::make(&cluster, "VolumeSnapshot", "s", snapshots::of_claim("c")).await;
    snapshots::until(&cluster, "VolumeSnapshot", "s", snapshots::is_ready).await;
    let taken = driver.calls("CreateSnapshot");
    assert!(taken.len() == 1 && taken[0].ends_with("n2"), "{taken:?}");
    // What is made of it is made there as well.
    cluster.create::<PersistentVolumeClaim>(snapshots::restored("r", "s")).await;
    assert_eq!(place(&cluster, "r").await, "n2");
    snapshots::api(&cluster, "VolumeSnapshot").delete("s", &DeleteParams::default()).await.unwrap();
    snapshots::until(&cluster, "VolumeSnapshot", "s", Value::is_null).await;
    driver.until(|state| state.snapshots.is_empty()).await;
    assert_eq!(driver.calls("DeleteSnapshot").len(), 1);

    // One that was there before is found where it is.
    driver.state.lock().unwrap().snapshots.insert("old-on-n2".into(), "v".into());
    let content = json!({"spec": {"driver": NAME, "deletionPolicy": "Delete", "source": {"snapshotHandle": "old-on-n2"},
        "sourceVolumeMode": "Filesystem", "volumeSnapshotRef": {"namespace": "default", "name": "old"}}});
    snapshots::make(&cluster, "VolumeSnapshotContent", "old", content).await;
    let source = json!({"spec": {"source": {"volumeSnapshotContentName": "old"}}});
    snapshots::make(&cluster, "VolumeSnapshot", "old", source).await;
    snapshots::until(&cluster, "VolumeSnapshot", "old", snapshots::is_ready).await;
    let found = snapshots::until(&cluster, "VolumeSnapshotContent", "old", snapshots::is_ready).await;
    assert_eq!(found["metadata"]["labels"]["snapshot.storage.kubernetes.io/managed-by"], "n2");
}
