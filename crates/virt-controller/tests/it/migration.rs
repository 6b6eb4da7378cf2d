//! A guest moves: this controller's part, with scheduler, kubelet and virt-handlers played.

use std::pin::pin;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use api::migrations::v1alpha1::MigrationPolicy;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, in_phase, machine, start, wait};

/// A cluster with these VMIs running on node1.
async fn with_guests(names: &[&str]) -> Cluster {
    let cluster = Box::pin(start()).await;
    for name in names {
        Box::pin(guest(&cluster, name)).await;
    }
    cluster
}

async fn guest(cluster: &Cluster, name: &str) {
    let vmi = json!({
        "metadata": {
            "name": name, "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"], "labels": { "app": "x" },
        },
        "spec": machine("Always").spec.template.spec, "status": { "phase": "Pending" },
    });
    cluster.vmis.create(&PostParams::default(), &serde_json::from_value(vmi).unwrap()).await.unwrap();
    let vmi = wait(&cluster.vmis, name, "scheduling", in_phase("Scheduling")).await.unwrap();
    let pod = cluster.pods.get(&virt_controller::vmi::pod::name(&vmi)).await.unwrap();
    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, name, "scheduled", in_phase("Scheduled")).await;
    say(cluster, name, json!({ "status": { "phase": "Running" } })).await;
}

/// What a virt-handler writes.
pub(crate) async fn say(cluster: &Cluster, vmi: &str, patch: Value) {
    cluster.vmis.patch(vmi, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

pub(crate) async fn migrate(cluster: &Cluster, name: &str, vmi: &str) -> Migration {
    migrate_with(cluster, json!({ "metadata": { "name": name }, "spec": { "vmiName": vmi } })).await
}

async fn migrate_with(cluster: &Cluster, migration: Value) -> Migration {
    cluster.migrations.create(&PostParams::default(), &serde_json::from_value(migration).unwrap()).await.unwrap()
}

fn phase(migration: &Migration) -> &str {
    migration.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) async fn reaches(cluster: &Cluster, name: &str, wanted: &'static str) -> Migration {
    let there = move |found: Option<&Migration>| found.is_some_and(|migration| phase(migration) == wanted);
    wait(&cluster.migrations, name, wanted, there).await.unwrap()
}

pub(crate) async fn target_pod(cluster: &Cluster, migration: &Migration, vmi: &str) -> Pod {
    let name = virt_controller::vmi::pod::name_of(vmi, &migration.uid().unwrap());
    wait(&cluster.pods, &name, "there", |pod: Option<&Pod>| pod.is_some()).await.unwrap()
}

pub(crate) async fn source_pod(cluster: &Cluster, vmi: &str) -> Pod {
    let vmi = cluster.vmis.get(vmi).await.unwrap();
    cluster.pods.get(&virt_controller::vmi::pod::name(&vmi)).await.unwrap()
}

/// Up to the moment at which the source's virt-handler has begun.
pub(crate) async fn under_way(cluster: &Cluster, migration: &Migration, vmi: &str, node: &str) -> Pod {
    let (name, target) = (migration.name_any(), target_pod(cluster, migration, vmi).await);
    reaches(cluster, &name, "Scheduling").await;
    cluster.run_on(node, &target, json!({ "running": {} })).await;
    reaches(cluster, &name, "PreparingTarget").await;
    say(cluster, vmi, json!({ "status": { "migrationState": { "targetNodeAddress": "10.0.0.2" } } })).await;
    reaches(cluster, &name, "TargetReady").await;
    let now = "2026-01-01T00:00:00Z";
    say(cluster, vmi, json!({ "status": { "migrationState": { "startTimestamp": now, "mode": "PreCopy" } } })).await;
    reaches(cluster, &name, "Running").await;
    target
}

/// The source says that the guest has left; the target takes it over.
pub(crate) async fn arrives(cluster: &Cluster, vmi: &str, node: &str) {
    let end = json!({ "completed": true, "endTimestamp": "2026-01-01T00:00:09Z" });
    say(cluster, vmi, json!({ "status": { "migrationState": end } })).await;
    let labels = json!({ "kubevirt.io/nodeName": node });
    say(cluster, vmi, json!({ "metadata": { "labels": labels }, "status": { "nodeName": node } })).await;
}

fn going(pod: Option<&Pod>) -> bool {
    pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
}

fn uncalled(vmi: Option<&VirtualMachineInstance>) -> bool {
    vmi.is_some_and(|vmi| !vmi.labels().contains_key("kubevirt.io/migrationTargetNodeName"))
}

/// Waits until something has been said of the object for each of these reasons.
pub(crate) async fn said(cluster: &Cluster, about: &str, reasons: &[&str]) {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let mut missing: Vec<&str> = reasons.to_vec();
    let mut stream = pin!(watcher(events, Config::default()).applied_objects());
    let all = async {
        while !missing.is_empty() {
            let event = stream.next().await.unwrap().unwrap();
            if event.involved_object.name.as_deref() == Some(about) {
                missing.retain(|reason| event.reason.as_deref() != Some(reason));
            }
        }
    };
    let patience = std::time::Duration::from_secs(30);
    assert!(tokio::time::timeout(patience, all).await.is_ok(), "{about}: never said {missing:?}");
}

/// Waits until this sentence has been said of the object.
pub(crate) async fn told(cluster: &Cluster, about: &str, sentence: &str) {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let mut stream = pin!(watcher(events, Config::default()).applied_objects());
    let heard = async {
        loop {
            let event = stream.next().await.unwrap().unwrap();
            let named = event.involved_object.name.as_deref() == Some(about);
            if named && event.message.as_deref() == Some(sentence) {
                return;
            }
        }
    };
    let patience = std::time::Duration::from_secs(30);
    assert!(tokio::time::timeout(patience, heard).await.is_ok(), "{about}: never said {sentence:?}");
}

#[tokio::test]
async fn a_guest_moves_and_nothing_is_left_behind() {
    let cluster = with_guests(&["vm"]).await;
    let source = source_pod(&cluster, "vm").await;
    let added = json!({ "kubernetes.io/hostname": "node2" });
    let migration = migrate_with(
        &cluster,
        json!({ "metadata": { "name": "move" }, "spec": { "vmiName": "vm", "addedNodeSelector": added } }),
    )
    .await;
    let target = target_pod(&cluster, &migration, "vm").await;
    assert_eq!(target.labels()["kubevirt.io/migrationJobUID"], migration.uid().unwrap());
    assert_eq!(target.spec.as_ref().unwrap().node_selector.as_ref().unwrap()["kubernetes.io/hostname"], "node2");
    under_way(&cluster, &migration, "vm", "node2").await;

    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert_eq!(vmi.labels()["kubevirt.io/migrationTargetNodeName"], "node2");
    let status = vmi.status.clone().unwrap();
    let pods = [(source.uid().unwrap(), "node1".to_owned()), (target.uid().unwrap(), "node2".to_owned())];
    assert_eq!(status.active_pods, pods.into());
    let state = status.migration_state.unwrap();
    assert_eq!((state.source_node.as_deref(), state.target_node.as_deref()), (Some("node1"), Some("node2")));
    assert_eq!((&state.source_pod, &state.target_pod), (&source.metadata.name, &target.metadata.name));
    assert_eq!(state.source_state.unwrap().pod, source.metadata.name);
    let configuration = state.migration_configuration.unwrap();
    assert_eq!((configuration.progress_timeout, configuration.allow_post_copy), (Some(150), Some(false)));

    arrives(&cluster, "vm", "node2").await;
    let done = reaches(&cluster, "move", "Succeeded").await;
    let phases: Vec<_> =
        done.status.unwrap().phase_transition_timestamps.iter().filter_map(|entered| entered.phase.clone()).collect();
    let all = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"];
    assert_eq!(phases, all);
    wait(&cluster.pods, &source.name_any(), "told to end", going).await;
    wait(&cluster.vmis, "vm", "called no more", uncalled).await;
    let free = |found: Option<&Migration>| found.is_some_and(|migration| migration.finalizers().is_empty());
    let done = wait(&cluster.migrations, "move", "let go", free).await.unwrap();
    assert_eq!(done.labels()["kubevirt.io/vmi-name"], "vm");
    assert_eq!(done.status.unwrap().migration_state.unwrap().completed, Some(true));
    cluster.end(&source.name_any()).await;
    let alone = move |vmi: Option<&VirtualMachineInstance>| {
        let pods = vmi.and_then(|vmi| vmi.status.as_ref()).map(|status| status.active_pods.len());
        pods == Some(1)
    };
    let vmi = wait(&cluster.vmis, "vm", "in one pod", alone).await.unwrap();
    let status = vmi.status.unwrap();
    assert_eq!(status.active_pods.into_iter().next(), Some((target.uid().unwrap(), "node2".to_owned())));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let reasons = ["SuccessfulCreate", "SuccessfulDelete", "SuccessfulHandOver", "SuccessfulMigration"];
    said(&cluster, "move", &reasons).await;

    // And back, out of a pod that a migration made.
    let back = migrate(&cluster, "back", "vm").await;
    under_way(&cluster, &back, "vm", "node1").await;
    let state = cluster.vmis.get("vm").await.unwrap().status.unwrap().migration_state.unwrap();
    // Nothing of the first migration is left in the second's state.
    assert_eq!((state.source_pod, state.completed, state.end_timestamp), (target.metadata.name.clone(), None, None));
    arrives(&cluster, "vm", "node1").await;
    reaches(&cluster, "back", "Succeeded").await;
    wait(&cluster.pods, &target.name_any(), "told to end", going).await;
}

#[tokio::test]
async fn cancelled_before_the_nodes_know() {
    let cluster = with_guests(&["vm"]).await;
    let migration = migrate(&cluster, "move", "vm").await;
    let target = target_pod(&cluster, &migration, "vm").await;
    cluster.migrations.delete("move", &DeleteParams::default()).await.unwrap();
    wait(&cluster.pods, &target.name_any(), "told to end", going).await;
    wait(&cluster.migrations, "move", "gone", |found: Option<&Migration>| found.is_none()).await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert!(
        vmi.status.unwrap().migration_state.is_none() && uncalled(cluster.vmis.get_opt("vm").await.unwrap().as_ref())
    );
    assert!(!going(cluster.pods.get_opt(&source_pod(&cluster, "vm").await.name_any()).await.unwrap().as_ref()));
}

#[tokio::test]
async fn cancelled_while_the_guest_is_copied() {
    let cluster = with_guests(&["vm"]).await;
    let migration = migrate(&cluster, "move", "vm").await;
    let target = under_way(&cluster, &migration, "vm", "node2").await;
    cluster.migrations.delete("move", &DeleteParams::default()).await.unwrap();
    let asked = |vmi: Option<&VirtualMachineInstance>| {
        let state = vmi.and_then(|vmi| vmi.status.as_ref()?.migration_state.clone());
        state.is_some_and(|state| state.abort_requested == Some(true))
    };
    wait(&cluster.vmis, "vm", "asked to stop", asked).await;
    // Until the source says how it ended, both pods stand.
    assert!(!going(cluster.pods.get_opt(&target.name_any()).await.unwrap().as_ref()));
    let end = json!({
        "completed": true, "failed": true, "abortStatus": "Succeeded", "endTimestamp": "2026-01-01T00:00:09Z",
    });
    say(&cluster, "vm", json!({ "status": { "migrationState": end } })).await;
    wait(&cluster.migrations, "move", "gone", |found: Option<&Migration>| found.is_none()).await;
    wait(&cluster.pods, &target.name_any(), "told to end", going).await;
    wait(&cluster.vmis, "vm", "called no more", uncalled).await;
    let vmi = cluster.vmis.get("vm").await.unwrap();
    assert_eq!(vmi.status.unwrap().node_name.as_deref(), Some("node1"));
}

#[tokio::test]
async fn a_target_that_dies_before_the_source_begins() {
    let cluster = with_guests(&["vm"]).await;
    let migration = migrate(&cluster, "move", "vm").await;
    let target = target_pod(&cluster, &migration, "vm").await;
    cluster.run_on("node2", &target, json!({ "running": {} })).await;
    reaches(&cluster, "move", "PreparingTarget").await;
    cluster.report(&target.name_any(), json!({ "terminated": { "exitCode": 1 } })).await;
    reaches(&cluster, "move", "Failed").await;
    let over = |vmi: Option<&VirtualMachineInstance>| {
        let state = vmi.and_then(|vmi| vmi.status.as_ref()?.migration_state.clone());
        uncalled(vmi) && state.is_some_and(|state| state.failed == Some(true))
    };
    let vmi = wait(&cluster.vmis, "vm", "told", over).await.unwrap();
    let state = vmi.status.clone().unwrap().migration_state.unwrap();
    assert_eq!((state.failure_reason.as_deref(), state.completed), (Some("Target pod is down"), Some(true)));
    assert_eq!(vmi.status.unwrap().phase.as_deref(), Some("Running"));
    wait(&cluster.pods, &target.name_any(), "told to end", going).await;
    said(&cluster, "move", &["FailedMigration"]).await;
    // The next one is not held up.
    cluster.end(&target.name_any()).await;
    let next = migrate(&cluster, "next", "vm").await;
    under_way(&cluster, &next, "vm", "node3").await;
}

#[tokio::test]
async fn a_target_pod_that_fits_nowhere_is_given_up() {
    let cluster = with_guests(&["vm"]).await;
    let annotations = json!({ "kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "0" });
    let migration = json!({ "metadata": { "name": "move", "annotations": annotations }, "spec": { "vmiName": "vm" } });
    let migration = migrate_with(&cluster, migration).await;
    let target = target_pod(&cluster, &migration, "vm").await.name_any();
    cluster.pod_condition(&target, "PodScheduled", "False", "Unschedulable").await;
    wait(&cluster.pods, &target, "gone", |pod: Option<&Pod>| pod.is_none()).await;
    reaches(&cluster, "move", "Failed").await;
    said(&cluster, "move", &["migrationTargetPodUnschedulable", "FailedMigration"]).await;
}

#[tokio::test]
async fn no_more_leave_a_node_than_may() {
    let cluster = with_guests(&["a", "b", "c"]).await;
    let (a, b) = (migrate(&cluster, "a", "a").await, migrate(&cluster, "b", "b").await);
    let target = target_pod(&cluster, &a, "a").await;
    target_pod(&cluster, &b, "b").await;
    let c = migrate(&cluster, "c", "c").await;
    reaches(&cluster, "c", "Pending").await;
    let of_c = virt_controller::vmi::pod::name_of("c", &c.uid().unwrap());
    assert!(cluster.pods.get_opt(&of_c).await.unwrap().is_none());
    cluster.migrations.delete("a", &DeleteParams::default()).await.unwrap();
    wait(&cluster.pods, &target.name_any(), "told to end", going).await;
    target_pod(&cluster, &c, "c").await;
}

#[tokio::test]
async fn a_guest_is_moved_by_one_migration_at_a_time() {
    let cluster = with_guests(&["vm"]).await;
    let first = migrate(&cluster, "first", "vm").await;
    target_pod(&cluster, &first, "vm").await;
    migrate(&cluster, "second", "vm").await;
    reaches(&cluster, "second", "Failed").await;
    assert_eq!(phase(&cluster.migrations.get("first").await.unwrap()), "Scheduling");
    assert_eq!(cluster.pods.list(&ListParams::default()).await.unwrap().items.len(), 2);
}

#[tokio::test]
async fn the_policy_for_the_guest_holds() {
    let cluster = with_guests(&["vm"]).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let labels = json!({ "metadata": { "labels": { "team": "a" } } });
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
    let policies: Api<MigrationPolicy> = Api::all(cluster.client.clone());
    for (name, selectors, bandwidth) in [
        ("all", json!({}), "1Mi"),
        (
            "ours",
            json!({ "namespaceSelector": { "team": "a" }, "virtualMachineInstanceSelector": { "app": "x" } }),
            "2Mi",
        ),
        ("theirs", json!({ "namespaceSelector": { "team": "b" } }), "3Mi"),
    ] {
        let spec = json!({ "selectors": selectors, "bandwidthPerMigration": bandwidth });
        let policy = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        policies.create(&PostParams::default(), &policy).await.unwrap();
    }
    let migration = migrate(&cluster, "move", "vm").await;
    let target = target_pod(&cluster, &migration, "vm").await;
    cluster.run_on("node2", &target, json!({ "running": {} })).await;
    reaches(&cluster, "move", "PreparingTarget").await;
    let state = cluster.vmis.get("vm").await.unwrap().status.unwrap().migration_state.unwrap();
    assert_eq!(state.migration_policy_name.as_deref(), Some("ours"));
    let configuration = state.migration_configuration.unwrap();
    assert_eq!(configuration.bandwidth_per_migration.unwrap().0, "2Mi");
    assert_eq!(configuration.completion_timeout_per_gi_b, Some(150));
}

#[tokio::test]
async fn the_eldest_that_ended_are_forgotten() {
    let cluster = with_guests(&["vm"]).await;
    let first = migrate(&cluster, "first", "vm").await;
    target_pod(&cluster, &first, "vm").await;
    for index in 0..7 {
        migrate(&cluster, &format!("m{index}"), "vm").await;
        let name = format!("m{index}");
        let over = move |found: Option<&Migration>| found.is_none_or(|migration| phase(migration) == "Failed");
        wait(&cluster.migrations, &name, "over", over).await;
    }
    wait(&cluster.migrations, "m0", "forgotten", |found: Option<&Migration>| found.is_none()).await;
    wait(&cluster.migrations, "m1", "forgotten", |found: Option<&Migration>| found.is_none()).await;
    assert!(cluster.migrations.get_opt("m2").await.unwrap().is_some());
    assert!(cluster.migrations.get_opt("first").await.unwrap().is_some());
}

#[tokio::test]
async fn a_migration_torn_out_is_cleared_up_all_the_same() {
    let cluster = with_guests(&["vm"]).await;
    let migration = migrate(&cluster, "move", "vm").await;
    let target = target_pod(&cluster, &migration, "vm").await;
    cluster.run_on("node2", &target, json!({ "running": {} })).await;
    reaches(&cluster, "move", "PreparingTarget").await;
    let none = json!({ "metadata": { "finalizers": null } });
    cluster.migrations.patch("move", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    cluster.migrations.delete("move", &DeleteParams::default()).await.unwrap();
    // Whatever makes anybody look at the guest.
    wait(&cluster.migrations, "move", "gone", |found: Option<&Migration>| found.is_none()).await;
    say(&cluster, "vm", json!({ "metadata": { "annotations": { "look": "now" } } })).await;
    wait(&cluster.pods, &target.name_any(), "told to end", going).await;
    wait(&cluster.vmis, "vm", "called no more", uncalled).await;
    assert_eq!(cluster.vmis.get("vm").await.unwrap().status.unwrap().migration_state.unwrap().failed, Some(true));
}

#[tokio::test]
async fn a_guest_that_is_deleted_takes_its_migration_along() {
    let cluster = with_guests(&["vm"]).await;
    let source = source_pod(&cluster, "vm").await;
    let migration = migrate(&cluster, "move", "vm").await;
    let target = under_way(&cluster, &migration, "vm", "node2").await;
    cluster.vmis.delete("vm", &DeleteParams::default()).await.unwrap();
    for pod in [&source, &target] {
        wait(&cluster.pods, &pod.name_any(), "told to end", going).await;
        cluster.end(&pod.name_any()).await;
    }
    wait(&cluster.vmis, "vm", "gone", |vmi: Option<&VirtualMachineInstance>| vmi.is_none()).await;
    wait(&cluster.migrations, "move", "gone", |found: Option<&Migration>| found.is_none()).await;
}
