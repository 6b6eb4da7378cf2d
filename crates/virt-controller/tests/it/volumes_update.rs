//! Disks that are given other claims while their machine runs. Nodes are played.

use api::kubevirt::v1::{
    VirtualMachine, VirtualMachineCondition, VirtualMachineInstance, VirtualMachineInstanceMigration,
};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, in_phase, printed, start, wait};
use crate::eviction::{deployed, kubevirt};
use crate::migration::{arrives, reaches, source_pod, target_pod, under_way};
use crate::storage::{claim, on};

/// A machine that runs on the claim `old`, with `new` beside it, and whose changed volumes are copied.
async fn running() -> Cluster {
    let cluster = Box::pin(start()).await;
    let kubevirts = Box::pin(kubevirt(&cluster, json!([]))).await;
    deployed(&kubevirts).await;
    claim(&cluster, "old", "pv-1", "Filesystem").await;
    claim(&cluster, "new", "pv-2", "Block").await;
    let mut vm = on(json!({ "persistentVolumeClaim": { "claimName": "old" } }));
    vm.spec.update_volumes_strategy = Some("Migration".to_owned());
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    cluster.guest("Running").await;
    wait(&cluster.vmis, "vm", "running", in_phase("Running")).await;
    cluster
}

/// The template names this claim.
async fn names(cluster: &Cluster, claim: &str) {
    let volumes = json!([{ "name": "root", "persistentVolumeClaim": { "claimName": claim } }]);
    change(cluster, json!({ "spec": { "template": { "spec": { "volumes": volumes } } } })).await;
}

async fn change(cluster: &Cluster, patch: Value) {
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn claim_of(vmi: &VirtualMachineInstance) -> &str {
    vmi.spec.volumes[0].persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str()).unwrap_or_default()
}

/// The machine says this, with a reason or a message that has the words in it.
async fn tells(cluster: &Cluster, kind: &'static str, value: &'static str, words: &'static str) -> VirtualMachine {
    let says = move |c: &VirtualMachineCondition| {
        let text = [c.reason.as_deref(), c.message.as_deref()].map(Option::unwrap_or_default).join(": ");
        c.type_ == kind && c.status == value && text.contains(words)
    };
    let told = move |vm: Option<&VirtualMachine>| {
        vm.is_some_and(|vm| vm.status.iter().flat_map(|status| &status.conditions).any(says))
    };
    wait(&cluster.vms, "vm", words, told).await.unwrap()
}

/// The migration that was made to copy.
async fn copying(cluster: &Cluster) -> VirtualMachineInstanceMigration {
    let asked = |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| vmi.status.as_ref().is_some_and(|status| !status.migrated_volumes.is_empty()))
    };
    wait(&cluster.vmis, "vm", "asked", asked).await;
    let label = ListParams::default().labels("kubevirt.io/volume-update-migration=vm");
    loop {
        let found = cluster.migrations.list(&label).await.unwrap().items;
        if let Some(one) = found.into_iter().find(|one| one.metadata.deletion_timestamp.is_none()) {
            return one;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_changed_claim_gets_the_disk_by_a_migration() {
    let cluster = Box::pin(running()).await;
    names(&cluster, "new").await;
    let vm = tells(&cluster, "VolumesChange", "True", "migrate volumes").await;
    let state = vm.status.unwrap().volume_update_state.unwrap().volume_migration_state.unwrap();
    assert_eq!(state.migrated_volumes[0].volume_name, "root");
    let migration = Box::pin(copying(&cluster)).await;
    let target = target_pod(&cluster, &migration, "vm").await;
    let devices = &target.spec.as_ref().unwrap().containers[0].volume_devices;
    assert_eq!(json!(devices), json!([{ "name": "root", "devicePath": "/dev/root" }]), "a device in place of an image");
    let source = source_pod(&cluster, "vm").await;
    Box::pin(under_way(&cluster, &migration, "vm", "node2")).await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert_eq!(claim_of(&vmi), "old", "the disk is where it was until the guest has moved");
    let moved = json!(vmi.status.as_ref().unwrap().migrated_volumes[0]);
    assert_eq!(
        (&moved["sourcePVCInfo"]["claimName"], &moved["destinationPVCInfo"]["claimName"]),
        (&json!("old"), &json!("new"))
    );
    assert_eq!(moved["destinationPVCInfo"]["volumeMode"], "Block");
    arrives(&cluster, "vm", "node2").await;
    let there = |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| {
            claim_of(vmi) == "new" && vmi.status.as_ref().is_some_and(|s| s.migrated_volumes.is_empty())
        })
    };
    wait(&cluster.vmis, "vm", "on the new claim", there).await;
    reaches(&cluster, &migration.name_any(), "Succeeded").await;
    cluster.end(&source.name_any()).await;
    let settled = |vm: Option<&VirtualMachine>| {
        let held =
            |kind: &str| vm.iter().flat_map(|vm| &vm.status).flat_map(|s| &s.conditions).any(|c| c.type_ == kind);
        vm.is_some() && !held("VolumesChange") && !held("RestartRequired")
    };
    wait(&cluster.vms, "vm", "settled", settled).await;
}

#[tokio::test]
async fn a_copying_volume_update_can_be_reverted() {
    let cluster = Box::pin(running()).await;
    names(&cluster, "new").await;
    let migration = Box::pin(copying(&cluster)).await;
    target_pod(&cluster, &migration, "vm").await;
    claim(&cluster, "third", "pv-3", "Filesystem").await;
    names(&cluster, "third").await;
    tells(&cluster, "Failure", "True", "VolumesUpdateError: The volume can only be reverted").await;
    names(&cluster, "old").await;
    let gone = |found: Option<&VirtualMachineInstanceMigration>| {
        found.is_none_or(|found| found.metadata.deletion_timestamp.is_some())
    };
    wait(&cluster.migrations, &migration.name_any(), "deleted", gone).await;
    tells(&cluster, "VolumesChange", "False", "VolumesChangeCancellation").await;
    let forgotten = |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| {
            claim_of(vmi) == "old" && vmi.status.as_ref().is_some_and(|s| s.migrated_volumes.is_empty())
        })
    };
    wait(&cluster.vmis, "vm", "forgotten", forgotten).await;
}

#[tokio::test]
async fn no_machine_starts_on_half_a_copy() {
    let cluster = Box::pin(running()).await;
    names(&cluster, "new").await;
    let migration = Box::pin(copying(&cluster)).await;
    let source = source_pod(&cluster, "vm").await;
    let target = Box::pin(under_way(&cluster, &migration, "vm", "node2")).await;
    tells(&cluster, "VolumesChange", "True", "migrate volumes").await;
    cluster.vmis.delete("vm", &DeleteParams::default()).await.unwrap();
    for pod in [source, target] {
        cluster.end(&pod.name_any()).await;
    }
    tells(&cluster, "ManualRecoveryRequired", "True", "VMI was removed or was final").await;
    let gone = |vmi: Option<&VirtualMachineInstance>| vmi.is_none();
    wait(&cluster.vmis, "vm", "gone", gone).await;
    wait(&cluster.vms, "vm", "stopped", printed("Stopped")).await;
    names(&cluster, "old").await;
    let again = |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| claim_of(vmi) == "old");
    wait(&cluster.vmis, "vm", "started again", again).await;
}

#[tokio::test]
async fn a_replaced_claim_waits_for_a_restart() {
    let cluster = Box::pin(running()).await;
    change(&cluster, json!({ "spec": { "updateVolumesStrategy": "Replacement" } })).await;
    names(&cluster, "new").await;
    let words = "the volumes replacement is effective only after restart";
    tells(&cluster, "RestartRequired", "True", words).await;
    names(&cluster, "old").await;
    let none = |vm: Option<&VirtualMachine>| {
        vm.is_some_and(|vm| vm.status.iter().flat_map(|s| &s.conditions).all(|c| c.type_ != "RestartRequired"))
    };
    wait(&cluster.vms, "vm", "none required", none).await;
    assert_eq!(claim_of(&cluster.vmis.get("vm").await.unwrap()), "old");
}
