//! Machines that are made with their disks; the importer is played by the tests.

use api::cdi::v1beta1::{DataSource, DataVolume};
use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, in_phase, printed, start, wait};
use crate::snapshot;
use crate::storage::{claim, on};

/// A machine with a template for its disk.
async fn machine() -> Cluster {
    let cluster = with_kinds().await;
    cluster.vms.create(&PostParams::default(), &made_of(&json!({ "source": { "blank": {} } }))).await.unwrap();
    cluster
}

/// A machine whose disk is made so.
fn made_of(source: &Value) -> VirtualMachine {
    let mut vm = serde_json::to_value(on(json!({ "dataVolume": { "name": "disk" } }))).unwrap();
    let mut spec = source.clone();
    spec["storage"] = json!({ "resources": { "requests": { "storage": "1Gi" } } });
    let metadata = json!({ "name": "disk", "labels": { "kind": "root" } });
    vm["spec"]["dataVolumeTemplates"] = json!([{ "metadata": metadata, "spec": spec }]);
    serde_json::from_value(vm).unwrap()
}

pub(crate) async fn with_kinds() -> Cluster {
    let cluster = start().await;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for kind in ["datavolumes", "datasources"] {
        let path = format!("../../deploy/crds/{kind}.cdi.kubevirt.io.yaml");
        let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
    cluster
}

pub(crate) fn data(cluster: &Cluster) -> Api<DataVolume> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn tell(cluster: &Cluster, phase: &str) {
    let patch = json!({ "status": { "phase": phase } });
    data(cluster).patch_status("disk", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test]
async fn a_machine_starts_when_its_disk_is_filled() {
    let cluster = machine().await;
    let made = wait(&data(&cluster), "disk", "made", |found: Option<&DataVolume>| found.is_some()).await.unwrap();
    let vm = wait(&cluster.vms, "vm", "provisioning", printed("Provisioning")).await.unwrap();
    assert_eq!(made.owner_references()[0].uid, vm.uid().unwrap(), "it goes with the machine");
    assert_eq!(made.labels()["kind"], "root");
    assert!(cluster.vmis.get_opt("vm").await.unwrap().is_none());
    tell(&cluster, "Failed").await;
    wait(&cluster.vms, "vm", "in trouble", printed("DataVolumeError")).await;
    tell(&cluster, "ImportInProgress").await;
    wait(&cluster.vms, "vm", "provisioning again", printed("Provisioning")).await;
    claim(&cluster, "disk", "pv", "Filesystem").await;
    tell(&cluster, "Succeeded").await;
    wait(&cluster.vmis, "vm", "started", in_phase("Scheduling")).await;
    let pod = serde_json::to_value(cluster.pod().await).unwrap();
    let volume = json!({ "name": "root", "persistentVolumeClaim": { "claimName": "disk" } });
    assert!(pod["spec"]["volumes"].as_array().unwrap().contains(&volume));
}

#[tokio::test]
async fn a_disk_that_waits_for_its_consumer_gets_it() {
    let cluster = machine().await;
    wait(&data(&cluster), "disk", "made", |found: Option<&DataVolume>| found.is_some()).await;
    tell(&cluster, "WaitForFirstConsumer").await;
    // Its claim is there, and waits for a pod.
    claim(&cluster, "disk", "", "Filesystem").await;
    wait(&cluster.vms, "vm", "waiting", printed("WaitingForVolumeBinding")).await;
    cluster.pod().await;
}

/// Has the tenant's DataSource name `victim/{claim}`.
async fn named(cluster: &Cluster, claim: &str) {
    let sources: Api<DataSource> = Api::namespaced(cluster.client.clone(), "default");
    let source = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
        "metadata": { "name": "mine", "labels": { "instancetype.kubevirt.io/default-preference": "fedora" } },
        "spec": { "source": { "pvc": { "namespace": "victim", "name": claim } } },
    });
    sources.patch("mine", &PatchParams::apply("test").force(), &Patch::Apply(source)).await.unwrap();
}

/// The configuration of virt-api's webhooks, under the name that virt-operator gives it.
async fn webhooks(cluster: &Cluster) {
    let all = virt_operator::manifests::render(&virt_operator::manifests::Input::default());
    let of_kind = all.iter().filter(|one| one["kind"] == "MutatingWebhookConfiguration");
    let [name] = of_kind.map(|one| &one["metadata"]["name"]).collect::<Vec<_>>()[..] else { panic!("not one") };
    let found = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": name },
    });
    apply::all(&cluster.client, &Applied::by("test"), &[found]).await.unwrap();
}

/// A minute passes at once.
async fn later() {
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    tokio::time::resume();
}

fn refused(vm: Option<&VirtualMachine>) -> bool {
    let all = vm.and_then(|vm| vm.status.as_ref()).map(|status| status.conditions.as_slice()).unwrap_or_default();
    all.iter().any(|one| {
        one.type_ == "Failure"
            && one.message.as_deref().is_some_and(|text| {
                text.contains("User system:serviceaccount:default:default has insufficient permissions in clone source")
            })
    })
}

#[tokio::test]
async fn a_disk_of_another_namespace_is_copied_only_as_it_was_allowed() {
    let cluster = with_kinds().await;
    named(&cluster, "disk").await;
    let by_name = json!({ "sourceRef": { "kind": "DataSource", "name": "mine" } });
    let outright = json!({ "source": { "pvc": { "namespace": "victim", "name": "disk" } } });
    for source in [&by_name, &outright] {
        cluster.vms.create(&PostParams::default(), &made_of(source)).await.unwrap();
        wait(&cluster.vms, "vm", "refused", refused).await;
        assert!(data(&cluster).get_opt("disk").await.unwrap().is_none());
        cluster.vms.delete("vm", &Default::default()).await.unwrap();
        wait(&cluster.vms, "vm", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
    }

    // What says so was written while there was no webhook that writes it, and stays when there is one.
    let mut vm = made_of(&by_name);
    let note = ("ferrovirt.io/copies-allowed".to_owned(), "persistentvolumeclaims/victim/disk".to_owned());
    vm.metadata.annotations = Some([note].into());
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    wait(&cluster.vms, "vm", "refused", refused).await;
    webhooks(&cluster).await;
    later().await;
    let touched = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    cluster.vms.patch("vm", &PatchParams::default(), &touched).await.unwrap();
    wait(&cluster.vms, "vm", "refused", refused).await;
    assert!(data(&cluster).get_opt("disk").await.unwrap().is_none());
    cluster.vms.delete("vm", &Default::default()).await.unwrap();
    wait(&cluster.vms, "vm", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;

    // A user was allowed this claim; by now the DataSource names another.
    named(&cluster, "another").await;
    cluster.vms.create(&PostParams::default(), &vm).await.unwrap();
    wait(&cluster.vms, "vm", "refused", refused).await;
    assert!(data(&cluster).get_opt("disk").await.unwrap().is_none());

    // What was allowed is what is made, and it is spelled out: nothing can be exchanged any more.
    named(&cluster, "disk").await;
    let spelled = |claim: &str| json!({ "pvc": { "namespace": "victim", "name": claim } });
    let made = wait(&data(&cluster), "disk", "made", |found: Option<&DataVolume>| found.is_some()).await.unwrap();
    assert_eq!(serde_json::to_value(&made.spec.source).unwrap(), spelled("disk"));
    assert_eq!(made.spec.source_ref, None);
    assert_eq!(made.labels()["instancetype.kubevirt.io/default-preference"], "fedora");
    cluster.vms.delete("vm", &Default::default()).await.unwrap();
    wait(&cluster.vms, "vm", "gone", |vm: Option<&VirtualMachine>| vm.is_none()).await;
    data(&cluster).delete("disk", &Default::default()).await.unwrap();

    // What the namespace's account may have, its machines may.
    let version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({ "name": "cloner", "namespace": "victim" });
    let rule = json!({ "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "verbs": ["create"] });
    let allowed = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "victim" } }),
        json!({ "apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule] }),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cloner" },
            "subjects": [{ "kind": "ServiceAccount", "namespace": "default", "name": "default" }],
        }),
    ];
    apply::all(&cluster.client, &Applied::by("test"), &allowed).await.unwrap();
    named(&cluster, "another").await;
    cluster.vms.create(&PostParams::default(), &made_of(&by_name)).await.unwrap();
    let made = wait(&data(&cluster), "disk", "made", |found: Option<&DataVolume>| found.is_some()).await.unwrap();
    assert_eq!(serde_json::to_value(&made.spec.source).unwrap(), spelled("another"));
}

/// Who may not have the source any more, or whose source is gone, gets the data that was kept of the machine and nothing else.
#[tokio::test]
async fn a_restored_data_volume_is_not_cloned_again() {
    let cluster = with_kinds().await;
    snapshot::classes(&cluster, "WaitForFirstConsumer").await;
    named(&cluster, "disk").await;
    let mut vm =
        serde_json::to_value(made_of(&json!({ "sourceRef": { "kind": "DataSource", "name": "mine" } }))).unwrap();
    vm["spec"]["runStrategy"] = json!("Halted");
    let noted = json!({ "ferrovirt.io/copies-allowed": "persistentvolumeclaims/victim/disk" });
    vm["metadata"]["annotations"] = noted;
    webhooks(&cluster).await;
    later().await;
    cluster.vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    wait(&data(&cluster), "disk", "made", |found: Option<&DataVolume>| found.is_some()).await;
    snapshot::claim(&cluster, "disk").await;
    tell(&cluster, "Succeeded").await;
    let kept = snapshot::snapshot(&cluster, json!({})).await;
    snapshot::cut(&cluster, &snapshot::volume_snapshot(&cluster, &kept).await, true).await;
    let snapshots: Api<VirtualMachineSnapshot> = snapshot::api(&cluster);
    wait(&snapshots, "snap", "done", snapshot::in_phase("Succeeded")).await;

    // First the permission goes, then the source.
    let sources: Api<DataSource> = Api::namespaced(cluster.client.clone(), "default");
    let restores: Api<VirtualMachineRestore> = snapshot::api(&cluster);
    for lost in ["permission", "source"] {
        if lost == "source" {
            sources.delete("mine", &Default::default()).await.unwrap();
        } else {
            let nothing = Patch::Merge(json!({ "metadata": { "annotations": null } }));
            cluster.vms.patch("vm", &PatchParams::default(), &nothing).await.unwrap();
        }
        let restore = json!({ "metadata": { "name": lost }, "spec": {
            "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
            "virtualMachineSnapshotName": "snap",
        } });
        let made = restores.create(&PostParams::default(), &serde_json::from_value(restore).unwrap()).await.unwrap();
        let complete = |found: Option<&VirtualMachineRestore>| {
            found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.complete == Some(true)))
        };
        wait(&restores, lost, "complete", complete).await;
        let name = format!("restore-{}-root", made.uid().unwrap());
        let found = data(&cluster).get(&name).await.unwrap();
        let spec = serde_json::to_value(&found.spec).unwrap();
        assert_eq!((&spec["source"], &spec["sourceRef"]), (&json!({ "blank": {} }), &Value::Null), "{lost}");
        // Its claim is there, out of the snapshot, and is taken as it is.
        assert_eq!(found.annotations()["cdi.kubevirt.io/storage.prePopulated"], "true", "{lost}");
        let claims: Api<PersistentVolumeClaim> = snapshot::api(&cluster);
        let source = claims.get(&name).await.unwrap().spec.unwrap().data_source.unwrap();
        assert_eq!(source.kind, "VolumeSnapshot", "{lost}");
    }
}
