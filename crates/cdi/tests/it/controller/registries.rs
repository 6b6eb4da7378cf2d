//! Registries without a certificate that is known.

use api::cdi::v1beta1::{CDI, DataImportCron};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::controller::cluster::{Cluster, PLAIN, digest, start_with, there, volume, wait};
use crate::controller::crons::says;

/// Whether the importer of an image at `host` looks at certificates.
async fn looks(cluster: &Cluster, name: &str, host: &str) -> bool {
    let source = json!({ "registry": { "url": format!("docker://{host}/gold:1") } });
    cluster.create(&volume(name, PLAIN, &source)).await;
    cluster.provision(&cluster.claims, name).await;
    let pod: Pod = wait(&cluster.pods, &format!("importer-{name}"), "made", there()).await.unwrap();
    secure(pod)
}

fn secure(pod: Pod) -> bool {
    let variables = pod.spec.unwrap().containers.remove(0).env.unwrap();
    let insecure = variables.into_iter().find(|one| one.name == "INSECURE_TLS").unwrap();
    insecure.value.as_deref() == Some("false")
}

#[tokio::test]
async fn registries_may_be_listed_as_insecure() {
    let cluster = start_with(json!({ "insecureRegistries": ["listed:5000"] })).await;
    let map = |name: &str, data: Value| json!({ "metadata": { "name": name, "namespace": "cdi" }, "data": data });
    cluster.make("v1", "ConfigMap", map("cdi-insecure-registries", json!({ "mine": "mapped:5000" }))).await;
    assert!(looks(&cluster, "other", "other:5000").await);
    assert!(looks(&cluster, "port", "listed").await);
    assert!(!looks(&cluster, "listed", "listed:5000").await);
    assert!(!looks(&cluster, "mapped", "mapped:5000").await);
}

#[tokio::test]
async fn an_insecure_registry_is_asked_what_is_new() {
    let cluster = start_with(json!({})).await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let cron = json!({ "metadata": { "name": "gold-cron" }, "spec": {
        "managedDataSource": "gold", "schedule": "* * * * *",
        "template": { "metadata": {}, "spec": {
            "source": { "registry": { "url": "docker://own:5000/gold:latest" } },
            "storage": { "storageClassName": PLAIN, "resources": { "requests": { "storage": "16Mi" } } },
        } },
    } });
    crons.create(&PostParams::default(), &serde_json::from_value(cron).unwrap()).await.unwrap();
    assert!(secure(cluster.answer("gold-cron", "Certificate").await));
    wait(&crons, "gold-cron", "told of the certificate", says("UpToDate", "NoDigest")).await;
    let cdis: Api<CDI> = Api::all(cluster.client.clone());
    let listed = json!({ "spec": { "config": { "insecureRegistries": ["own:5000"] } } });
    cdis.patch("cdi", &PatchParams::default(), &Patch::Merge(listed)).await.unwrap();
    // What is asked otherwise than it was asked in vain is asked at once.
    assert!(!secure(cluster.answer("gold-cron", &digest("a")).await));
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await;
}
