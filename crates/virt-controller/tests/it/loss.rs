//! Nodes that do not answer, and what becomes of the machines on them.

use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, PersistentVolume};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, in_phase, machine, printed, start, wait};
use crate::migration::under_way;
use crate::storage::{claim, claim_with, on};

/// What a kubelet does every ten seconds, until it is told to be silent.
struct Kubelet(kit::Task<()>);

impl Kubelet {
    async fn start(cluster: &Cluster, node: &str) -> Self {
        let spaces: Api<Namespace> = Api::all(cluster.client.clone());
        let space = serde_json::from_value(json!({ "metadata": { "name": "kube-node-lease" } })).unwrap();
        // The server may have made it.
        let _ = spaces.create(&PostParams::default(), &space).await;
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-node-lease");
        let lease = serde_json::from_value(json!({ "metadata": { "name": node }, "spec": {} })).unwrap();
        leases.create(&PostParams::default(), &lease).await.unwrap();
        Self::renew(cluster, node, 0)
    }

    fn renew(cluster: &Cluster, node: &str, from: i64) -> Self {
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-node-lease");
        let node = node.to_owned();
        Self(kit::spawn("kubelet", async move {
            for beat in from.. {
                let at = jiff::Timestamp::from_second(1_700_000_000 + beat).unwrap();
                let renewal = json!({ "spec": { "renewTime": format!("{at:.6}") } });
                leases.patch(&node, &PatchParams::default(), &Patch::Merge(renewal)).await.unwrap();
                sleep(Duration::from_secs(10)).await;
            }
        }))
    }

    fn falls_silent(self) {
        drop(self.0);
    }
}

async fn second_node(cluster: &Cluster) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = json!({
        "metadata": { "name": "node2", "labels": { "kubevirt.io/schedulable": "true", "kubernetes.io/hostname": "node2" } },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
}

/// A machine that runs on node1; its instance.
async fn runs(cluster: &Cluster, vm: &VirtualMachine) -> VirtualMachineInstance {
    cluster.vms.create(&PostParams::default(), vm).await.unwrap();
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    cluster.guest("Running").await;
    wait(&cluster.vmis, "vm", "running", in_phase("Running")).await.unwrap()
}

fn another(than: &VirtualMachineInstance) -> impl kube::runtime::wait::Condition<VirtualMachineInstance> + use<> {
    let first = than.uid();
    move |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.uid() != first)
}

fn failed(found: Option<&VirtualMachineInstanceMigration>) -> bool {
    found.and_then(|found| found.status.as_ref()?.phase.as_deref()) == Some("Failed")
}

fn ready(vm: &VirtualMachine) -> (String, String) {
    let conditions = &vm.status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|c| c.type_ == "Ready").unwrap();
    (found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_node_falls_silent_is_started_again_within_a_minute() {
    let cluster = start().await;
    second_node(&cluster).await;
    let (first, _second) = (Kubelet::start(&cluster, "node1").await, Kubelet::start(&cluster, "node2").await);
    let vmi = runs(&cluster, &machine("Always")).await;
    let pod = virt_controller::vmi::pod::name(&vmi);
    let since = Instant::now();
    first.falls_silent();
    wait(&cluster.vmis, "vm", "started again", another(&vmi)).await;
    assert!(since.elapsed() < Duration::from_secs(50), "it took {:?}", since.elapsed());
    assert!(cluster.pods.get_opt(&pod).await.unwrap().is_none());
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    assert_eq!(nodes.get("node1").await.unwrap().labels()["kubevirt.io/schedulable"], "false");
    // It was the node: the guest has not crashed, and is not held back.
    let vm = wait(&cluster.vms, "vm", "starting", printed("Starting")).await.unwrap();
    assert_eq!(vm.status.unwrap().start_failure, None);
}

#[tokio::test(start_paused = true)]
async fn a_machine_on_a_disk_of_its_node_waits_and_says_so() {
    let cluster = start().await;
    second_node(&cluster).await;
    let volume = json!({ "metadata": { "name": "pv" }, "spec": {
        "capacity": { "storage": "2Gi" }, "accessModes": ["ReadWriteOnce"], "local": { "path": "/disks/1" },
        "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"] },
        ] }] } },
    } });
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    claim(&cluster, "data", "pv", "Filesystem").await;
    let (first, _second) = (Kubelet::start(&cluster, "node1").await, Kubelet::start(&cluster, "node2").await);
    let vmi = runs(&cluster, &on(json!({ "persistentVolumeClaim": { "claimName": "data" } }))).await;
    first.falls_silent();
    let vm = wait(&cluster.vms, "vm", "unknown", printed("Unknown")).await.unwrap();
    let (reason, message) = ready(&vm);
    assert_eq!(reason, "NodeUnresponsive");
    assert_eq!(
        message,
        "node node1 does not answer, and volume root is on a disk that only node1 can reach: the guest runs again when \
         node1 is back"
    );
    sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.vmis.get("vm").await.unwrap().uid(), vmi.uid());
    let again = Kubelet::renew(&cluster, "node1", 1_000);
    wait(&cluster.vms, "vm", "heard of again", printed("Running")).await;
    again.falls_silent();
    wait(&cluster.vms, "vm", "unknown again", printed("Unknown")).await;

    // The administrator vouches for it that nothing runs there.
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let unknown = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
    nodes.patch_status("node1", &PatchParams::default(), &Patch::Strategic(unknown)).await.unwrap();
    let taint = json!({ "spec": { "taints": [{
        "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute",
    }] } });
    nodes.patch("node1", &PatchParams::default(), &Patch::Merge(taint)).await.unwrap();
    wait(&cluster.vmis, "vm", "started again", another(&vmi)).await;
}

/// The guest was handed over to a node that was lost in that moment: its source stands still, and asks in vain.
#[tokio::test(start_paused = true)]
async fn a_source_goes_on_once_its_lost_target_can_do_no_harm() {
    let cluster = start().await;
    second_node(&cluster).await;
    let (_first, second) = (Kubelet::start(&cluster, "node1").await, Kubelet::start(&cluster, "node2").await);
    claim_with(&cluster, "data", "nothing-is-known-of-it", "Filesystem", "ReadWriteMany").await;
    runs(&cluster, &on(json!({ "persistentVolumeClaim": { "claimName": "data" } }))).await;
    let migration = json!({ "metadata": { "name": "move" }, "spec": { "vmiName": "vm" } });
    let migration = serde_json::from_value(migration).unwrap();
    let migration = cluster.migrations.create(&PostParams::default(), &migration).await.unwrap();
    under_way(&cluster, &migration, "vm", "node2").await;
    second.falls_silent();
    wait(&cluster.migrations, "move", "failed", failed).await;
    // Nothing is known of the disk: the target may be writing it.
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let why = loop {
        let all = events.list(&ListParams::default()).await.unwrap();
        let mut said = all.iter().filter(|event| event.reason.as_deref() == Some("MigrationTargetUnresponsive"));
        match said.next().and_then(|event| event.message.clone()) {
            Some(why) => break why,
            None => sleep(Duration::from_secs(1)).await,
        }
    };
    assert!(why.starts_with("node node2 does not answer since the guest was handed over to it"), "{why}");
    let fenced = |vmi: Option<&VirtualMachineInstance>| {
        vmi.is_some_and(|vmi| vmi.annotations().contains_key("ferrovirt.io/migration-target-fenced"))
    };
    assert!(!fenced(cluster.vmis.get_opt("vm").await.unwrap().as_ref()));
    // The administrator knows that the node is down.
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let taint = json!({ "spec": { "taints": [
        { "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" },
    ] } });
    nodes.patch("node2", &PatchParams::default(), &Patch::Merge(taint)).await.unwrap();
    let vmi = wait(&cluster.vmis, "vm", "told", fenced).await.unwrap();
    assert_eq!(vmi.annotations()["ferrovirt.io/migration-target-fenced"], migration.uid().unwrap());
    assert_eq!(vmi.status.unwrap().migration_state.unwrap().abort_requested, Some(true));
}

/// The node that an evacuated guest was going to is lost on the way: the guest stays, and is sent elsewhere a little later.
#[tokio::test(start_paused = true)]
async fn an_evacuation_whose_target_is_lost_is_tried_again() {
    let cluster = start().await;
    second_node(&cluster).await;
    let (_first, second) = (Kubelet::start(&cluster, "node1").await, Kubelet::start(&cluster, "node2").await);
    let mut vm = machine("Always");
    vm.spec.template.spec.as_mut().unwrap().eviction_strategy = Some("LiveMigrate".to_owned());
    runs(&cluster, &vm).await;
    let say = async |status: serde_json::Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        cluster.vmis.patch("vm", &PatchParams::default(), &patch).await.unwrap();
    };
    let movable = json!([{ "type": "LiveMigratable", "status": "True" }]);
    say(json!({ "conditions": movable, "evacuationNodeName": "node1" })).await;
    let unfinished = async || loop {
        let all = cluster.migrations.list(&ListParams::default()).await.unwrap();
        let mut going = all.items.into_iter().filter(|migration| !failed(Some(migration)));
        match going.next() {
            Some(migration) => return migration,
            None => sleep(Duration::from_secs(1)).await,
        }
    };
    let migration = unfinished().await;
    under_way(&cluster, &migration, "vm", "node2").await;
    second.falls_silent();
    let since = Instant::now();
    wait(&cluster.migrations, &migration.name_any(), "failed", failed).await;
    let asked = |vmi: Option<&VirtualMachineInstance>| {
        let state = vmi.and_then(|vmi| vmi.status.as_ref()?.migration_state.clone());
        state.is_some_and(|state| state.abort_requested == Some(true))
    };
    wait(&cluster.vmis, "vm", "asked to stop", asked).await;
    assert!(since.elapsed() < Duration::from_secs(60), "it took {:?}", since.elapsed());
    say(json!({ "migrationState": { "completed": true, "failed": true, "endTimestamp": "2026-01-01T00:00:09Z" } }))
        .await;
    // The target's pod stays where nobody ends it, and holds up nothing.
    let again = unfinished().await;
    assert!(again.uid() != migration.uid() && since.elapsed() < Duration::from_secs(120), "{:?}", since.elapsed());
    under_way(&cluster, &again, "vm", "node3").await;
}

/// Its memory was on both nodes when one was lost (post-copy): the guest has ended, and the pod on the lost node, whose
/// kubelet cannot say so, holds up nothing.
#[tokio::test(start_paused = true)]
async fn a_guest_that_ended_between_two_nodes_is_started_again_without_the_lost_one() {
    let cluster = start().await;
    second_node(&cluster).await;
    let (_first, second) = (Kubelet::start(&cluster, "node1").await, Kubelet::start(&cluster, "node2").await);
    let before = runs(&cluster, &machine("Always")).await;
    let migration = json!({ "metadata": { "name": "move" }, "spec": { "vmiName": "vm" } });
    let migration = serde_json::from_value(migration).unwrap();
    let migration = cluster.migrations.create(&PostParams::default(), &migration).await.unwrap();
    under_way(&cluster, &migration, "vm", "node2").await;
    second.falls_silent();
    let since = Instant::now();
    let state =
        json!({ "completed": true, "failed": true, "endTimestamp": "2026-01-01T00:00:09Z", "mode": "PostCopy" });
    let ended = Patch::Merge(json!({ "status": { "phase": "Failed", "migrationState": state } }));
    cluster.vmis.patch("vm", &PatchParams::default(), &ended).await.unwrap();
    // The pod that the guest came from ends as pods do, and its node's kubelet says so.
    cluster.end(&virt_controller::vmi::pod::name(&before)).await;
    wait(&cluster.vmis, "vm", "started anew", another(&before)).await;
    assert!(since.elapsed() < Duration::from_secs(60), "it took {:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn when_nobody_is_heard_nobody_is_given_up() {
    let cluster = start().await;
    second_node(&cluster).await;
    let (first, second) = (Kubelet::start(&cluster, "node1").await, Kubelet::start(&cluster, "node2").await);
    let vmi = runs(&cluster, &machine("Always")).await;
    first.falls_silent();
    second.falls_silent();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.vmis.get("vm").await.unwrap().uid(), vmi.uid());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_does_not_restart_is_left_on_its_silent_node() {
    let cluster = start().await;
    second_node(&cluster).await;
    let (first, _second) = (Kubelet::start(&cluster, "node1").await, Kubelet::start(&cluster, "node2").await);
    let vmi = runs(&cluster, &machine("Once")).await;
    first.falls_silent();
    let vm = wait(&cluster.vms, "vm", "unknown", printed("Unknown")).await.unwrap();
    assert!(ready(&vm).1.contains("delete this VirtualMachineInstance to give it up"), "{:?}", ready(&vm));
    cluster.vmis.delete("vm", &kube::api::DeleteParams::default()).await.unwrap();
    // A machine that runs once runs once more when its instance is deleted.
    wait(&cluster.vmis, "vm", "given up", another(&vmi)).await;
}
