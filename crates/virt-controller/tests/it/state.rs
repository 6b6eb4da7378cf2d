//! What guests keep beside their disks: a claim that outlives instances and goes where its guest goes.

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::{Cluster, in_phase, machine, start, wait};
use crate::migration::{arrives, migrate, reaches, say, target_pod, under_way};

const OF_VM: &str = "persistent-state-for=vm";

async fn claims(cluster: &Cluster) -> Vec<PersistentVolumeClaim> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    api.list(&ListParams::default()).await.unwrap().items
}

/// A machine that keeps the variables of its EFI, on a cluster whose administrator has named no class of storage.
async fn keeper() -> Cluster {
    let cluster = Box::pin(start()).await;
    let mut vm = serde_json::to_value(machine("Always")).unwrap();
    vm["spec"]["template"]["spec"]["domain"]["firmware"] =
        json!({ "bootloader": { "efi": { "secureBoot": false, "persistent": true } } });
    cluster.vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    cluster
}

async fn class(cluster: &Cluster) {
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let marked = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    let class = json!({ "metadata": { "name": "usual", "annotations": marked }, "provisioner": "p" });
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
}

/// The claim that the pod of this name has for it.
async fn mounted(cluster: &Cluster, pod: &str) -> String {
    let pod = serde_json::to_value(cluster.pods.get(pod).await.unwrap()).unwrap();
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    let place = json!({ "name": "vm-state", "mountPath": "/var/run/kubevirt-private/vm-state-efi" });
    assert!(mounts.contains(&place), "{mounts:?}");
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "vm-state").unwrap();
    volume["persistentVolumeClaim"]["claimName"].as_str().unwrap().to_owned()
}

async fn running(cluster: &Cluster) -> VirtualMachineInstance {
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    cluster.guest("Running").await;
    cluster.vmis.get("vm").await.unwrap()
}

#[tokio::test]
async fn state_is_kept_on_a_claim_from_one_instance_to_the_next() {
    let cluster = keeper().await;
    let waits = |vmi: Option<&VirtualMachineInstance>| {
        let conditions = vmi.and_then(|vmi| vmi.status.as_ref()).map(|status| status.conditions.as_slice());
        let said = |kind: &str| conditions.unwrap_or_default().iter().any(|c| c.reason.as_deref() == Some(kind));
        said("FailedBackendStorageCreate")
    };
    wait(&cluster.vmis, "vm", "without storage", waits).await;
    class(&cluster).await;
    let first = running(&cluster).await;
    let found = claims(&cluster).await;
    assert_eq!(found.len(), 1);
    let (claim, vm) = (&found[0], cluster.vms.get("vm").await.unwrap());
    assert_eq!(claim.labels()["persistent-state-for"], "vm");
    assert_eq!(claim.owner_references()[0].uid, vm.uid().unwrap());
    let spec = claim.spec.clone().unwrap();
    assert_eq!(
        (spec.storage_class_name.as_deref(), spec.access_modes.unwrap()),
        (Some("usual"), vec!["ReadWriteOnce".to_owned()])
    );
    assert_eq!(mounted(&cluster, &virt_controller::vmi::pod::name(&first)).await, claim.name_any());
    let told = first.status.unwrap().volume_status;
    assert!(told.iter().any(|status| status.name == claim.name_any()), "{told:?}");

    cluster.vmis.delete("vm", &kube::api::DeleteParams::default()).await.unwrap();
    let pod = virt_controller::vmi::pod::name(&cluster.vmis.get("vm").await.unwrap());
    cluster.end(&pod).await;
    let uid = first.metadata.uid.clone();
    wait(&cluster.vmis, "vm", "another", move |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| vmi.metadata.uid != uid)
    })
    .await;
    let second = running(&cluster).await;
    assert_eq!(mounted(&cluster, &virt_controller::vmi::pod::name(&second)).await, claim.name_any());
    assert_eq!(claims(&cluster).await.len(), 1);
}

#[tokio::test]
async fn state_moves_with_its_guest() {
    let cluster = keeper().await;
    class(&cluster).await;
    running(&cluster).await;
    let before = claims(&cluster).await.remove(0).name_any();
    let migration = migrate(&cluster, "move", "vm").await;
    let target = target_pod(&cluster, &migration, "vm").await;
    let there = mounted(&cluster, &target.name_any()).await;
    assert_ne!(there, before);
    under_way(&cluster, &migration, "vm", "node2").await;
    let state = cluster.vmis.get("vm").await.unwrap().status.unwrap().migration_state.unwrap();
    let told = (state.source_persistent_state_pvc_name, state.target_persistent_state_pvc_name);
    assert_eq!(told, (Some(before.clone()), Some(there.clone())));
    arrives(&cluster, "vm", "node2").await;
    reaches(&cluster, "move", "Succeeded").await;

    // The one that it left goes, the other is the machine's.
    let api: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    let leaving =
        |claim: Option<&PersistentVolumeClaim>| claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some());
    wait(&api, &before, "deleted", leaving).await;
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    api.patch(&before, &PatchParams::default(), &free).await.unwrap();
    let settled = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| claim.labels().len() == 1 && claim.labels().contains_key("persistent-state-for"))
    };
    wait(&api, &there, "the machine's", settled).await;
    let found = api.list(&ListParams::default().labels(OF_VM)).await.unwrap().items;
    assert_eq!(found.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), [there]);
    say(&cluster, "vm", json!({ "metadata": { "annotations": { "look": "again" } } })).await;

    // A migration that comes to nothing leaves nothing.
    let failing = migrate(&cluster, "fail", "vm").await;
    let target = target_pod(&cluster, &failing, "vm").await;
    let tried = mounted(&cluster, &target.name_any()).await;
    cluster.migrations.delete("fail", &kube::api::DeleteParams::default()).await.unwrap();
    wait(&api, &tried, "deleted", leaving).await;
}
