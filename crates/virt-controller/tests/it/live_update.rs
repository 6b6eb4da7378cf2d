//! What of a changed template a running guest gets, and how its pod comes to have the size for it.

use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, in_phase, machine, start, wait};
use crate::eviction::deployed;

/// A guest that runs and may come to have four sockets and 4Gi.
async fn running(configuration: Value) -> (Cluster, String) {
    let cluster = start().await;
    let kubevirts: Api<KubeVirt> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let kubevirt = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": { "name": "kubevirt" },
        "spec": { "configuration": configuration, "workloadUpdateStrategy": { "workloadUpdateMethods": ["LiveMigrate"] } },
    });
    let kubevirt: KubeVirt = serde_json::from_value(kubevirt).unwrap();
    kubevirts.create(&PostParams::default(), &kubevirt).await.unwrap();
    deployed(&kubevirts).await;
    let mut vm = machine("Always");
    let spec = vm.spec.template.spec.as_mut().unwrap();
    spec.domain.cpu =
        serde_json::from_value(json!({ "sockets": 1, "cores": 1, "threads": 1, "maxSockets": 4 })).unwrap();
    spec.domain.memory = serde_json::from_value(json!({ "guest": "1Gi", "maxGuest": "4Gi" })).unwrap();
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    node(&cluster, &pod.name_any(), json!([])).await;
    cluster.guest("Running").await;
    wait(&cluster.vmis, "vm", "running", in_phase("Running")).await;
    (cluster, pod.name_any())
}

/// What a node says of the pod's size: all that is asked for, with these conditions.
async fn node(cluster: &Cluster, pod: &str, conditions: Value) {
    let found = cluster.pods.get(pod).await.unwrap();
    let resources = found.spec.as_ref().unwrap().containers[0].resources.clone().unwrap();
    let granted = conditions.as_array().is_none_or(Vec::is_empty);
    let mut statuses = found.status.as_ref().unwrap().container_statuses.clone().unwrap();
    if granted {
        statuses[0].allocated_resources.clone_from(&resources.requests);
        statuses[0].resources = Some(resources);
    }
    let conditions: Vec<Value> = match granted {
        true => vec![json!({ "type": "PodResizePending", "$patch": "delete" })],
        false => conditions.as_array().cloned().unwrap(),
    };
    let patch = json!({ "status": { "containerStatuses": statuses, "conditions": conditions } });
    cluster.pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
}

async fn change(cluster: &Cluster, domain: Value) {
    let patch = json!({ "spec": { "template": { "spec": { "domain": domain } } } });
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn told(vmi: Option<&VirtualMachineInstance>, kind: &str) -> Option<String> {
    let found = vmi?.status.as_ref()?.conditions.iter().find(|c| c.type_ == kind && c.status == "True")?;
    found.reason.clone()
}

async fn reason(cluster: &Cluster, kind: &'static str, expect: Option<&'static str>) -> VirtualMachineInstance {
    let fits = move |vmi: Option<&VirtualMachineInstance>| told(vmi, kind).as_deref() == expect;
    wait(&cluster.vmis, "vm", expect.unwrap_or("without a change"), fits).await.unwrap()
}

/// What virt-handler says of the guest.
async fn guest(cluster: &Cluster, status: Value) {
    cluster.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await.unwrap();
}

/// The message of the machine's condition.
fn condition(vm: Option<&VirtualMachine>, kind: &str) -> Option<String> {
    let found = vm?.status.as_ref()?.conditions.iter().find(|c| c.type_ == kind && c.status == "True")?;
    Some(found.message.clone().unwrap_or_default())
}

async fn says(cluster: &Cluster, kind: &'static str, expect: Option<&'static str>) {
    let fits = move |vm: Option<&VirtualMachine>| match (condition(vm, kind), expect) {
        (Some(message), Some(expect)) => message.contains(expect),
        (found, expect) => found.is_none() && expect.is_none(),
    };
    wait(&cluster.vms, "vm", expect.unwrap_or("without that condition"), fits).await;
}

fn requests(pod: &Pod) -> (String, String) {
    let requests = pod.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap().requests.clone().unwrap();
    (requests["cpu"].0.clone(), requests["memory"].0.clone())
}

#[tokio::test]
async fn a_guest_grows_in_its_pod_and_shrinks_again() {
    let (cluster, pod) = running(json!({})).await;
    let before = requests(&cluster.pods.get(&pod).await.unwrap());
    change(&cluster, json!({ "cpu": { "sockets": 3 }, "memory": { "guest": "2Gi" } })).await;
    let vmi = reason(&cluster, "HotVCPUChange", Some("PodResizeInProgress")).await;
    assert_eq!(vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.sockets), Some(3));
    assert_eq!(told(Some(&vmi), "HotMemoryChange").as_deref(), Some("PodResizeInProgress"));
    let (cpu, memory) = requests(&cluster.pods.get(&pod).await.unwrap());
    assert_eq!((before.0.as_str(), cpu.as_str()), ("100m", "300m"));
    assert_ne!(before.1, memory);
    node(&cluster, &pod, json!([])).await;
    reason(&cluster, "HotVCPUChange", Some("PodResized")).await;
    guest(
        &cluster,
        json!({
            "currentCPUTopology": { "sockets": 3, "cores": 1, "threads": 1 }, "memory": { "guestRequested": "2Gi" },
        }),
    )
    .await;
    let vmi = reason(&cluster, "HotVCPUChange", None).await;
    assert_eq!(told(Some(&vmi), "HotMemoryChange"), None);
    // The machine is as its guest, and nothing is to be restarted.
    let vm = cluster.vms.get("vm").await.unwrap();
    assert_eq!(vmi.annotations()["kubevirt.io/vm-generation"], vm.metadata.generation.unwrap().to_string());
    says(&cluster, "RestartRequired", None).await;

    // The pod stays as it is until the guest has given back what it has.
    change(&cluster, json!({ "cpu": { "sockets": 1 }, "memory": { "guest": "1Gi" } })).await;
    reason(&cluster, "HotVCPUChange", Some("PodResized")).await;
    assert_eq!(requests(&cluster.pods.get(&pod).await.unwrap()), (cpu, memory));
    // It is asked to, and then it has.
    let asked = json!({ "guestRequested": "1Gi", "guestCurrent": "1536Mi" });
    guest(&cluster, json!({ "currentCPUTopology": { "sockets": 1, "cores": 1, "threads": 1 }, "memory": asked })).await;
    let vmi = reason(&cluster, "HotVCPUChange", None).await;
    assert!(told(Some(&vmi), "HotMemoryChange").is_some(), "the guest uses what it was asked to give back");
    guest(&cluster, json!({ "memory": { "guestCurrent": "1Gi" } })).await;
    reason(&cluster, "HotMemoryChange", None).await;
    reason(&cluster, "HotVCPUChange", None).await;
    assert_eq!(requests(&cluster.pods.get(&pod).await.unwrap()), before);
}

#[tokio::test]
async fn a_guest_moves_when_its_node_has_no_room() {
    let (cluster, pod) = running(json!({})).await;
    guest(&cluster, json!({ "conditions": [{ "type": "LiveMigratable", "status": "True" }] })).await;
    change(&cluster, json!({ "cpu": { "sockets": 2 } })).await;
    reason(&cluster, "HotVCPUChange", Some("PodResizeInProgress")).await;
    let pending = json!({ "type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "Node didn't have enough capacity: cpu" });
    node(&cluster, &pod, json!([pending])).await;
    let vmi = reason(&cluster, "HotVCPUChange", Some("PodNotResizable")).await;
    let condition = vmi.status.unwrap().conditions.into_iter().find(|c| c.type_ == "HotVCPUChange").unwrap();
    let expect = "Node didn't have enough capacity: cpu: migrate the guest, or restart it";
    assert_eq!(condition.message.as_deref(), Some(expect));
    let migrations = cluster.migrations.clone();
    let found = async || {
        let all = migrations.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().find(|one| one.annotations().contains_key("kubevirt.io/workloadUpdateMigration"))
    };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let migration: VirtualMachineInstanceMigration = loop {
        if let Some(found) = found().await {
            break found;
        }
        assert!(tokio::time::Instant::now() < deadline, "never moved");
        tokio::task::yield_now().await;
    };
    assert_eq!(migration.spec.vmi_name.as_deref(), Some("vm"));
}

#[tokio::test]
async fn a_quota_that_a_guest_outgrows_is_named() {
    let (cluster, pod) = running(json!({})).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), "default");
    let quota = json!({ "metadata": { "name": "tight" }, "spec": { "hard": { "requests.cpu": "200m" } }, "status": { "hard": { "requests.cpu": "200m" }, "used": { "requests.cpu": "100m" } } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    change(&cluster, json!({ "cpu": { "sockets": 4 } })).await;
    let vmi = reason(&cluster, "HotVCPUChange", Some("PodNotResizable")).await;
    let condition = vmi.status.unwrap().conditions.into_iter().find(|c| c.type_ == "HotVCPUChange").unwrap();
    let message = condition.message.unwrap();
    assert!(message.contains("exceeded quota: tight") && message.contains("migrate the guest"), "{message}");
    assert_eq!(requests(&cluster.pods.get(&pod).await.unwrap()).0, "100m");
}

#[tokio::test]
async fn what_no_running_guest_can_have_needs_a_restart() {
    let (cluster, _) = running(json!({})).await;
    change(&cluster, json!({ "cpu": { "sockets": 5, "maxSockets": 4 } })).await;
    says(
        &cluster,
        "RestartRequired",
        Some("CPU sockets updated in template spec to a value higher than what's available"),
    )
    .await;
    change(&cluster, json!({ "cpu": { "sockets": 1 }, "memory": { "guest": "512Mi" } })).await;
    says(
        &cluster,
        "RestartRequired",
        Some("memory updated in template spec to a value lower than what the VM started with"),
    )
    .await;
    change(&cluster, json!({ "memory": { "guest": "8Gi" } })).await;
    says(&cluster, "RestartRequired", Some("memory updated in template spec to a value higher than what's available"))
        .await;
    // With it, nothing else is changed live.
    change(&cluster, json!({ "memory": { "guest": "1Gi" }, "cpu": { "sockets": 2, "cores": 2 } })).await;
    says(&cluster, "RestartRequired", Some("a non-live-updatable field was changed in the template spec")).await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert_eq!(vmi.spec.domain.cpu.and_then(|cpu| cpu.sockets), Some(1));
    change(&cluster, json!({ "cpu": { "sockets": 1, "cores": 1 } })).await;
    says(&cluster, "RestartRequired", None).await;
}

#[tokio::test]
async fn where_a_guest_may_run_changes_for_its_next_pod() {
    let (cluster, _) = running(json!({})).await;
    let toleration = json!([{ "key": "gpu", "operator": "Exists" }]);
    let patch =
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "zone": "b" }, "tolerations": toleration } } } });
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let fits = |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| {
            vmi.spec.node_selector.get("zone").is_some_and(|zone| zone == "b") && vmi.spec.tolerations.len() == 1
        })
    };
    wait(&cluster.vmis, "vm", "told where it may run", fits).await;
    says(&cluster, "RestartRequired", None).await;
}

#[tokio::test]
async fn under_stage_everything_waits_for_a_restart() {
    let (cluster, _) = running(json!({ "vmRolloutStrategy": "Stage" })).await;
    change(&cluster, json!({ "cpu": { "sockets": 2 } })).await;
    says(&cluster, "RestartRequired", Some("a non-live-updatable field was changed in the template spec")).await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert_eq!(vmi.spec.domain.cpu.and_then(|cpu| cpu.sockets), Some(1));
}
