//! Imports: by a populator, on the claim itself, empty disks, and what goes wrong.

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::controller::cluster::{Cluster, FAST, LATE, PLAIN, gone, in_phase, start, start_with, there, volume, wait};

fn http() -> Value {
    json!({ "http": { "url": "http://images/disk.qcow2", "checksum": format!("sha256:{}", "0".repeat(64)) } })
}

fn condition(volume: &DataVolume, kind: &str) -> (String, String) {
    let all = volume.status.as_ref().unwrap().conditions.iter();
    let found = all.clone().find(|one| one.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone().unwrap_or_default())
}

/// The prime of the claim `name`.
async fn prime(cluster: &Cluster, name: &str) -> String {
    let claim = wait(&cluster.claims, name, "made", there()).await.unwrap();
    format!("prime-{}", claim.uid().unwrap())
}

#[tokio::test]
async fn an_import_fills_a_prime_whose_volume_becomes_the_claims() {
    let cluster = start().await;
    cluster.create(&volume("disk", FAST, &http())).await;
    let prime = prime(&cluster, "disk").await;
    let volume = cluster.provision(&cluster.claims, &prime).await;
    let pod = format!("importer-{prime}");
    cluster.report(&cluster.pods, &pod, "Running", json!({ "running": {} })).await;
    let running = wait(&cluster.volumes, "disk", "a third of the way", |volume: Option<&DataVolume>| {
        volume.and_then(|volume| volume.status.as_ref()?.progress.as_deref()) == Some("33.33%")
    });
    let running = running.await.unwrap();
    assert_eq!(running.status.as_ref().unwrap().phase.as_deref(), Some("ImportInProgress"));
    assert_eq!(condition(&running, "Running").0, "True");
    assert_eq!(condition(&running, "Ready"), ("False".into(), "TransferRunning".into()));
    assert_eq!(condition(&running, "Bound"), ("False".into(), "Pending".into()));

    cluster.finish(&cluster.pods, &pod, "Import Complete").await;
    cluster.rebound(&volume, "disk").await;
    let done = wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await.unwrap();
    let status = done.status.as_ref().unwrap();
    assert_eq!((status.progress.as_deref(), status.claim_name.as_deref()), (Some("100.0%"), Some("disk")));
    assert_eq!((condition(&done, "Ready").0, condition(&done, "Bound").0), ("True".into(), "True".into()));
    wait(&cluster.claims, &prime, "deleted", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await;
    wait(&cluster.pods, &pod, "deleted", gone()).await;
    cluster.told("ImportSucceeded").await;
}

/// What another namespace imports, and the credentials that it does so with, are named by a claim in vain.
#[tokio::test]
async fn a_claim_is_filled_by_a_source_of_its_own_namespace_only() {
    let cluster = start().await;
    let version = "cdi.kubevirt.io/v1beta1";
    let source = json!({ "http": { "url": "http://images/disk.qcow2", "secretRef": "credentials" } });
    let import = json!({ "metadata": { "name": "victims", "namespace": "images" }, "spec": { "source": source } });
    cluster.make(version, "VolumeImportSource", import).await;
    let upload = json!({ "metadata": { "name": "victims", "namespace": "images" }, "spec": {} });
    cluster.make(version, "VolumeUploadSource", upload).await;
    let names = json!({ annotation::DATA_SOURCE_NAMESPACE: "images", annotation::IMMEDIATE_BINDING: "" });
    let make = async |name: &str, kind: &str, from: &str, namespace: Option<&str>| {
        let reference = json!({ "apiGroup": "cdi.kubevirt.io", "kind": kind, "name": from, "namespace": namespace });
        let claim = json!({ "metadata": { "name": name, "annotations": names }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": FAST, "resources": { "requests": { "storage": "32Mi" } }, "dataSourceRef": reference } });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        cluster.claims.create(&PostParams::default(), &claim).await.map(drop)
    };
    for (number, kind) in ["VolumeImportSource", "VolumeUploadSource"].into_iter().enumerate() {
        make(&format!("a-{number}"), kind, "victims", None).await.unwrap();
        // An API server may keep the namespace, take it out, or refuse the claim.
        let _ = make(&format!("b-{number}"), kind, "victims", Some("images")).await;
        let _ = make(&format!("c-{number}"), kind, "images/victims", None).await;
    }
    // One that is made last, of what is its own, is filled: the others were looked at before it.
    let own = json!({ "metadata": { "name": "own", "namespace": "default" }, "spec": { "source": { "blank": {} } } });
    cluster.make(version, "VolumeImportSource", own).await;
    make("z", "VolumeImportSource", "own", None).await.unwrap();
    let filled = prime(&cluster, "z").await;
    wait(&cluster.claims, &filled, "made", there()).await;
    let all = cluster.claims.list(&ListParams::default()).await.unwrap().items;
    let primes: Vec<String> = all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("prime-")).collect();
    assert_eq!(primes, [filled]);
    let pods = cluster.pods.list(&ListParams::default()).await.unwrap().items;
    assert!(pods.iter().all(|pod| !serde_json::to_string(pod).unwrap().contains("credentials")));
}

/// Whatever happens, happens while no controller runs.
#[tokio::test]
async fn an_import_goes_on_wherever_its_controller_died() {
    let mut cluster = start().await;
    cluster.kill();
    cluster.create(&volume("disk", FAST, &http())).await;
    cluster.restart();
    let prime = prime(&cluster, "disk").await;
    wait(&cluster.claims, &prime, "made", there()).await;
    cluster.kill();
    let volume = cluster.provision(&cluster.claims, &prime).await;
    cluster.restart();
    let pod = format!("importer-{prime}");
    wait(&cluster.pods, &pod, "made", there()).await;
    cluster.kill();
    cluster.report(&cluster.pods, &pod, "Running", json!({ "running": {} })).await;
    cluster.restart();
    wait(&cluster.volumes, "disk", "running", in_phase("ImportInProgress")).await;
    // The pod is lost with its node, and there is another.
    cluster.kill();
    cluster.pods.delete(&pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.restart();
    wait(&cluster.pods, &pod, "made again", there()).await;
    cluster.kill();
    cluster.finish(&cluster.pods, &pod, "Import Complete").await;
    cluster.restart();
    wait_for_volume(&cluster, &volume, "disk").await;
    cluster.kill();
    cluster.rebound(&volume, "disk").await;
    cluster.restart();
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
    wait(&cluster.claims, &prime, "deleted", |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await;
    wait(&cluster.pods, &pod, "deleted", gone()).await;
}

/// Waits until a volume is given to the claim.
async fn wait_for_volume(cluster: &Cluster, volume: &str, claim: &'static str) {
    wait(&cluster.persistent, volume, "given away", move |volume: Option<&PersistentVolume>| {
        volume.and_then(|volume| volume.spec.as_ref()?.claim_ref.as_ref()?.name.as_deref()) == Some(claim)
    })
    .await;
}

#[tokio::test]
async fn storage_without_a_driver_is_imported_to_directly() {
    let cluster = start().await;
    cluster.create(&volume("disk", PLAIN, &http())).await;
    cluster.provision(&cluster.claims, "disk").await;
    let claim = cluster.claims.get("disk").await.unwrap();
    assert_eq!(claim.annotations()[annotation::ENDPOINT], "http://images/disk.qcow2");
    assert_eq!(claim.spec.unwrap().data_source_ref, None);
    cluster.report(&cluster.pods, "importer-disk", "Running", json!({ "running": {} })).await;
    wait(&cluster.volumes, "disk", "running", in_phase("ImportInProgress")).await;
    cluster.finish(&cluster.pods, "importer-disk", "Import Complete").await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
    wait(&cluster.pods, "importer-disk", "deleted", gone()).await;
}

#[tokio::test]
async fn a_class_that_waits_for_a_consumer_is_waited_with() {
    let cluster = start().await;
    cluster.create(&volume("disk", LATE, &json!({ "blank": {} }))).await;
    wait(&cluster.volumes, "disk", "waiting", in_phase("PendingPopulation")).await;
    let prime = prime(&cluster, "disk").await;
    assert!(cluster.claims.get_opt(&prime).await.unwrap().is_none());
    let node = json!({ "metadata": { "annotations": { annotation::SELECTED_NODE: "node1" } } });
    cluster.claims.patch("disk", &PatchParams::default(), &Patch::Merge(node)).await.unwrap();
    let made = wait(&cluster.claims, &prime, "made", there()).await.unwrap();
    assert_eq!(made.annotations()[annotation::SELECTED_NODE], "node1");
    // Its pod is what it waits for.
    let pod = wait(&cluster.pods, &format!("importer-{prime}"), "made", there()).await.unwrap();
    assert_eq!(pod.spec.unwrap().containers[0].command.as_deref(), Some(&["cdi-importer".to_owned()][..]));
}

#[tokio::test]
async fn wait_for_first_consumer_waits_only_with_the_feature_gate() {
    let cluster = start_with(json!({})).await;
    cluster.create(&volume("disk", LATE, &json!({ "blank": {} }))).await;
    let prime = prime(&cluster, "disk").await;
    wait(&cluster.pods, &format!("importer-{prime}"), "made", there()).await;
}

#[tokio::test]
async fn a_wrong_checksum_is_final_and_a_failure_is_told() {
    let cluster = start().await;
    cluster.create(&volume("disk", FAST, &http())).await;
    let prime = prime(&cluster, "disk").await;
    cluster.provision(&cluster.claims, &prime).await;
    let pod = format!("importer-{prime}");
    let failed = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    cluster.report(&cluster.pods, &pod, "Running", failed).await;
    wait(&cluster.volumes, "disk", "told", |volume: Option<&DataVolume>| {
        volume.is_some_and(|volume| {
            let all = volume.status.iter().flat_map(|status| &status.conditions);
            all.clone().any(|one| one.type_ == "Running" && one.reason.as_deref() == Some("CrashLoopBackOff"))
        })
    })
    .await;
    cluster.finish(&cluster.pods, &pod, "sha256 checksum mismatch: 11 is not 00").await;
    let failed = wait(&cluster.volumes, "disk", "failed", in_phase("Failed")).await.unwrap();
    assert_eq!(condition(&failed, "Running"), ("False".into(), "ChecksumError".into()));
    wait(&cluster.pods, &pod, "deleted", gone()).await;
    assert_eq!(cluster.told("ChecksumError").await, "sha256 checksum mismatch: 11 is not 00");
}

#[tokio::test]
async fn an_impossible_claim_is_reported_and_retried() {
    let cluster = start().await;
    let mut asked = volume("disk", "gone", &http());
    cluster.create(&asked).await;
    let refused = wait(&cluster.volumes, "disk", "refused", |volume: Option<&DataVolume>| {
        volume.is_some_and(|volume| {
            let all = volume.status.iter().flat_map(|status| &status.conditions);
            all.clone().any(|one| one.reason.as_deref() == Some("ErrClaimNotValid"))
        })
    });
    assert_eq!(refused.await.unwrap().status.unwrap().phase.as_deref(), Some("Pending"));
    // The class comes.
    let class = json!({ "metadata": { "name": "gone" }, "provisioner": "kubevirt.io/hostpath-provisioner" });
    cluster.make("storage.k8s.io/v1", "StorageClass", class).await;
    wait(&cluster.claims, "disk", "made", there()).await;

    let other = json!({ "metadata": { "name": "taken" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } } });
    cluster.claims.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
    asked = volume("taken", FAST, &http());
    cluster.create(&asked).await;
    assert_eq!(
        cluster.told("ErrResourceExists").await,
        "Resource \"taken\" already exists and is not managed by DataVolume"
    );
}

#[tokio::test]
async fn an_import_needs_no_more_quota_than_its_claim() {
    let cluster = start().await;
    let hard = json!({ "requests.storage": "80Mi", "persistentvolumeclaims": "1" });
    cluster
        .make(
            "v1",
            "ResourceQuota",
            json!({ "metadata": { "name": "q", "namespace": "default" }, "spec": { "hard": hard } }),
        )
        .await;
    let quotas: kube::Api<k8s_openapi::api::core::v1::ResourceQuota> =
        kube::Api::namespaced(cluster.client.clone(), "default");
    let none = json!({ "requests.storage": "0", "persistentvolumeclaims": "0" });
    cluster.status(&quotas, "q", json!({ "hard": hard, "used": none })).await;
    cluster.create(&volume("disk", FAST, &http())).await;
    cluster.provision(&cluster.claims, "disk").await;
    cluster.finish(&cluster.pods, "importer-disk", "Import Complete").await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
}

#[tokio::test]
async fn a_quota_is_told_and_tried_again() {
    let cluster = start().await;
    let quota = json!({ "metadata": { "name": "q", "namespace": "default" }, "spec": { "hard": { "requests.storage": "1Mi" } } });
    cluster.make("v1", "ResourceQuota", quota).await;
    let quotas: kube::Api<k8s_openapi::api::core::v1::ResourceQuota> =
        kube::Api::namespaced(cluster.client.clone(), "default");
    cluster
        .status(&quotas, "q", json!({ "hard": { "requests.storage": "1Mi" }, "used": { "requests.storage": "0" } }))
        .await;
    cluster.create(&volume("disk", FAST, &http())).await;
    assert!(cluster.told("ErrExceededQuota").await.contains("exceeded quota: q"));
    quotas.delete("q", &DeleteParams::default()).await.unwrap();
    wait(&cluster.claims, "disk", "made", there()).await;
}

#[tokio::test]
async fn a_checksum_of_the_wrong_form_is_never_tried() {
    let cluster = start().await;
    cluster
        .create(&volume("disk", FAST, &json!({ "http": { "url": "http://images/disk", "checksum": "sha256:00" } })))
        .await;
    let prime = prime(&cluster, "disk").await;
    cluster.provision(&cluster.claims, &prime).await;
    let failed = wait(&cluster.volumes, "disk", "failed", in_phase("Failed")).await.unwrap();
    assert_eq!(condition(&failed, "Running"), ("False".into(), "ChecksumError".into()));
    assert!(cluster.told("ChecksumError").await.contains("has 64 hexadecimal digits"));
    assert!(cluster.pods.get_opt(&format!("importer-{prime}")).await.unwrap().is_none());
}

#[tokio::test]
async fn events_of_the_prime_claim_are_repeated_on_the_data_volume() {
    let cluster = start().await;
    cluster.create(&volume("disk", FAST, &http())).await;
    let prime = prime(&cluster, "disk").await;
    let made = wait(&cluster.claims, &prime, "made", there()).await.unwrap();
    let about = json!({ "kind": "PersistentVolumeClaim", "namespace": "default", "name": prime, "uid": made.uid() });
    let event = json!({
        "metadata": { "name": "told", "namespace": "default" }, "involvedObject": about, "type": "Warning",
        "reason": "ProvisioningFailed", "message": "there is no room", "source": { "component": "provisioner" },
    });
    cluster.make("v1", "Event", event).await;
    let because = |reason: &'static str| {
        move |volume: Option<&DataVolume>| {
            volume.is_some_and(|volume| volume.status.is_some() && condition(volume, "Bound").1 == reason)
        }
    };
    let told = wait(&cluster.volumes, "disk", "told", because("ProvisioningFailed")).await.unwrap();
    let said = told.status.unwrap().conditions.into_iter().find(|one| one.type_ == "Bound").unwrap().message.unwrap();
    assert_eq!(said, "target PVC disk Pending and there is no room");
    cluster.told_of("DataVolume", &format!("[{prime}] : there is no room")).await;
    cluster.provision(&cluster.claims, &prime).await;
    wait(&cluster.volumes, "disk", "without that reason", because("Pending")).await;
}

#[tokio::test]
async fn a_volume_that_is_kept_for_a_data_volume_is_not_filled_again() {
    let cluster = start().await;
    let kept = json!({ "metadata": { "name": "kept" }, "spec": {
        "capacity": { "storage": "80Mi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": FAST, "hostPath": { "path": "/x" },
        "claimRef": { "kind": "PersistentVolumeClaim", "namespace": "default", "name": "disk" },
    } });
    cluster.persistent.create(&PostParams::default(), &serde_json::from_value(kept).unwrap()).await.unwrap();
    let mut asked = volume("disk", FAST, &http());
    asked.annotations_mut().insert(annotation::CHECK_STATIC_VOLUME.to_owned(), String::new());
    cluster.create(&asked).await;
    let claim = wait(&cluster.claims, "disk", "made", there()).await.unwrap();
    assert_eq!(claim.annotations()[annotation::PERSISTENT_VOLUME_LIST], "[\"kept\"]");
    assert_eq!(claim.spec.unwrap().data_source_ref, None);
    cluster.bind(&cluster.claims, "disk", "kept").await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
    assert!(cluster.pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_claim_of_the_name_is_adopted_when_that_is_wanted() {
    let cluster = start_with(json!({ "featureGates": ["DataVolumeClaimAdoption"] })).await;
    let claim = json!({ "metadata": { "name": "disk" }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": FAST,
        "resources": { "requests": { "storage": "1Mi" } } } });
    cluster.claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    cluster.provision(&cluster.claims, "disk").await;
    let made = cluster.create(&volume("disk", FAST, &http())).await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
    let claim = cluster.claims.get("disk").await.unwrap();
    assert_eq!(Some(&claim.owner_references()[0].uid), made.uid().as_ref());
}

#[tokio::test]
async fn vddk_waits_for_its_library() {
    let cluster = start().await;
    let vddk = json!({ "vddk": { "url": "https://v", "uuid": "u", "backingFile": "[d] a.vmdk", "thumbprint": "t", "secretRef": "s" } });
    cluster.create(&volume("disk", FAST, &vddk)).await;
    let prime = prime(&cluster, "disk").await;
    cluster.provision(&cluster.claims, &prime).await;
    let waiting = wait(&cluster.volumes, "disk", "waiting", |volume: Option<&DataVolume>| {
        volume.is_some_and(|volume| {
            let all = volume.status.iter().flat_map(|status| &status.conditions);
            all.clone().any(|one| one.reason.as_deref() == Some("AwaitingVDDK"))
        })
    });
    assert_eq!(condition(&waiting.await.unwrap(), "Bound").0, "False");
    let map =
        json!({ "metadata": { "name": "v2v-vmware", "namespace": "cdi" }, "data": { "vddk-init-image": "vddk:8" } });
    cluster.make("v1", "ConfigMap", map).await;
    let pod = wait(&cluster.pods, &format!("importer-{prime}"), "made", there()).await.unwrap();
    assert_eq!(pod.spec.unwrap().init_containers.unwrap()[0].image.as_deref(), Some("vddk:8"));
}

#[tokio::test]
async fn an_import_in_stages_pauses_until_there_is_another() {
    let cluster = start().await;
    let mut asked =
        volume("disk", FAST, &json!({ "imageio": { "url": "https://ovirt", "diskId": "d", "secretRef": "s" } }));
    asked.spec.checkpoints = serde_json::from_value(json!([{ "previous": "", "current": "one" }])).unwrap();
    asked.spec.final_checkpoint = Some(false);
    cluster.create(&asked).await;
    let prime = prime(&cluster, "disk").await;
    let persistent = cluster.provision(&cluster.claims, &prime).await;
    cluster.finish(&cluster.pods, &format!("importer-{prime}-checkpoint-one"), "Import Complete").await;
    wait(&cluster.volumes, "disk", "paused", in_phase("Paused")).await;
    let more = json!({ "spec": { "finalCheckpoint": true, "checkpoints": [
        { "previous": "", "current": "one" }, { "previous": "one", "current": "two" },
    ] } });
    cluster.volumes.patch("disk", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    let second = format!("importer-{prime}-checkpoint-two");
    let pod = wait(&cluster.pods, &second, "made", there()).await.unwrap();
    let variables = pod.spec.unwrap().containers[0].env.clone().unwrap();
    let is_final = variables.iter().find(|one| one.name == "IMPORTER_FINAL_CHECKPOINT").unwrap();
    assert_eq!(is_final.value.as_deref(), Some("true"));
    cluster.finish(&cluster.pods, &second, "Import Complete").await;
    cluster.rebound(&persistent, "disk").await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
}

/// No worker writes over the head of somebody who has the claim.
#[tokio::test]
async fn an_import_waits_for_whoever_has_its_claim() {
    let cluster = start().await;
    let user = json!({ "metadata": { "name": "user" }, "spec": { "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "disk" } }] } });
    cluster.pods.create(&PostParams::default(), &serde_json::from_value(user).unwrap()).await.unwrap();
    let claim = json!({ "metadata": { "name": "disk", "annotations": { annotation::ENDPOINT: "http://images/disk" } }, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": PLAIN, "resources": { "requests": { "storage": "16Mi" } } } });
    cluster.claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    cluster.provision(&cluster.claims, "disk").await;
    assert_eq!(cluster.told("ImportTargetInUse").await, "pod default/user using PersistentVolumeClaim disk");
    cluster.status(&cluster.pods, "user", json!({ "phase": "Succeeded" })).await;
    cluster.finish(&cluster.pods, "importer-disk", "Import Complete").await;
    assert_eq!(cluster.told("ImportSucceeded").await, "Import Successful");
}
