//! Clones: by the driver, from snapshots, byte by byte, and of another namespace.

use std::collections::BTreeMap;

use api::cdi::constants::annotation;
use api::cdi::v1beta1::{DataVolume, VolumeCloneSource};
use cdi::token::{self, Payload, Resource, Signer};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::controller::cluster::{Cluster, FAST, PLAIN, gone, in_phase, start, there, volume, wait};
use crate::controller::uploads::authorities;

/// What an image says of the machine that it is made for.
const MACHINE: &str = "instancetype.kubevirt.io/default-instancetype";

/// A filled claim to be cloned.
pub(crate) async fn source(cluster: &Cluster, claims: &Api<PersistentVolumeClaim>, class: &str) {
    let labels = json!({ MACHINE: "u1.small" });
    let claim = json!({ "metadata": { "name": "gold", "labels": labels }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": { "requests": { "storage": "32Mi" } } } });
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    cluster.provision(claims, "gold").await;
}

async fn strategy(cluster: &Cluster, class: &str, strategy: &str) {
    let profiles: Api<api::cdi::v1beta1::StorageProfile> = Api::all(cluster.client.clone());
    let wanted = json!({ "spec": { "cloneStrategy": strategy } });
    profiles.patch(class, &PatchParams::default(), &Patch::Merge(wanted)).await.unwrap();
    let strategy = strategy.to_owned();
    wait(&profiles, class, "cloning so", move |profile: Option<&api::cdi::v1beta1::StorageProfile>| {
        profile.is_some_and(|profile| {
            profile.status.as_ref().is_some_and(|status| status.clone_strategy.as_deref() == Some(&strategy))
        })
    })
    .await;
}

pub(crate) fn clone_of(namespace: &str) -> Value {
    json!({ "pvc": { "name": "gold", "namespace": namespace } })
}

async fn uid(cluster: &Cluster) -> String {
    wait(&cluster.claims, "copy", "made", there()).await.unwrap().uid().unwrap()
}

#[tokio::test]
async fn a_driver_clones_and_the_clone_grows_before_it_is_given() {
    let cluster = start().await;
    source(&cluster, &cluster.claims, FAST).await;
    strategy(&cluster, FAST, "csi-clone").await;
    cluster.create(&volume("copy", FAST, &clone_of("default"))).await;
    let made = format!("tmp-pvc-{}", uid(&cluster).await);
    let claim = wait(&cluster.claims, &made, "made", there()).await.unwrap().spec.unwrap();
    assert_eq!(claim.data_source.unwrap().name, "gold");
    wait(&cluster.volumes, "copy", "cloning", in_phase("CSICloneInProgress")).await;
    let persistent = cluster.provision(&cluster.claims, &made).await;
    let asked = wait(&cluster.claims, &made, "asked to grow", |claim: Option<&PersistentVolumeClaim>| {
        let asks = claim.and_then(|claim| claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage"));
        asks.is_some_and(|asks| asks.0 != "33554432")
    });
    let size = asked.await.unwrap().spec.unwrap().resources.unwrap().requests.unwrap()["storage"].clone();
    cluster.status(&cluster.claims, &made, json!({ "capacity": { "storage": size } })).await;
    cluster.rebound(&persistent, "copy").await;
    wait(&cluster.volumes, "copy", "done", in_phase("Succeeded")).await;
    wait(&cluster.claims, &made, "on its way out", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await;
    assert_eq!(cluster.claims.get("copy").await.unwrap().annotations()[annotation::CLONE_TYPE], "csi-clone");
    // Users look at the DataVolume.
    wait(&cluster.volumes, "copy", "told how it was cloned, and for which machine", |volume: Option<&DataVolume>| {
        volume.is_some_and(|volume| {
            let notes = [annotation::CLONE_TYPE, annotation::USE_POPULATOR].map(|key| volume.annotations().get(key));
            let noted = notes.map(|note| note.map(String::as_str)) == [Some("csi-clone"), Some("true")];
            noted && volume.labels().get(MACHINE).map(String::as_str) == Some("u1.small")
        })
    })
    .await;
}

#[tokio::test]
async fn a_copy_is_kept_with_all_that_made_it_for_whoever_asks() {
    let cluster = start().await;
    authorities(&cluster).await;
    source(&cluster, &cluster.claims, FAST).await;
    let mut asked = volume("copy", FAST, &clone_of("default"));
    asked.annotations_mut().insert(annotation::POD_RETAIN.to_owned(), "true".to_owned());
    cluster.create(&asked).await;
    let made = format!("tmp-pvc-{}", uid(&cluster).await);
    let persistent = cluster.provision(&cluster.claims, &made).await;
    let server = format!("cdi-upload-{made}");
    cluster.report(&cluster.pods, &server, "Running", json!({ "running": {} })).await;
    let sender = format!("{}-source-pod", cluster.claims.get(&made).await.unwrap().uid().unwrap());
    cluster.finish(&cluster.pods, &sender, "Clone Complete").await;
    cluster.finish(&cluster.pods, &server, "Clone Complete").await;
    cluster.rebound(&persistent, "copy").await;
    wait(&cluster.volumes, "copy", "done", in_phase("Succeeded")).await;
    cluster.told("RetainedPVCPrime").await;
    for pod in [&sender, &server] {
        assert_eq!(cluster.pods.get(pod).await.unwrap().metadata.deletion_timestamp, None);
    }
    assert_eq!(cluster.claims.get(&made).await.unwrap().metadata.deletion_timestamp, None);
}

#[tokio::test]
async fn a_snapshot_is_taken_on_the_way() {
    let cluster = start().await;
    let class = json!({ "metadata": { "name": "snap" }, "driver": "kubevirt.io.hostpath-provisioner", "deletionPolicy": "Delete" });
    cluster.make("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", class).await;
    source(&cluster, &cluster.claims, FAST).await;
    strategy(&cluster, FAST, "snapshot").await;
    cluster.create(&volume("copy", FAST, &clone_of("default"))).await;
    let uid = uid(&cluster).await;
    let (snapshot, made) = (format!("tmp-snapshot-{uid}"), format!("tmp-pvc-{uid}"));
    let snapshots = cluster.snapshots("default");
    let taken = wait(&snapshots, &snapshot, "taken", there()).await.unwrap();
    assert_eq!(taken.data["spec"]["source"]["persistentVolumeClaimName"], "gold");
    let full = json!({ "status": { "readyToUse": false, "error": { "message": "the pool is full" } } });
    snapshots.patch_status(&snapshot, &PatchParams::default(), &Patch::Merge(full)).await.unwrap();
    let why = format!("VolumeSnapshot default/{snapshot} is not ready: the pool is full");
    let says = |expect: String| {
        move |volume: Option<&DataVolume>| {
            let status = volume.and_then(|volume| volume.status.as_ref());
            let mut running = status.iter().flat_map(|status| &status.conditions).filter(|one| one.type_ == "Running");
            running.any(|one| one.message.clone().unwrap_or_default() == expect)
        }
    };
    wait(&cluster.volumes, "copy", "told why", says(why.clone())).await;
    cluster.told_of("DataVolume", &why).await;
    let ready = json!({ "status": { "readyToUse": true, "restoreSize": "32Mi", "error": null } });
    snapshots.patch_status(&snapshot, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    let claim = wait(&cluster.claims, &made, "made", there()).await.unwrap().spec.unwrap();
    assert_eq!(claim.data_source.unwrap().name, snapshot);
    wait(&cluster.volumes, "copy", "told that it goes on", says(String::new())).await;
}

/// A copy goes through a server at the target and a sender at the source.
async fn copied(cluster: &Cluster, pods: &Api<Pod>, class_of_target: &str) {
    let target = uid(cluster).await;
    let (claim, persistent) = if class_of_target == FAST {
        let made = format!("tmp-pvc-{target}");
        let persistent = cluster.provision(&cluster.claims, &made).await;
        (made, Some(persistent))
    } else {
        cluster.provision(&cluster.claims, "copy").await;
        ("copy".to_owned(), None)
    };
    let uid = cluster.claims.get(&claim).await.unwrap().uid().unwrap();
    let server = format!("cdi-upload-{claim}");
    cluster.report(&cluster.pods, &server, "Running", json!({ "running": {} })).await;
    let sender = format!("{uid}-source-pod");
    let pod = wait(pods, &sender, "made", there()).await.unwrap();
    assert_eq!(pod.spec.unwrap().volumes.unwrap()[0].persistent_volume_claim.as_ref().unwrap().claim_name, "gold");
    wait(&cluster.volumes, "copy", "copying", in_phase("CloneInProgress")).await;
    cluster.finish(pods, &sender, "Clone Complete").await;
    cluster.finish(&cluster.pods, &server, "Clone Complete").await;
    if let Some(persistent) = persistent {
        cluster.rebound(&persistent, "copy").await;
    }
    wait(&cluster.volumes, "copy", "done", in_phase("Succeeded")).await;
    wait(pods, &sender, "deleted", gone()).await;
    wait(&cluster.pods, &server, "deleted", gone()).await;
}

#[tokio::test]
async fn a_copy_is_made_byte_by_byte() {
    let cluster = start().await;
    authorities(&cluster).await;
    source(&cluster, &cluster.claims, FAST).await;
    cluster.create(&volume("copy", FAST, &clone_of("default"))).await;
    copied(&cluster, &cluster.pods, FAST).await;
}

#[tokio::test]
async fn a_copy_is_made_on_storage_without_a_driver() {
    let cluster = start().await;
    authorities(&cluster).await;
    source(&cluster, &cluster.claims, PLAIN).await;
    cluster.create(&volume("copy", PLAIN, &clone_of("default"))).await;
    copied(&cluster, &cluster.pods, PLAIN).await;
}

#[tokio::test]
async fn a_source_in_use_is_waited_for() {
    let cluster = start().await;
    source(&cluster, &cluster.claims, FAST).await;
    strategy(&cluster, FAST, "csi-clone").await;
    let user = json!({ "metadata": { "name": "user" }, "spec": { "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "gold" } }] } });
    cluster.pods.create(&PostParams::default(), &serde_json::from_value(user).unwrap()).await.unwrap();
    cluster.create(&volume("copy", FAST, &clone_of("default"))).await;
    let why = "pod default/user using PersistentVolumeClaim gold";
    // The data volume is told of it, too, and may come first in a list.
    assert!(cluster.told("CloneSourceInUse").await.ends_with(why));
    cluster.told_of("PersistentVolumeClaim", why).await;
    cluster.status(&cluster.pods, "user", json!({ "phase": "Succeeded" })).await;
    wait(&cluster.claims, &format!("tmp-pvc-{}", uid(&cluster).await), "made", there()).await;
}

#[tokio::test]
async fn another_namespace_is_cloned_from_only_with_a_token() {
    let cluster = start().await;
    let (private, public) = token::generate().unwrap();
    let secret = json!({ "metadata": { "name": "cdi-api-signing-key", "namespace": "cdi" }, "stringData": { "id_rsa": private, "id_rsa.pub": public } });
    cluster.make("v1", "Secret", secret).await;
    strategy(&cluster, FAST, "csi-clone").await;
    source(&cluster, &cluster.images(), FAST).await;
    cluster.create(&volume("copy", FAST, &clone_of("images"))).await;
    assert!(cluster.told("CloneValidationFailed").await.contains("no token allows to clone it"));
    let params = [("targetName", "copy"), ("targetNamespace", "default")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let payload = Payload {
        operation: "Clone".into(),
        name: "gold".into(),
        namespace: "images".into(),
        resource: Resource::claims(),
        params: BTreeMap::from(params),
    };
    let signed = Signer::new(&private)
        .unwrap()
        .sign(token::ISSUER_APISERVER, payload, kit::clock::now(), token::LIFETIME)
        .unwrap();
    let token = json!({ "metadata": { "annotations": { annotation::CLONE_TOKEN: signed } } });
    cluster.volumes.patch("copy", &PatchParams::default(), &Patch::Merge(token)).await.unwrap();
    let made = format!("tmp-pvc-{}", uid(&cluster).await);
    let images: Api<PersistentVolumeClaim> = cluster.images();
    let claim = wait(&images, &made, "made beside the source", there()).await.unwrap();
    assert_eq!(claim.spec.unwrap().data_source.unwrap().name, "gold");
}

async fn signing_key(cluster: &Cluster) -> String {
    let (private, public) = token::generate().unwrap();
    let secret = json!({ "metadata": { "name": "cdi-api-signing-key", "namespace": "cdi" }, "stringData": { "id_rsa": private, "id_rsa.pub": public } });
    cluster.make("v1", "Secret", secret).await;
    private
}

/// The leave of cdi-apiserver to clone the claim `name` of `namespace` to `default/copy`.
fn leave(private: &str, namespace: &str, name: &str) -> String {
    let params = [("targetName", "copy"), ("targetNamespace", "default")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let payload = Payload {
        operation: "Clone".into(),
        name: name.into(),
        namespace: namespace.into(),
        resource: Resource::claims(),
        params: BTreeMap::from(params),
    };
    let signer = Signer::new(private).unwrap();
    signer.sign(token::ISSUER_APISERVER, payload, kit::clock::now(), token::LIFETIME).unwrap()
}

fn unnamed(text: &str) -> String {
    text.replace("gold", "NAME").replace("nothing", "NAME")
}

/// Without the webhook, or with a token for something else, a DataVolume is anybody's who may make one.
#[tokio::test]
async fn nothing_is_made_beside_a_source_and_nothing_told_of_it_without_a_good_token() {
    let cluster = start().await;
    let private = signing_key(&cluster).await;
    strategy(&cluster, FAST, "csi-clone").await;
    source(&cluster, &cluster.images(), FAST).await;
    let other = token::generate().unwrap().0;
    let tokens = [
        None,
        Some("a.b.c".to_owned()),
        Some(leave(&other, "images", "gold")),
        Some(leave(&private, "images", "other")),
        Some(leave(&private, "default", "gold")),
    ];
    let mut said = Vec::new();
    // Whether there is such a claim makes no difference to what is said.
    for (name, token) in ["gold", "nothing"].into_iter().flat_map(|name| tokens.iter().map(move |token| (name, token)))
    {
        let mut asked: DataVolume = volume("copy", FAST, &json!({ "pvc": { "name": name, "namespace": "images" } }));
        // Where no size is asked for, the clone is as large as its source.
        asked.spec.storage.as_mut().unwrap().resources = None;
        asked.metadata.annotations = token.clone().map(|token| [(annotation::CLONE_TOKEN.to_owned(), token)].into());
        cluster.create(&asked).await;
        let refused = wait(&cluster.volumes, "copy", "refused", |volume: Option<&DataVolume>| {
            let conditions = volume.and_then(|volume| volume.status.as_ref()).map(|status| &status.conditions);
            conditions.is_some_and(|all| all.iter().any(|one| one.reason.as_deref() == Some("CloneValidationFailed")))
        });
        let refused = refused.await.unwrap();
        assert!(!refused.labels().contains_key(MACHINE), "{:?}", refused.labels());
        let bound = refused.status.unwrap().conditions.into_iter().find(|one| one.type_ == "Bound").unwrap();
        said.push(unnamed(&bound.message.unwrap_or_default()));
        assert!(cluster.claims.get_opt("copy").await.unwrap().is_none());
        let made: Api<VolumeCloneSource> = Api::all(cluster.client.clone());
        assert!(made.list(&ListParams::default()).await.unwrap().items.is_empty());
        cluster.volumes.delete("copy", &DeleteParams::default()).await.unwrap();
        wait(&cluster.volumes, "copy", "gone", gone()).await;
    }
    assert_eq!(said[..tokens.len()], said[tokens.len()..]);
}

/// A claim that names a VolumeCloneSource, and a namespace beside it, is anybody's who may make claims there.
#[tokio::test]
async fn a_claim_by_hand_is_filled_from_another_namespace_only_with_a_token() {
    let cluster = start().await;
    let private = signing_key(&cluster).await;
    strategy(&cluster, FAST, "csi-clone").await;
    source(&cluster, &cluster.images(), FAST).await;
    for name in ["gold", "nothing"] {
        let from = json!({ "metadata": { "name": name, "namespace": "images" }, "spec": { "source": { "kind": "PersistentVolumeClaim", "name": name } } });
        cluster.make("cdi.kubevirt.io/v1beta1", "VolumeCloneSource", from).await;
    }
    let stolen = |name: &str, from: &str, token: Option<String>| {
        let notes = json!({ annotation::DATA_SOURCE_NAMESPACE: "images", annotation::CLONE_TOKEN: token, annotation::IMMEDIATE_BINDING: "" });
        let reference = json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeCloneSource", "name": from });
        let mut claim = json!({ "metadata": { "name": name, "annotations": notes }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": FAST, "resources": { "requests": { "storage": "32Mi" } }, "dataSourceRef": reference } });
        if token.is_none() {
            claim["metadata"]["annotations"].as_object_mut().unwrap().remove(annotation::CLONE_TOKEN);
        }
        serde_json::from_value::<PersistentVolumeClaim>(claim).unwrap()
    };
    let tokens = [None, Some(leave(&private, "images", "gold")), Some("a.b.c".to_owned())];
    for (number, token) in tokens.into_iter().enumerate() {
        let mut said = Vec::new();
        for from in ["gold", "nothing"] {
            let name = format!("stolen-{number}-{from}");
            let claim = stolen(&name, from, token.clone());
            cluster.claims.create(&PostParams::default(), &claim).await.unwrap();
            let refused = wait(&cluster.claims, &name, "refused", |claim: Option<&PersistentVolumeClaim>| {
                claim.is_some_and(|claim| claim.annotations().contains_key(annotation::CLONE_ERROR))
            });
            let refused = refused.await.unwrap();
            said.push(unnamed(&refused.annotations()[annotation::CLONE_ERROR]));
        }
        assert_eq!(said[0], said[1]);
    }
    let images: Api<PersistentVolumeClaim> = cluster.images();
    let there: Vec<String> =
        images.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(there, ["gold"]);
}

/// Annotations are anybody's to write who may make claims.
#[tokio::test]
async fn a_clone_annotation_across_namespaces_needs_a_token() {
    let cluster = start().await;
    authorities(&cluster).await;
    let (private, public) = token::generate().unwrap();
    let secret = json!({ "metadata": { "name": "cdi-api-signing-key", "namespace": "cdi" }, "stringData": { "id_rsa": private, "id_rsa.pub": public } });
    cluster.make("v1", "Secret", secret).await;
    source(&cluster, &cluster.images(), PLAIN).await;
    let notes =
        json!({ annotation::CLONE_REQUEST: "images/gold", annotation::UPLOAD: "", annotation::OWNER_UID: "forged" });
    let stolen = json!({ "metadata": { "name": "copy", "annotations": notes }, "spec": { "accessModes": ["ReadWriteOnce"],
        "storageClassName": PLAIN, "resources": { "requests": { "storage": "32Mi" } } } });
    cluster.claims.create(&PostParams::default(), &serde_json::from_value(stolen).unwrap()).await.unwrap();
    cluster.provision(&cluster.claims, "copy").await;
    cluster.report(&cluster.pods, "cdi-upload-copy", "Running", json!({ "running": {} })).await;
    assert!(cluster.told("CloneValidationFailed").await.contains("no token allows to clone it"));
    let pods: Api<Pod> = cluster.images();
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_clone_needs_no_more_quota_than_its_claim() {
    let cluster = start().await;
    authorities(&cluster).await;
    source(&cluster, &cluster.claims, FAST).await;
    strategy(&cluster, FAST, "csi-clone").await;
    let hard = json!({ "requests.storage": "112Mi", "persistentvolumeclaims": "2" });
    let quota = json!({ "metadata": { "name": "q", "namespace": "default" }, "spec": { "hard": hard } });
    cluster.make("v1", "ResourceQuota", quota).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), "default");
    let used = json!({ "requests.storage": "32Mi", "persistentvolumeclaims": "1" });
    cluster.status(&quotas, "q", json!({ "hard": hard, "used": used })).await;
    cluster.create(&volume("copy", FAST, &clone_of("default"))).await;
    copied(&cluster, &cluster.pods, PLAIN).await;
    assert_eq!(cluster.claims.get("copy").await.unwrap().annotations()[annotation::CLONE_TYPE], "copy");
}

#[tokio::test]
async fn ten_disks_are_cloned_from_one_golden_image_at_once() {
    let cluster = start().await;
    source(&cluster, &cluster.claims, FAST).await;
    strategy(&cluster, FAST, "csi-clone").await;
    let golden = json!({ "metadata": { "name": "golden" }, "spec": { "source": { "pvc": { "name": "gold", "namespace": "default" } } } });
    let sources: Api<api::cdi::v1beta1::DataSource> = Api::namespaced(cluster.client.clone(), "default");
    sources.create(&PostParams::default(), &serde_json::from_value(golden).unwrap()).await.unwrap();
    let one = async |name: String| {
        let mut asked: DataVolume = volume(&name, FAST, &json!({}));
        asked.spec.source = None;
        asked.spec.source_ref =
            Some(serde_json::from_value(json!({ "kind": "DataSource", "name": "golden" })).unwrap());
        asked.spec.storage.as_mut().unwrap().resources = None;
        cluster.create(&asked).await;
        let claim = wait(&cluster.claims, &name, "made", there()).await.unwrap();
        let persistent = cluster.provision(&cluster.claims, &format!("tmp-pvc-{}", claim.uid().unwrap())).await;
        cluster.rebound(&persistent, &name).await;
        wait(&cluster.volumes, &name, "done", in_phase("Succeeded")).await;
        persistent
    };
    let volumes = futures::future::join_all((0..10).map(|number| one(format!("disk-{number}")))).await;
    let volumes: std::collections::BTreeSet<String> = volumes.into_iter().collect();
    assert_eq!(volumes.len(), 10, "each has a volume of its own");
}

#[tokio::test]
async fn a_data_source_stands_for_what_it_names() {
    let cluster = start().await;
    source(&cluster, &cluster.claims, FAST).await;
    let sourced = json!({ "metadata": { "name": "golden" }, "spec": { "source": { "pvc": { "name": "gold", "namespace": "default" } } } });
    let mut made: DataVolume = volume("copy", FAST, &json!({}));
    made.spec.source = None;
    made.spec.source_ref = Some(serde_json::from_value(json!({ "kind": "DataSource", "name": "golden" })).unwrap());
    made.spec.storage.as_mut().unwrap().resources = None;
    cluster.create(&made).await;
    cluster.told("ErrSourceNotFound").await;
    let sources: Api<api::cdi::v1beta1::DataSource> = Api::namespaced(cluster.client.clone(), "default");
    sources.create(&PostParams::default(), &serde_json::from_value(sourced).unwrap()).await.unwrap();
    // As large as what it is a clone of.
    let claim = wait(&cluster.claims, "copy", "made", there()).await.unwrap();
    assert_eq!(claim.spec.unwrap().resources.unwrap().requests.unwrap()["storage"].0, "33554432");
}

#[tokio::test]
async fn a_snapshot_of_another_driver_is_restored_by_that_and_copied() {
    let cluster = start().await;
    authorities(&cluster).await;
    let other = "other.example.com";
    let class = json!({ "metadata": { "name": "snap" }, "driver": other, "deletionPolicy": "Delete" });
    cluster.make("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", class).await;
    let class = json!({ "metadata": { "name": "other" }, "provisioner": other });
    cluster.make("storage.k8s.io/v1", "StorageClass", class).await;
    let snapshot = json!({ "metadata": { "name": "gold", "namespace": "default" },
        "spec": { "volumeSnapshotClassName": "snap", "source": { "persistentVolumeClaimName": "x" } } });
    cluster.make("snapshot.storage.k8s.io/v1", "VolumeSnapshot", snapshot).await;
    let ready = json!({ "status": { "readyToUse": true, "restoreSize": "32Mi" } });
    cluster.snapshots("default").patch_status("gold", &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    cluster.create(&volume("copy", FAST, &json!({ "snapshot": { "name": "gold", "namespace": "default" } }))).await;
    cluster.told("NoProvisionerMatch").await;
    let target = uid(&cluster).await;
    let restored = wait(&cluster.claims, &format!("tmp-source-pvc-{target}"), "made", there()).await.unwrap();
    let spec = restored.spec.unwrap();
    assert_eq!((spec.storage_class_name.as_deref(), spec.data_source.unwrap().name.as_str()), (Some("other"), "gold"));
    let made = wait(&cluster.claims, &format!("tmp-pvc-{target}"), "made", there()).await.unwrap();
    assert_eq!(made.annotations()[annotation::CLONE_REQUEST], format!("default/tmp-source-pvc-{target}"));
}
