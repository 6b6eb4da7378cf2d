//! DataImportCrons.

use api::cdi::constants::annotation;
use api::cdi::v1beta1::{DataImportCron, DataSource, DataVolume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::controller::cluster::{Cluster, FAST, PLAIN, digest, gone, start, there, wait};

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
pub(crate) fn cron(more: Value) -> DataImportCron {
    let mut spec = json!({
        "managedDataSource": "gold", "schedule": "0 0 1 1 *", "importsToKeep": 1,
        "template": { "metadata": {}, "spec": {
            "source": { "registry": { "url": "docker://registry/gold:latest" } },
            "storage": { "storageClassName": PLAIN, "resources": { "requests": { "storage": "16Mi" } } },
        } },
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({ "metadata": { "name": "gold-cron" }, "spec": spec })).unwrap()
}

pub(crate) fn says(kind: &'static str, reason: &'static str) -> impl Fn(Option<&DataImportCron>) -> bool {
    move |cron| {
        let all = cron.and_then(|cron| cron.status.as_ref()).map(|status| status.conditions.as_slice());
        all.is_some_and(|all| all.iter().any(|one| one.type_ == kind && one.reason.as_deref() == Some(reason)))
    }
}

async fn imported(cluster: &Cluster, name: &str) {
    cluster.provision(&cluster.claims, name).await;
    let pod = format!("importer-{name}");
    cluster.report(&cluster.pods, &pod, "Running", json!({ "running": {} })).await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    wait(&crons, "gold-cron", "importing", says("Progressing", "ImportProgressing")).await;
    cluster.finish(&cluster.pods, &format!("importer-{name}"), "Import Complete").await;
}

#[tokio::test]
async fn a_golden_image_follows_its_source() {
    let cluster = start().await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let sources: Api<DataSource> = Api::namespaced(cluster.client.clone(), "default");
    crons.create(&PostParams::default(), &cron(json!({}))).await.unwrap();
    let pod = cluster.answer("gold-cron", &digest("a")).await;
    let first = wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await.unwrap();
    let registry = first.spec.source.unwrap().registry.unwrap();
    assert_eq!(registry.url.as_deref(), Some(format!("docker://registry/gold@{}", digest("a")).as_str()));
    wait(&cluster.pods, &pod.name_any(), "gone", gone()).await;
    imported(&cluster, "gold-aaaaaaaaaaaa").await;
    wait(&crons, "gold-cron", "up to date", says("UpToDate", "UpToDate")).await;
    let source = wait(&sources, "gold", "named", there()).await.unwrap();
    assert_eq!(source.spec.source.pvc.as_ref().unwrap().name, "gold-aaaaaaaaaaaa");
    // Something new is said by others, too.
    let newer =
        json!({ "metadata": { "annotations": { "cdi.kubevirt.io/storage.import.sourceDesiredDigest": digest("b") } } });
    crons.patch("gold-cron", &PatchParams::default(), &Patch::Merge(newer)).await.unwrap();
    wait(&cluster.volumes, "gold-bbbbbbbbbbbb", "made", there()).await;
    assert_eq!(sources.get("gold").await.unwrap().spec.source.pvc.unwrap().name, "gold-aaaaaaaaaaaa");
    imported(&cluster, "gold-bbbbbbbbbbbb").await;
    wait(&sources, "gold", "named anew", |source: Option<&DataSource>| {
        source.is_some_and(|source| source.spec.source.pvc.as_ref().is_some_and(|pvc| pvc.name == "gold-bbbbbbbbbbbb"))
    })
    .await;
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "collected", |volume: Option<&DataVolume>| {
        volume.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some())
    })
    .await;
    let status = crons.get("gold-cron").await.unwrap().status.unwrap();
    assert_eq!(status.last_imported_pvc.as_ref().unwrap().name, "gold-bbbbbbbbbbbb");
    assert_eq!(status.source_format.as_deref(), Some("pvc"));
    assert!(status.last_execution_timestamp.is_some());
}

#[tokio::test]
async fn a_source_that_is_not_there_is_told() {
    let cluster = start().await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    crons.create(&PostParams::default(), &cron(json!({}))).await.unwrap();
    cluster.answer("gold-cron", "Status 404").await;
    let told = wait(&crons, "gold-cron", "told", says("UpToDate", "NoDigest")).await.unwrap();
    let why = "the registry of docker://registry/gold:latest does not say what it is: it answers 404 Not Found";
    assert_eq!(message(&told, "UpToDate"), why);
}

#[tokio::test]
async fn a_cron_that_keeps_nothing_takes_all_with_it() {
    let cluster = start().await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    crons.create(&PostParams::default(), &cron(json!({ "retentionPolicy": "None" }))).await.unwrap();
    cluster.answer("gold-cron", &digest("a")).await;
    let made = wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "made", there()).await.unwrap();
    assert_eq!(made.labels()["cdi.kubevirt.io/dataImportCron"], "gold-cron");
    crons.delete("gold-cron", &DeleteParams::default()).await.unwrap();
    wait(&crons, "gold-cron", "gone", gone()).await;
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "gone", |volume: Option<&DataVolume>| {
        volume.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some())
    })
    .await;
}

#[tokio::test]
async fn a_golden_image_is_kept_as_a_snapshot_where_that_is_better() {
    let cluster = start().await;
    let class = json!({ "metadata": { "name": "snap" }, "driver": "kubevirt.io.hostpath-provisioner", "deletionPolicy": "Delete" });
    cluster.make("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", class).await;
    let profiles: Api<api::cdi::v1beta1::StorageProfile> = Api::all(cluster.client.clone());
    let format = json!({ "spec": { "dataImportCronSourceFormat": "snapshot" } });
    profiles.patch(FAST, &PatchParams::default(), &Patch::Merge(format)).await.unwrap();
    wait(&profiles, FAST, "said", |profile: Option<&api::cdi::v1beta1::StorageProfile>| {
        let said = profile.and_then(|profile| profile.status.as_ref()?.data_import_cron_source_format.as_deref());
        said == Some("snapshot")
    })
    .await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let mut asked = cron(json!({}));
    asked.spec.template.spec.storage.as_mut().unwrap().storage_class_name = Some(FAST.to_owned());
    crons.create(&PostParams::default(), &asked).await.unwrap();
    cluster.answer("gold-cron", &digest("a")).await;
    let claim = wait(&cluster.claims, "gold-aaaaaaaaaaaa", "made", there()).await.unwrap();
    let prime = format!("prime-{}", claim.uid().unwrap());
    let said = json!({ "metadata": { "labels": { "test.kubevirt.io/of": "mine" } } });
    cluster.claims.patch("gold-aaaaaaaaaaaa", &PatchParams::default(), &Patch::Merge(said)).await.unwrap();
    let persistent = cluster.provision(&cluster.claims, &prime).await;
    cluster.finish(&cluster.pods, &format!("importer-{prime}"), "Import Complete").await;
    cluster.rebound(&persistent, "gold-aaaaaaaaaaaa").await;
    wait(&crons, "gold-cron", "being kept", |cron: Option<&DataImportCron>| {
        let all = cron.and_then(|cron| cron.status.as_ref()).map(|status| status.conditions.as_slice());
        all.is_some_and(|all| {
            all.iter().any(|one| one.message.as_deref() == Some("Snapshot of imported data is progressing"))
        })
    })
    .await;
    let ready = json!({ "status": { "readyToUse": true, "restoreSize": "16Mi" } });
    let snapshots = cluster.snapshots("default");
    snapshots.patch_status("gold-aaaaaaaaaaaa", &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    let sources: Api<DataSource> = Api::namespaced(cluster.client.clone(), "default");
    wait(&sources, "gold", "naming the snapshot", |source: Option<&DataSource>| {
        source.is_some_and(|source| {
            let named = source.spec.source.snapshot.as_ref().is_some_and(|one| one.name == "gold-aaaaaaaaaaaa");
            named && source.labels().get("test.kubevirt.io/of").map(String::as_str) == Some("mine")
        })
    })
    .await;
    wait(&cluster.volumes, "gold-aaaaaaaaaaaa", "gone", gone()).await;
    // What protects claims is not at work here.
    wait(&cluster.claims, "gold-aaaaaaaaaaaa", "deleted", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await;
    if cluster.claims.get_opt("gold-aaaaaaaaaaaa").await.unwrap().is_some() {
        let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        cluster.claims.patch("gold-aaaaaaaaaaaa", &PatchParams::default(), &release).await.unwrap();
    }
    // Kept as a claim again, it is imported anew.
    let format = json!({ "spec": { "dataImportCronSourceFormat": "pvc" } });
    profiles.patch(FAST, &PatchParams::default(), &Patch::Merge(format)).await.unwrap();
    wait(&cluster.claims, "gold-aaaaaaaaaaaa", "made again", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_none())
    })
    .await;
    assert!(snapshots.get_opt("gold-aaaaaaaaaaaa").await.unwrap().is_none());
}

pub(crate) fn message(cron: &DataImportCron, kind: &str) -> String {
    let all = &cron.status.as_ref().unwrap().conditions;
    all.iter().find(|one| one.type_ == kind).unwrap().message.clone().unwrap_or_default()
}

#[tokio::test]
async fn a_claim_of_another_namespace_is_for_whom_that_lets_have_it() {
    let cluster = start().await;
    let images: Api<PersistentVolumeClaim> = cluster.images();
    let gold = json!({ "metadata": { "name": "source" }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": PLAIN,
        "resources": { "requests": { "storage": "16Mi" } } } });
    let gold = images.create(&PostParams::default(), &serde_json::from_value(gold).unwrap()).await.unwrap();
    let rights = "rbac.authorization.k8s.io/v1";
    let role = json!({ "metadata": { "name": "cloner", "namespace": "images" },
        "rules": [{ "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "verbs": ["create"] }] });
    cluster.make(rights, "Role", role).await;
    let binding = json!({ "metadata": { "name": "cloner", "namespace": "images" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cloner" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": "default", "name": "allowed" }] });
    cluster.make(rights, "RoleBinding", binding).await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let mut asked = cron(json!({}));
    let from = json!({ "pvc": { "namespace": "images", "name": "source" } });
    asked.spec.template.spec.source = Some(serde_json::from_value(from).unwrap());
    crons.create(&PostParams::default(), &asked).await.unwrap();
    let refused = wait(&crons, "gold-cron", "refused", says("UpToDate", "NotAuthorized")).await.unwrap();
    let why = message(&refused, "UpToDate");
    assert!(why.contains("system:serviceaccount:default:default has insufficient permissions"), "{why}");
    // Whoever makes the cron can write what it is said to have found, and when.
    let mut forged = asked.clone();
    forged.metadata.name = Some("forged".into());
    forged.spec.managed_data_source = "stolen".into();
    let found =
        [(annotation::DESIRED_DIGEST, "uid:aaaaaaaaaaaa"), (annotation::LAST_CRON_TIME, "2999-01-01T00:00:00Z")];
    forged.metadata.annotations = Some(found.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    crons.create(&PostParams::default(), &forged).await.unwrap();
    wait(&crons, "forged", "refused", says("UpToDate", "NotAuthorized")).await;
    assert!(cluster.volumes.get_opt("stolen-aaaaaaaaaaaa").await.unwrap().is_none());
    asked.metadata.name = Some("allowed".into());
    asked.spec.managed_data_source = "other".into();
    asked.spec.service_account_name = Some("allowed".into());
    crons.create(&PostParams::default(), &asked).await.unwrap();
    let digest = format!("uid:{}", gold.uid().unwrap());
    wait(&crons, "allowed", "polled", move |cron: Option<&DataImportCron>| {
        cron.is_some_and(|cron| {
            cron.annotations().get("cdi.kubevirt.io/storage.import.sourceDesiredDigest") == Some(&digest)
        })
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_openshift_is_missed_in_words() {
    let cluster = start().await;
    let crons: Api<DataImportCron> = Api::namespaced(cluster.client.clone(), "default");
    let mut asked = cron(json!({}));
    let from = json!({ "registry": { "imageStream": "gold:latest", "pullMethod": "node" } });
    asked.spec.template.spec.source = Some(serde_json::from_value(from).unwrap());
    crons.create(&PostParams::default(), &asked).await.unwrap();
    let told = wait(&crons, "gold-cron", "told", says("UpToDate", "NoDigest")).await.unwrap();
    let why = message(&told, "UpToDate");
    assert!(why.starts_with("ImageStream default/gold does not exist; streams are OpenShift's"), "{why}");
}
