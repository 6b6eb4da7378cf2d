//! ObjectTransfers.

use api::cdi::v1beta1::{DataVolume, ObjectTransfer};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::controller::cluster::{PLAIN, gone, in_phase, start, there, volume, wait};

#[tokio::test]
async fn a_data_volume_goes_to_another_namespace_with_its_data() {
    let cluster = start().await;
    cluster.create(&volume("disk", PLAIN, &json!({ "blank": {} }))).await;
    let persistent = cluster.provision(&cluster.claims, "disk").await;
    cluster.finish(&cluster.pods, "importer-disk", "Import Complete").await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
    wait(&cluster.pods, "importer-disk", "deleted", gone()).await;
    let transfers: Api<ObjectTransfer> = Api::all(cluster.client.clone());
    let asked = json!({ "metadata": { "name": "t" }, "spec": {
        "source": { "kind": "DataVolume", "namespace": "default", "name": "disk" }, "target": { "namespace": "images", "name": "gold" },
    } });
    transfers.create(&PostParams::default(), &serde_json::from_value(asked).unwrap()).await.unwrap();
    // What protects claims and collects what has no owner is not at work here.
    wait(&cluster.claims, "disk", "deleted", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await;
    let release = json!({ "metadata": { "finalizers": null } });
    if cluster.claims.get_opt("disk").await.unwrap().is_some() {
        cluster.claims.patch("disk", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    }
    let images: Api<PersistentVolumeClaim> = cluster.images();
    let claim = wait(&images, "gold", "made", there()).await.unwrap();
    assert_eq!(claim.spec.as_ref().unwrap().volume_name.as_deref(), Some(persistent.as_str()));
    let kept = cluster.persistent.get(&persistent).await.unwrap().spec.unwrap();
    assert_eq!(kept.persistent_volume_reclaim_policy.as_deref(), Some("Retain"));
    assert_eq!(kept.claim_ref.unwrap().name.as_deref(), Some("gold"));
    cluster.status(&images, "gold", json!({ "phase": "Bound" })).await;
    let volumes: Api<DataVolume> = cluster.images();
    wait(&volumes, "gold", "there and filled", in_phase("Succeeded")).await;
    wait(&transfers, "t", "complete", |transfer: Option<&ObjectTransfer>| {
        transfer
            .is_some_and(|one| one.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Complete")))
    })
    .await;
    wait(&cluster.persistent, &persistent, "as before", |volume: Option<&PersistentVolume>| {
        volume.is_some_and(|volume| {
            volume.spec.as_ref().is_some_and(|spec| spec.persistent_volume_reclaim_policy.as_deref() != Some("Retain"))
        })
    })
    .await;
    assert!(cluster.volumes.get_opt("disk").await.unwrap().is_none());
    assert_eq!(images.get("gold").await.unwrap().owner_references()[0].kind, "DataVolume");
}
