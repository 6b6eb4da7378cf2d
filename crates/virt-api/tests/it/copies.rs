//! A tenant who writes VMs whose disks are copied from other namespaces.

use axum::body::Body;
use axum::http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{Setup, setup};

const NOTE: &str = "ferrovirt.io/copies-allowed";
const CONTROLLER: &str = "system:serviceaccount:kubevirt:kubevirt-controller";

/// Who may have what the namespace `golden` holds; nobody but the administrator may have what `victim` holds.
async fn scene() -> Setup {
    let setup = setup().await;
    let crd = std::fs::read_to_string("../../deploy/crds/datasources.cdi.kubevirt.io.yaml").unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(setup.client.clone());
    crds.create(&PostParams::default(), &serde_saphyr::from_str(&crd).unwrap()).await.unwrap();
    let namespace = |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    apply(&setup, &[namespace("golden"), namespace("victim")]).await;
    grant(&setup, "golden", &json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve" })).await;
    setup
}

async fn apply(setup: &Setup, all: &[Value]) {
    apply::all(&setup.client, &Applied::by("test"), all).await.unwrap();
}

/// Lets `subject` copy what `namespace` holds.
async fn grant(setup: &Setup, namespace: &str, subject: &Value) {
    let metadata = json!({ "name": "cloner", "namespace": namespace });
    let rule = json!({ "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "verbs": ["create"] });
    let version = "rbac.authorization.k8s.io/v1";
    let role = json!({ "apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule] });
    let binding = json!({
        "apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "subjects": [subject],
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cloner" },
    });
    apply(setup, &[role, binding]).await;
}

/// A DataSource of the tenant's own.
async fn data_source(setup: &Setup, name: &str, source: Value) {
    let metadata = json!({ "name": name, "namespace": "default" });
    let kind = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource" });
    let mut object = json!({ "metadata": metadata, "spec": { "source": source } });
    object["apiVersion"] = kind["apiVersion"].clone();
    object["kind"] = kind["kind"].clone();
    apply(setup, &[object]).await;
}

fn claim(namespace: &str, name: &str) -> Value {
    json!({ "source": { "pvc": { "namespace": namespace, "name": name } } })
}

fn named(name: &str) -> Value {
    json!({ "sourceRef": { "kind": "DataSource", "name": name } })
}

/// A VM whose disk is made so; `note` is what somebody has written where virt-api notes.
fn vm(source: &Value, note: Option<&str>) -> Value {
    let mut spec = source.clone();
    spec["storage"] = json!({ "resources": { "requests": { "storage": "1Gi" } } });
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": { "name": "vm", "namespace": "default", "annotations": { (NOTE): note } },
        "spec": {
            "runStrategy": "Halted",
            "dataVolumeTemplates": [{ "metadata": { "name": "disk" }, "spec": spec }],
            "template": { "spec": {
                "domain": {
                    "devices": { "disks": [{ "name": "root", "disk": { "bus": "virtio" } }] }, "memory": { "guest": "64Mi" },
                },
                "volumes": [{ "name": "root", "dataVolume": { "name": "disk" } }],
            } },
        },
    })
}

async fn ask(setup: &Setup, path: &str, user: &str, object: &Value, old: &Value) -> Value {
    let group = if user == "admin" { "system:masters" } else { "system:authenticated" };
    let review = json!({ "request": {
        "uid": "1", "operation": if old.is_null() { "CREATE" } else { "UPDATE" }, "namespace": "default", "name": "vm",
        "userInfo": { "username": user, "groups": [group] }, "object": object, "oldObject": old,
    } });
    let request = Request::post(path).body(Body::from(review.to_string())).unwrap();
    let response = setup.router.clone().oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap()["response"].clone()
}

/// What becomes of `object` when `user` writes it: as it is stored, with its note, or why it is refused.
async fn write(setup: &Setup, user: &str, object: &Value, old: &Value) -> Result<Value, String> {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    let mutated = ask(setup, "/virtualmachines-mutate", user, object, old).await;
    let mut object = object.clone();
    if let Some(patch) = mutated["patch"].as_str() {
        let patch = serde_json::from_slice::<json_patch::Patch>(&BASE64_STANDARD.decode(patch).unwrap()).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
    }
    let judged = ask(setup, "/virtualmachines-validate", user, &object, old).await;
    if judged["allowed"] == true {
        return Ok(object);
    }
    assert_eq!(judged["status"]["details"]["causes"][0]["field"], "spec.dataVolumeTemplates[0]", "{judged}");
    Err(judged["status"]["message"].as_str().unwrap_or_default().to_owned())
}

fn note(written: Result<Value, String>) -> Value {
    written.unwrap()["metadata"]["annotations"][NOTE].clone()
}

#[tokio::test]
async fn a_disk_of_another_namespace_is_copied_for_whom_may_read_it_whichever_way_it_is_named() {
    let setup = scene().await;
    let point = |name: &str| json!({ "dataSource": { "namespace": "default", "name": name } });
    let snapshot = json!({ "source": { "snapshot": { "namespace": "victim", "name": "disk" } } });
    data_source(&setup, "direct", json!({ "pvc": { "namespace": "victim", "name": "disk" } })).await;
    data_source(&setup, "cut", snapshot["source"].clone()).await;
    data_source(&setup, "pointer", point("direct")).await;
    data_source(&setup, "gold", json!({ "pvc": { "namespace": "golden", "name": "disk" } })).await;
    data_source(&setup, "own", json!({ "pvc": { "namespace": "default", "name": "disk" } })).await;
    let victims = [claim("victim", "disk"), snapshot, named("direct"), named("cut"), named("pointer")];
    for source in &victims {
        for forged in [None, Some("persistentvolumeclaims/victim/disk,volumesnapshots/victim/disk")] {
            let why = write(&setup, "eve", &vm(source, forged), &Value::Null).await.unwrap_err();
            assert!(why.starts_with("Authorization failed, message is: User eve has insufficient"), "{source}: {why}");
            assert!(why.contains("in clone source namespace victim"), "{why}");
        }
        let noted = note(write(&setup, "admin", &vm(source, None), &Value::Null).await);
        assert!(noted.as_str().unwrap().ends_with("/victim/disk"), "{source}: {noted}");
    }
    for source in [claim("golden", "disk"), named("gold")] {
        let noted = note(write(&setup, "eve", &vm(&source, None), &Value::Null).await);
        assert_eq!(noted, "persistentvolumeclaims/golden/disk", "{source}");
    }
    // Their own, what is not there yet, and what is no copy.
    for source in [
        claim("default", "disk"),
        claim("", "disk"),
        named("own"),
        named("later"),
        json!({ "source": { "blank": {} } }),
    ] {
        assert_eq!(note(write(&setup, "eve", &vm(&source, None), &Value::Null).await), Value::Null, "{source}");
    }
    // What the namespace's account may, everybody may who writes VMs there.
    grant(&setup, "victim", &json!({ "kind": "ServiceAccount", "namespace": "default", "name": "default" })).await;
    for source in &victims {
        assert_eq!(note(write(&setup, "eve", &vm(source, None), &Value::Null).await), Value::Null, "{source}");
    }
}

#[tokio::test]
async fn allowed_sources_stay_with_the_vm_and_cannot_be_forged() {
    let setup = scene().await;
    let made = write(&setup, "admin", &vm(&claim("victim", "disk"), None), &Value::Null).await.unwrap();
    let held = made["metadata"]["annotations"][NOTE].clone();
    assert_eq!(held, "persistentvolumeclaims/victim/disk");
    // Another user changes something else, and writes over the note.
    for forged in ["", "persistentvolumeclaims/victim/more"] {
        let mut changed = made.clone();
        changed["metadata"]["labels"] = json!({ "a": "b" });
        changed["metadata"]["annotations"][NOTE] = json!(forged);
        assert_eq!(note(write(&setup, "eve", &changed, &made).await), held);
        assert_eq!(note(write(&setup, CONTROLLER, &changed, &made).await), held);
    }
    // Another source needs a leave of its own.
    let mut other = vm(&claim("victim", "more"), Some("persistentvolumeclaims/victim/more"));
    assert!(write(&setup, "eve", &other, &made).await.is_err());
    other["spec"]["dataVolumeTemplates"][0]["spec"]["source"] = claim("golden", "disk")["source"].clone();
    assert_eq!(note(write(&setup, "eve", &other, &made).await), "persistentvolumeclaims/golden/disk");
    // Clones and restores are written by a component: no user's leave comes with them.
    assert_eq!(note(write(&setup, CONTROLLER, &made, &Value::Null).await), Value::Null);
}
