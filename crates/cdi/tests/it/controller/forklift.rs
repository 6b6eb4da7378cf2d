//! Claims that name a populator of Forklift's.

use api::cdi::constants::annotation;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::controller::cluster::{FAST, gone, start, there, wait};

fn says(key: &'static str, expect: &'static str) -> impl Fn(Option<&PersistentVolumeClaim>) -> bool {
    move |claim| claim.and_then(|claim| claim.annotations().get(key)).is_some_and(|found| found.contains(expect))
}

fn claim(kind: &str) -> Value {
    let from = json!({ "apiGroup": "forklift.cdi.kubevirt.io", "kind": kind, "name": "there" });
    json!({ "metadata": { "name": "disk" }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": FAST,
        "resources": { "requests": { "storage": "16Mi" } }, "dataSourceRef": from } })
}

#[tokio::test]
async fn a_disk_of_an_engine_fills_a_claim() {
    let cluster = start().await;
    let made = serde_json::from_value(claim("OvirtVolumePopulator")).unwrap();
    let uid = cluster.claims.create(&PostParams::default(), &made).await.unwrap().uid().unwrap();
    let why = "OvirtVolumePopulator default/there does not exist: waiting for it";
    wait(&cluster.claims, "disk", "told what is missing", says(annotation::BOUND_MESSAGE, why)).await;
    let spec = json!({ "engineUrl": "https://engine", "diskId": "d", "secretRef": "engine" });
    let populator = json!({ "metadata": { "name": "there", "namespace": "default" }, "spec": spec });
    cluster.make("forklift.cdi.kubevirt.io/v1beta1", "OvirtVolumePopulator", populator).await;

    let (prime, pod) = (format!("prime-{uid}"), format!("populate-{uid}"));
    let volume = cluster.provision(&cluster.claims, &prime).await;
    let made = wait(&cluster.pods, &pod, "made", there()).await.unwrap().spec.unwrap();
    assert_eq!(made.containers[0].command.as_deref(), Some(&["ovirt-populator".to_owned()][..]));
    cluster.report(&cluster.pods, &pod, "Running", json!({ "running": {} })).await;
    wait(&cluster.claims, "disk", "a third of the way", says(annotation::POPULATOR_PROGRESS, "33.33%")).await;
    cluster.finish(&cluster.pods, &pod, "Import Complete").await;
    cluster.rebound(&volume, "disk").await;
    wait(&cluster.claims, "disk", "done", says(annotation::POPULATOR_PROGRESS, "100.0%")).await;
    wait(&cluster.pods, &pod, "deleted", gone()).await;
    wait(&cluster.claims, &prime, "deleted", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await;
}

#[tokio::test]
async fn a_populator_that_is_none_is_told() {
    let cluster = start().await;
    let made = serde_json::from_value(claim("MagicVolumePopulator")).unwrap();
    cluster.claims.create(&PostParams::default(), &made).await.unwrap();
    let why = "only OvirtVolumePopulator and OpenstackVolumePopulator do";
    wait(&cluster.claims, "disk", "told what is missing", says(annotation::BOUND_MESSAGE, why)).await;
}
