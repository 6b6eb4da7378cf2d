//! Volumes that come to a running guest and leave it.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VolumeStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, in_phase, machine, start, wait};
use crate::migration::{migrate, reaches, target_pod};
use crate::storage::{claim, claim_with};

/// A guest that runs, without volumes that come later.
pub(crate) async fn running() -> Cluster {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("Always")).await.unwrap();
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    cluster.guest("Running").await;
    wait(&cluster.vmis, "vm", "running", in_phase("Running")).await;
    cluster
}

/// Gives the VM's template these volumes beside its first.
pub(crate) async fn template(cluster: &Cluster, names: &[&str]) {
    let vm: Value = serde_json::to_value(machine("Always")).unwrap();
    let spec = &vm["spec"]["template"]["spec"];
    let mut volumes = spec["volumes"].as_array().unwrap().clone();
    let mut disks = spec["domain"]["devices"]["disks"].as_array().unwrap().clone();
    for name in names {
        volumes.push(json!({ "name": name, "persistentVolumeClaim": { "claimName": name, "hotpluggable": true } }));
        disks.push(json!({ "name": name, "disk": { "bus": "scsi" } }));
    }
    let patch = json!({ "spec": { "template": { "spec": {
        "volumes": volumes, "domain": { "devices": { "disks": disks } },
    } } } });
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// What is said of a volume, once it is in this phase.
pub(crate) async fn reached(cluster: &Cluster, volume: &'static str, phase: &'static str) -> VolumeStatus {
    let vmi = wait(&cluster.vmis, "vm", phase, move |vmi: Option<&VirtualMachineInstance>| {
        entry(vmi, volume).is_some_and(|entry| entry.phase.as_deref() == Some(phase))
    });
    entry(vmi.await.as_ref(), volume).unwrap()
}

pub(crate) fn entry(vmi: Option<&VirtualMachineInstance>, volume: &str) -> Option<VolumeStatus> {
    vmi?.status.as_ref()?.volume_status.iter().find(|entry| entry.name == volume).cloned()
}

/// What virt-handler says of a volume; none: the guest runs with those that are named.
async fn tell(cluster: &Cluster, volume: &str, phase: &str) {
    // The controller may write in between.
    for _ in 0..50 {
        let vmi = cluster.vmis.get("vm").await.unwrap();
        let mut entries = vmi.status.clone().unwrap().volume_status;
        entries.iter_mut().find(|entry| entry.name == volume).unwrap().phase = Some(phase.to_owned());
        let patch = json!({
            "metadata": { "resourceVersion": vmi.resource_version() }, "status": { "volumeStatus": entries },
        });
        match cluster.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the VMI changed all the time");
}

/// The attachment pods that there are and are not on their way out, once `fits` holds for them.
pub(crate) async fn attachments(cluster: &Cluster, what: &str, fits: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
    let params = ListParams::default().labels("kubevirt.io=hotplug-disk");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut found = cluster.pods.list(&params).await.unwrap().items;
        found.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        if fits(&found) {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "never {what}: {found:#?}");
        tokio::task::yield_now().await;
    }
}

fn volumes(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.as_ref().unwrap().volumes.clone().unwrap_or_default();
    volumes.into_iter().filter(|volume| volume.persistent_volume_claim.is_some()).map(|volume| volume.name).collect()
}

#[tokio::test]
async fn a_volume_comes_with_a_pod_and_the_pod_goes_when_the_guest_has_let_go() {
    let cluster = running().await;
    template(&cluster, &["data"]).await;
    let said = reached(&cluster, "data", "Pending").await;
    assert_eq!(said.message.as_deref(), Some("PVC data not found"));
    claim(&cluster, "data", "pv", "Filesystem").await;
    let pods = attachments(&cluster, "attached", |pods| pods.len() == 1).await;
    assert_eq!(volumes(&pods[0]), ["data"]);
    let launcher = cluster.pods.list(&ListParams::default().labels("kubevirt.io=virt-launcher")).await.unwrap().items;
    assert_eq!(launcher.len(), 1);
    assert_eq!(pods[0].owner_references()[0].uid, launcher[0].uid().unwrap(), "it goes with the launcher");
    let said = reached(&cluster, "data", "Bound").await;
    assert_eq!(said.persistent_volume_claim_info.unwrap().capacity["storage"].0, "2Gi");

    cluster.run(&pods[0], json!({ "running": {} })).await;
    let said = reached(&cluster, "data", "AttachedToNode").await;
    let name = pods[0].name_any();
    assert_eq!(said.message, Some(format!("Created hotplug attachment pod {name}, for volume data")));
    assert_eq!(said.hotplug_volume.unwrap().attach_pod_uid, pods[0].uid());
    tell(&cluster, "data", "Ready").await;

    // A restart is not needed for what comes and goes.
    let vm = cluster.vms.get("vm").await.unwrap();
    let asks = |vm: &VirtualMachine| {
        vm.status.as_ref().unwrap().conditions.iter().any(|condition| condition.type_ == "RestartRequired")
    };
    assert!(!asks(&vm));

    template(&cluster, &[]).await;
    reached(&cluster, "data", "Detaching").await;
    assert_eq!(attachments(&cluster, "kept", |_| true).await.len(), 1, "the guest still has it");
    tell(&cluster, "data", "UnMountedFromPod").await;
    attachments(&cluster, "let go", <[Pod]>::is_empty).await;
    cluster.end(&name).await;
    wait(&cluster.vmis, "vm", "forgotten", |vmi: Option<&VirtualMachineInstance>| entry(vmi, "data").is_none()).await;
}

#[tokio::test]
async fn a_new_pod_holds_the_remaining_volumes_before_the_old_pod_goes() {
    let cluster = running().await;
    claim(&cluster, "a", "pv-a", "Filesystem").await;
    claim_with(&cluster, "b", "pv-b", "Block", "ReadWriteMany").await;
    template(&cluster, &["a", "b"]).await;
    let pods = attachments(&cluster, "attached", |pods| pods.len() == 1).await;
    let devices = json!(pods[0].spec.as_ref().unwrap().containers[0].volume_devices);
    assert!(devices[0]["devicePath"].as_str().unwrap().ends_with("/b"), "{devices}");
    cluster.run(&pods[0], json!({ "running": {} })).await;
    for volume in ["a", "b"] {
        reached(&cluster, volume, "AttachedToNode").await;
        tell(&cluster, volume, "Ready").await;
    }
    template(&cluster, &["b"]).await;
    reached(&cluster, "a", "Detaching").await;
    tell(&cluster, "a", "UnMountedFromPod").await;
    let both = attachments(&cluster, "taken over", |pods| pods.len() == 2).await;
    let next = both.iter().find(|pod| volumes(pod) == ["b"]).unwrap();
    cluster.run(next, json!({ "running": {} })).await;
    let left = attachments(&cluster, "alone", |pods| pods.len() == 1).await;
    assert_eq!(left[0].name_any(), next.name_any());
    let uid = next.uid();
    wait(&cluster.vmis, "vm", "with the other pod", move |vmi: Option<&VirtualMachineInstance>| {
        entry(vmi, "b").and_then(|entry| entry.hotplug_volume).is_some_and(|held| held.attach_pod_uid == uid)
    })
    .await;
}

#[tokio::test]
async fn a_volume_added_to_the_vmi_alone_stays() {
    let cluster = running().await;
    claim(&cluster, "data", "pv", "Filesystem").await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    let mut volumes = json!(vmi.spec.volumes);
    let mut disks = json!(vmi.spec.domain.devices.disks);
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data", "hotpluggable": true } });
    volumes.as_array_mut().unwrap().push(volume);
    disks.as_array_mut().unwrap().push(json!({ "name": "data", "disk": { "bus": "scsi" } }));
    let patch = json!({
        "metadata": { "annotations": { "kubevirt.io/ephemeral-hotplug-volumes": "data" } },
        "spec": { "volumes": volumes, "domain": { "devices": { "disks": disks } } },
    });
    cluster.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    attachments(&cluster, "attached", |pods| pods.len() == 1).await;
    // The VM's own volumes do not touch it.
    claim(&cluster, "more", "pv-more", "Filesystem").await;
    template(&cluster, &["more"]).await;
    attachments(&cluster, "attached too", |pods| pods.len() == 2).await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    let names: Vec<_> = vmi.spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["root", "data", "more"]);
}

#[tokio::test]
async fn a_disk_that_one_node_reaches_moves_with_its_guest() {
    let cluster = running().await;
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let class = json!({ "metadata": { "name": "local" }, "provisioner": "csi.example" });
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    let held = json!({ "metadata": { "name": "a" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": "pv-a",
        "resources": { "requests": { "storage": "1Gi" } },
    } });
    claims.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
    claims.patch_status("a", &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();
    template(&cluster, &["a"]).await;
    let pods = attachments(&cluster, "attached", |pods| pods.len() == 1).await;
    cluster.run(&pods[0], json!({ "running": {} })).await;
    reached(&cluster, "a", "AttachedToNode").await;
    tell(&cluster, "a", "Ready").await;

    let migration = migrate(&cluster, "move", "vm").await;
    let target = target_pod(&cluster, &migration, "vm").await;
    reaches(&cluster, "move", "Scheduling").await;
    cluster.run_on("node2", &target, json!({ "running": {} })).await;
    let both = attachments(&cluster, "beside the target, too", |pods| pods.len() == 2).await;
    let claim_of = |pod: &Pod| {
        let volumes = pod.spec.as_ref().unwrap().volumes.clone().unwrap();
        volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name.clone()
    };
    let beside = both.iter().find(|pod| claim_of(pod) != "a").expect("a pod with a copy");
    cluster.run_on("node2", beside, json!({ "running": {} })).await;
    reaches(&cluster, "move", "PreparingTarget").await;
    let status = cluster.vmis.get("vm").await.unwrap().status.unwrap();
    let moved = json!(status.migrated_volumes[0]);
    assert_eq!(
        (&moved["volumeName"], &moved["destinationPVCInfo"]["claimName"]),
        (&json!("a"), &json!(claim_of(beside)))
    );
    assert_eq!(status.migration_state.unwrap().target_attachment_pod_uid, beside.uid());
}
