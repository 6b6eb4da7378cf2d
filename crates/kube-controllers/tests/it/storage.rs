//! Claims, volumes and a CSI driver without sidecars, on the real API server.

use csi_controllers::VolumeAttributesClass;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ClusterResourceScope;
use kube::{Resource, ResourceExt};
use kube_controllers::{attributes_class, protection, scheduler, volumes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::Status;

use crate::cluster::Cluster;
use crate::driver::Driver;

pub(crate) const NAME: &str = "d.example.com";

pub(crate) async fn wide<K>(cluster: &Cluster, object: Value) -> K
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + DeserializeOwned
        + Serialize
        + Clone
        + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    cluster.all().create(&PostParams::default(), &object).await.unwrap()
}

pub(crate) async fn cluster(driver: &Driver) -> Cluster {
    let cluster = Cluster::with(driver.drivers()).await;
    cluster.start(volumes::run);
    cluster.start(protection::run);
    cluster.start(scheduler::run);
    cluster
}

/// A node that runs the driver.
pub(crate) async fn node(cluster: &Cluster, name: &str) {
    cluster.node(name, json!({"test/host": name})).await;
    wide::<CSINode>(
        cluster,
        json!({"metadata": {"name": name}, "spec": {"drivers": [
        {"name": NAME, "nodeID": format!("id-{name}"), "topologyKeys": ["test/host"], "allocatable": {"count": 2}}]}}),
    )
    .await;
}

pub(crate) async fn class(cluster: &Cluster, name: &str, more: Value) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": NAME, "allowVolumeExpansion": true});
    for (key, value) in more.as_object().unwrap() {
        class[key] = value.clone();
    }
    wide::<StorageClass>(cluster, class).await;
}

pub(crate) fn claim(name: &str, class: &str, more: &Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

pub(crate) fn pod(name: &str, claim: &str, more: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn volume(name: &str, size: &str, more: &Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "manual", "capacity": {"storage": size},
        "hostPath": {"path": "/data"}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

pub(crate) fn phase_is(phase: &'static str) -> impl Fn(Option<&PersistentVolumeClaim>) -> bool {
    move |claim| claim.is_some_and(|c| c.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase))
}

fn volume_is(phase: &'static str) -> impl Fn(Option<&PersistentVolume>) -> bool {
    move |volume| volume.is_some_and(|v| v.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase))
}

pub(crate) async fn said(cluster: &Cluster, reason: &'static str, text: &'static str) {
    let says = move |event: &Event| {
        event.reason.as_deref() == Some(reason) && event.message.as_deref().is_some_and(|m| m.contains(text))
    };
    cluster.until_all::<Event>(move |events| events.iter().any(says)).await;
}

#[tokio::test]
async fn claims_take_the_smallest_volume_and_give_it_back() {
    let cluster = cluster(&Driver::new(false)).await;
    for (name, size) in [("large", "10Gi"), ("small", "2Gi"), ("tiny", "500Mi")] {
        wide::<PersistentVolume>(&cluster, volume(name, size, &json!({}))).await;
        cluster.until(cluster.all(), name, volume_is("Available")).await;
    }
    cluster.create::<PersistentVolumeClaim>(claim("c", "manual", &json!({}))).await;
    let bound = cluster.until(cluster.api(), "c", phase_is("Bound")).await.unwrap();
    assert_eq!(bound.spec.as_ref().unwrap().volume_name.as_deref(), Some("small"));
    assert_eq!(bound.status.unwrap().capacity.unwrap()["storage"].0, "2Gi");
    for key in ["pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"] {
        assert_eq!(bound.metadata.annotations.as_ref().unwrap()[key], "yes");
    }
    let taken = cluster.until(cluster.all(), "small", volume_is("Bound")).await.unwrap();
    assert_eq!(taken.spec.unwrap().claim_ref.unwrap().uid, bound.metadata.uid);
    cluster.create::<PersistentVolumeClaim>(claim("named", "manual", &json!({"volumeName": "large"}))).await;
    let named = cluster.until(cluster.api(), "named", phase_is("Bound")).await.unwrap();
    assert!(!named.metadata.annotations.unwrap().contains_key("pv.kubernetes.io/bound-by-controller"));
    let kept = json!({"claimRef": {"namespace": "default", "name": "late"}});
    wide::<PersistentVolume>(&cluster, volume("kept", "3Gi", &kept)).await;
    cluster.create::<PersistentVolumeClaim>(claim("late", "manual", &json!({}))).await;
    let late = cluster.until(cluster.api(), "late", phase_is("Bound")).await.unwrap();
    assert_eq!(late.spec.unwrap().volume_name.as_deref(), Some("kept"));
    cluster.api::<PersistentVolumeClaim>().delete("c", &DeleteParams::default()).await.unwrap();
    cluster.until(cluster.all(), "small", volume_is("Released")).await;
    cluster.all::<PersistentVolume>().delete("large", &DeleteParams::default()).await.unwrap();
    let gone = json!({"metadata": {"finalizers": null}});
    cluster.all::<PersistentVolume>().patch("large", &PatchParams::default(), &Patch::Merge(gone)).await.unwrap();
    cluster.until(cluster.api(), "named", phase_is("Lost")).await;
}

#[tokio::test]
async fn a_default_class_comes_late_and_the_newest_wins() {
    let cluster = cluster(&Driver::new(false)).await;
    node(&cluster, "n1").await;
    let mut bare = claim("early", "", &json!({}));
    bare["spec"].as_object_mut().unwrap().remove("storageClassName");
    cluster.create::<PersistentVolumeClaim>(bare.clone()).await;
    said(&cluster, "FailedBinding", "no persistent volumes available for this claim and no storage class is set").await;
    let default = json!({"name": "std", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}});
    class(&cluster, "std", json!({"metadata": default})).await;
    let early = cluster.until(cluster.api(), "early", phase_is("Bound")).await.unwrap();
    assert_eq!(early.spec.unwrap().storage_class_name.as_deref(), Some("std"));
    bare["metadata"]["name"] = json!("after");
    let after = cluster.create::<PersistentVolumeClaim>(bare).await;
    assert_eq!(after.spec.unwrap().storage_class_name.as_deref(), Some("std"));
    assert_eq!(after.metadata.finalizers.unwrap(), ["kubernetes.io/pvc-protection"]);
}

#[tokio::test]
async fn a_volume_is_made_for_a_claim_and_deleted_with_it() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    class(&cluster, "fast", json!({"parameters": {"tier": "1"}, "mountOptions": ["noatime"]})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &json!({}))).await;
    said(&cluster, "ExternalProvisioning", "external provisioner 'd.example.com'").await;
    driver.fail("CreateVolume", Status::internal("not today"));
    node(&cluster, "n1").await;
    let bound = cluster.until(cluster.api(), "c", phase_is("Bound")).await.unwrap();
    said(
        &cluster,
        "ProvisioningFailed",
        "failed to provision volume with StorageClass \"fast\": rpc error: code = Internal desc = not today",
    )
    .await;
    let name = format!("pvc-{}", bound.uid().unwrap());
    assert_eq!(bound.spec.unwrap().volume_name.as_ref(), Some(&name));
    let made = cluster.all::<PersistentVolume>().get(&name).await.unwrap();
    assert_eq!(made.annotations()["pv.kubernetes.io/provisioned-by"], NAME);
    let spec = made.spec.unwrap();
    assert_eq!(
        (spec.csi.unwrap().volume_handle, spec.mount_options.unwrap()),
        (format!("id-{name}"), vec!["noatime".to_owned()])
    );
    assert_eq!(driver.state.lock().unwrap().created.as_ref().unwrap().parameters["tier"], "1");
    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "c"}});
    cluster.create::<PersistentVolumeClaim>(claim("copy", "fast", &source)).await;
    cluster.until(cluster.api(), "copy", phase_is("Bound")).await;
    assert!(driver.state.lock().unwrap().created.as_ref().unwrap().volume_content_source.is_some());
    driver.fail("DeleteVolume", Status::unavailable("busy"));
    cluster.api::<PersistentVolumeClaim>().delete("c", &DeleteParams::default()).await.unwrap();
    cluster.until(cluster.all::<PersistentVolume>(), &name, |volume| volume.is_none()).await;
    said(&cluster, "VolumeFailedDelete", "busy").await;
    assert!(!driver.state.lock().unwrap().volumes.contains_key(&format!("id-{name}")));
}

#[tokio::test]
async fn a_claim_waits_for_its_pod_and_follows_it() {
    let driver = Driver::new(true);
    let cluster = cluster(&driver).await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    class(&cluster, "local", json!({"volumeBindingMode": "WaitForFirstConsumer"})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "local", &json!({}))).await;
    said(&cluster, "WaitForFirstConsumer", "waiting for first consumer to be created before binding").await;
    driver.fail("CreateVolume", Status::resource_exhausted("no room"));
    cluster.create::<Pod>(pod("p", "c", &json!({"nodeSelector": {"test/host": "n2"}}))).await;
    let placed = |pod: Option<&Pod>| pod.is_some_and(|p| p.spec.as_ref().unwrap().node_name.is_some());
    let placed = cluster.until(cluster.api(), "p", placed).await.unwrap();
    assert_eq!(placed.spec.unwrap().node_name.as_deref(), Some("n2"));
    let bound = cluster.until(cluster.api(), "c", phase_is("Bound")).await.unwrap();
    assert_eq!(bound.annotations()["volume.kubernetes.io/selected-node"], "n2");
    let made = cluster.all::<PersistentVolume>().get(&bound.spec.unwrap().volume_name.unwrap()).await.unwrap();
    let affinity = serde_json::to_value(made.spec.unwrap().node_affinity).unwrap();
    assert_eq!(affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"], json!(["n2"]));
    let asked = driver.state.lock().unwrap().created.clone().unwrap().accessibility_requirements.unwrap();
    assert_eq!(asked.requisite[0].segments["test/host"], "n2");
    assert_eq!(driver.calls("CreateVolume").len(), 2);
    // A claim whose node went away before the volume was made is placed anew.
    let mut lost = claim("lost", "local", &json!({}));
    lost["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "gone"});
    cluster.create::<PersistentVolumeClaim>(lost).await;
    cluster.create::<Pod>(pod("l", "lost", &json!({}))).await;
    cluster.until(cluster.api(), "lost", phase_is("Bound")).await;
    cluster.create::<Pod>(pod("q", "c", &json!({"nodeSelector": {"test/host": "n1"}}))).await;
    let told = |pod: Option<&Pod>| {
        let conditions = pod.and_then(|p| p.status.as_ref()?.conditions.clone()).unwrap_or_default();
        conditions
            .iter()
            .any(|c| c.message.as_deref().is_some_and(|m| m.contains("node(s) had volume node affinity conflict")))
    };
    cluster.until(cluster.api(), "q", told).await;
}

#[tokio::test]
async fn waiting_claims_take_volumes_of_the_pods_node() {
    let cluster = cluster(&Driver::new(false)).await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    let hand = json!({"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    class(&cluster, "manual", hand).await;
    let on = json!({"local": {"path": "/d"}, "hostPath": null, "nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "test/host", "operator": "In", "values": ["n2"]}]}]}}});
    wide::<PersistentVolume>(&cluster, volume("v", "2Gi", &on)).await;
    cluster.until(cluster.all(), "v", volume_is("Available")).await;
    for name in ["one", "two"] {
        cluster.create::<PersistentVolumeClaim>(claim(name, "manual", &json!({}))).await;
    }
    cluster.create::<Pod>(pod("p", "one", &json!({}))).await;
    let placed = |pod: Option<&Pod>| pod.is_some_and(|p| p.spec.as_ref().unwrap().node_name.as_deref() == Some("n2"));
    cluster.until(cluster.api(), "p", placed).await;
    cluster.until(cluster.api(), "one", phase_is("Bound")).await;
    cluster.create::<Pod>(pod("q", "two", &json!({}))).await;
    said(&cluster, "FailedScheduling", "2 node(s) didn't find available persistent volumes to bind").await;
}

#[tokio::test]
async fn volumes_are_attached_where_their_pods_are() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    class(&cluster, "fast", json!({})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &json!({}))).await;
    cluster.until(cluster.api(), "c", phase_is("Bound")).await;
    driver.fail("Publish", Status::internal("no slot"));
    cluster.create::<Pod>(pod("p", "c", &json!({"nodeSelector": {"test/host": "n1"}}))).await;
    let attached = cluster
        .until_all::<VolumeAttachment>(|all| all.iter().any(|a| a.status.as_ref().is_some_and(|s| s.attached)))
        .await
        .remove(0);
    assert_eq!(attached.spec.node_name, "n1");
    assert_eq!(attached.status.unwrap().attachment_metadata.unwrap()["device"], "/dev/x");
    assert_eq!(attached.metadata.finalizers.unwrap(), ["external-attacher/d-example-com"]);
    said(&cluster, "FailedAttachVolume", "rpc error: code = Internal desc = no slot").await;
    said(&cluster, "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume \"pvc-").await;
    let names =
        |node: Option<&Node>| node.and_then(|n| n.status.as_ref()?.volumes_attached.clone()).unwrap_or_default();
    let known = cluster.until(cluster.all::<Node>(), "n1", move |node| names(node).len() == 1).await.unwrap();
    assert!(names(Some(&known))[0].name.starts_with("kubernetes.io/csi/d.example.com^id-pvc-"));
    // The node has it mounted: it is not detached, and nobody else gets it.
    let in_use = json!({"status": {"volumesInUse": [names(Some(&known))[0].name]}});
    cluster.all::<Node>().patch_status("n1", &PatchParams::default(), &Patch::Merge(in_use)).await.unwrap();
    cluster.create::<Pod>(pod("q", "c", &json!({"nodeSelector": {"test/host": "n2"}}))).await;
    said(&cluster, "FailedAttachVolume", "Volume is already used by pod(s) p").await;
    let now = DeleteParams::default().grace_period(0);
    cluster.api::<Pod>().delete("p", &now).await.unwrap();
    cluster.until(cluster.api::<Pod>(), "p", |pod| pod.is_none()).await;
    assert!(driver.calls("Unpublish").is_empty());
    let free = json!({"status": {"volumesInUse": null}});
    cluster.all::<Node>().patch_status("n1", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    let moved = |all: &[VolumeAttachment]| {
        all.len() == 1 && all[0].spec.node_name == "n2" && all[0].status.as_ref().is_some_and(|s| s.attached)
    };
    cluster.until_all::<VolumeAttachment>(moved).await;
    assert_eq!(driver.calls("Unpublish").len(), 1);
    assert_eq!(driver.state.lock().unwrap().published[0].1, "id-n2");
}

/// A volume attached to n1 and mounted there, whose pod is gone while the node is silent.
async fn stranded(driver: &Driver) -> Cluster {
    let cluster = cluster(driver).await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    class(&cluster, "fast", json!({})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &json!({}))).await;
    cluster.create::<Pod>(pod("p", "c", &json!({"nodeSelector": {"test/host": "n1"}}))).await;
    let names =
        |node: Option<&Node>| node.and_then(|n| n.status.as_ref()?.volumes_attached.clone()).unwrap_or_default();
    let known = cluster.until(cluster.all::<Node>(), "n1", move |node| names(node).len() == 1).await.unwrap();
    let silent = json!({"status": {"volumesInUse": [names(Some(&known))[0].name],
        "conditions": [{"type": "Ready", "status": "Unknown"}]}});
    cluster.all::<Node>().patch_status("n1", &PatchParams::default(), &Patch::Strategic(silent)).await.unwrap();
    cluster.create::<Pod>(pod("q", "c", &json!({"nodeSelector": {"test/host": "n2"}}))).await;
    said(&cluster, "FailedAttachVolume", "Volume is already used by pod(s) p").await;
    cluster.api::<Pod>().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    said(&cluster, "FailedAttachVolume", "Volume is already exclusively attached to one node").await;
    assert!(driver.calls("Unpublish").is_empty());
    cluster
}

fn is_on_n2(attachment: Option<&VolumeAttachment>) -> bool {
    attachment.is_some_and(|a| a.spec.node_name == "n2" && a.status.as_ref().is_some_and(|s| s.attached))
}

#[tokio::test]
async fn a_silent_node_keeps_its_volumes_for_six_minutes() {
    let driver = Driver::new(false);
    let cluster = stranded(&driver).await;
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    // Time passes only while everybody waits.
    while !cluster.all().list(&Default::default()).await.unwrap().items.iter().any(|a| is_on_n2(Some(a))) {
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        assert!(minutes < 10.0, "never detached");
        assert!(minutes > 5.9 || driver.calls("Unpublish").is_empty(), "detached after {minutes} minutes");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!(driver.calls("Unpublish").len(), 1);
}

#[tokio::test]
async fn an_out_of_service_node_gives_up_its_volumes_at_once() {
    let driver = Driver::new(false);
    let cluster = stranded(&driver).await;
    let began = tokio::time::Instant::now();
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"});
    let gone = json!({"spec": {"taints": [taint]}});
    cluster.all::<Node>().patch("n1", &PatchParams::default(), &Patch::Merge(gone)).await.unwrap();
    cluster.until_all::<VolumeAttachment>(|all| all.iter().any(|a| is_on_n2(Some(a)))).await;
    assert!(began.elapsed() < std::time::Duration::from_secs(60));
    assert_eq!(driver.calls("Unpublish").len(), 1);
}

#[tokio::test]
async fn a_volume_made_for_a_claim_that_vanished_is_deleted() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    node(&cluster, "n1").await;
    class(&cluster, "fast", json!({})).await;
    // The driver made the volume, but its answer got lost.
    driver.lose("CreateVolume");
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &json!({}))).await;
    said(&cluster, "ProvisioningFailed", "code = DeadlineExceeded desc = the answer is lost").await;
    assert_eq!(driver.state.lock().unwrap().volumes.len(), 1);
    cluster.api::<PersistentVolumeClaim>().delete("c", &DeleteParams::default()).await.unwrap();
    cluster.until(cluster.api::<PersistentVolumeClaim>(), "c", |claim| claim.is_none()).await;
    driver.state.lock().unwrap().lost.clear();
    driver.until(|state| state.volumes.is_empty()).await;
    assert!(cluster.all::<PersistentVolume>().list(&Default::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn an_attachment_is_not_made_for_drivers_that_need_none() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    wide::<CSIDriver>(&cluster, json!({"metadata": {"name": NAME}, "spec": {"attachRequired": false}})).await;
    node(&cluster, "n1").await;
    class(&cluster, "fast", json!({})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &json!({}))).await;
    cluster.create::<Pod>(pod("p", "c", &json!({}))).await;
    let placed = |pod: Option<&Pod>| pod.is_some_and(|p| p.spec.as_ref().unwrap().node_name.is_some());
    cluster.until(cluster.api(), "p", placed).await;
    cluster.until(cluster.api(), "c", phase_is("Bound")).await;
    assert!(cluster.all::<VolumeAttachment>().list(&Default::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn claims_grow_and_recover() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    node(&cluster, "n1").await;
    class(&cluster, "fast", json!({})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &json!({}))).await;
    cluster.until(cluster.api(), "c", phase_is("Bound")).await;
    let ask = async |size: &str| {
        let change = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        cluster
            .api::<PersistentVolumeClaim>()
            .patch("c", &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap();
    };
    let size = |claim: Option<&PersistentVolumeClaim>| {
        claim
            .and_then(|c| c.status.as_ref()?.capacity.as_ref()?.get("storage").map(|q| q.0.clone()))
            .unwrap_or_default()
    };
    ask("2Gi").await;
    let grown = cluster.until(cluster.api(), "c", move |claim| size(claim) == "2Gi").await.unwrap();
    assert!(grown.status.unwrap().conditions.unwrap_or_default().is_empty());
    let volume = cluster.all::<PersistentVolume>().get(&grown.spec.unwrap().volume_name.unwrap()).await.unwrap();
    assert_eq!(volume.spec.unwrap().capacity.unwrap()["storage"].0, "2Gi");
    driver.fail("Expand", Status::out_of_range("too much"));
    ask("900Gi").await;
    let state = |claim: Option<&PersistentVolumeClaim>| {
        let states = claim.and_then(|c| c.status.as_ref()?.allocated_resource_statuses.clone()).unwrap_or_default();
        states.get("storage").cloned().unwrap_or_default()
    };
    cluster.until(cluster.api(), "c", move |claim| state(claim) == "ControllerResizeInfeasible").await;
    said(&cluster, "VolumeResizeFailed", "code = OutOfRange desc = too much").await;
    driver.state.lock().unwrap().node_expansion = true;
    ask("3Gi").await;
    let handed = cluster.until(cluster.api(), "c", move |claim| state(claim) == "NodeResizePending").await.unwrap();
    let status = handed.status.unwrap();
    assert_eq!(status.allocated_resources.unwrap()["storage"].0, "3Gi");
    assert_eq!(status.capacity.unwrap()["storage"].0, "2Gi");
    let conditions: Vec<String> = status.conditions.unwrap().into_iter().map(|c| c.type_).collect();
    assert_eq!(conditions, ["FileSystemResizePending"]);
}

async fn attributes(cluster: &Cluster, name: &str, driver: &str, iops: &str) {
    let class = json!({"metadata": {"name": name}, "driverName": driver, "parameters": {"iops": iops}});
    wide::<VolumeAttributesClass>(cluster, class).await;
}

async fn take(cluster: &Cluster, class: Value) {
    let change = json!({"spec": {"volumeAttributesClassName": class}});
    let claims = cluster.api::<PersistentVolumeClaim>();
    claims.patch("c", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

/// Which class's attributes a claim's volume has, and how far a modification is.
fn modified(claim: Option<&PersistentVolumeClaim>) -> (String, String) {
    let status = claim.and_then(|claim| claim.status.clone()).unwrap_or_default();
    let how_far = status.modify_volume_status.map(|modify| modify.status);
    (status.current_volume_attributes_class_name.unwrap_or_default(), how_far.unwrap_or_default())
}

fn is_modified(current: &'static str, how_far: &'static str) -> impl Fn(Option<&PersistentVolumeClaim>) -> bool {
    move |claim| modified(claim) == (current.to_owned(), how_far.to_owned())
}

#[tokio::test]
async fn a_volume_has_the_attributes_of_the_class_its_claim_names() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    cluster.start(attributes_class::run);
    node(&cluster, "n1").await;
    class(&cluster, "fast", json!({})).await;
    attributes(&cluster, "silver", NAME, "1000").await;
    attributes(&cluster, "gold", NAME, "9000").await;
    attributes(&cluster, "foreign", "other.example.com", "1").await;
    let named = json!({"volumeAttributesClassName": "silver"});
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &named)).await;
    let bound = cluster.until(cluster.api(), "c", phase_is("Bound")).await.unwrap();
    assert_eq!(modified(Some(&bound)), ("silver".into(), String::new()));
    assert_eq!(driver.state.lock().unwrap().created.clone().unwrap().mutable_parameters["iops"], "1000");

    take(&cluster, "gold".into()).await;
    let done = cluster.until(cluster.api(), "c", is_modified("gold", "")).await.unwrap();
    assert!(done.status.unwrap().conditions.unwrap_or_default().is_empty());
    let name = done.spec.unwrap().volume_name.unwrap();
    assert_eq!(driver.state.lock().unwrap().attributes[&format!("id-{name}")]["iops"], "9000");
    let volume = cluster.all::<PersistentVolume>().get(&name).await.unwrap();
    assert_eq!(volume.spec.unwrap().volume_attributes_class_name.as_deref(), Some("gold"));
    said(&cluster, "VolumeModifySuccessful", "with vac gold").await;

    driver.fail("Modify", Status::invalid_argument("too slow"));
    take(&cluster, "silver".into()).await;
    cluster.until(cluster.api(), "c", is_modified("gold", "Infeasible")).await;
    said(&cluster, "VolumeModifyFailed", "code = InvalidArgument desc = too slow").await;
    take(&cluster, "foreign".into()).await;
    cluster.until(cluster.api(), "c", is_modified("gold", "Pending")).await;
    said(&cluster, "VolumeModifyFailed", "is for driver \"other.example.com\"").await;
    // A class that comes later is taken when it comes.
    take(&cluster, "late".into()).await;
    said(&cluster, "VolumeModifyFailed", "VolumeAttributesClass \"late\" not found").await;
    attributes(&cluster, "late", NAME, "2").await;
    cluster.until(cluster.api(), "c", is_modified("late", "")).await;

    // Who wants none any more is refused: the volume has some.
    let claims = cluster.api::<PersistentVolumeClaim>();
    let none = json!({"spec": {"volumeAttributesClassName": null}});
    let refused = claims.patch("c", &PatchParams::default(), &Patch::Merge(none)).await.unwrap_err();
    assert!(refused.to_string().contains("update to nil is forbidden"), "{refused}");
    // A class in use stays until nobody names it.
    let classes = cluster.all::<VolumeAttributesClass>();
    classes.delete("late", &DeleteParams::default()).await.unwrap();
    classes.delete("foreign", &DeleteParams::default()).await.unwrap();
    cluster.until(cluster.all::<VolumeAttributesClass>(), "foreign", |class| class.is_none()).await;
    assert!(classes.get("late").await.unwrap().metadata.deletion_timestamp.is_some());
    take(&cluster, "gold".into()).await;
    cluster.until(cluster.all::<VolumeAttributesClass>(), "late", |class| class.is_none()).await;
}

#[tokio::test]
async fn room_is_published_and_heeded() {
    let driver = Driver::new(true);
    let cluster = cluster(&driver).await;
    wide::<CSIDriver>(
        &cluster,
        json!({"metadata": {"name": NAME}, "spec": {"attachRequired": false, "storageCapacity": true}}),
    )
    .await;
    node(&cluster, "n1").await;
    node(&cluster, "full").await;
    // A class that the driver does not like is no other's fault.
    class(&cluster, "bad", json!({"parameters": {"bad": "parameter"}})).await;
    class(&cluster, "local", json!({"volumeBindingMode": "WaitForFirstConsumer"})).await;
    let rooms = cluster.until_all::<CSIStorageCapacity>(|rooms| rooms.len() == 2).await;
    assert!(rooms.iter().any(|room| room.capacity.as_ref().unwrap().0 == "10Gi"));
    cluster.create::<PersistentVolumeClaim>(claim("c", "local", &json!({}))).await;
    cluster.create::<Pod>(pod("p", "c", &json!({}))).await;
    let placed = |pod: Option<&Pod>| pod.is_some_and(|p| p.spec.as_ref().unwrap().node_name.as_deref() == Some("n1"));
    cluster.until(cluster.api(), "p", placed).await;
    let large = json!({"resources": {"requests": {"storage": "11Gi"}}});
    cluster.create::<PersistentVolumeClaim>(claim("large", "local", &large)).await;
    cluster.create::<Pod>(pod("q", "large", &json!({}))).await;
    said(&cluster, "FailedScheduling", "2 node(s) did not have enough free storage").await;
}

#[tokio::test]
async fn pods_bring_claims_and_claims_exclude_pods() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    node(&cluster, "n1").await;
    class(&cluster, "fast", json!({})).await;
    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
    let ephemeral = json!({"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]});
    let made = cluster.create::<Pod>(pod("p", "", &ephemeral)).await;
    let bound = cluster.until(cluster.api(), "p-scratch", phase_is("Bound")).await.unwrap();
    assert_eq!(bound.owner_references()[0].uid, made.uid().unwrap());
    let placed = |pod: Option<&Pod>| pod.is_some_and(|p| p.spec.as_ref().unwrap().node_name.is_some());
    cluster.until(cluster.api(), "p", placed).await;
    let open = |name: &str| claim(name, "fast", &json!({}));
    cluster.create::<PersistentVolumeClaim>(open("second")).await;
    cluster.create::<Pod>(pod("q", "second", &json!({}))).await;
    cluster.until(cluster.api(), "q", placed).await;
    cluster.create::<PersistentVolumeClaim>(open("third")).await;
    cluster.create::<Pod>(pod("r", "third", &json!({}))).await;
    said(&cluster, "FailedScheduling", "1 node(s) exceed max volume count").await;
}

#[tokio::test]
async fn one_pod_at_a_time() {
    let cluster = cluster(&Driver::new(false)).await;
    node(&cluster, "n1").await;
    let alone = json!({"accessModes": ["ReadWriteOncePod"]});
    wide::<PersistentVolume>(&cluster, volume("v", "2Gi", &alone)).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "manual", &alone)).await;
    cluster.until(cluster.api(), "c", phase_is("Bound")).await;
    cluster.create::<Pod>(pod("p", "c", &json!({}))).await;
    let placed = |pod: Option<&Pod>| pod.is_some_and(|p| p.spec.as_ref().unwrap().node_name.is_some());
    cluster.until(cluster.api(), "p", placed).await;
    cluster.create::<Pod>(pod("q", "c", &json!({}))).await;
    said(&cluster, "FailedScheduling", "ReadWriteOncePod access mode").await;
    cluster.api::<Pod>().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.until(cluster.api(), "q", placed).await;
}

#[tokio::test]
async fn drivers_with_sidecars_are_left_to_them() {
    let driver = Driver::new(false);
    let cluster = cluster(&driver).await;
    let labels = json!({"app": "x"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "p", "image": "registry/csi-provisioner:v5"}],
        "volumes": [{"name": "s", "hostPath": {"path": "/var/lib/kubelet/plugins/d.example.com"}}]}});
    cluster
        .create::<Deployment>(
            json!({"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}),
        )
        .await;
    cluster.until(cluster.api::<Deployment>(), "x", |d| d.is_some()).await;
    node(&cluster, "n1").await;
    class(&cluster, "fast", json!({})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "fast", &json!({}))).await;
    said(&cluster, "ExternalProvisioning", "external provisioner 'd.example.com'").await;
    assert!(driver.calls("CreateVolume").is_empty());
    // The driver's own word counts more.
    let ours = json!({"ferrovirt.io/csi-controller": "provisioner"});
    wide::<CSIDriver>(&cluster, json!({"metadata": {"name": NAME, "annotations": ours}, "spec": {}})).await;
    cluster.until(cluster.api(), "c", phase_is("Bound")).await;
}

#[tokio::test]
async fn volumes_that_are_unwell_are_told_of() {
    let driver = Driver::new(true);
    let cluster = cluster(&driver).await;
    node(&cluster, "n1").await;
    wide::<CSIDriver>(&cluster, json!({"metadata": {"name": NAME}, "spec": {"attachRequired": false}})).await;
    class(&cluster, "now", json!({})).await;
    cluster.create::<PersistentVolumeClaim>(claim("c", "now", &json!({}))).await;
    let bound = cluster.until(cluster.api(), "c", phase_is("Bound")).await.unwrap();
    let handle = format!("id-pvc-{}", bound.metadata.uid.unwrap());
    // The next look is a minute away, unless something changes of the driver.
    let look = async |word: &str| {
        let change = json!({"metadata": {"annotations": {"test/look": word}}});
        cluster.all::<CSIDriver>().patch(NAME, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    };
    driver.state.lock().unwrap().trouble.insert(handle.clone(), "the disk is on fire".into());
    look("one").await;
    said(&cluster, "VolumeConditionAbnormal", "the disk is on fire").await;
    driver.state.lock().unwrap().trouble.clear();
    look("two").await;
    said(&cluster, "VolumeConditionNormal", "The Volume returns to the healthy state").await;
}
