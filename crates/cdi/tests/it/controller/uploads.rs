//! Uploads.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kit::certs::{self, Authority};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::controller::cluster::{Cluster, FAST, gone, in_phase, start, there, volume, wait};

/// What the operator provides.
pub(crate) async fn authorities(cluster: &Cluster) {
    let authority = Authority::generate("test", kit::clock::now(), Duration::from_secs(3600)).unwrap();
    let pair = authority.pair();
    let secret = |name: &str| json!({ "metadata": { "name": name, "namespace": "cdi" }, "stringData": { "tls.crt": pair.certificate, "tls.key": pair.key } });
    let map = |name: &str| json!({ "metadata": { "name": name, "namespace": "cdi" }, "data": { "ca-bundle.crt": pair.certificate } });
    cluster.make("v1", "Secret", secret("cdi-uploadserver-signer")).await;
    cluster.make("v1", "Secret", secret("cdi-uploadserver-client-signer")).await;
    cluster.make("v1", "ConfigMap", map("cdi-uploadserver-client-signer-bundle")).await;
    cluster.make("v1", "ConfigMap", map("cdi-uploadserver-signer-bundle")).await;
}

/// Asks for a volume `disk` that is to be uploaded; the name of the claim that it is uploaded into.
async fn asked(cluster: &Cluster) -> String {
    cluster.create(&volume("disk", FAST, &json!({ "upload": {} }))).await;
    let claim = wait(&cluster.claims, "disk", "made", there()).await.unwrap();
    format!("prime-{}", claim.uid().unwrap())
}

#[tokio::test]
async fn an_upload_has_a_server_until_it_is_there() {
    let cluster = start().await;
    authorities(&cluster).await;
    let prime = asked(&cluster).await;
    wait(&cluster.volumes, "disk", "scheduled", in_phase("UploadScheduled")).await;
    let persistent = cluster.provision(&cluster.claims, &prime).await;
    let server = format!("cdi-upload-{prime}");
    cluster.report(&cluster.pods, &server, "Running", json!({ "running": {} })).await;
    wait(&cluster.volumes, "disk", "ready", in_phase("UploadReady")).await;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    services.get(&server).await.unwrap();
    let certificate = secrets.get(&server).await.unwrap().data.unwrap();
    assert!(["tls.crt", "tls.key", "clients.crt"].iter().all(|key| !certificate[*key].0.is_empty()));

    cluster.finish(&cluster.pods, &server, "Upload Complete").await;
    cluster.rebound(&persistent, "disk").await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
    wait(&cluster.pods, &server, "deleted", gone()).await;
    wait(&services, &server, "deleted", gone()).await;
    wait(&secrets, &server, "deleted", gone()).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_waiting_server_shows_and_trusts_is_renewed() {
    let cluster = start().await;
    authorities(&cluster).await;
    let prime = asked(&cluster).await;
    cluster.provision(&cluster.claims, &prime).await;
    let server = format!("cdi-upload-{prime}");
    cluster.report(&cluster.pods, &server, "Running", json!({ "running": {} })).await;
    wait(&cluster.volumes, "disk", "ready", in_phase("UploadReady")).await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    let of = |secret: Option<&Secret>, key: &str| {
        let found = secret.and_then(|secret| secret.data.as_ref()?.get(key));
        found.map(|found| String::from_utf8(found.0.clone()).unwrap()).unwrap_or_default()
    };
    let first = secrets.get(&server).await.unwrap();
    let (_, until) = certs::lifetime(&of(Some(&first), "tls.crt")).unwrap();
    let authority: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "cdi");
    let bundles = authority.get("cdi-uploadserver-client-signer-bundle").await.unwrap().data.unwrap();
    let (_, end) = certs::lifetime(&bundles["ca-bundle.crt"]).unwrap();
    assert!(until <= end, "it outlives its authority");

    // The proxy will show what another authority signed.
    let bundle = Patch::Merge(json!({ "data": { "ca-bundle.crt": "another" } }));
    authority.patch("cdi-uploadserver-client-signer-bundle", &PatchParams::default(), &bundle).await.unwrap();
    wait(&secrets, &server, "told", move |secret: Option<&Secret>| of(secret, "clients.crt") == "another").await;

    // More than a third of its time is over.
    let before = secrets.get(&server).await.unwrap();
    tokio::time::sleep(Duration::from_secs(35 * 60)).await;
    let renewed = move |secret: Option<&Secret>| {
        let shown = |secret| of(secret, "tls.crt");
        !shown(secret).is_empty() && shown(secret) != shown(Some(&before))
    };
    wait(&secrets, &server, "renewed", renewed).await;
}

#[tokio::test]
async fn a_server_that_nobody_came_to_is_replaced() {
    let cluster = start().await;
    authorities(&cluster).await;
    let prime = asked(&cluster).await;
    cluster.provision(&cluster.claims, &prime).await;
    let server = format!("cdi-upload-{prime}");
    let first = wait(&cluster.pods, &server, "made", there()).await.unwrap();
    let variables = first.spec.as_ref().unwrap().containers[0].env.clone().unwrap();
    let deadline = variables.iter().find(|one| one.name == "DEADLINE").unwrap().value.clone().unwrap();
    assert!(deadline.parse::<jiff::Timestamp>().unwrap() > kit::clock::now());
    let late = json!({ "message": "Deadline Passed", "deadlinePassed": true }).to_string();
    let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": late } });
    cluster.report(&cluster.pods, &server, "Succeeded", ended).await;
    let uid = first.uid();
    wait(&cluster.pods, &server, "replaced", move |pod: Option<&Pod>| pod.is_some_and(|pod| pod.uid() != uid)).await;
    let phase = cluster.volumes.get("disk").await.unwrap().status.unwrap().phase;
    assert_ne!(phase.as_deref(), Some("Succeeded"));
}
