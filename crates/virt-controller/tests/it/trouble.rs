//! What goes wrong is said where a user looks.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::{in_phase, machine, printed, start, wait};

fn condition(vmi: &VirtualMachineInstance, kind: &str) -> Option<(String, String)> {
    let status = vmi.status.as_ref()?;
    let found = status.conditions.iter().find(|c| c.type_ == kind)?;
    Some((found.reason.clone()?, found.message.clone()?))
}

#[tokio::test]
async fn a_machine_that_fits_nowhere() {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("Always")).await.unwrap();
    let pod = cluster.pod().await;
    cluster.pod_condition(&pod.name_any(), "PodScheduled", "False", "Unschedulable").await;
    wait(&cluster.vms, "vm", "unschedulable", printed("ErrorUnschedulable")).await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert_eq!(condition(&vmi, "PodScheduled"), Some(("Unschedulable".into(), "as told".into())));
}

#[tokio::test]
async fn an_image_that_does_not_exist() {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("Always")).await.unwrap();
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "waiting": { "reason": "ErrImagePull", "message": "no such image" } })).await;
    let vm = wait(&cluster.vms, "vm", "in trouble", printed("ErrImagePull")).await.unwrap();
    let told = vm.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Synchronized").unwrap();
    assert_eq!(told.reason.as_deref(), Some("ErrImagePull"));
    let vmi = cluster.vmis.get("vm").await.unwrap();
    let expect = ("ErrImagePull".to_owned(), "container compute: no such image".to_owned());
    assert_eq!(condition(&vmi, "Synchronized"), Some(expect));
}

/// A registry answers with what clears the screen of whoever asks why.
#[tokio::test]
async fn messages_of_a_registry_are_escaped_and_bounded() {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("Always")).await.unwrap();
    let pod = cluster.pod().await;
    let evil = format!("denied: \u{1b}[2J\u{9b}31m\u{202e}{}", "x".repeat(1 << 16));
    cluster.run(&pod, json!({ "waiting": { "reason": "ErrImagePull", "message": evil } })).await;
    let vm = wait(&cluster.vms, "vm", "in trouble", printed("ErrImagePull")).await.unwrap();
    let (vm, vmi) = (json!(vm), json!(cluster.vmis.get("vm").await.unwrap()));
    for status in [&vm["status"], &vmi["status"]] {
        let conditions = status["conditions"].as_array().unwrap();
        let told = conditions.iter().find(|one| one["type"] == "Synchronized").unwrap()["message"].as_str().unwrap();
        assert!(told.starts_with("container compute: denied: \\u001b[2J\\u009b31m\\u202exxx"), "{told:.60}");
        assert!(told.len() <= 4096, "{} bytes", told.len());
    }
}

#[tokio::test]
async fn a_launcher_that_dies_is_tried_again_after_a_while() {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("Always")).await.unwrap();
    let pod = cluster.pod().await;
    let first = cluster.vmis.get("vm").await.unwrap().uid();
    let ended = json!({ "terminated": { "exitCode": 1, "message": "no disk" } });
    cluster.run(&pod, ended).await;
    let name = pod.name_any();
    let gone =
        |pod: Option<&k8s_openapi::api::core::v1::Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    wait(&cluster.pods, &name, "told to end", gone).await;
    cluster.end(&name).await;
    let vm = wait(&cluster.vms, "vm", "backed off", printed("CrashLoopBackOff")).await.unwrap();
    let failure = vm.status.unwrap().start_failure.unwrap();
    assert_eq!((failure.consecutive_fail_count, failure.last_failed_vmiuid), (Some(1), first.clone()));
    let again = move |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.uid() != first);
    wait(&cluster.vmis, "vm", "started again", again).await;
    wait(&cluster.vmis, "vm", "scheduling", in_phase("Scheduling")).await;
}

#[tokio::test]
async fn an_instance_of_somebody_else_is_not_touched() {
    let cluster = start().await;
    let foreign = json!({ "metadata": { "name": "vm" }, "spec": machine("Always").spec.template.spec });
    let foreign: VirtualMachineInstance = serde_json::from_value(foreign).unwrap();
    cluster.vmis.create(&PostParams::default(), &foreign).await.unwrap();
    cluster.vms.create(&PostParams::default(), &machine("Halted")).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "stopped", printed("Stopped")).await.unwrap();
    let failure = vm.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Failure").unwrap();
    assert!(failure.message.unwrap().contains("belongs to something else"));
    assert!(cluster.vmis.get("vm").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test]
async fn a_run_strategy_that_is_not_served_keeps_a_vm_from_starting() {
    let cluster = start().await;
    cluster.vms.create(&PostParams::default(), &machine("WaitAsReceiver")).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "stopped", printed("Stopped")).await.unwrap();
    let failure = vm.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Failure").unwrap();
    let why =
        "spec.runStrategy WaitAsReceiver cannot be used in this version: no machine is received from another cluster";
    assert_eq!((failure.reason.as_deref(), failure.message.as_deref()), (Some("FailedCreate"), Some(why)));
    assert!(cluster.vmis.get_opt("vm").await.unwrap().is_none());

    // As soon as it is gone, the VM starts.
    let patch = Patch::Merge(json!({ "spec": { "runStrategy": "Always" } }));
    cluster.vms.patch("vm", &PatchParams::default(), &patch).await.unwrap();
    wait(&cluster.vmis, "vm", "scheduling", in_phase("Scheduling")).await;
    let healed = |vm: Option<&VirtualMachine>| {
        let conditions = vm.and_then(|vm| vm.status.as_ref()).map(|status| status.conditions.as_slice());
        conditions.is_some_and(|all| all.iter().all(|condition| condition.type_ != "Failure"))
    };
    wait(&cluster.vms, "vm", "without failure", healed).await;
}
