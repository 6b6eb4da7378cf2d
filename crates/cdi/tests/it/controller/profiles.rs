//! StorageProfiles, the CDIConfig and DataSources.

use api::cdi::v1beta1::{CDI, CDIConfig, DataSource, StorageProfile};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::controller::cluster::{FAST, PLAIN, gone, in_phase, start, volume, wait};

#[tokio::test]
async fn every_class_has_a_profile_as_long_as_it_is_there() {
    let cluster = start().await;
    let profiles: Api<StorageProfile> = Api::all(cluster.client.clone());
    let status = profiles.get(FAST).await.unwrap().status.unwrap();
    assert_eq!(status.provisioner.as_deref(), Some("kubevirt.io.hostpath-provisioner"));
    assert_eq!(status.clone_strategy.as_deref(), Some("copy"));
    let class = json!({ "metadata": { "name": "snap" }, "driver": "kubevirt.io.hostpath-provisioner", "deletionPolicy": "Delete" });
    cluster.make("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", class).await;
    wait(&profiles, FAST, "cloning by snapshots", |profile: Option<&StorageProfile>| {
        profile.and_then(|profile| profile.status.as_ref()?.snapshot_class.as_deref()) == Some("snap")
    })
    .await;
    let own = json!({ "spec": { "claimPropertySets": [{ "accessModes": ["ReadWriteMany"], "volumeMode": "Block" }] } });
    profiles.patch(FAST, &PatchParams::default(), &Patch::Merge(own)).await.unwrap();
    wait(&profiles, FAST, "as said", |profile: Option<&StorageProfile>| {
        profile.is_some_and(|profile| {
            profile.status.as_ref().is_some_and(|status| status.claim_property_sets[0].volume_mode == "Block")
        })
    })
    .await;
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    classes.delete(FAST, &DeleteParams::default()).await.unwrap();
    wait(&profiles, FAST, "gone with its class", gone()).await;
}

#[tokio::test]
async fn the_configuration_says_what_it_comes_to() {
    let cluster = start().await;
    let configs: Api<CDIConfig> = Api::all(cluster.client.clone());
    let found = wait(&configs, "config", "told", |config: Option<&CDIConfig>| {
        config.is_some_and(|config| {
            let overhead = config.status.as_ref().and_then(|status| status.filesystem_overhead.as_ref());
            overhead.is_some_and(|overhead| overhead.storage_class.len() == 3)
        })
    });
    assert_eq!(found.await.unwrap().status.unwrap().filesystem_overhead.unwrap().storage_class[FAST], "0.06");
}

#[tokio::test]
async fn a_data_source_says_whether_there_is_an_image() {
    let cluster = start().await;
    let sources: Api<DataSource> = Api::namespaced(cluster.client.clone(), "default");
    let source = json!({ "metadata": { "name": "gold" }, "spec": { "source": { "pvc": { "name": "disk", "namespace": "default" } } } });
    sources.create(&PostParams::default(), &serde_json::from_value(source).unwrap()).await.unwrap();
    let says = |reason: &'static str| {
        move |source: Option<&DataSource>| {
            let all = source.and_then(|source| source.status.as_ref()).map(|status| status.conditions.as_slice());
            all.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.reason.as_deref() == Some(reason)))
        }
    };
    wait(&sources, "gold", "without image", says("NotFound")).await;
    cluster.create(&volume("disk", "plain", &json!({ "blank": {} }))).await;
    cluster.provision(&cluster.claims, "disk").await;
    wait(&sources, "gold", "on its way", says("ImportScheduled")).await;
    cluster.finish(&cluster.pods, "importer-disk", "Import Complete").await;
    wait(&cluster.volumes, "disk", "done", in_phase("Succeeded")).await;
    wait(&sources, "gold", "ready", says("Ready")).await;
}

#[tokio::test]
async fn the_configuration_is_what_the_cdi_object_says() {
    let cluster = start().await;
    let configs: Api<CDIConfig> = Api::all(cluster.client.clone());
    let cdis: Api<CDI> = Api::all(cluster.client.clone());
    let made = configs.get("config").await.unwrap();
    assert_eq!(made.spec.feature_gates, ["HonorWaitForFirstConsumer"]);
    assert_eq!(made.owner_references()[0].kind, "CDI");
    let overhead = json!({ "filesystemOverhead": { "storageClass": { FAST: "0.2", PLAIN: "0.3" } } });
    let change = |spec: serde_json::Value| Patch::Merge(json!({ "spec": { "config": spec } }));
    cdis.patch("cdi", &PatchParams::default(), &change(overhead)).await.unwrap();
    let share = |class: &'static str, share: &'static str| {
        move |config: Option<&CDIConfig>| {
            let shares = config.and_then(|config| config.status.as_ref()?.filesystem_overhead.as_ref());
            shares.and_then(|shares| shares.storage_class.get(class)).is_some_and(|found| found == share)
        }
    };
    wait(&configs, "config", "with shares", share(PLAIN, "0.3")).await;
    let less = json!({ "filesystemOverhead": { "storageClass": { PLAIN: null } } });
    cdis.patch("cdi", &PatchParams::default(), &change(less)).await.unwrap();
    wait(&configs, "config", "without the one share", share(PLAIN, "0.06")).await;
    wait(&configs, "config", "with the other", share(FAST, "0.2")).await;
    // Nobody else decides.
    let other = Patch::Merge(json!({ "spec": { "preallocation": true } }));
    configs.patch("config", &PatchParams::default(), &other).await.unwrap();
    wait(&configs, "config", "as it was", |config: Option<&CDIConfig>| {
        config.is_some_and(|config| config.spec.preallocation.is_none())
    })
    .await;
}
