//! A namespace that has no room for the pods that fill a volume: it is told, and gone on once there is room.

use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::controller::clones::{clone_of, source};
use crate::controller::cluster::{Cluster, FAST, start, there, volume, wait};
use crate::controller::uploads::authorities;

/// Lets `pods` pods be.
async fn room(cluster: &Cluster, pods: &str) -> Api<ResourceQuota> {
    let hard = json!({ "pods": pods });
    let quota = json!({ "metadata": { "name": "q", "namespace": "default" }, "spec": { "hard": hard } });
    cluster.make("v1", "ResourceQuota", quota).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), "default");
    cluster.status(&quotas, "q", json!({ "hard": hard, "used": { "pods": "0" } })).await;
    quotas
}

/// Says in its conditions that the quota is in the way.
fn refused(volume: Option<&DataVolume>) -> bool {
    let status = volume.and_then(|volume| volume.status.as_ref());
    let mut running = status.iter().flat_map(|status| &status.conditions).filter(|one| one.type_ == "Running");
    running.any(|one| {
        one.reason.as_deref() == Some("ErrExceededQuota")
            && one.message.as_deref().is_some_and(|message| message.contains("exceeded quota: q"))
    })
}

async fn check(asked: &Value, pod: impl Fn(&str) -> String) {
    let cluster = start().await;
    authorities(&cluster).await;
    let quotas = room(&cluster, "0").await;
    cluster.create(&volume("disk", FAST, asked)).await;
    let claim = wait(&cluster.claims, "disk", "made", there()).await.unwrap();
    let prime = format!("prime-{}", claim.uid().unwrap());
    cluster.provision(&cluster.claims, &prime).await;
    wait(&cluster.volumes, "disk", "told of the quota", refused).await;
    quotas.delete("q", &DeleteParams::default()).await.unwrap();
    wait(&cluster.pods, &pod(&prime), "made", there()).await;
}

#[tokio::test]
async fn an_import_waits_for_room() {
    check(&json!({ "http": { "url": "http://images/disk" } }), |prime| format!("importer-{prime}")).await;
}

#[tokio::test]
async fn an_upload_waits_for_room() {
    check(&json!({ "upload": {} }), |prime| format!("cdi-upload-{prime}")).await;
}

#[tokio::test]
async fn the_clone_source_pod_waits_for_quota() {
    let cluster = start().await;
    authorities(&cluster).await;
    source(&cluster, &cluster.claims, FAST).await;
    let quotas = room(&cluster, "1").await;
    cluster.create(&volume("copy", FAST, &clone_of("default"))).await;
    let target = wait(&cluster.claims, "copy", "made", there()).await.unwrap();
    let stand_in = format!("tmp-pvc-{}", target.uid().unwrap());
    cluster.provision(&cluster.claims, &stand_in).await;
    cluster.report(&cluster.pods, &format!("cdi-upload-{stand_in}"), "Running", json!({ "running": {} })).await;
    wait(&cluster.volumes, "copy", "told of the quota", refused).await;
    quotas.delete("q", &DeleteParams::default()).await.unwrap();
    let uid = cluster.claims.get(&stand_in).await.unwrap().uid().unwrap();
    wait(&cluster.pods, &format!("{uid}-source-pod"), "made", there::<Pod>()).await;
}
