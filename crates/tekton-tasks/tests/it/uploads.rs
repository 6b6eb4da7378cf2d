//! Where disk-uploader looks for what an image says. The export itself is virtctl's, which these tests do not have.

use serde_json::{Value, json};

use crate::cluster::{NAMESPACE, cluster, refusal};

fn upload(kind: &str, name: &str) -> [(&'static str, Value); 5] {
    [
        ("EXPORT_SOURCE_KIND", json!(kind)),
        ("EXPORT_SOURCE_NAME", json!(name)),
        ("VOLUME_NAME", json!("disk")),
        ("IMAGE_DESTINATION", json!("registry.example/disks/a:v1")),
        ("SECRET_NAME", json!("registry")),
    ]
}

#[tokio::test]
async fn a_source_is_looked_at_with_the_rights_of_the_task() {
    let cluster = cluster().await;
    let said = async |kind: &str| refusal(cluster.run("disk-uploader", &upload(kind, "a")).await);
    assert!(said("disk").await.contains("is none of vm, vmsnapshot and pvc"));
    let nameless = refusal(cluster.run("disk-uploader", &upload("vm", "")).await);
    assert!(nameless.contains("param EXPORT_SOURCE_NAME: it is empty"), "{nameless}");
    assert!(said("vm").await.contains("there is no VirtualMachine ci/a"));
    assert!(said("pvc").await.contains("there is no PersistentVolumeClaim ci/a"));
    assert!(said("vmsnapshot").await.contains("there is no VirtualMachineSnapshot ci/a"));
    let machine = json!({ "runStrategy": "Halted", "template": { "spec": { "domain": { "devices": {} } } } });
    cluster
        .apply(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": { "name": "a", "namespace": NAMESPACE }, "spec": machine,
        }))
        .await;
    assert!(said("vm").await.starts_with("virtctl: "), "the machine is found, and then it is exported");
    let snapshot = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": kind,
            "metadata": { "name": "a", "namespace": NAMESPACE }, "spec": spec,
        })
    };
    let source = json!({ "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "a" } });
    cluster.apply(snapshot("VirtualMachineSnapshot", source)).await;
    assert!(said("vmsnapshot").await.contains("VirtualMachineSnapshot ci/a is not ready"));
    let at = format!("/apis/snapshot.kubevirt.io/v1beta1/namespaces/{NAMESPACE}/virtualmachinesnapshots/a/status");
    cluster.merge(&at, json!({ "status": { "virtualMachineSnapshotContentName": "a" } })).await;
    assert!(said("vmsnapshot").await.contains("there is no VirtualMachineSnapshotContent ci/a"));
    let held = json!({ "virtualMachineSnapshotName": "a", "source": { "virtualMachine": { "spec": machine } } });
    cluster.apply(snapshot("VirtualMachineSnapshotContent", held)).await;
    assert!(said("vmsnapshot").await.starts_with("virtctl: "));
}
