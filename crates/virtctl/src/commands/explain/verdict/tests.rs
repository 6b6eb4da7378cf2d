//! Pictures of machines in trouble, and the paragraph each gets.
#![allow(clippy::needless_pass_by_value, reason = "json!() is written in the call")]

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
    pod(
        json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message }] }),
    )
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
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo runs on node node1. Next: `virtctl console demo -n default`");
    on["status"]["conditions"] = json!([{ "type": "Paused", "status": "True", "reason": "PausedByUser" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo is on node node1 but paused, because it was asked to pause. Next: `virtctl unpause vm demo -n default`");
    on["status"]["conditions"] = json!([{ "type": "Paused", "status": "True", "reason": "PausedIOError" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo is on node node1 but paused, because one of its disks failed. Next: `virtctl unpause vm demo -n default`");
    on["status"]["conditions"] = json!([{ "type": "Paused", "status": "True", "reason": "PausedIOError", "message": "VMI was paused, IO error: not enough space on volume data" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo is on node node1 but paused, because there is not enough space on volume data, and goes on when there is. Next: `virtctl unpause vm demo -n default`");
    on["status"]["conditions"] =
        json!([{ "type": "Ready", "status": "False", "message": "readiness probe failed: connection refused" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo runs on node node1 but is not ready: readiness probe failed: connection refused. Next: `virtctl console demo -n default`");
    on["status"]["conditions"] = json!([{ "type": "Ready", "status": "False", "reason": "NodeUnresponsive", "message": "node node1 does not answer" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo was running on node node1 when that was last heard of: node node1 does not answer. Next: `kubectl describe node node1`");
    let why = "Error encountered setting password for user [eve]: no such user";
    on["status"]["conditions"] =
        json!([{ "type": "AccessCredentialsSynchronized", "status": "False", "message": why }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo runs on node node1, but its guest was not given all of its access credentials: Error encountered setting password for user [eve]: no such user. It is tried again; the guest needs the users, and an agent that offers guest-ssh-add-authorized-keys and guest-set-user-password. Next: `virtctl guestosinfo demo -n default`");
    on["status"]["conditions"] = json!([{ "type": "AccessCredentialsSynchronized", "status": "True" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": on })), @"VM default/demo runs on node node1. Next: `virtctl console demo -n default`");
}

#[test]
fn a_vm_that_is_not_to_run_is_explained() {
    assert_snapshot!(explained(json!({ "vm": vm("Halted") })), @"VM default/demo is not running: it is stopped, and its run strategy Halted keeps it so. Next: `virtctl start demo -n default`");
    assert_snapshot!(explained(json!({ "vm": { "spec": { "running": false } } })), @"VM default/demo is not running: it is stopped, and its run strategy Halted keeps it so. Next: `virtctl start demo -n default`");
    assert_snapshot!(explained(json!({ "vm": vm("Manual") })), @"VM default/demo is not running: its run strategy is Manual, and nobody has asked for it to start. Next: `virtctl start demo -n default`");
    assert_snapshot!(explained(json!({ "vm": vm("Manual"), "vmi": vmi("Succeeded") })), @"VM default/demo is not running: its guest shut down, and its run strategy Manual starts it only when asked. Next: `virtctl start demo -n default`");
    assert_snapshot!(explained(json!({ "vm": vm("RerunOnFailure"), "vmi": vmi("Succeeded") })), @"VM default/demo is not running: its guest shut down by itself, and its run strategy RerunOnFailure starts it again only after a failure. Next: `virtctl start demo -n default`");
    assert_snapshot!(explained(json!({ "vm": vm("Once"), "vmi": vmi("Failed") })), @r#"VM default/demo is not running: its guest failed, and its run strategy Once starts it a single time. Next: `kubectl patch vm demo -n default --type=merge -p '{"spec":{"runStrategy":"Always"}}'`"#);
}

#[test]
fn the_installation() {
    assert_snapshot!(explained(json!({ "kubevirt": null })), @"VM default/demo is not running: this cluster has no KubeVirt object, so nothing runs virtual machines. Next: `ferrovirt install`");
    let mut deploying = deployed();
    deploying["status"] = json!({ "phase": "Deploying", "conditions": [
        { "type": "Available", "status": "False", "message": "DaemonSet virt-handler has no ready pod." },
    ] });
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "kubevirt": deploying })), @"VM default/demo is not running: the components that run virtual machines are not ready, KubeVirt kubevirt/kubevirt is Deploying: DaemonSet virt-handler has no ready pod. Next: `kubectl get pods -n kubevirt`");
    let mut untouched = deployed();
    untouched["status"] = Value::Null;
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "kubevirt": untouched })), @"VM default/demo is not running: the components that run virtual machines are not ready, KubeVirt kubevirt/kubevirt is Unknown. Next: `kubectl get pods -A -l kubevirt.io=virt-operator`");
}

#[test]
fn it_goes_away() {
    let mut leaving = vmi("Running");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    leaving["spec"] = json!({ "terminationGracePeriodSeconds": 180, "domain": {} });
    assert_snapshot!(explained(json!({ "vm": vm("Halted"), "vmi": leaving })), @"VM default/demo is not running: its guest is shutting down, for which it has up to 180 seconds. Next: `kubectl get vmi demo -n default -w`");
    let mut deleted = vm("Always");
    deleted["metadata"] = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/hold"] });
    assert_snapshot!(explained(json!({ "vm": deleted, "vmi": leaving })), @"VM default/demo is not running: it is being deleted, and its guest has up to 180 seconds to shut down. `virtctl stop demo -n default --force --grace-period=0` ends it at once. Next: `kubectl get vmi demo -n default -w`");
    assert_snapshot!(explained(json!({ "vm": deleted })), @"VM default/demo is not running: it is being deleted and waits for who holds its finalizers (example.com/hold). Next: `kubectl get vm demo -n default -o yaml`");
}

#[test]
fn it_could_not_be_created() {
    let mut refused = vm("Always");
    refused["status"] = json!({ "conditions": [{
        "type": "Failure", "status": "True", "reason": "FailedCreate",
        "message": "admission webhook denied the request: spec.domain.cpu.cores must be greater than or equal to 0",
    }] });
    assert_snapshot!(explained(json!({ "vm": refused })), @"VM default/demo is not running: its instance could not be created: admission webhook denied the request: spec.domain.cpu.cores must be greater than or equal to 0. Next: `kubectl describe vm demo -n default`");
    let mut crashing = vm("Always");
    crashing["status"] =
        json!({ "startFailure": { "consecutiveFailCount": 3, "retryAfterTimestamp": "2026-01-01T00:01:20Z" } });
    let events = warning("VirtualMachineInstance", "demo", "The VirtualMachineInstance failed: no bootable device.");
    assert_snapshot!(explained(json!({ "vm": crashing, "vmi": vmi("Failed"), "events": events })), @"VM default/demo is not running: it failed to start 3 times in a row, the last time because no bootable device; the next start is in 80 seconds. Next: `kubectl get events -n default --field-selector involvedObject.name=demo`");
    assert_snapshot!(explained(json!({ "vm": crashing })), @"VM default/demo is not running: it failed to start 3 times in a row; the next start is in 80 seconds. Next: `kubectl get events -n default --field-selector involvedObject.name=demo`");
    assert_snapshot!(explained(json!({ "vm": vm("Always") })), @"VM default/demo is not running: it is to run, but virt-controller has not created an instance of it. Next: `kubectl get pods -A -l kubevirt.io=virt-controller`");
    let events = warning("VirtualMachine", "demo", "Error creating instance: quota exceeded");
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "events": events })), @"VM default/demo is not running: Error creating instance: quota exceeded. Next: `kubectl describe vm demo -n default`");
}

#[test]
fn its_volumes() {
    let mut pending = vmi("Pending");
    pending["status"]["conditions"] = json!([{ "type": "Provisioning", "status": "False", "reason": "FailedPvcNotFound", "message": "PVC default/data not found" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": pending })), @"VM default/demo is not running: a volume claim it uses does not exist: PVC default/data not found. Next: `kubectl get pvc -n default`");
    pending["status"]["conditions"] = json!([{ "type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota" }]);
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": pending })), @"VM default/demo is not running: its pod could not be created: pods is forbidden: exceeded quota. Next: `kubectl describe vmi demo -n default`");
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": vmi("Pending") })), @"VM default/demo is not running: its instance was created, but virt-controller has not made a pod for it. Next: `kubectl get pods -A -l kubevirt.io=virt-controller`");
}

#[test]
fn no_node() {
    let kvm = unschedulable("0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm.");
    assert_snapshot!(scheduling(kvm), @r"VM default/demo is not running: no node takes pod virt-launcher-demo-x: 0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm. No node offers /dev/kvm; without it guests run only when emulation is allowed. Next: `kubectl get nodes -o custom-columns=NAME:.metadata.name,KVM:.status.allocatable.devices\.kubevirt\.io/kvm`");
    let memory = unschedulable("0/1 nodes are available: 1 Insufficient memory.");
    assert_snapshot!(scheduling(memory.clone()), @"VM default/demo is not running: no node takes pod virt-launcher-demo-x: 0/1 nodes are available: 1 Insufficient memory. The guest asks for more than the nodes have left: make it smaller, or stop another. Next: `kubectl describe nodes`");
    let parts =
        |nodes: Value| json!({ "vm": vm("Always"), "vmi": vmi("Scheduling"), "pods": [memory], "nodes": nodes });
    assert_snapshot!(explained(parts(json!([]))), @"VM default/demo is not running: no node takes pod virt-launcher-demo-x: 0/1 nodes are available: 1 Insufficient memory. The cluster has no node. Next: `kubectl get nodes`");
    assert_snapshot!(explained(parts(json!([node(json!({}), "False")]))), @"VM default/demo is not running: no node takes pod virt-launcher-demo-x: 0/1 nodes are available: 1 Insufficient memory. No node is ready (node1). Next: `kubectl describe node node1`");
    assert_snapshot!(explained(parts(json!([node(json!({}), "True")]))), @"VM default/demo is not running: no node takes pod virt-launcher-demo-x: 0/1 nodes are available: 1 Insufficient memory. No node carries the label kubevirt.io/schedulable=true, which virt-handler sets when it is healthy. Next: `kubectl get pods -A -l kubevirt.io=virt-handler`");
    let mut cordoned = healthy();
    cordoned["spec"] = json!({ "unschedulable": true });
    assert_snapshot!(explained(parts(json!([cordoned]))), @"VM default/demo is not running: no node takes pod virt-launcher-demo-x: 0/1 nodes are available: 1 Insufficient memory. Every node is cordoned (node1). Next: `kubectl uncordon node1`");
    assert_snapshot!(explained(parts(Value::Null)), @"VM default/demo is not running: no node takes pod virt-launcher-demo-x: 0/1 nodes are available: 1 Insufficient memory. Next: `kubectl describe pod virt-launcher-demo-x -n default`");
    let gated = pod(json!({ "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "waiting for gates" },
    ] }));
    assert_snapshot!(scheduling(gated), @"VM default/demo is not running: pod virt-launcher-demo-x is held back by a scheduling gate: waiting for gates. Next: `kubectl get pod virt-launcher-demo-x -n default -o jsonpath={.spec.schedulingGates}`");
}

#[test]
fn its_images() {
    let pull = "failed to resolve reference \"quay.io/none:1\": not found";
    assert_snapshot!(scheduling(waiting("volumeroot", "ImagePullBackOff", pull)), @r#"VM default/demo is not running: the image quay.io/none:1 of volume root cannot be pulled: failed to resolve reference "quay.io/none:1": not found. Correct the image, or make it available; the pull is tried again by itself. Next: `kubectl edit vm demo -n default`"#);
    assert_snapshot!(scheduling(waiting("compute", "ErrImagePull", pull)), @r#"VM default/demo is not running: the image launcher:1 of container compute cannot be pulled: failed to resolve reference "quay.io/none:1": not found. It belongs to the installation and not to the VM: make it available to the node. Next: `kubectl describe pod virt-launcher-demo-x -n default`"#);
    assert_snapshot!(scheduling(waiting("volumeroot", "InvalidImageName", "couldn't parse image name")), @"VM default/demo is not running: the image quay.io/none:1 of volume root has a name that cannot be one: couldn't parse image name. Next: `kubectl edit vm demo -n default`");
    assert_snapshot!(scheduling(waiting("volumeroot", "ErrImageNeverPull", "")), @"VM default/demo is not running: the image quay.io/none:1 of volume root is not on the node and its pull policy is Never. Next: `kubectl describe pod virt-launcher-demo-x -n default`");
}

#[test]
fn its_containers() {
    assert_snapshot!(scheduling(waiting("volumeroot", "CrashLoopBackOff", "back-off 10s restarting failed container")), @"VM default/demo is not running: container volumeroot of pod virt-launcher-demo-x keeps ending: back-off 10s restarting failed container. Next: `kubectl logs virt-launcher-demo-x -c volumeroot --previous -n default`");
    assert_snapshot!(scheduling(waiting("compute", "CreateContainerConfigError", "secret \"a\" not found")), @r#"VM default/demo is not running: container compute of pod virt-launcher-demo-x cannot be created (CreateContainerConfigError): secret "a" not found. Next: `kubectl describe pod virt-launcher-demo-x -n default`"#);
    assert_snapshot!(scheduling(ended(1, "Error")), @"VM default/demo is not running: container compute of pod virt-launcher-demo-x ended with exit code 1: Error. Next: `kubectl logs virt-launcher-demo-x -c compute -n default`");
    assert_snapshot!(scheduling(ended(137, "OOMKilled")), @"VM default/demo is not running: container compute of pod virt-launcher-demo-x was killed because it used more memory than its limit. Next: `kubectl get pod virt-launcher-demo-x -n default -o jsonpath={.spec.containers[*].resources}`");
    assert_snapshot!(scheduling(waiting("compute", "ContainerCreating", "")), @"VM default/demo is not running: pod virt-launcher-demo-x is being started, waiting for its container compute. Next: `kubectl get vmi demo -n default -w`");
    let parts = json!({
        "vm": vm("Always"), "vmi": vmi("Scheduling"), "pods": [waiting("compute", "ContainerCreating", "")],
        "events": warning("Pod", "virt-launcher-demo-x", "MountVolume.SetUp failed for volume \"a\""),
    });
    assert_snapshot!(explained(parts), @r#"VM default/demo is not running: pod virt-launcher-demo-x is not ready: MountVolume.SetUp failed for volume "a". Next: `kubectl describe pod virt-launcher-demo-x -n default`"#);
}

#[test]
fn its_guest() {
    let mut scheduled = vmi("Scheduled");
    scheduled["status"]["nodeName"] = json!("node1");
    let parts =
        |events: Value| json!({ "vm": vm("Always"), "vmi": scheduled, "pods": [pod(json!({}))], "events": events });
    assert_snapshot!(explained(parts(json!([]))), @"VM default/demo is not running: its pod is ready, and virt-handler on node node1 is about to start the guest. If this stays so, virt-handler there is not well. Next: `kubectl get pods -A -l kubevirt.io=virt-handler --field-selector spec.nodeName=node1`");
    let why = "disk root is not one: it has a backing file";
    assert_snapshot!(explained(parts(warning("VirtualMachineInstance", "demo", why))), @"VM default/demo is not running: node node1 cannot start its guest: disk root is not one: it has a backing file. Next: `kubectl describe vmi demo -n default`");
    let events = warning("VirtualMachineInstance", "demo", "The VirtualMachineInstance failed: node node1 was lost.");
    assert_snapshot!(explained(json!({ "vm": vm("Always"), "vmi": vmi("Failed"), "events": events })), @"VM default/demo is not running: it failed: node node1 was lost. Next: `kubectl describe vmi demo -n default`");
    assert_snapshot!(explained(json!({ "vmi": vmi("Failed") })), @"VMI default/demo is not running: its guest or its pod failed, and nothing says why. Next: `kubectl describe vmi demo -n default`");
}

#[test]
fn events_of_others_are_not_believed() {
    let parts = json!({
        "vm": vm("Always"), "vmi": vmi("Pending"),
        "events": warning("VirtualMachineInstance", "other", "this is not about demo"),
    });
    assert!(!explained(parts).contains("not about demo"));
}

#[test]
fn what_a_running_guest_has_yet_to_get_is_told() {
    let told = |kind: &str, reason: &str, message: &str| json!([{ "type": kind, "status": "True", "reason": reason, "message": message }]);
    let guest = |conditions: Value| {
        let mut guest = vmi("Running");
        guest["status"]["nodeName"] = json!("node1");
        guest["status"]["conditions"] = conditions;
        explained(json!({ "vm": vm("Always"), "vmi": guest }))
    };
    let stuck = guest(told("HotVCPUChange", "PodNotResizable", "Node didn't have enough capacity: cpu"));
    assert!(stuck.contains("has not yet the CPUs that its machine asks for: Node didn't have"), "{stuck}");
    assert!(stuck.contains("virtctl migrate demo"), "{stuck}");
    let coming = guest(told("HotMemoryChange", "PodResized", "the launcher pod has the size"));
    assert!(coming.contains("has not yet the memory") && coming.contains("kubectl get vmi demo"), "{coming}");
    let mut machine = vm("Always");
    machine["status"]["conditions"] = told("RestartRequired", "RestartRequired", "a field was changed");
    let mut running = vmi("Running");
    running["status"]["nodeName"] = json!("node1");
    let restart = explained(json!({ "vm": machine, "vmi": running }));
    assert!(restart.contains("is as its machine says after a restart: a field was changed"), "{restart}");
    assert!(restart.contains("virtctl restart demo"), "{restart}");
}
