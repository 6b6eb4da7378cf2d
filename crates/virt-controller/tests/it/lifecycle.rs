//! From a VM to a running guest and back.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::{in_phase, machine, printed, start, wait};

#[tokio::test]
async fn a_machine_runs_and_is_deleted() {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("Always")).await.unwrap();
    let pod = cluster.pod().await;
    let name = pod.name_any();
    assert_eq!(pod.labels()["kubevirt.io"], "virt-launcher");
    assert_eq!(pod.labels()["app"], "x");
    let gate = |pod: Option<&Pod>| {
        let conditions = pod.and_then(|pod| pod.status.as_ref()).and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "kubevirt.io/virtual-machine-unpaused" && c.status == "True")
    };
    wait(&cluster.pods, &name, "open", gate).await;
    wait(&cluster.vms, "vm", "starting", printed("Starting")).await;

    cluster.run(&pod, json!({ "running": {} })).await;
    let vmi = wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await.unwrap();
    assert_eq!(vmi.labels()["kubevirt.io/nodeName"], "node1");
    let status = vmi.status.unwrap();
    assert_eq!(status.node_name.as_deref(), Some("node1"));
    assert_eq!(status.active_pods, [(pod.uid().unwrap(), "node1".to_owned())].into());
    let phases: Vec<_> = status.phase_transition_timestamps.iter().filter_map(|p| p.phase.clone()).collect();
    assert_eq!(phases, ["Pending", "Scheduling", "Scheduled"]);

    cluster.guest("Running").await;
    cluster.pod_condition(&name, "Ready", "True", "").await;
    let vm = wait(&cluster.vms, "vm", "running", |vm: Option<&VirtualMachine>| {
        vm.and_then(|vm| vm.status.as_ref()).is_some_and(|status| status.ready == Some(true))
    });
    let status = vm.await.unwrap().status.unwrap();
    assert_eq!((status.printable_status.as_deref(), status.created), (Some("Running"), Some(true)));
    assert_eq!((status.desired_generation, status.observed_generation), (Some(1), Some(1)));
    let revisions: Api<ControllerRevision> = Api::namespaced(cluster.client.clone(), "default");
    assert_eq!(revisions.list(&ListParams::default()).await.unwrap().items.len(), 1);

    cluster.vms.delete("vm", &DeleteParams::background()).await.unwrap();
    let deleting = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    wait(&cluster.pods, &name, "told to end", deleting).await;
    assert!(cluster.vmis.get("vm").await.unwrap().metadata.deletion_timestamp.is_some());
    cluster.end(&name).await;
    wait(&cluster.vmis, "vm", "gone", |vmi: Option<&VirtualMachineInstance>| vmi.is_none()).await;
    wait(&cluster.vms, "vm", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
}

#[tokio::test]
async fn a_guest_that_shuts_down_is_started_again_only_when_always() {
    for (strategy, again) in [("Always", true), ("RerunOnFailure", false)] {
        let cluster = start().await;
        cluster.vms.create(&PostParams::default(), &machine(strategy)).await.unwrap();
        let pod = cluster.pod().await;
        let first = cluster.vmis.get("vm").await.unwrap().uid();
        cluster.run(&pod, json!({ "running": {} })).await;
        wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
        cluster.guest("Running").await;
        cluster.guest("Succeeded").await;
        let name = pod.name_any();
        let deleting = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        wait(&cluster.pods, &name, "told to end", deleting).await;
        cluster.end(&name).await;
        if again {
            let other = move |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.uid() != first);
            wait(&cluster.vmis, "vm", "started again", other).await;
        } else {
            wait(&cluster.vms, "vm", "stopped", printed("Stopped")).await;
            assert!(cluster.vmis.get_opt("vm").await.unwrap().is_none());
        }
    }
}

#[tokio::test]
async fn a_manual_machine_starts_and_restarts_when_asked() {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("Manual")).await.unwrap();
    wait(&cluster.vms, "vm", "stopped", printed("Stopped")).await;
    let ask = async |requests: serde_json::Value| {
        let patch = Patch::Merge(json!({ "status": { "stateChangeRequests": requests } }));
        cluster.vms.patch_status("vm", &PatchParams::default(), &patch).await.unwrap();
    };
    ask(json!([{ "action": "Start" }])).await;
    let pod = cluster.pod().await;
    let served = |vm: Option<&VirtualMachine>| {
        vm.and_then(|vm| vm.status.as_ref()).is_some_and(|status| status.state_change_requests.is_empty())
    };
    wait(&cluster.vms, "vm", "done with the request", served).await;
    let first = cluster.vmis.get("vm").await.unwrap().uid();
    ask(json!([{ "action": "Stop", "uid": first }, { "action": "Start" }])).await;
    let name = pod.name_any();
    // The pod was never bound, so its deletion is immediate.
    wait(&cluster.pods, &name, "gone", |pod: Option<&Pod>| pod.is_none()).await;
    let other = move |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.uid() != first);
    wait(&cluster.vmis, "vm", "started again", other).await;
    wait(&cluster.vms, "vm", "done with the requests", served).await;
}

#[tokio::test]
async fn writes_are_few() {
    let cluster = start().await;
    let vmi = json!({
        "metadata": { "name": "vm", "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"] },
        "spec": machine("Always").spec.template.spec, "status": { "phase": "Pending" },
    });
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    let created = cluster.vmis.create(&PostParams::default(), &vmi).await.unwrap();
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    let done = wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await.unwrap();
    assert!(created.uid().is_some());
    // Created, Scheduling, Scheduled: the object was written no more often than its phases changed.
    assert_eq!(done.metadata.generation, Some(3), "{:?}", done.metadata);
}
