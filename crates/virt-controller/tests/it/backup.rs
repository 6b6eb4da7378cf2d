//! Machines whose changes are tracked, and backups up to where the launcher has to be asked.

use api::backup::v1alpha1::VirtualMachineBackup;
use api::export::v1::VirtualMachineExport;
use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, in_phase, start, wait};
use crate::storage::{claim, on};

/// A cluster in which machines with the label `tracked` are.
async fn tracking() -> Cluster {
    let cluster = start().await;
    let api: Api<KubeVirt> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let kubevirt = json!({ "metadata": { "name": "kubevirt" }, "spec": { "configuration": {
        "developerConfiguration": { "featureGates": ["IncrementalBackup"] },
        "changedBlockTrackingLabelSelectors": {
            "virtualMachineLabelSelector": { "matchLabels": { "tracked": "yes" } },
        },
    } } });
    api.create(&PostParams::default(), &serde_json::from_value(kubevirt).unwrap()).await.unwrap();
    claim(&cluster, "data", "pv", "Filesystem").await;
    claim(&cluster, "out", "pv-out", "Filesystem").await;
    cluster
}

fn vm(labels: Value) -> VirtualMachine {
    let mut vm = serde_json::to_value(on(json!({ "persistentVolumeClaim": { "claimName": "data" } }))).unwrap();
    vm["metadata"]["labels"] = labels;
    serde_json::from_value(vm).unwrap()
}

async fn runs(cluster: &Cluster) {
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    cluster.guest("Running").await;
    wait(&cluster.vmis, "vm", "running", in_phase("Running")).await;
}

async fn tell(cluster: &Cluster, status: Value) {
    let patch = json!({ "status": status });
    cluster.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn state(cluster: &Cluster, expect: &'static str) {
    wait(&cluster.vms, "vm", expect, move |vm: Option<&VirtualMachine>| {
        let known = vm.and_then(|vm| vm.status.as_ref()?.changed_block_tracking.as_ref());
        known.map_or("", |known| known.state.as_str()) == expect
    })
    .await;
}

fn progressing(word: &'static str) -> impl kube::runtime::wait::Condition<VirtualMachineBackup> {
    move |backup: Option<&VirtualMachineBackup>| {
        let conditions = backup.and_then(|backup| backup.status.as_ref()).map(|status| status.conditions.as_slice());
        conditions.unwrap_or_default().iter().any(|one| one.type_ == "Progressing" && one.message.contains(word))
    }
}

#[tokio::test]
async fn a_selected_machine_is_tracked_from_its_next_start() {
    let cluster = tracking().await;
    cluster.vms.create(&PostParams::default(), &vm(json!({}))).await.unwrap();
    runs(&cluster).await;
    let label = json!({ "metadata": { "labels": { "tracked": "yes" } } });
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    state(&cluster, "PendingRestart").await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert!(vmi.status.unwrap().changed_block_tracking.is_none());
}

#[tokio::test]
async fn a_backup_has_its_instance_to_itself_and_brings_its_claim() {
    let cluster = tracking().await;
    cluster.vms.create(&PostParams::default(), &vm(json!({ "tracked": "yes" }))).await.unwrap();
    state(&cluster, "Initializing").await;
    let backups: Api<VirtualMachineBackup> = Api::namespaced(cluster.client.clone(), "default");
    let backup = |name: &str| -> VirtualMachineBackup {
        let source = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" });
        let spec = json!({ "source": source, "pvcName": "out" });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    backups.create(&PostParams::default(), &backup("first")).await.unwrap();
    wait(&backups, "first", "waiting", progressing("vm vm is not running")).await;
    runs(&cluster).await;
    wait(&backups, "first", "waiting", progressing("has no ChangedBlockTracking")).await;
    tell(&cluster, json!({ "changedBlockTracking": { "state": "Enabled" } })).await;
    state(&cluster, "Enabled").await;

    let vmi = wait(&cluster.vmis, "vm", "locked", |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| !vmi.spec.utility_volumes.is_empty())
    });
    let vmi = vmi.await.unwrap();
    let lock = vmi.status.as_ref().unwrap().changed_block_tracking.clone().unwrap().backup_status.unwrap();
    assert_eq!(lock.backup_name.as_deref(), Some("first"));
    let volume = vmi.spec.utility_volumes[0].clone();
    assert_eq!((volume.claim_name.as_str(), volume.type_.as_deref()), ("out", Some("Backup")));
    backups.create(&PostParams::default(), &backup("second")).await.unwrap();
    wait(&backups, "second", "waiting", progressing("Another backup first is already in progress")).await;

    let attached = |vmi: Option<&VirtualMachineInstance>| {
        let entry = vmi.and_then(|vmi| vmi.status.as_ref()?.volume_status.iter().find(|one| one.name == volume.name));
        entry.is_some_and(|entry| entry.hotplug_volume.as_ref().is_some_and(|held| held.attach_pod_name.is_some()))
    };
    wait(&cluster.vmis, "vm", "attached", attached).await;
    let pods: Vec<Pod> =
        cluster.pods.list(&ListParams::default().labels("kubevirt.io=hotplug-disk")).await.unwrap().items;
    let claims = pods[0].spec.as_ref().unwrap().volumes.as_ref().unwrap();
    assert_eq!(claims[0].persistent_volume_claim.as_ref().unwrap().claim_name, "out");

    // One that never began lets go of everything when it is deleted.
    backups.delete("second", &DeleteParams::default()).await.unwrap();
    backups.delete("first", &DeleteParams::default()).await.unwrap();
    let free = |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.spec.utility_volumes.is_empty());
    wait(&cluster.vmis, "vm", "free", free).await;
    // virt-handler says when the guest has let go of it.
    let leaving = |vmi: Option<&VirtualMachineInstance>| {
        let entry = vmi.and_then(|vmi| vmi.status.as_ref()?.volume_status.iter().find(|one| one.name == volume.name));
        entry.is_some_and(|entry| entry.phase.as_deref() == Some("Detaching"))
    };
    let held = wait(&cluster.vmis, "vm", "leaving", leaving).await.unwrap().status.unwrap().volume_status;
    let mut held = serde_json::to_value(held).unwrap();
    let own = held.as_array_mut().unwrap().iter_mut().find(|entry| entry["name"] == volume.name.as_str());
    own.unwrap()["phase"] = json!("UnMountedFromPod");
    tell(&cluster, json!({ "volumeStatus": held })).await;
    let name = pods[0].name_any();
    wait(&cluster.pods, &name, "told to end", |pod: Option<&Pod>| {
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
}

#[tokio::test]
async fn a_backup_that_is_pulled_has_an_export_for_as_long_as_it_is_served() {
    let cluster = tracking().await;
    crate::exports::authority(&cluster).await;
    cluster.vms.create(&PostParams::default(), &vm(json!({ "tracked": "yes" }))).await.unwrap();
    runs(&cluster).await;
    tell(&cluster, json!({ "changedBlockTracking": { "state": "Enabled" } })).await;
    state(&cluster, "Enabled").await;
    let backups: Api<VirtualMachineBackup> = Api::namespaced(cluster.client.clone(), "default");
    let source = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" });
    let spec = json!({ "source": source, "pvcName": "out", "mode": "Pull", "tokenSecretRef": "t" });
    let made = json!({ "metadata": { "name": "b" }, "spec": spec });
    let made = backups.create(&PostParams::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
    let locked = |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| !vmi.spec.utility_volumes.is_empty());
    let vmi = wait(&cluster.vmis, "vm", "locked", locked).await.unwrap();

    // The launcher has begun: there is none here that could be asked.
    let begun = json!({ "status": { "type": "Full" } });
    backups.patch_status("b", &PatchParams::default(), &Patch::Merge(begun)).await.unwrap();
    let volume = vmi.spec.utility_volumes[0].name.clone();
    let mut held = serde_json::to_value(vmi.status.unwrap().volume_status).unwrap();
    let entries = held.as_array_mut().unwrap();
    entries.retain(|entry| entry["name"] != volume.as_str());
    entries.push(json!({ "name": volume, "target": "", "phase": "MountedToPod", "hotplugVolume": {} }));
    let told = json!({
        "backupName": "b", "startTimestamp": made.creation_timestamp(), "checkpointName": "b-1",
        "volumes": [{ "volumeName": "data" }],
    });
    let status = json!({ "changedBlockTracking": { "backupStatus": told }, "volumeStatus": held });
    tell(&cluster, status).await;
    wait(&backups, "b", "served", progressing("Backup export is being initialized")).await;

    let exports: Api<VirtualMachineExport> = Api::namespaced(cluster.client.clone(), "default");
    let export = wait(&exports, "b", "made", |export: Option<&VirtualMachineExport>| export.is_some()).await.unwrap();
    assert_eq!(export.metadata.owner_references.unwrap()[0].uid, made.uid().unwrap());
    assert_eq!(export.spec.token_secret_ref.as_deref(), Some("t"));
    let pod = wait(&cluster.pods, "virt-export-b", "made", |pod: Option<&Pod>| pod.is_some()).await.unwrap();
    let spec = serde_json::to_value(pod.spec).unwrap();
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0].is_string(), "{spec}");
    let ready = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    cluster.pods.patch_status("virt-export-b", &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    let shown = wait(&backups, "b", "ready to be pulled", progressing("ready to pull")).await.unwrap();
    let status = shown.status.unwrap();
    let base = "https://virt-export-b.default.svc/exports/data";
    assert_eq!(status.included_volumes[0].data_endpoint, Some(format!("{base}/data")));
    assert_eq!(status.included_volumes[0].map_endpoint, Some(format!("{base}/map")));
    assert!(status.endpoint_cert.is_some_and(|cert| cert.contains("BEGIN CERTIFICATE")));

    // Its time is over, which the launcher has heard of.
    let mut done = told;
    done["completed"] = json!(true);
    tell(&cluster, json!({ "changedBlockTracking": { "backupStatus": done } })).await;
    wait(&backups, "b", "complete", progressing("Successfully completed")).await;
    wait(&exports, "b", "gone", |export: Option<&VirtualMachineExport>| export.is_none()).await;
}
