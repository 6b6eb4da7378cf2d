//! Copies of machines; the CSI snapshotter is played by the tests.

use api::clone::v1beta1::{VirtualMachineClone, VirtualMachineCloneStatus};
use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineSnapshotContent};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::Condition;
use serde_json::{Value, json};

use crate::cluster::{Cluster, wait};
use crate::migration::{said, told};
use crate::snapshot::{api, cut, in_phase, kept, snapshot, volume_snapshot};

async fn clone(cluster: &Cluster, source: Value, more: Value) -> VirtualMachineClone {
    let target = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "twin" });
    let mut object = json!({ "metadata": { "name": "copy" }, "spec": { "source": source, "target": target } });
    json_patch::merge(&mut object, &json!({ "spec": more }));
    let api = api::<VirtualMachineClone>(cluster);
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

fn machine() -> Value {
    json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" })
}

fn says(check: fn(&VirtualMachineCloneStatus) -> bool) -> impl Condition<VirtualMachineClone> {
    move |found: Option<&VirtualMachineClone>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| check(status)))
    }
}

fn gone<K>(found: Option<&K>) -> bool {
    found.is_none()
}

async fn bind(cluster: &Cluster, claim: &str) {
    let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
    let claims = api::<PersistentVolumeClaim>(cluster);
    claims.patch_status(claim, &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();
}

#[tokio::test]
async fn a_machine_that_is_to_run_is_copied_and_what_was_made_for_it_goes() {
    let cluster = kept("Always").await;
    let mac = json!({ "newMacAddresses": { "default": "02:00:00:00:00:07" }, "volumeNamePolicy": "PrefixTargetName" });
    let made = clone(&cluster, machine(), mac).await;
    let (clones, uid) = (api::<VirtualMachineClone>(&cluster), made.uid().unwrap());
    let name = format!("tmp-snapshot-{uid}");
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    let taken = wait(&snapshots, &name, "taken", |found: Option<&VirtualMachineSnapshot>| found.is_some()).await;
    cut(&cluster, &volume_snapshot(&cluster, &taken.unwrap()).await, true).await;

    let succeeded = says(|status| status.phase.as_deref() == Some("Succeeded"));
    let done = wait(&clones, "copy", "done", succeeded).await.unwrap().status.unwrap();
    assert_eq!(done.target_name.as_deref(), Some("twin"));
    assert!(done.creation_time.is_some());
    let twin = cluster.vms.get("twin").await.unwrap();
    assert_eq!(twin.spec.run_strategy.as_deref(), Some("Halted"));
    let spec = json!(twin.spec.template.spec.clone().unwrap());
    assert_eq!(spec["domain"]["devices"]["interfaces"][0]["macAddress"], "02:00:00:00:00:07");
    assert_eq!(spec["volumes"][0]["persistentVolumeClaim"]["claimName"], "twin-root");
    let claim = api::<PersistentVolumeClaim>(&cluster).get("twin-root").await.unwrap();
    // The claim was nobody's before.
    assert!(claim.owner_references().is_empty());

    // Its snapshot is needed until its claims have volumes of their own.
    assert!(snapshots.get_opt(&name).await.unwrap().is_some());
    bind(&cluster, "twin-root").await;
    wait(&clones, "copy", "tidy", says(|status| status.restore_name.is_none() && status.snapshot_name.is_none())).await;
    wait(&snapshots, &name, "gone", gone).await;
    wait(&api::<VirtualMachineRestore>(&cluster), &format!("tmp-restore-{uid}"), "gone", gone).await;

    cluster.vms.delete("twin", &DeleteParams::default()).await.unwrap();
    wait(&clones, "copy", "forgotten with its copy", gone).await;
}

/// The machine's snapshot, taken.
async fn taken(cluster: &Cluster) {
    let snap = snapshot(cluster, json!({})).await;
    cut(cluster, &volume_snapshot(cluster, &snap).await, true).await;
    wait(&api::<VirtualMachineSnapshot>(cluster), "snap", "taken", in_phase("Succeeded")).await;
}

/// Why a clone was given up.
async fn failure_message(cluster: &Cluster) -> String {
    let failed = says(|status| status.phase.as_deref() == Some("Failed"));
    let failed = wait(&api::<VirtualMachineClone>(cluster), "copy", "given up", failed).await.unwrap();
    let ready = failed.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
    ready.message.unwrap()
}

fn put_on(network: &str) -> Value {
    let spec = "/spec/template/spec";
    let networks = json!([{ "name": "red", "multus": { "networkName": network } }]);
    let interfaces = json!([{ "name": "red", "bridge": {} }]);
    let patches = [("networks", networks), ("domain/devices/interfaces", interfaces)]
        .map(|(at, value)| json!({ "op": "add", "path": format!("{spec}/{at}"), "value": value }).to_string());
    json!({ "patches": patches })
}

async fn lets_read(cluster: &Cluster, namespace: &str) {
    let version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({ "name": "networks", "namespace": namespace });
    let resource = "network-attachment-definitions";
    let rule = json!({ "apiGroups": ["k8s.cni.cncf.io"], "resources": [resource], "verbs": ["get"] });
    let all = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        json!({ "apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule] }),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
            "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": "default" }],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "networks" },
        }),
    ];
    kit::apply::all(&cluster.client, &kit::apply::Applied::by("test"), &all).await.unwrap();
}

fn source_snapshot() -> Value {
    json!({ "apiGroup": "snapshot.kubevirt.io", "kind": "VirtualMachineSnapshot", "name": "snap" })
}

#[tokio::test]
async fn a_copy_is_patched_onto_no_network_that_its_account_may_not_use() {
    let cluster = kept("Halted").await;
    taken(&cluster).await;
    clone(&cluster, source_snapshot(), put_on("victim/red")).await;
    let why = failure_message(&cluster).await;
    assert!(why.contains("network victim/red is of another namespace"), "{why}");
    assert!(why.contains("system:serviceaccount:default:default"), "{why}");
    assert!(cluster.vms.get_opt("twin").await.unwrap().is_none());

    // With the leave of that namespace, and for what is the machine's own.
    lets_read(&cluster, "victim").await;
    let clones = api::<VirtualMachineClone>(&cluster);
    clones.delete("copy", &DeleteParams::default()).await.unwrap();
    wait(&clones, "copy", "gone", gone).await;
    clone(&cluster, source_snapshot(), put_on("victim/red")).await;
    wait(&clones, "copy", "done", says(|status| status.phase.as_deref() == Some("Succeeded"))).await;
    let twin = json!(cluster.vms.get("twin").await.unwrap());
    assert_eq!(twin["spec"]["template"]["spec"]["networks"][0]["multus"]["networkName"], "victim/red");
}

/// Whoever may write snapshots' contents may write what they like into one.
#[tokio::test]
async fn a_machine_is_brought_back_to_no_network_that_nobody_was_asked_for() {
    let cluster = kept("Halted").await;
    taken(&cluster).await;
    let contents = api::<VirtualMachineSnapshotContent>(&cluster);
    let content = contents.list(&Default::default()).await.unwrap().items.remove(0).name_any();
    let networks = |of: &str| {
        let spec = json!({
            "networks": [{ "name": "red", "multus": { "networkName": of } }],
            "domain": { "devices": { "interfaces": [{ "name": "red", "bridge": {} }] } },
        });
        json!({ "spec": { "template": { "spec": spec } } })
    };
    let forged = json!({ "spec": { "source": { "virtualMachine": networks("victim/red") } } });
    contents.patch(&content, &PatchParams::default(), &Patch::Merge(forged)).await.unwrap();
    let restores = api::<VirtualMachineRestore>(&cluster);
    let restore = |name: &str| {
        let target = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" });
        let spec = json!({ "target": target, "virtualMachineSnapshotName": "snap" });
        serde_json::from_value::<VirtualMachineRestore>(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    restores.create(&PostParams::default(), &restore("stolen")).await.unwrap();
    let over = |found: Option<&VirtualMachineRestore>| {
        let status = found.and_then(|found| found.status.clone()).unwrap_or_default();
        status.complete == Some(true) || status.conditions.iter().any(|one| one.type_ == "Failure")
    };
    let said = wait(&restores, "stolen", "over", over).await.unwrap().status.unwrap();
    let why = said.conditions.into_iter().find(|one| one.type_ == "Failure").unwrap().message.unwrap();
    assert!(why.contains("network victim/red is of another namespace"), "{why}");
    let vm = json!(cluster.vms.get("vm").await.unwrap());
    assert_ne!(vm["spec"]["template"]["spec"]["networks"][0]["multus"]["networkName"], "victim/red");

    // What the machine is on itself, somebody was asked for when it was written.
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(networks("victim/red"))).await.unwrap();
    restores.create(&PostParams::default(), &restore("back")).await.unwrap();
    let said = wait(&restores, "back", "over", over).await.unwrap().status.unwrap();
    assert_eq!(said.complete, Some(true), "{:?}", said.conditions);
}

#[tokio::test]
async fn a_snapshot_is_copied_and_stays() {
    let cluster = kept("Halted").await;
    let snap = snapshot(&cluster, json!({})).await;
    cut(&cluster, &volume_snapshot(&cluster, &snap).await, true).await;
    let snapshots = api::<VirtualMachineSnapshot>(&cluster);
    wait(&snapshots, "snap", "taken", in_phase("Succeeded")).await;
    let source = json!({ "apiGroup": "snapshot.kubevirt.io", "kind": "VirtualMachineSnapshot", "name": "snap" });
    clone(&cluster, source, json!({})).await;
    let clones = api::<VirtualMachineClone>(&cluster);
    wait(&clones, "copy", "done", says(|status| status.phase.as_deref() == Some("Succeeded"))).await;
    let twin = cluster.vms.get("twin").await.unwrap();
    let claim = twin.spec.template.spec.unwrap().volumes[0].persistent_volume_claim.clone().unwrap().claim_name;
    bind(&cluster, &claim).await;
    wait(&clones, "copy", "tidy", says(|status| status.restore_name.is_none())).await;
    assert!(snapshots.get("snap").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test]
async fn a_source_that_is_not_there_is_waited_for() {
    let cluster = kept("Halted").await;
    let other = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "other" });
    clone(&cluster, other, json!({})).await;
    let clones = api::<VirtualMachineClone>(&cluster);
    let pending = says(|status| status.conditions.iter().any(|c| c.reason.as_deref() == Some("Pending")));
    let found = wait(&clones, "copy", "pending", pending).await.unwrap().status.unwrap();
    assert_eq!(found.phase, None);
    said(&cluster, "copy", &["SourceDoesNotExist"]).await;
    told(&cluster, "copy", "Source doesnt exist: VirtualMachine default/other").await;
    let mut vm: VirtualMachine = cluster.vms.get("vm").await.unwrap();
    vm.metadata = kube::core::ObjectMeta { name: Some("other".to_owned()), ..Default::default() };
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let goes = says(|status| status.phase.as_deref() == Some("SnapshotInProgress"));
    wait(&clones, "copy", "going on", goes).await;
}

#[tokio::test]
async fn a_machine_that_is_another_one_is_not_overwritten() {
    let cluster = kept("Halted").await;
    let snap = snapshot(&cluster, json!({})).await;
    cut(&cluster, &volume_snapshot(&cluster, &snap).await, true).await;
    wait(&api::<VirtualMachineSnapshot>(&cluster), "snap", "taken", in_phase("Succeeded")).await;
    let mut vm: VirtualMachine = cluster.vms.get("vm").await.unwrap();
    vm.metadata = kube::core::ObjectMeta { name: Some("twin".to_owned()), ..Default::default() };
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let source = json!({ "apiGroup": "snapshot.kubevirt.io", "kind": "VirtualMachineSnapshot", "name": "snap" });
    clone(&cluster, source, json!({})).await;
    let clones = api::<VirtualMachineClone>(&cluster);
    let failed =
        wait(&clones, "copy", "given up", says(|status| status.phase.as_deref() == Some("Failed"))).await.unwrap();
    let ready = failed.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
    let why = "restore source and restore target are different but restore target already exists";
    assert!(ready.message.unwrap().contains(why));
}
