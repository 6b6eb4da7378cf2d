//! Polls of registries: by a pod of the cron's namespace, which may be anybody's, say anything, and never end.

use api::cdi::constants::{annotation, label};
use api::cdi::v1beta1::DataImportCron;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::controller::cluster::{Cluster, PATIENCE, digest, gone, start, there, wait};
use crate::controller::crons::{cron, message, says};

/// Waits as long as polls take and are not repeated.
async fn eventually(crons: &Api<DataImportCron>, condition: impl Condition<DataImportCron>) -> DataImportCron {
    let waited = tokio::time::timeout(PATIENCE * 20, await_condition(crons.clone(), "gold-cron", condition)).await;
    waited.unwrap().unwrap().unwrap()
}

async fn asked() -> (Cluster, Api<DataImportCron>) {
    let cluster = start().await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    crons.create(&PostParams::default(), &cron(json!({}))).await.unwrap();
    (cluster, crons)
}

fn told(part: &'static str) -> impl Condition<DataImportCron> {
    move |cron: Option<&DataImportCron>| {
        cron.is_some_and(|cron| says("UpToDate", "NoDigest")(Some(cron)) && message(cron, "UpToDate").contains(part))
    }
}

#[tokio::test(start_paused = true)]
async fn poller_messages_that_are_no_digest_are_neither_stored_nor_shown() {
    let (cluster, crons) = asked().await;
    for said in [
        "<html>the words of a neighbour</html>".to_owned(),
        format!("\u{1b}]0;owned\u{7}{}", digest("e")),
        format!("{}@evil.example/image", digest("e")),
        "e".repeat(1 << 20),
    ] {
        let pod = cluster.answer("gold-cron", &said).await;
        wait(&cluster.pods, &pod.name_any(), "gone", gone()).await;
        let cron = eventually(&crons, told("its pod ended without an answer")).await;
        let expect =
            "the registry of docker://registry/gold:latest does not say what it is: its pod ended without an answer";
        assert_eq!(message(&cron, "UpToDate"), expect);
        assert_eq!(cron.annotations().get(annotation::DESIRED_DIGEST), None);
    }
    cluster.answer("gold-cron", &digest("a")).await;
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await;
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_never_ends_is_ended_and_another_asks_later() {
    let (cluster, crons) = asked().await;
    let pod = cluster.poller("gold-cron").await;
    assert_eq!(pod.spec.as_ref().unwrap().active_deadline_seconds, Some(300), "also where no controller is there");
    cluster.report(&cluster.pods, &pod.name_any(), "Running", json!({ "running": {} })).await;
    let begun = tokio::time::Instant::now();
    eventually(&crons, told("its pod did not end within 300 s")).await;
    assert!(begun.elapsed().as_secs() >= 299);
    wait(&cluster.pods, &pod.name_any(), "gone", gone()).await;
    let failed = tokio::time::Instant::now();
    cluster.answer("gold-cron", &digest("a")).await;
    assert!(failed.elapsed().as_secs() >= 59);
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await;
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_somebody_deletes_is_told_and_another_asks_later() {
    let (cluster, crons) = asked().await;
    let pod = cluster.poller("gold-cron").await;
    cluster.pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    eventually(&crons, told("its pod was deleted before it had said anything")).await;
    cluster.answer("gold-cron", &digest("a")).await;
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await;
}

/// A pod that looks like `pod`, and has ended with a digest of its maker's choice.
async fn forge(cluster: &Cluster, pod: &Pod, owners: &Value) -> String {
    let labels = pod.labels();
    let forged = json!({
        "metadata": { "name": format!("{}x", pod.name_any()), "labels": labels, "ownerReferences": owners },
        "spec": { "containers": [{ "name": "cdi-poller", "image": "evil" }] },
    });
    let forged = cluster.pods.create(&PostParams::default(), &serde_json::from_value(forged).unwrap()).await.unwrap();
    let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": digest("e") } });
    cluster.report(&cluster.pods, &forged.name_any(), "Succeeded", ended).await;
    forged.name_any()
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_tenant_calls_a_poller_is_not_believed() {
    let (mut cluster, crons) = asked().await;
    let pod = cluster.poller("gold-cron").await;
    let owner = &pod.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.controller), ("DataImportCron", Some(true)));
    // Nobody cleans up what it says while no controller is there; the next one believes no pod that it has not made.
    cluster.kill();
    let forged = forge(&cluster, &pod, &json!(pod.owner_references())).await;
    let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": digest("e") } });
    cluster.report(&cluster.pods, &pod.name_any(), "Succeeded", ended).await;
    cluster.restart();
    for name in [forged, pod.name_any()] {
        wait(&cluster.pods, &name, "gone", gone()).await;
    }
    let another = cluster.poller("gold-cron").await;
    // One of another owner is none of this cron's, whatever it is called.
    let stranger = json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron", "name": "gold-cron", "uid": "0", "controller": true }]);
    let stranger = forge(&cluster, &another, &stranger).await;
    let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": digest("a") } });
    cluster.report(&cluster.pods, &another.name_any(), "Succeeded", ended).await;
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await;
    let desired = crons.get("gold-cron").await.unwrap().annotations().get(annotation::DESIRED_DIGEST).cloned();
    assert_eq!(desired, Some(digest("a")));
    assert!(cluster.volumes.get_opt("gold-eeeeeeeeeeee").await.unwrap().is_none());
    assert!(cluster.pods.get_opt(&stranger).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_poll_waits_for_room_in_its_namespace() {
    let cluster = start().await;
    let hard = json!({ "pods": "0" });
    let quota = json!({ "metadata": { "name": "q", "namespace": "default" }, "spec": { "hard": hard } });
    cluster.make("v1", "ResourceQuota", quota).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), "default");
    cluster.status(&quotas, "q", json!({ "hard": hard, "used": { "pods": "0" } })).await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    crons.create(&PostParams::default(), &cron(json!({}))).await.unwrap();
    eventually(&crons, told("the pod that asks the registry is refused: exceeded quota: q")).await;
    assert!(cluster.told("ErrExceededQuota").await.contains("exceeded quota: q"));
    quotas.delete("q", &DeleteParams::default()).await.unwrap();
    cluster.answer("gold-cron", &digest("a")).await;
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await;
}

#[tokio::test]
async fn a_namespace_that_is_restricted_takes_a_poller() {
    let cluster = start().await;
    let enforced = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(cluster.client.clone());
    let patch = kube::api::Patch::Merge(enforced);
    namespaces.patch("default", &kube::api::PatchParams::default(), &patch).await.unwrap();
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let registry = json!({ "url": "docker://registry/gold:latest", "secretRef": "login", "certConfigMap": "authorities", "pullMethod": "node" });
    let mut asked = cron(json!({}));
    asked.spec.template.spec.source = Some(serde_json::from_value(json!({ "registry": registry })).unwrap());
    crons.create(&PostParams::default(), &asked).await.unwrap();
    let pod = cluster.answer("gold-cron", &digest("a")).await;
    assert_eq!(pod.labels()[label::COMPONENT], "cdi-poller");
    // What the kubelet pulls is asked for in the same way, and imported as it was found.
    let made = wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await.unwrap();
    let registry = made.spec.source.unwrap().registry.unwrap();
    assert_eq!(registry.pull_method.as_deref(), Some("node"));
    assert_eq!(registry.url, Some(format!("docker://registry/gold@{}", digest("a"))));
}
