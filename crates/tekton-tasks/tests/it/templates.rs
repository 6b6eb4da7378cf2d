//! Tasks about templates.

use serde_json::{Value, json};

use crate::cluster::{NAMESPACE, cluster, refusal};

fn template(name: &str) -> String {
    format!("/apis/template.kubevirt.io/v1beta1/namespaces/{NAMESPACE}/virtualmachinetemplates/{name}")
}

fn small() -> Value {
    json!({
        "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate",
        "metadata": { "name": "small", "namespace": NAMESPACE, "labels": { "team": "a" } },
        "spec": {
            "parameters": [{ "name": "NAME", "required": true }],
            "virtualMachine": {
                "metadata": { "name": "${NAME}" },
                "spec": { "runStrategy": "Halted", "template": { "spec": { "domain": { "devices": {} } } } },
            },
        },
    })
}

#[tokio::test]
async fn a_template_is_copied_changed_used_and_deleted() {
    let cluster = cluster().await;
    cluster.apply(small()).await;
    let copy = [("sourceTemplateName", json!("small")), ("targetTemplateName", json!("big"))];
    cluster.run("copy-template", &copy).await.unwrap();
    assert_eq!(cluster.get(&template("big")).await.unwrap()["metadata"]["labels"]["team"], "a");
    assert!(refusal(cluster.run("copy-template", &copy).await).contains("cannot create VirtualMachineTemplate ci/big"));
    let modify = [
        ("templateName", json!("big")),
        ("cpuCores", json!("4")),
        ("memory", json!("2Gi")),
        ("vmLabels", json!(["size:big"])),
        ("disks", json!([r#"{"name":"root","disk":{"bus":"virtio"}}"#])),
    ];
    cluster.run("modify-vm-template", &modify).await.unwrap();
    let create = [("templateName", json!("big")), ("templateParams", json!(["NAME:vm1"]))];
    cluster.run("create-vm-from-template", &create).await.unwrap();
    assert_eq!(cluster.result("name"), "vm1");
    let machine =
        cluster.get(&format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/vm1")).await.unwrap();
    assert_eq!(machine["metadata"]["labels"]["size"], "big");
    let domain = machine.pointer("/spec/template/spec/domain").unwrap();
    assert_eq!((&domain["cpu"]["cores"], &domain["memory"]["guest"]), (&json!(4), &json!("2Gi")));
    assert_eq!(domain["devices"]["disks"][0]["disk"]["bus"], "virtio");
    let delete = [("templateName", json!("big")), ("deleteTemplate", json!("true"))];
    cluster.run("modify-vm-template", &delete).await.unwrap();
    assert!(cluster.get(&template("big")).await.is_none());
}

#[tokio::test]
async fn what_cannot_be_done_with_a_template_is_said() {
    let cluster = cluster().await;
    let none = [("templateName", json!("none"))];
    assert!(
        refusal(cluster.run("create-vm-from-template", &none).await)
            .contains("there is no VirtualMachineTemplate ci/none")
    );
    cluster.apply(small()).await;
    let missing = [("templateName", json!("small"))];
    let said = refusal(cluster.run("create-vm-from-template", &missing).await);
    assert!(said.contains("param templateParams") && said.contains("NAME is required"), "{said}");
    let unknown = [("templateName", json!("small")), ("templateParams", json!(["COLOUR:red"]))];
    assert!(refusal(cluster.run("create-vm-from-template", &unknown).await).contains("no parameter \"COLOUR\""));
    let own = [
        ("sourceTemplateName", json!("small")),
        ("targetTemplateName", json!("small")),
        ("allowReplace", json!("true")),
    ];
    assert!(refusal(cluster.run("copy-template", &own).await).contains("replaced by its own copy"));
    assert!(cluster.get(&template("small")).await.is_some());
}

/// OpenShift's kind, which its own server serves.
fn kind_of_openshift() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "templates.template.openshift.io" },
        "spec": {
            "group": "template.openshift.io", "scope": "Namespaced",
            "names": { "kind": "Template", "plural": "templates", "singular": "template" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            } } }],
        },
    })
}

#[tokio::test]
async fn a_template_of_openshift_is_copied_changed_used_and_deleted() {
    let cluster = cluster().await;
    cluster.apply(kind_of_openshift()).await;
    let at = |name: &str| format!("/apis/template.openshift.io/v1/namespaces/{NAMESPACE}/templates/{name}");
    cluster.there(&format!("/apis/template.openshift.io/v1/namespaces/{NAMESPACE}/templates")).await;
    // One of each kind: that of OpenShift is the one that is meant.
    cluster.apply(small()).await;
    cluster
        .apply(json!({
            "apiVersion": "template.openshift.io/v1", "kind": "Template",
            "metadata": {
                "name": "small", "namespace": NAMESPACE,
                "labels": { "team": "b", "template.kubevirt.io/type": "base" },
            },
            "parameters": [{ "name": "NAME", "required": true }],
            "objects": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "${NAME}" },
                "spec": { "runStrategy": "Halted", "template": { "spec": { "domain": { "devices": {} } } } },
            }],
        }))
        .await;
    let copy = [("sourceTemplateName", json!("small")), ("targetTemplateName", json!("big"))];
    cluster.run("copy-template", &copy).await.unwrap();
    let made = cluster.get(&at("big")).await.unwrap();
    assert_eq!(made["metadata"]["labels"], json!({ "team": "b" }), "a copy of a common template is none");
    assert!(cluster.get(&template("big")).await.is_none());
    let modify = [
        ("templateName", json!("big")),
        ("memory", json!("2Gi")),
        ("vmAnnotations", json!(["size:big"])),
        ("templateParameters", json!([r#"{"name":"ZONE","value":"east"}"#])),
        ("volumes", json!([r#"{"name":"data","emptyDisk":{"capacity":"1Gi"}}"#])),
    ];
    cluster.run("modify-vm-template", &modify).await.unwrap();
    let changed = cluster.get(&at("big")).await.unwrap();
    assert_eq!(changed["parameters"][1], json!({ "name": "ZONE", "value": "east" }));
    let create = [("templateName", json!("big")), ("templateParams", json!(["NAME:vm1"]))];
    cluster.run("create-vm-from-template", &create).await.unwrap();
    let machine =
        cluster.get(&format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/vm1")).await.unwrap();
    assert_eq!(machine["metadata"]["annotations"]["size"], "big");
    let spec = machine.pointer("/spec/template/spec").unwrap();
    assert_eq!((&spec["domain"]["memory"]["guest"], &spec["volumes"][0]["name"]), (&json!("2Gi"), &json!("data")));
    let delete = [("templateName", json!("big")), ("deleteTemplate", json!("true"))];
    cluster.run("modify-vm-template", &delete).await.unwrap();
    assert!(cluster.get(&at("big")).await.is_none());
}
