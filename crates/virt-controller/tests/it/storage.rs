//! Machines whose disks lie on claims.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, in_phase, machine, printed, start, wait};

/// A machine with a volume of this source in place of its image.
pub(crate) fn on(source: Value) -> VirtualMachine {
    let mut vm = serde_json::to_value(machine("Always")).unwrap();
    let mut volume = source;
    volume["name"] = json!("root");
    vm["spec"]["template"]["spec"]["volumes"] = json!([volume]);
    serde_json::from_value(vm).unwrap()
}

/// A bound claim that one node reaches.
pub(crate) async fn claim(cluster: &Cluster, name: &str, volume: &str, mode: &str) {
    claim_with(cluster, name, volume, mode, "ReadWriteOnce").await;
}

/// A bound claim with this access mode.
pub(crate) async fn claim_with(cluster: &Cluster, name: &str, volume: &str, mode: &str, access: &str) {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    let claim = json!({ "metadata": { "name": name }, "spec": {
        "accessModes": [access], "volumeMode": mode, "volumeName": volume, "storageClassName": "",
        "resources": { "requests": { "storage": "1Gi" } },
    } });
    api.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "2Gi" } } });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();
}

#[tokio::test]
async fn a_claim_that_does_not_exist_is_waited_for() {
    let cluster = start().await;
    let vm = on(json!({ "persistentVolumeClaim": { "claimName": "data" } }));
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "waiting", printed("ErrorPvcNotFound")).await.unwrap();
    let told = vm.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Synchronized").unwrap();
    assert_eq!(told.reason.as_deref(), Some("FailedPvcNotFound"));
    assert_eq!(told.message.as_deref(), Some("PVC default/data does not exist, waiting for it to appear"));
    let status = cluster.vmis.get("vm").await.unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let placed = status.conditions.iter().find(|c| c.type_ == "PodScheduled").unwrap();
    assert_eq!((placed.status.as_str(), placed.reason.as_deref()), ("False", Some("Unschedulable")));

    claim(&cluster, "data", "pv", "Filesystem").await;
    let pod = serde_json::to_value(cluster.pod().await).unwrap();
    let volume = json!({ "name": "root", "persistentVolumeClaim": { "claimName": "data" } });
    assert!(pod["spec"]["volumes"].as_array().unwrap().contains(&volume));
    let mount = json!({ "name": "root", "mountPath": "/var/run/kubevirt-private/vmi-disks/root" });
    assert!(pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap().contains(&mount));
    let synchronized = |vmi: &VirtualMachineInstance| {
        vmi.status.as_ref().is_some_and(|status| status.conditions.iter().all(|c| c.type_ != "Synchronized"))
    };
    wait(&cluster.vmis, "vm", "synchronized", move |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(synchronized)
    })
    .await;
}

#[tokio::test]
async fn a_block_claim_is_a_device_of_the_pod_and_its_size_comes_with_the_guest() {
    let cluster = start().await;
    claim(&cluster, "data", "pv", "Block").await;
    cluster.vms.create(&PostParams::default(), &on(json!({ "dataVolume": { "name": "data" } }))).await.unwrap();
    let pod = cluster.pod().await;
    let devices = &pod.spec.as_ref().unwrap().containers[0].volume_devices;
    assert_eq!(json!(devices), json!([{ "name": "root", "devicePath": "/dev/root" }]));
    cluster.run(&pod, json!({ "running": {} })).await;
    let vmi = wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await.unwrap();
    assert_eq!(vmi.labels().get("kubevirt.io/nodeName").map(String::as_str), Some("node1"));
    let info = vmi.status.unwrap().volume_status[0].persistent_volume_claim_info.clone().unwrap();
    assert_eq!((info.volume_mode.as_deref(), info.capacity["storage"].0.as_str()), (Some("Block"), "2Gi"));
}
