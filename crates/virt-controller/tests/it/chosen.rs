//! Machines that name an instance type and a preference.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineSnapshotContent};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, start, wait};
use crate::snapshot::{api, in_phase, snapshot};

async fn scene() -> Cluster {
    let cluster = start().await;
    kinds(&cluster).await;
    cluster
}

/// The kinds of what machines choose.
pub(crate) async fn kinds(cluster: &Cluster) {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for name in
        ["virtualmachineinstancetypes", "virtualmachineclusterinstancetypes", "virtualmachineclusterpreferences"]
    {
        let path = format!("../../deploy/crds/{name}.instancetype.kubevirt.io.yaml");
        let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
}

pub(crate) fn object(kind: &str, name: &str, spec: Value) -> Value {
    let mut metadata = json!({ "name": name });
    if !kind.contains("Cluster") {
        metadata["namespace"] = json!("default");
    }
    json!({ "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec })
}

pub(crate) async fn make(cluster: &Cluster, objects: &[Value]) {
    apply::all(&cluster.client, &Applied::by("test"), objects).await.unwrap();
}

fn small() -> Value {
    json!({ "cpu": { "guest": 2 }, "memory": { "guest": "256Mi" } })
}

/// A machine without a size of its own.
fn machine(spec: Value) -> VirtualMachine {
    let mut vm = json!({
        "metadata": { "name": "vm" },
        "spec": { "runStrategy": "Always", "template": { "spec": {
            "domain": { "devices": {} },
            "volumes": [{ "name": "root", "containerDisk": { "image": "disk:v1" } }],
        } } },
    });
    json_patch::merge(&mut vm["spec"], &spec);
    serde_json::from_value(vm).unwrap()
}

fn made() -> impl Fn(Option<&VirtualMachineInstance>) -> bool {
    |vmi: Option<&VirtualMachineInstance>| vmi.is_some()
}

fn failed(reason: &'static str) -> impl Fn(Option<&VirtualMachine>) -> bool {
    move |vm: Option<&VirtualMachine>| {
        let conditions = vm.and_then(|vm| vm.status.as_ref()).into_iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|c| c.type_ == "Failure" && c.reason.as_deref() == Some(reason))
    }
}

fn revisions(cluster: &Cluster) -> Api<ControllerRevision> {
    Api::namespaced(cluster.client.clone(), "default")
}

fn revision(vm: &VirtualMachine) -> Option<String> {
    vm.status.as_ref()?.instancetype_ref.as_ref()?.controller_revision_ref.as_ref()?.name.clone()
}

#[tokio::test]
async fn a_machine_is_made_of_what_it_named_first_whatever_becomes_of_that() {
    let cluster = scene().await;
    let linux = json!({ "devices": { "preferredDiskBus": "virtio", "preferredInterfaceMasquerade": {} } });
    let both = [
        object("VirtualMachineClusterInstancetype", "small", small()),
        object("VirtualMachineClusterPreference", "linux", linux),
    ];
    make(&cluster, &both).await;
    let vm = machine(json!({ "instancetype": { "name": "small" }, "preference": { "name": "linux" } }));
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let vmi = wait(&cluster.vmis, "vm", "made", made()).await.unwrap();
    let domain = &vmi.spec.domain;
    assert_eq!(domain.cpu.as_ref().and_then(|cpu| cpu.sockets), Some(2));
    assert_eq!(domain.memory.as_ref().and_then(|m| m.guest.clone()).map(|guest| guest.0).as_deref(), Some("256Mi"));
    let disk = &domain.devices.disks[0];
    assert_eq!(disk.disk.as_ref().and_then(|disk| disk.bus.as_deref()), Some("virtio"));
    assert!(domain.devices.interfaces[0].masquerade.is_some(), "{:?}", domain.devices.interfaces);
    assert_eq!(vmi.annotations()["kubevirt.io/cluster-instancetype-name"], "small");
    assert_eq!(vmi.annotations()["kubevirt.io/cluster-preference-name"], "linux");

    let vm =
        wait(&cluster.vms, "vm", "told", |vm: Option<&VirtualMachine>| vm.and_then(revision).is_some()).await.unwrap();
    let name = revision(&vm).unwrap();
    let kept = revisions(&cluster).get(&name).await.unwrap();
    assert_eq!(kept.labels()["instancetype.kubevirt.io/object-name"], "small");
    assert_eq!(kept.owner_references()[0].name, "vm");
    assert_eq!(kept.data.unwrap().0["spec"], small());

    // The next start uses the revision, not the object.
    let large = json!({ "cpu": { "guest": 8 }, "memory": { "guest": "8Gi" } });
    make(&cluster, &[object("VirtualMachineClusterInstancetype", "small", large)]).await;
    let halted = Patch::Merge(json!({ "spec": { "runStrategy": "Halted" } }));
    cluster.vms.patch("vm", &PatchParams::default(), &halted).await.unwrap();
    wait(&cluster.vmis, "vm", "gone", |vmi: Option<&VirtualMachineInstance>| vmi.is_none()).await;
    let always = Patch::Merge(json!({ "spec": { "runStrategy": "Always" } }));
    cluster.vms.patch("vm", &PatchParams::default(), &always).await.unwrap();
    let vmi = wait(&cluster.vmis, "vm", "made again", made()).await.unwrap();
    assert_eq!(vmi.spec.domain.cpu.and_then(|cpu| cpu.sockets), Some(2));
}

#[tokio::test]
async fn another_instance_type_is_used_after_a_restart() {
    let cluster = scene().await;
    let large = json!({ "cpu": { "guest": 8 }, "memory": { "guest": "8Gi" } });
    let both =
        [object("VirtualMachineInstancetype", "small", small()), object("VirtualMachineInstancetype", "large", large)];
    make(&cluster, &both).await;
    let named = |name: &str| json!({ "instancetype": { "name": name, "kind": "VirtualMachineInstancetype" } });
    cluster.vms.create(&PostParams::default(), &machine(named("small"))).await.unwrap();
    wait(&cluster.vmis, "vm", "made", made()).await;
    let vm =
        wait(&cluster.vms, "vm", "told", |vm: Option<&VirtualMachine>| vm.and_then(revision).is_some()).await.unwrap();
    let first = revision(&vm).unwrap();
    cluster.vms.patch("vm", &PatchParams::default(), &Patch::Merge(json!({ "spec": named("large") }))).await.unwrap();
    let required = |vm: Option<&VirtualMachine>| {
        let status = vm.and_then(|vm| vm.status.as_ref());
        status
            .is_some_and(|status| status.conditions.iter().any(|c| c.type_ == "RestartRequired" && c.status == "True"))
    };
    let vm = wait(&cluster.vms, "vm", "to be restarted", required).await.unwrap();
    assert!(revision(&vm).is_some_and(|name| name != first && name.contains("large")), "{:?}", revision(&vm));
}

#[tokio::test]
async fn a_machine_waits_for_what_it_names() {
    let cluster = scene().await;
    let named = json!({ "instancetype": { "name": "small", "kind": "virtualmachineinstancetype" } });
    cluster.vms.create(&PostParams::default(), &machine(named)).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "waiting", failed("FailedFindInstancetype")).await.unwrap();
    let status = vm.status.unwrap();
    let told = status.conditions.iter().find(|c| c.type_ == "Failure").and_then(|c| c.message.clone());
    let expect = "virtualmachineinstancetypes.instancetype.kubevirt.io \"small\" not found";
    assert_eq!(told.as_deref(), Some(expect));
    assert!(cluster.vmis.get_opt("vm").await.unwrap().is_none());
    make(&cluster, &[object("VirtualMachineInstancetype", "small", small())]).await;
    let vmi = wait(&cluster.vmis, "vm", "made", made()).await.unwrap();
    assert_eq!(vmi.annotations()["kubevirt.io/instancetype-name"], "small");
}

#[tokio::test]
async fn a_machine_with_a_size_of_its_own_is_not_started() {
    let cluster = scene().await;
    make(&cluster, &[object("VirtualMachineClusterInstancetype", "small", small())]).await;
    let own = json!({
        "instancetype": { "name": "small" }, "template": { "spec": { "domain": { "cpu": { "cores": 4 } } } },
    });
    cluster.vms.create(&PostParams::default(), &machine(own)).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "refused", failed("FailedCreate")).await.unwrap();
    let status = vm.status.unwrap();
    let told = status.conditions.iter().find(|c| c.type_ == "Failure").and_then(|c| c.message.clone());
    let expect = "VMI conflicts with instancetype spec in fields: [spec.template.spec.domain.cpu.cores]";
    assert_eq!(told.as_deref(), Some(expect));
}

/// Others keep their revisions in the namespace as well.
#[tokio::test]
async fn a_revision_of_something_else_makes_no_machine() {
    let cluster = scene().await;
    let other = json!({
        "metadata": { "name": "other", "labels": { "instancetype.kubevirt.io/object-name": "web" } },
        "data": { "kind": "StatefulSet", "spec": small() }, "revision": 1,
    });
    revisions(&cluster).create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
    let named = json!({ "instancetype": { "name": "web", "revisionName": "other" } });
    cluster.vms.create(&PostParams::default(), &machine(named)).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "refused", failed("FailedCreate")).await.unwrap();
    let status = vm.status.unwrap();
    let told = status.conditions.iter().find(|c| c.type_ == "Failure").and_then(|c| c.message.clone());
    let expect = "controllerrevisions.apps \"other\" keeps no VirtualMachineClusterInstancetype called \"web\"";
    assert_eq!(told.as_deref(), Some(expect));
}

#[tokio::test]
async fn machines_are_written_out_where_no_references_are_wanted() {
    let cluster = scene().await;
    make(&cluster, &[object("VirtualMachineClusterInstancetype", "small", small())]).await;
    let named = json!({ "runStrategy": "Halted", "instancetype": { "name": "small" } });
    cluster.vms.create(&PostParams::default(), &machine(named.clone())).await.unwrap();
    let vm =
        wait(&cluster.vms, "vm", "told", |vm: Option<&VirtualMachine>| vm.and_then(revision).is_some()).await.unwrap();
    let kept = revision(&vm).unwrap();
    let policy = async |policy: &str| {
        let kubevirt = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": { "name": "kubevirt", "namespace": "kubevirt" },
            "spec": { "configuration": { "instancetype": { "referencePolicy": policy } } },
        });
        make(&cluster, &[kubevirt]).await;
    };
    let whole = |vm: Option<&VirtualMachine>| {
        vm.is_some_and(|vm| {
            let domain = vm.spec.template.spec.as_ref().map(|spec| &spec.domain);
            let sockets = domain.and_then(|domain| domain.cpu.as_ref()).and_then(|cpu| cpu.sockets);
            let told = vm.status.as_ref().is_some_and(|status| status.instancetype_ref.is_some());
            vm.spec.instancetype.is_none() && sockets == Some(2) && !told
        })
    };
    policy("expandAll").await;
    wait(&cluster.vms, "vm", "written out", whole).await;
    wait(&revisions(&cluster), &kept, "gone", |revision: Option<&ControllerRevision>| revision.is_none()).await;
    let mut second = machine(named);
    second.metadata.name = Some("second".to_owned());
    policy("expand").await;
    cluster.vms.create(&PostParams::default(), &second).await.unwrap();
    wait(&cluster.vms, "second", "written out", whole).await;
}

/// Snapshots the machine; what the snapshot keeps of it.
async fn kept(cluster: &Cluster) -> VirtualMachineSnapshotContent {
    snapshot(cluster, json!({})).await;
    let done = wait(&api::<VirtualMachineSnapshot>(cluster), "snap", "done", in_phase("Succeeded")).await.unwrap();
    let name = done.status.unwrap().virtual_machine_snapshot_content_name.unwrap();
    api::<VirtualMachineSnapshotContent>(cluster).get(&name).await.unwrap()
}

#[tokio::test]
async fn a_restored_machine_goes_on_with_what_its_snapshot_has_kept_whatever_becomes_of_the_source() {
    let cluster = scene().await;
    make(&cluster, &[object("VirtualMachineInstancetype", "small", small())]).await;
    let chosen = json!({ "name": "small", "kind": "VirtualMachineInstancetype" });
    let vm = machine(json!({ "runStrategy": "Halted", "instancetype": chosen }));
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let told = |vm: Option<&VirtualMachine>| vm.and_then(revision).is_some();
    let vm = wait(&cluster.vms, "vm", "told", told).await.unwrap();
    kept(&cluster).await;

    let large = json!({ "cpu": { "guest": 8 }, "memory": { "guest": "8Gi" } });
    make(&cluster, &[object("VirtualMachineInstancetype", "small", large)]).await;
    cluster.vms.delete("vm", &DeleteParams::default()).await.unwrap();
    wait(&cluster.vms, "vm", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
    let _ = revisions(&cluster).delete(&revision(&vm).unwrap(), &DeleteParams::default()).await;

    let restore = json!({ "metadata": { "name": "anew" }, "spec": {
        "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "other" },
        "virtualMachineSnapshotName": "snap",
    } });
    let restores = api::<VirtualMachineRestore>(&cluster);
    restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
    let complete = |found: Option<&VirtualMachineRestore>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.complete == Some(true)))
    };
    wait(&restores, "anew", "complete", complete).await;
    // It needs the snapshot no more.
    api::<VirtualMachineSnapshot>(&cluster).delete("snap", &DeleteParams::default()).await.unwrap();
    let name = cluster.vms.get("other").await.unwrap().spec.instancetype.unwrap().revision_name.unwrap();
    let held = revisions(&cluster).get(&name).await.unwrap();
    let owner = &held.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("VirtualMachine", "other"));
    let always = Patch::Merge(json!({ "spec": { "runStrategy": "Always" } }));
    cluster.vms.patch("other", &PatchParams::default(), &always).await.unwrap();
    let vmi = wait(&cluster.vmis, "other", "made", made()).await.unwrap();
    assert_eq!(vmi.spec.domain.cpu.and_then(|cpu| cpu.sockets), Some(2));
}

/// Whoever may snapshot machines is not given copies of what else there is in revisions.
#[tokio::test]
async fn a_snapshot_copies_no_revision_of_anything_else() {
    let cluster = scene().await;
    let other = json!({ "metadata": { "name": "of-a-set" }, "revision": 1, "data": { "kind": "StatefulSet", "metadata": { "name": "set" } } });
    revisions(&cluster).create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
    let chosen = json!({ "name": "small", "revisionName": "of-a-set" });
    let vm = machine(json!({ "runStrategy": "Halted", "instancetype": chosen }));
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let content = kept(&cluster).await;
    let named = content.spec.source.virtual_machine.unwrap().spec.unwrap().instancetype.unwrap().revision_name;
    assert_eq!(named.as_deref(), Some("of-a-set"));
    let all = revisions(&cluster).list(&ListParams::default()).await.unwrap();
    assert!(all.items.iter().all(|one| !one.name_any().starts_with("vmsnapshot-")));
}

#[tokio::test]
async fn an_instance_type_that_was_written_as_v1_is_the_same_as_any_other() {
    let cluster = scene().await;
    let mut stable = object("VirtualMachineInstancetype", "small", small());
    stable["apiVersion"] = json!("instancetype.kubevirt.io/v1");
    make(&cluster, &[stable]).await;
    let vm = machine(json!({ "instancetype": { "name": "small", "kind": "VirtualMachineInstancetype" } }));
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    let vmi = wait(&cluster.vmis, "vm", "made", made()).await.unwrap();
    assert_eq!(vmi.spec.domain.cpu.and_then(|cpu| cpu.sockets), Some(2));
}
