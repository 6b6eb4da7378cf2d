//! Machines that are made with their disks; the importer is played by the tests.

use api::cdi::v1beta1::DataVolume;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::cluster::{Cluster, in_phase, printed, start, wait};
use crate::storage::{claim, on};

/// A machine with a template for its disk.
async fn machine() -> Cluster {
    let cluster = start().await;
    let path = "../../deploy/crds/datavolumes.cdi.kubevirt.io.yaml";
    let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    crds.create(&PostParams::default(), &crd).await.unwrap();
    let mut vm = serde_json::to_value(on(json!({ "dataVolume": { "name": "disk" } }))).unwrap();
    vm["spec"]["dataVolumeTemplates"] = json!([{
        "metadata": { "name": "disk", "labels": { "kind": "root" } },
        "spec": {
            "source": { "blank": {} },
            "storage": { "resources": { "requests": { "storage": "1Gi" } } },
        },
    }]);
    cluster.vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    cluster
}

fn data(cluster: &Cluster) -> Api<DataVolume> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn tell(cluster: &Cluster, phase: &str) {
    let patch = json!({ "status": { "phase": phase } });
    data(cluster).patch_status("disk", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test]
async fn a_machine_starts_when_its_disk_is_filled() {
    let cluster = machine().await;
    let made = wait(&data(&cluster), "disk", "made", |found: Option<&DataVolume>| found.is_some()).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "provisioning", printed("Provisioning")).await.unwrap();
    assert_eq!(made.owner_references()[0].uid, vm.uid().unwrap(), "it goes with the machine");
    assert_eq!(made.labels()["kind"], "root");
    assert!(cluster.vmis.get_opt("vm").await.unwrap().is_none());
    tell(&cluster, "Failed").await;
    wait(&cluster.vms, "vm", "in trouble", printed("DataVolumeError")).await;
    tell(&cluster, "ImportInProgress").await;
    wait(&cluster.vms, "vm", "provisioning again", printed("Provisioning")).await;
    claim(&cluster, "disk", "pv", "Filesystem").await;
    tell(&cluster, "Succeeded").await;
    wait(&cluster.vmis, "vm", "started", in_phase("Scheduling")).await;
    let pod = serde_json::to_value(cluster.pod().await).unwrap();
    let volume = json!({ "name": "root", "persistentVolumeClaim": { "claimName": "disk" } });
    assert!(pod["spec"]["volumes"].as_array().unwrap().contains(&volume));
}

#[tokio::test]
async fn a_disk_that_waits_for_its_consumer_gets_it() {
    let cluster = machine().await;
    wait(&data(&cluster), "disk", "made", |found: Option<&DataVolume>| found.is_some()).await;
    tell(&cluster, "WaitForFirstConsumer").await;
    // Its claim is there, and waits for a pod.
    claim(&cluster, "disk", "", "Filesystem").await;
    wait(&cluster.vms, "vm", "waiting", printed("WaitingForVolumeBinding")).await;
    cluster.pod().await;
}
