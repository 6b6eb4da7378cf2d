//! Dumps of a guest's memory, up to where its node has to write them.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, wait};
use crate::hotplug::{attachments, entry, reached, running};
use crate::storage::claim;

/// What virt-api writes.
async fn ask(cluster: &Cluster, request: Value) {
    let patch = json!({ "status": { "memoryDumpRequest": request } });
    cluster.vms.patch_status("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn dump() -> Value {
    json!({ "claimName": "out", "phase": "Associating", "fileName": null, "startTimestamp": null, "endTimestamp": null })
}

/// What the node says of the claim.
async fn tell(cluster: &Cluster, said: &Value) {
    // The controller may write in between.
    for _ in 0..50 {
        let vmi = cluster.vmis.get("vm").await.unwrap();
        let mut entries = json!(vmi.status.clone().unwrap().volume_status);
        let own = entries.as_array_mut().unwrap().iter_mut().find(|entry| entry["name"] == "out").unwrap();
        own.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
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

/// The machine, once its request is in this phase; without one, for "".
async fn machine(cluster: &Cluster, phase: &'static str) -> VirtualMachine {
    let fits = move |vm: Option<&VirtualMachine>| {
        let status = vm.and_then(|vm| vm.status.as_ref());
        status.is_some_and(|status| status.memory_dump_request.as_ref().map_or("", |held| held.phase.as_str()) == phase)
    };
    wait(&cluster.vms, "vm", phase, fits).await.unwrap()
}

fn volumes(vm: &VirtualMachine) -> Value {
    let volumes = vm.spec.template.spec.as_ref().unwrap().volumes.iter().filter(|volume| volume.memory_dump.is_some());
    json!(volumes.collect::<Vec<_>>())
}

/// From the request to where the launcher has the claim.
async fn arrives(cluster: &Cluster) -> Pod {
    ask(cluster, dump()).await;
    machine(cluster, "InProgress").await;
    let pods = attachments(cluster, "attached", |pods| pods.len() == 1).await;
    cluster.run(&pods[0], json!({ "running": {} })).await;
    reached(cluster, "out", "AttachedToNode").await;
    pods[0].clone()
}

/// What the node does once the claim is not to be there any more.
async fn leaves(cluster: &Cluster, pod: &Pod) {
    reached(cluster, "out", "Detaching").await;
    tell(cluster, &json!({ "phase": "UnMountedFromPod" })).await;
    attachments(cluster, "let go", <[Pod]>::is_empty).await;
    cluster.end(&pod.name_any()).await;
    wait(&cluster.vmis, "vm", "forgotten", |vmi: Option<&VirtualMachineInstance>| entry(vmi, "out").is_none()).await;
}

fn done(file: &str) -> Value {
    json!({ "phase": "MemoryDumpCompleted", "message": "done", "memoryDumpVolume": {
        "claimName": "out", "targetFileName": file,
        "startTimestamp": "2026-01-31T13:59:58Z", "endTimestamp": "2026-01-31T13:59:59Z",
    } })
}

async fn said(cluster: &Cluster) -> Option<String> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    claims.get("out").await.unwrap().annotations().get("kubevirt.io/memory-dump").cloned()
}

#[tokio::test]
async fn a_claim_comes_for_a_dump_and_stays_associated() {
    let cluster = running().await;
    claim(&cluster, "out", "pv", "Filesystem").await;
    let pod = arrives(&cluster).await;
    let vm = cluster.vms.get("vm").await.unwrap();
    let own = json!([{ "name": "out", "memoryDump": { "claimName": "out", "hotpluggable": true } }]);
    assert_eq!(volumes(&vm), own);
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert_eq!(json!(vmi.spec.utility_volumes), json!([{ "name": "out", "claimName": "out", "type": "MemoryDump" }]));
    tell(&cluster, &done("first")).await;
    leaves(&cluster, &pod).await;
    let vm = machine(&cluster, "Completed").await;
    let request = json!({
        "claimName": "out", "phase": "Completed", "fileName": "first",
        "startTimestamp": "2026-01-31T13:59:58Z", "endTimestamp": "2026-01-31T13:59:59Z",
    });
    assert_eq!((json!(vm.status.as_ref().unwrap().memory_dump_request), volumes(&vm)), (request, own.clone()));
    assert_eq!(said(&cluster).await.as_deref(), Some("first"));
    let conditions = &vm.status.as_ref().unwrap().conditions;
    assert!(!conditions.iter().any(|one| one.type_ == "RestartRequired"), "{conditions:?}");

    // Once more onto the same claim.
    let pod = arrives(&cluster).await;
    tell(&cluster, &done("second")).await;
    leaves(&cluster, &pod).await;
    machine(&cluster, "Completed").await;
    assert_eq!(said(&cluster).await.as_deref(), Some("second"));

    // A machine that is started again has nothing of it, and lets go of the claim without an instance.
    cluster
        .vms
        .patch("vm", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "runStrategy": "Manual" } })))
        .await
        .unwrap();
    ask(&cluster, json!({ "claimName": "out", "phase": "Dissociating", "remove": true })).await;
    let vm = machine(&cluster, "").await;
    assert_eq!(volumes(&vm), json!([]));
    assert_eq!(said(&cluster).await.as_deref(), Some("second"), "what is on the claim stays");
}

#[tokio::test]
async fn a_dump_that_failed_says_why_and_lets_go_of_its_claim() {
    let cluster = running().await;
    claim(&cluster, "out", "pv", "Filesystem").await;
    let pod = arrives(&cluster).await;
    tell(
        &cluster,
        &json!({ "phase": "MemoryDumpFailed", "message": "no room", "memoryDumpVolume": { "claimName": "out" } }),
    )
    .await;
    leaves(&cluster, &pod).await;
    let vm = machine(&cluster, "Failed").await;
    let held = vm.status.unwrap().memory_dump_request.unwrap();
    assert_eq!(held.message.as_deref(), Some("no room"));
    assert_eq!(said(&cluster).await.as_deref(), Some("Memory dump failed"));

    // One whose guest is gone before it was written has failed, too.
    arrives(&cluster).await;
    cluster.guest("Succeeded").await;
    let held = machine(&cluster, "Failed").await.status.unwrap().memory_dump_request.unwrap();
    assert_eq!(held.message.as_deref(), Some("the virtual machine instance ended before its memory was dumped"));
}
