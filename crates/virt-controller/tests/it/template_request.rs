//! Templates of machines; the CSI snapshotter and the importer are played by the tests.

use api::cdi::v1beta1::DataVolume;
use api::snapshot::v1beta1::VirtualMachineSnapshot;
use api::template::VirtualMachineTemplate;
use api::template::request::{REQUEST_UID, VirtualMachineTemplateRequest};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, wait};
use crate::snapshot::{api, cut, kept, volume_snapshot};

async fn cluster() -> Cluster {
    let cluster = kept("Halted").await;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let path = "../../deploy/crds/datavolumes.cdi.kubevirt.io.yaml";
    let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    crds.create(&PostParams::default(), &crd).await.unwrap();
    cluster
}

async fn ask(cluster: &Cluster, machine: &str, more: Value) -> VirtualMachineTemplateRequest {
    let mut object = json!({
        "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplateRequest",
        "metadata": { "name": "golden" }, "spec": { "virtualMachineRef": { "namespace": "default", "name": machine } },
    });
    json_patch::merge(&mut object, &json!({ "spec": more }));
    let api = api::<VirtualMachineTemplateRequest>(cluster);
    api.patch("golden", &PatchParams::apply("test"), &Patch::Apply(object)).await.unwrap()
}

fn says(kind: &'static str, status: &'static str) -> impl Fn(Option<&VirtualMachineTemplateRequest>) -> bool {
    move |found: Option<&VirtualMachineTemplateRequest>| {
        let conditions =
            found.and_then(|found| found.status.as_ref()).into_iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == status)
    }
}

fn message(request: &VirtualMachineTemplateRequest) -> String {
    request.status.as_ref().unwrap().conditions[0].message.clone()
}

/// The one object that was made for the request.
async fn made_for<K>(cluster: &Cluster, request: &VirtualMachineTemplateRequest) -> K
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let mark = ListParams::default().labels(&format!("{REQUEST_UID}={}", request.uid().unwrap()));
    for _ in 0..1000 {
        if let Some(found) = api::<K>(cluster).list(&mark).await.ok().and_then(|list| list.items.into_iter().next()) {
            return found;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("nothing was made: {:?}", api::<VirtualMachineTemplateRequest>(cluster).get("golden").await);
}

#[tokio::test]
async fn a_template_comes_of_a_machine_and_has_copies_of_its_disks() {
    let cluster = cluster().await;
    let request = ask(&cluster, "vm", json!({ "templateLabels": { "team": "a" }, "ttlSecondsAfterFinished": 0 })).await;
    let snapshot: VirtualMachineSnapshot = made_for(&cluster, &request).await;
    cut(&cluster, &volume_snapshot(&cluster, &snapshot).await, true).await;
    let volume: DataVolume = made_for(&cluster, &request).await;
    let source = serde_json::to_value(&volume.spec).unwrap()["source"]["snapshot"].clone();
    assert_eq!(source["name"], format!("vmsnapshot-{}-volume-root", snapshot.uid().unwrap()));
    assert_eq!(volume.owner_references()[0].uid, request.uid().unwrap());
    let templates = api::<VirtualMachineTemplate>(&cluster);
    assert!(templates.get_opt("golden").await.unwrap().is_none(), "its disk is not there yet");
    let done = json!({ "status": { "phase": "Succeeded" } });
    let volumes = api::<DataVolume>(&cluster);
    volumes.patch_status(&volume.name_any(), &PatchParams::default(), &Patch::Merge(done)).await.unwrap();

    let made = |found: Option<&VirtualMachineTemplate>| found.is_some();
    let template = wait(&templates, "golden", "made", made).await.unwrap();
    assert_eq!(template.labels()["team"], "a");
    let machine = &template.spec.virtual_machine["spec"];
    let claim = &machine["dataVolumeTemplates"][0]["spec"]["source"]["pvc"];
    assert_eq!(*claim, json!({ "namespace": "default", "name": volume.name_any() }));
    // The request goes at once when all is done, the snapshot before it, and the disk stays with the template.
    let gone = |found: Option<&VirtualMachineTemplateRequest>| found.is_none();
    wait(&api::<VirtualMachineTemplateRequest>(&cluster), "golden", "gone", gone).await;
    let gone = |found: Option<&VirtualMachineSnapshot>| found.is_none();
    wait(&api::<VirtualMachineSnapshot>(&cluster), &snapshot.name_any(), "gone", gone).await;
    let kept = volumes.get(&volume.name_any()).await.unwrap();
    assert_eq!(kept.owner_references()[0].uid, template.uid().unwrap());
}

#[tokio::test]
async fn a_request_that_ends_early_leaves_no_snapshot() {
    let cluster = cluster().await;
    let request = ask(&cluster, "vm", json!({})).await;
    let snapshot: VirtualMachineSnapshot = made_for(&cluster, &request).await;
    let requests = api::<VirtualMachineTemplateRequest>(&cluster);
    requests.delete("golden", &DeleteParams::default()).await.unwrap();
    wait(&requests, "golden", "gone", |found: Option<&VirtualMachineTemplateRequest>| found.is_none()).await;
    let gone =
        |found: Option<&VirtualMachineSnapshot>| found.is_none_or(|found| found.metadata.deletion_timestamp.is_some());
    wait(&api::<VirtualMachineSnapshot>(&cluster), &snapshot.name_any(), "going", gone).await;
}

#[tokio::test]
async fn what_cannot_be_is_said_and_nothing_of_others_is_touched() {
    let cluster = cluster().await;
    let requests = api::<VirtualMachineTemplateRequest>(&cluster);
    ask(&cluster, "none", json!({})).await;
    let failed = wait(&requests, "golden", "failed", says("Progressing", "False")).await.unwrap();
    assert_eq!(message(&failed), "there is no VirtualMachine default/none");
    requests.delete("golden", &DeleteParams::default()).await.unwrap();
    wait(&requests, "golden", "gone", |found: Option<&VirtualMachineTemplateRequest>| found.is_none()).await;

    let theirs = json!({
        "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate", "metadata": { "name": "taken" },
        "spec": { "parameters": [], "virtualMachine": { "metadata": { "name": "x" }, "spec": { "template": {} } } },
    });
    let templates = api::<VirtualMachineTemplate>(&cluster);
    templates.patch("taken", &PatchParams::apply("test"), &Patch::Apply(theirs)).await.unwrap();
    ask(&cluster, "vm", json!({ "templateName": "taken" })).await;
    let failed = wait(&requests, "golden", "failed", says("Progressing", "False")).await.unwrap();
    assert!(message(&failed).contains("was not made for this request"), "{}", message(&failed));
    assert!(templates.get("taken").await.unwrap().labels().is_empty());
}
