//! Snapshots of machines, and machines that are brought back to them; the CSI snapshotter is played by the tests.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineSnapshotContent};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use meta::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use virt_controller::snapshot::plan::PROTECTION;

use crate::cluster::{Cluster, printed, start, wait};
use crate::storage::on;

pub(crate) fn api<K>(cluster: &Cluster) -> Api<K>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(cluster.client.clone(), "default")
}

/// A machine on a claim of a class whose driver makes snapshots, beside a seed that is none. Volumes come once they are used.
pub(crate) async fn kept(strategy: &str) -> Cluster {
    kept_on(strategy, "WaitForFirstConsumer").await
}

/// A class of storage whose driver makes snapshots, and the class of these.
pub(crate) async fn classes(cluster: &Cluster, binding: &str) {
    let class = json!({ "metadata": { "name": "fast" }, "provisioner": "csi.test", "volumeBindingMode": binding });
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": { "name": "snap" }, "driver": "csi.test", "deletionPolicy": "Delete",
    });
    let resource = ApiResource::erase::<VolumeSnapshotClass>(&());
    let classes: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
}

/// A bound claim of that class.
pub(crate) async fn claim(cluster: &Cluster, name: &str) {
    let claim = json!({ "metadata": { "name": name }, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": "pv",
        "resources": { "requests": { "storage": "1Gi" } },
    } });
    let claims = api::<PersistentVolumeClaim>(cluster);
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    bind(cluster, name, "Bound").await;
}

async fn kept_on(strategy: &str, binding: &str) -> Cluster {
    let cluster = start().await;
    classes(&cluster, binding).await;
    claim(&cluster, "data").await;
    let mut vm = serde_json::to_value(on(json!({ "persistentVolumeClaim": { "claimName": "data" } }))).unwrap();
    vm["spec"]["runStrategy"] = json!(strategy);
    let seed = json!({ "name": "seed", "cloudInitNoCloud": { "userData": "x" } });
    vm["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(seed);
    cluster.vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    cluster
}

async fn bind(cluster: &Cluster, claim: &str, phase: &str) {
    let status = Patch::Merge(json!({ "status": { "phase": phase } }));
    api::<PersistentVolumeClaim>(cluster).patch_status(claim, &PatchParams::default(), &status).await.unwrap();
}

pub(crate) async fn snapshot(cluster: &Cluster, more: Value) -> VirtualMachineSnapshot {
    let source = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" });
    let mut object = json!({ "metadata": { "name": "snap" }, "spec": { "source": source } });
    json_patch::merge(&mut object, &json!({ "spec": more }));
    let api = api::<VirtualMachineSnapshot>(cluster);
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

/// The volume snapshot of the machine's claim, once it is there.
pub(crate) async fn volume_snapshot(cluster: &Cluster, snapshot: &VirtualMachineSnapshot) -> VolumeSnapshot {
    let name = format!("vmsnapshot-{}-volume-root", snapshot.uid().unwrap());
    let there = |found: Option<&VolumeSnapshot>| found.is_some();
    wait(&api::<VolumeSnapshot>(cluster), &name, "asked for", there).await.unwrap()
}

/// What the snapshotter does.
pub(crate) async fn cut(cluster: &Cluster, snapshot: &VolumeSnapshot, ready: bool) {
    let patch = json!({ "status": { "creationTime": "2026-01-01T00:00:00Z", "readyToUse": ready } });
    let api = api::<VolumeSnapshot>(cluster);
    api.patch_status(&snapshot.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

pub(crate) fn in_phase(phase: &'static str) -> impl kube::runtime::wait::Condition<VirtualMachineSnapshot> {
    move |found: Option<&VirtualMachineSnapshot>| {
        found.and_then(|found| found.status.as_ref()?.phase.as_deref()) == Some(phase)
    }
}

fn lock_of(vm: &VirtualMachine) -> (Option<String>, Option<String>) {
    let status = vm.status.as_deref();
    let of = |field: fn(&api::kubevirt::v1::VirtualMachineStatus) -> Option<String>| status.and_then(field);
    (of(|status| status.snapshot_in_progress.clone()), of(|status| status.restore_in_progress.clone()))
}

#[tokio::test]
async fn a_stopped_machine_is_kept_and_brought_back() {
    let cluster = kept("Halted").await;
    let snap = snapshot(&cluster, json!({})).await;
    let volume = volume_snapshot(&cluster, &snap).await;
    assert_eq!(volume.spec.source.persistent_volume_claim_name.as_deref(), Some("data"));
    assert_eq!(volume.spec.volume_snapshot_class_name.as_deref(), Some("snap"));
    let source = ["snapshot.kubevirt.io/source-vm-name", "snapshot.kubevirt.io/source-vm-namespace"];
    assert_eq!(source.map(|key| volume.labels()[key].as_str()), ["vm", "default"]);
    assert!(cluster.vms.get("vm").await.unwrap().finalizers().iter().any(|held| held == PROTECTION));
    assert_eq!(lock_of(&cluster.vms.get("vm").await.unwrap()).0.as_deref(), Some("snap"));
    cut(&cluster, &volume, true).await;
    let api_of = api::<VirtualMachineSnapshot>(&cluster);
    let done = wait(&api_of, "snap", "done", in_phase("Succeeded")).await.unwrap();
    let status = done.status.unwrap();
    assert_eq!(status.ready_to_use, Some(true));
    assert!(status.indications.is_empty(), "{:?}", status.indications);
    let lists = status.snapshot_volumes.unwrap();
    assert_eq!((lists.included_volumes, lists.excluded_volumes), (vec!["root".to_owned()], vec!["seed".to_owned()]));
    let content = api::<VirtualMachineSnapshotContent>(&cluster);
    let content = content.get(status.virtual_machine_snapshot_content_name.as_deref().unwrap()).await.unwrap();
    assert_eq!(content.status.unwrap().ready_to_use, Some(true));
    wait(&cluster.vms, "vm", "free", |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| lock_of(vm).0.is_none())).await;
    assert!(cluster.vms.get("vm").await.unwrap().finalizers().iter().all(|held| held != PROTECTION));

    // The machine changes, and is brought back.
    let change = json!({ "spec": { "template": { "spec": { "domain": { "memory": { "guest": "256Mi" } } } } } });
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let restore = json!({ "metadata": { "name": "back" }, "spec": {
        "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
        "virtualMachineSnapshotName": "snap",
    } });
    let restores = api::<VirtualMachineRestore>(&cluster);
    let made = restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    let complete = |found: Option<&VirtualMachineRestore>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.complete == Some(true)))
    };
    let done = wait(&restores, "back", "complete", complete).await.unwrap();
    let claim = format!("restore-{}-root", made.uid().unwrap());
    assert_eq!(done.status.unwrap().restores[0].persistent_volume_claim, claim);
    let found = api::<PersistentVolumeClaim>(&cluster).get(&claim).await.unwrap();
    let source = found.spec.unwrap().data_source.unwrap();
    assert_eq!((source.kind.as_str(), source.name), ("VolumeSnapshot", volume.name_any()));
    let vm = serde_json::to_value(cluster.vms.get("vm").await.unwrap()).unwrap();
    let spec = &vm["spec"]["template"]["spec"];
    assert_eq!(spec["domain"]["memory"]["guest"], "128Mi");
    assert_eq!(spec["volumes"][0]["persistentVolumeClaim"]["claimName"], claim.as_str());
    assert_eq!(vm["spec"]["runStrategy"], "Halted");
    wait(&cluster.vms, "vm", "free", |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| lock_of(vm).1.is_none())).await;

    // The same in place: the claim keeps its name, and what was in it before is gone.
    let before = api::<PersistentVolumeClaim>(&cluster).get("data").await.unwrap();
    let restore = json!({ "metadata": { "name": "again" }, "spec": {
        "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
        "virtualMachineSnapshotName": "snap", "volumeRestorePolicy": "InPlace", "volumeOwnershipPolicy": "None",
    } });
    restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    // Whoever protects claims in use lets go of one that is not.
    let claims = api::<PersistentVolumeClaim>(&cluster);
    let leaving =
        |claim: Option<&PersistentVolumeClaim>| claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some());
    wait(&claims, "data", "deleted", leaving).await;
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    claims.patch("data", &PatchParams::default(), &free).await.unwrap();
    wait(&restores, "again", "complete", complete).await;
    let after = api::<PersistentVolumeClaim>(&cluster).get("data").await.unwrap();
    assert_ne!(after.uid(), before.uid());
    assert_eq!(after.spec.clone().unwrap().data_source.unwrap().name, volume.name_any());
    assert!(after.owner_references().is_empty());
    let vm = cluster.vms.get("vm").await.unwrap();
    let used = vm.spec.template.spec.unwrap().volumes[0].persistent_volume_claim.clone().unwrap().claim_name;
    assert_eq!(used, "data");

    // Its volume snapshots go with their owner.
    api_of.delete("snap", &DeleteParams::default()).await.unwrap();
    wait(&api_of, "snap", "gone", |found: Option<&VirtualMachineSnapshot>| found.is_none()).await;
    assert!(
        api::<VirtualMachineSnapshotContent>(&cluster)
            .get_opt(&content.metadata.name.unwrap())
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_machine_is_back_once_its_volumes_are() {
    let cluster = kept_on("Halted", "Immediate").await;
    let snap = snapshot(&cluster, json!({})).await;
    let volume = volume_snapshot(&cluster, &snap).await;
    cut(&cluster, &volume, true).await;
    wait(&api(&cluster), "snap", "done", in_phase("Succeeded")).await;
    let restore = json!({ "metadata": { "name": "back" }, "spec": {
        "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
        "virtualMachineSnapshotName": "snap",
    } });
    let restores = api::<VirtualMachineRestore>(&cluster);
    let made = restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    let waits = |found: Option<&VirtualMachineRestore>| {
        let status = found.and_then(|found| found.status.as_ref());
        status.is_some_and(|status| {
            let said = |one: &api::snapshot::v1beta1::Condition| one.reason.as_deref() == Some("Waiting for new PVCs");
            status.complete == Some(false) && status.conditions.iter().any(said)
        })
    };
    wait(&restores, "back", "waiting for its volumes", waits).await;
    let claims = api::<PersistentVolumeClaim>(&cluster);
    let bound = json!({ "status": { "phase": "Bound" } });
    let claim = format!("restore-{}-root", made.uid().unwrap());
    claims.patch_status(&claim, &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();
    let complete = |found: Option<&VirtualMachineRestore>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.complete == Some(true)))
    };
    wait(&restores, "back", "complete", complete).await;
}

#[tokio::test]
async fn a_running_machine_says_how_its_snapshot_is_and_waits_to_be_stopped() {
    let cluster = kept("Always").await;
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    cluster.guest("Running").await;
    let snap = snapshot(&cluster, json!({ "deletionPolicy": "Retain" })).await;
    let volume = volume_snapshot(&cluster, &snap).await;
    cut(&cluster, &volume, false).await;
    let cut_at = |found: Option<&VirtualMachineSnapshot>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.creation_time.is_some()))
    };
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    let seen = wait(&snapshots, "snap", "cut", cut_at).await.unwrap();
    assert_eq!(seen.status.as_ref().unwrap().ready_to_use, Some(false));
    cut(&cluster, &volume, true).await;
    let done = wait(&snapshots, "snap", "done", in_phase("Succeeded")).await.unwrap();
    let status = done.status.unwrap();
    assert_eq!(status.indications, ["NoGuestAgent", "Online"]);
    assert_eq!(status.source_indications[0].indication, "NoGuestAgent");

    let restore = json!({ "metadata": { "name": "back" }, "spec": {
        "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
        "virtualMachineSnapshotName": "snap", "targetReadinessPolicy": "StopTarget",
    } });
    let restores = api::<VirtualMachineRestore>(&cluster);
    restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    let deleted =
        |vmi: Option<&VirtualMachineInstance>| vmi.is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some());
    wait(&cluster.vmis, "vm", "told to stop", deleted).await;
    cluster.end(&pod.name_any()).await;
    let complete = |found: Option<&VirtualMachineRestore>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.complete == Some(true)))
    };
    wait(&restores, "back", "complete", complete).await;
    wait(&cluster.vms, "vm", "stopped", printed("Stopped")).await;

    // Another machine is made of the same snapshot, with a change.
    let halted = r#"{"op": "replace", "path": "/spec/runStrategy", "value": "Halted"}"#;
    let restore = json!({ "metadata": { "name": "copy" }, "spec": {
        "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "twin" },
        "virtualMachineSnapshotName": "snap", "patches": [halted],
    } });
    restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    wait(&restores, "copy", "complete", complete).await;
    let twin = cluster.vms.get("twin").await.unwrap();
    assert_eq!(twin.spec.run_strategy.as_deref(), Some("Halted"));
    let made = twin.spec.template.spec.as_ref().unwrap().volumes[0].persistent_volume_claim.clone().unwrap();
    // The claim was nobody's before.
    let claim = api::<PersistentVolumeClaim>(&cluster).get(&made.claim_name).await.unwrap();
    assert!(claim.owner_references().is_empty());
    let copied = restores.get("copy").await.unwrap();
    assert_eq!(
        copied.owner_references().iter().map(|owner| owner.uid.clone()).collect::<Vec<_>>(),
        [twin.uid().unwrap()]
    );

    // What is to be retained outlives the snapshot.
    let content = virt_controller::snapshot::content_name(&snap);
    snapshots.delete("snap", &DeleteParams::default()).await.unwrap();
    wait(&snapshots, "snap", "gone", |found: Option<&VirtualMachineSnapshot>| found.is_none()).await;
    assert!(api::<VirtualMachineSnapshotContent>(&cluster).get_opt(&content).await.unwrap().is_some());
}

#[tokio::test]
async fn a_snapshot_that_takes_too_long_is_given_up() {
    let cluster = kept("Halted").await;
    let snap = snapshot(&cluster, json!({ "failureDeadline": "2s" })).await;
    volume_snapshot(&cluster, &snap).await;
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    let failed = wait(&snapshots, "snap", "given up", in_phase("Failed")).await.unwrap();
    let said = failed.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Failure").unwrap();
    assert_eq!(said.reason.as_deref(), Some("snapshot deadline exceeded"));
    let gone = |found: Option<&VirtualMachineSnapshotContent>| found.is_none();
    wait(&api(&cluster), &virt_controller::snapshot::content_name(&snap), "gone", gone).await;
    wait(&cluster.vms, "vm", "free", |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| lock_of(vm).0.is_none())).await;
}

/// The reasons that a snapshot has for the state of its conditions.
fn reasons(found: &VirtualMachineSnapshot) -> Vec<String> {
    let conditions = found.status.iter().flat_map(|status| &status.conditions);
    conditions.map(|c| format!("{} {} {}", c.type_, c.status, c.reason.as_deref().unwrap_or_default())).collect()
}

#[tokio::test]
async fn a_machine_whose_volume_is_not_there_yet_is_waited_for() {
    let cluster = kept("Halted").await;
    bind(&cluster, "data", "Pending").await;
    let snap = snapshot(&cluster, json!({})).await;
    let waiting = |found: Option<&VirtualMachineSnapshot>| {
        found.is_some_and(|found| {
            let why = "Progressing False Source not locked source default/vm volume not bound: data";
            reasons(found) == [why, "Ready False Not ready"]
        })
    };
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    wait(&snapshots, "snap", "waiting for the volume", waiting).await;
    assert_eq!(lock_of(&cluster.vms.get("vm").await.unwrap()).0, None);
    bind(&cluster, "data", "Bound").await;
    volume_snapshot(&cluster, &snap).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_nobody_makes_says_so_after_ten_seconds() {
    let cluster = kept("Halted").await;
    let snap = snapshot(&cluster, json!({})).await;
    let begun = Instant::now();
    let volume = volume_snapshot(&cluster, &snap).await;
    let says = |why: String| {
        move |found: Option<&VirtualMachineSnapshot>| {
            found.is_some_and(|found| {
                reasons(found) == [format!("Progressing True {why}"), "Ready False Not ready".into()]
            })
        }
    };
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    let usual = "Source locked and operation in progress";
    wait(&snapshots, "snap", "under way", says(usual.to_owned())).await;
    let why = format!(
        "VolumeSnapshot default/{} is not being made: nothing has answered to it; install the cluster's snapshot \
         controller, or see whether it and the driver's csi-snapshotter run",
        volume.name_any()
    );
    wait(&snapshots, "snap", "told", says(why)).await;
    // Not earlier: the moment of creation is known to the second. How much later is not known here: a clock that stands still goes
    // on whenever this thread waits for others that are at work.
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(9), "told after {waited:?}");

    // Somebody takes it up, and takes his time.
    let taken = Patch::Merge(json!({ "status": { "readyToUse": false } }));
    let volumes = api::<VolumeSnapshot>(&cluster);
    volumes.patch_status(&volume.name_any(), &PatchParams::default(), &taken).await.unwrap();
    wait(&snapshots, "snap", "under way again", says(usual.to_owned())).await;
    cut(&cluster, &volume, true).await;
    wait(&snapshots, "snap", "done", in_phase("Succeeded")).await;
}

#[tokio::test]
async fn an_agent_that_came_meanwhile_is_the_one_that_is_told_of() {
    let cluster = kept("Always").await;
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    cluster.guest("Running").await;
    let snap = snapshot(&cluster, json!({})).await;
    let volume = volume_snapshot(&cluster, &snap).await;
    let indicated = |expect: [&'static str; 2]| {
        move |found: Option<&VirtualMachineSnapshot>| {
            found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.indications == expect))
        }
    };
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    wait(&snapshots, "snap", "without an agent", indicated(["NoGuestAgent", "Online"])).await;
    let connected = json!({ "status": { "conditions": [{ "type": "AgentConnected", "status": "True" }] } });
    cluster.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(connected)).await.unwrap();
    let known = |vm: Option<&VirtualMachine>| {
        let conditions = vm.and_then(|vm| vm.status.as_ref()).map(|status| status.conditions.as_slice());
        conditions.unwrap_or_default().iter().any(|one| one.type_ == "AgentConnected" && one.status == "True")
    };
    wait(&cluster.vms, "vm", "with an agent", known).await;
    cut(&cluster, &volume, true).await;
    let done = wait(&snapshots, "snap", "done", in_phase("Succeeded")).await.unwrap().status.unwrap();
    assert_eq!(done.indications, ["GuestAgent", "Online"]);
    let told: Vec<&str> = done.source_indications.iter().map(|one| one.indication.as_str()).collect();
    assert_eq!(told, done.indications);
}

/// What becomes of a restore whose target runs, where nobody says how long that is waited for, and where somebody does.
#[tokio::test(start_paused = true)]
async fn a_target_that_runs_is_waited_for_as_long_as_the_restore_says() {
    let cluster = kept("Always").await;
    let pod = cluster.pod().await;
    cluster.run(&pod, json!({ "running": {} })).await;
    cluster.guest("Running").await;
    let snap = snapshot(&cluster, json!({})).await;
    cut(&cluster, &volume_snapshot(&cluster, &snap).await, true).await;
    wait(&api::<VirtualMachineSnapshot>(&cluster), "snap", "done", in_phase("Succeeded")).await;
    let restores = api::<VirtualMachineRestore>(&cluster);
    let begun = Instant::now();
    for (name, policy) in [("usual", None), ("at-once", Some("FailImmediate")), ("patient", Some("WaitEventually"))] {
        let restore = json!({ "metadata": { "name": name }, "spec": {
            "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
            "virtualMachineSnapshotName": "snap", "targetReadinessPolicy": policy,
        } });
        restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    }
    let says = |kind: &'static str, status: &'static str, why: &'static str| {
        move |found: Option<&VirtualMachineRestore>| {
            let conditions = found.and_then(|found| found.status.as_ref()).map(|status| status.conditions.as_slice());
            let holds = |one: &api::snapshot::v1beta1::Condition| {
                one.type_ == kind && one.status == status && one.reason.as_deref() == Some(why)
            };
            conditions.unwrap_or_default().iter().any(holds)
        }
    };
    let runs = "Restore target VMI must be powered off before restore operation";
    wait(&restores, "at-once", "given up", says("Failure", "True", runs)).await;
    let stop = "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore";
    wait(&restores, "patient", "waiting", says("Progressing", "False", stop)).await;
    let in_time = "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore, or \
                   the operation will fail after 5m0s";
    wait(&restores, "usual", "waiting", says("Progressing", "False", in_time)).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    sleep(Duration::from_secs(280)).await;
    wait(&restores, "usual", "still waiting", says("Progressing", "False", in_time)).await;
    let too_late = "Restore target failed to be ready within 5m0s. Please power off the target VM before attempting \
                    restore";
    wait(&restores, "usual", "given up", says("Failure", "True", too_late)).await;
    sleep(Duration::from_secs(600)).await;
    wait(&restores, "patient", "still waiting", says("Progressing", "False", stop)).await;
    // Nobody was disturbed meanwhile.
    assert_eq!(lock_of(&cluster.vms.get("vm").await.unwrap()), (None, None));
    assert!(cluster.vmis.get("vm").await.unwrap().metadata.deletion_timestamp.is_none());
    for name in ["usual", "at-once", "patient"] {
        assert!(restores.get(name).await.unwrap().status.unwrap().restores.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_snapshot_says_when_its_volumes_are_lost() {
    let cluster = kept("Halted").await;
    let snap = snapshot(&cluster, json!({})).await;
    let volume = volume_snapshot(&cluster, &snap).await;
    cut(&cluster, &volume, false).await;
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    let done = wait(&snapshots, "snap", "done", in_phase("Succeeded")).await.unwrap();
    assert_eq!(reasons(&done), ["Progressing False Operation complete", "Ready False Not ready"]);
    cut(&cluster, &volume, true).await;
    let ready = |found: Option<&VirtualMachineSnapshot>| {
        found.is_some_and(|found| reasons(found) == ["Progressing False Operation complete", "Ready True Ready"])
    };
    wait(&snapshots, "snap", "ready", ready).await;
    api::<VolumeSnapshot>(&cluster).delete(&volume.name_any(), &DeleteParams::default()).await.unwrap();
    let lost = |found: Option<&VirtualMachineSnapshot>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.ready_to_use == Some(false)))
    };
    let lost = wait(&snapshots, "snap", "lost", lost).await.unwrap();
    assert_eq!(reasons(&lost), ["Progressing False In error state", "Ready False Not ready"]);
    let status = lost.status.unwrap();
    let why = format!("VolumeSnapshots ({}) missing", volume.name_any());
    assert_eq!((status.error.unwrap().message, status.phase.as_deref()), (Some(why), Some("Succeeded")));
}

/// Nobody makes or changes objects of this kind until the answer of a server that is not there.
async fn deny(cluster: &Cluster, (group, resource): (&str, &str), operation: &str) -> String {
    let name = format!("deny-{resource}.kubevirt.io");
    let webhook = json!({ "metadata": { "name": name }, "webhooks": [{
        "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": { "url": "https://127.0.0.1:1/" },
        "rules": [{ "apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": [operation] }],
    }] });
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    webhooks.create(&PostParams::default(), &serde_json::from_value(webhook).unwrap()).await.unwrap();
    name
}

#[tokio::test]
async fn a_snapshot_whose_volumes_cannot_be_cut_is_given_up_in_time() {
    let cluster = kept("Halted").await;
    deny(&cluster, ("snapshot.storage.k8s.io", "volumesnapshots"), "CREATE").await;
    snapshot(&cluster, json!({ "failureDeadline": "3s" })).await;
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    let runs = |found: Option<&VirtualMachineSnapshot>| {
        let locked = "Progressing True Source locked and operation in progress";
        found.is_some_and(|found| reasons(found).first().is_some_and(|reason| reason == locked))
    };
    wait(&snapshots, "snap", "under way", runs).await;
    let failed = wait(&snapshots, "snap", "given up", in_phase("Failed")).await.unwrap();
    let failure = "Failure True snapshot deadline exceeded";
    assert_eq!(reasons(&failed), ["Progressing False Operation failed", "Ready False Not ready", failure]);
    wait(&cluster.vms, "vm", "free", |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| lock_of(vm).0.is_none())).await;
}

#[tokio::test]
async fn a_restore_says_what_is_in_its_way_and_goes_on_without_it() {
    let cluster = kept("Halted").await;
    let snap = snapshot(&cluster, json!({})).await;
    cut(&cluster, &volume_snapshot(&cluster, &snap).await, true).await;
    wait(&api::<VirtualMachineSnapshot>(&cluster), "snap", "done", in_phase("Succeeded")).await;
    wait(&cluster.vms, "vm", "free", |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| lock_of(vm).0.is_none())).await;
    let webhook = deny(&cluster, ("kubevirt.io", "virtualmachines"), "UPDATE").await;
    let restore = json!({ "metadata": { "name": "back" }, "spec": {
        "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
        "virtualMachineSnapshotName": "snap",
    } });
    let restores = api::<VirtualMachineRestore>(&cluster);
    restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    let named = webhook.clone();
    let says = move |found: Option<&VirtualMachineRestore>| {
        let status = found.and_then(|found| found.status.as_ref());
        let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        let blames = |c: &api::snapshot::v1beta1::Condition| c.reason.as_ref().is_some_and(|why| why.contains(&named));
        conditions.len() == 2 && conditions.iter().all(|c| c.status == "False" && blames(c))
    };
    wait(&restores, "back", "held up", says).await;
    assert_eq!(lock_of(&cluster.vms.get("vm").await.unwrap()).1.as_deref(), Some("back"));
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    webhooks.delete(&webhook, &DeleteParams::default()).await.unwrap();
    let complete = |found: Option<&VirtualMachineRestore>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.complete == Some(true)))
    };
    wait(&restores, "back", "complete", complete).await;
    wait(&cluster.vms, "vm", "free", |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| lock_of(vm).1.is_none())).await;
}
