//! Pictures of machines in trouble, and the paragraph each gets.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::*;

fn deployed() -> Value {
    json!({ "metadata": { "name": "kubevirt", "namespace": "kubevirt" }, "status": { "phase": "Deployed" } })
}

fn node(labels: Value, ready: &str) -> Value {
    json!({
        "metadata": { "name": "node1", "labels": labels },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    })
}

fn healthy() -> Value {
    node(json!({ "kubevirt.io/schedulable": "true" }), "True")
}

/// The parts that are given; the rest as in a healthy cluster.
fn explained(parts: Value) -> String {
    let part = |name: &str| parts.get(name).cloned();
    let list = |name: &str| part(name).unwrap_or_else(|| json!([]));
    let mut picture = Picture {
        namespace: "default".to_owned(),
        name: "demo".to_owned(),
        vm: part("vm").map(|mut vm| {
            vm["metadata"]["name"] = json!("demo");
            if vm.pointer("/spec/template").is_none() {
                vm["spec"]["template"] = json!({});
            }
            serde_json::from_value(vm).unwrap()
        }),
        vmi: part("vmi").map(|vmi| serde_json::from_value(vmi).unwrap()),
        pods: serde_json::from_value(list("pods")).unwrap(),
        events: serde_json::from_value(list("events")).unwrap(),
        kubevirt: serde_json::from_value(part("kubevirt").unwrap_or_else(deployed)).unwrap(),
        nodes: serde_json::from_value(part("nodes").unwrap_or_else(|| json!([healthy()]))).unwrap(),
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    };
    picture.keep_related_events();
    explain(&picture)
}

fn vm(strategy: &str) -> Value {
    json!({ "spec": { "runStrategy": strategy } })
}

fn vmi(phase: &str) -> Value {
    json!({ "metadata": { "name": "demo", "uid": "u" }, "status": { "phase": phase } })
}

fn pod(status: Value) -> Value {
    json!({
        "metadata": { "name": "virt-launcher-demo-x", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": {
            "initContainers": [{ "name": "container-disk-binary", "image": "launcher:1" }],
            "containers": [{ "name": "compute", "image": "launcher:1" }, { "name": "volumeroot", "image": "quay.io/none:1" }],
        },
        "status": status,
    })
}

fn waiting(container: &str, reason: &str, message: &str) -> Value {
    pod(json!({ "containerStatuses": [{
        "name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": reason, "message": message } },
    }] }))
}

fn ended(code: i64, reason: &str) -> Value {
    pod(json!({ "containerStatuses": [{
        "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": code, "reason": reason } },
    }] }))
}

fn unschedulable(message: &str) -> Value {
    pod(json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message }] }))
}

fn warning(kind: &str, name: &str, message: &str) -> Value {
    json!([{ "metadata": {}, "type": "Warning", "message": message, "involvedObject": { "kind": kind, "name": name } }])
}

fn scheduling(pod: Value) -> String {
    explained(json!({ "vm": vm("Always"), "vmi": vmi("Scheduling"), "pods": [pod] }))
}

#[test]
fn it_runs() {
    let mut on = vmi("Running");
    on["status"]["nodeName"] = json!("node1");
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"");
    on["status"]["conditions"] = json!([{ "type": "Paused", "status": "True", "reason": "PausedByUser" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"");
    on["status"]["conditions"] = json!([{ "type": "Paused", "status": "True", "reason": "PausedIOError" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"");
    on["status"]["conditions"] =
        json!([{ "type": "Ready", "status": "False", "message": "readiness probe failed: connection refused" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"");
}

#[test]
fn nobody_wants_it_to_run() {
    assert_snapshot!(explained(json!({ "vm": vm("Halted") })), @"");
    assert_snapshot!(explained(json!({ "vm": { "spec": { "running": false } } })), @"");
    assert_snapshot!(explained(json!({ "vm": vm("Manual") })), @"");
    assert_snapshot!(explained(json!({ "vm": vm("Manual"), "vmi": vmi("Succeeded") })), @"");
    assert_snapshot!(explained(json!({ "vm": vm("RerunOnFailure"), "vmi": vmi("Succeeded") })), @"");
    assert_snapshot!(explained(json!({ "vm": vm("Once"), "vmi": vmi("Failed") })), @"");
}

#[test]
fn the_installation() {
    assert_snapshot!(explained(json!({ "kubevirt": null })), @"");
    let mut deploying = deployed();
    deploying["status"] = json!({ "phase": "Deploying", "conditions": [
        { "type": "Available", "status": "False", "message": "DaemonSet virt-handler has no ready pod." },
    ] });
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "kubevirt": deploying })), @"");
    let mut untouched = deployed();
    untouched["status"] = Value::Null;
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "kubevirt": untouched })), @"");
}

#[test]
fn it_goes_away() {
    let mut leaving = vmi("Running");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    leaving["spec"] = json!({ "terminationGracePeriodSeconds": 180, "domain": {} });
    assert_snapshot!(explained(json!({ "vm": vm("Halted"), "vmi": leaving })), @"");
    let mut deleted = vm("Always");
    deleted["metadata"] = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/hold"] });
    assert_snapshot!(explained(json!({ "vm": deleted, "vmi": leaving })), @"");
    assert_snapshot!(explained(json!({ "vm": deleted })), @"");
}

#[test]
fn it_could_not_be_created() {
    let mut refused = vm("Always");
    refused["status"] = json!({ "conditions": [{
        "type": "Failure", "status": "True", "reason": "FailedCreate",
        "message": "admission webhook denied the request: spec.domain.cpu.cores must be greater than or equal to 0",
    }] });
    assert_snapshot!(explained(json!({ "vm": refused })), @"");
    let mut crashing = vm("Always");
    crashing["status"] = json!({ "startFailure": { "consecutiveFailCount": 3, "retryAfterTimestamp": "2026-01-01T00:01:20Z" } });
    let events = warning("VirtualMachineInstance", "demo", "The VirtualMachineInstance failed: no bootable device.");
    assert_snapshot!(explained(json!({ "vm": crashing, "vmi": vmi("Failed"), "events": events })), @"");
    assert_snapshot!(explained(json!({ "vm": crashing })), @"");
    assert_snapshot!(explained(json!({ "vm": vm("Always") })), @"");
    let events = warning("VirtualMachine", "demo", "Error creating instance: quota exceeded");
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "events": events })), @"");
}

#[test]
fn its_volumes() {
    let mut pending = vmi("Pending");
    pending["status"]["conditions"] =
        json!([{ "type": "Provisioning", "status": "False", "reason": "FailedPvcNotFound", "message": "PVC default/data not found" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": pending })), @"");
    pending["status"]["conditions"] =
        json!([{ "type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": pending })), @"");
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": vmi("Pending") })), @"");
}

#[test]
fn no_node() {
    let kvm = unschedulable("0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm.");
    assert_snapshot!(scheduling(kvm), @"");
    let memory = unschedulable("0/1 nodes are available: 1 Insufficient memory.");
    assert_snapshot!(scheduling(memory.clone()), @"");
    let parts = |nodes: Value| json!({ "vm": vm("Always"), "vmi": vmi("Scheduling"), "pods": [memory], "nodes": nodes });
    assert_snapshot!(explained(parts(json!([]))), @"");
    assert_snapshot!(explained(parts(json!([node(json!({}), "False")]))), @"");
    assert_snapshot!(explained(parts(json!([node(json!({}), "True")]))), @"");
    let mut cordoned = healthy();
    cordoned["spec"] = json!({ "unschedulable": true });
    assert_snapshot!(explained(parts(json!([cordoned]))), @"");
    assert_snapshot!(explained(parts(Value::Null)), @"");
    let gated = pod(json!({ "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "waiting for gates" },
    ] }));
    assert_snapshot!(scheduling(gated), @"");
}

#[test]
fn its_images() {
    let pull = "failed to resolve reference \"quay.io/none:1\": not found";
    assert_snapshot!(scheduling(waiting("volumeroot", "ImagePullBackOff", pull)), @"");
    assert_snapshot!(scheduling(waiting("compute", "ErrImagePull", pull)), @"");
    assert_snapshot!(scheduling(waiting("volumeroot", "InvalidImageName", "couldn't parse image name")), @"");
    assert_snapshot!(scheduling(waiting("volumeroot", "ErrImageNeverPull", "")), @"");
}

#[test]
fn its_containers() {
    assert_snapshot!(scheduling(waiting("volumeroot", "CrashLoopBackOff", "back-off 10s restarting failed container")), @"");
    assert_snapshot!(scheduling(waiting("compute", "CreateContainerConfigError", "secret \"a\" not found")), @"");
    assert_snapshot!(scheduling(ended(1, "Error")), @"");
    assert_snapshot!(scheduling(ended(137, "OOMKilled")), @"");
    assert_snapshot!(scheduling(waiting("compute", "ContainerCreating", "")), @"");
    let parts = json!({
        "vm": vm("Always"), "vmi": vmi("Scheduling"), "pods": [waiting("compute", "ContainerCreating", "")],
        "events": warning("Pod", "virt-launcher-demo-x", "MountVolume.SetUp failed for volume \"a\""),
    });
    assert_snapshot!(explained(parts), @"");
}

#[test]
fn its_guest() {
    let mut scheduled = vmi("Scheduled");
    scheduled["status"]["nodeName"] = json!("node1");
    let parts = |events: Value| json!({ "vm": vm("Always"), "vmi": scheduled, "pods": [pod(json!({}))], "events": events });
    assert_snapshot!(explained(parts(json!([]))), @"");
    let why = "disk root is not one: it has a backing file";
    assert_snapshot!(explained(parts(warning("VirtualMachineInstance", "demo", why))), @"");
    let events = warning("VirtualMachineInstance", "demo", "The VirtualMachineInstance failed: node node1 was lost.");
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": vmi("Failed"), "events": events })), @"");
    assert_snapshot!(explained(json!({ "vmi": vmi("Failed") })), @"");
}

#[test]
fn events_of_others_are_not_believed() {
    let parts = json!({
        "vm": vm("Always"), "vmi": vmi("Pending"),
        "events": warning("VirtualMachineInstance", "other", "this is not about demo"),
    });
    assert!(!explained(parts).contains("not about demo"));
}
