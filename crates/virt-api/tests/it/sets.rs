//! Who may have what made by a set or a pool, and what presets give.

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{Setup, setup};

async fn ask(setup: &Setup, path: &str, user: &str, object: &Value, old: &Value) -> Value {
    let groups = if user == "admin" { json!(["system:masters"]) } else { json!(["system:authenticated"]) };
    let review = json!({ "request": {
        "uid": "1", "operation": if old.is_null() { "CREATE" } else { "UPDATE" }, "namespace": "tenant", "name": "one",
        "userInfo": { "username": user, "groups": groups }, "object": object, "oldObject": old,
    } });
    let request = Request::post(path).body(Body::from(review.to_string())).unwrap();
    let response = setup.router.clone().oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap()["response"].clone()
}

fn guest(network: &str) -> Value {
    json!({
        "domain": {
            "resources": { "requests": { "memory": "64Mi" } },
            "devices": { "interfaces": [{ "name": "red", "bridge": {} }] },
        },
        "networks": [{ "name": "red", "multus": { "networkName": network } }],
    })
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn set(metadata: Value, network: &str) -> Value {
    json!({ "metadata": { "name": "one" }, "spec": {
        "selector": { "matchLabels": { "app": "a" } }, "template": { "metadata": metadata, "spec": guest(network) },
    } })
}

fn pool(network: &str) -> Value {
    json!({ "metadata": { "name": "one" }, "spec": {
        "selector": { "matchLabels": { "app": "a" } },
        "virtualMachineTemplate": {
            "metadata": { "labels": { "app": "a" } },
            "spec": { "runStrategy": "Always", "template": { "spec": guest(network) } },
        },
    } })
}

const SET: &str = "/virtualmachinereplicaset-validate";
const POOL: &str = "/virtualmachinepool-validate";

/// The controller that makes machines of a template may everything: who writes the template is asked.
#[tokio::test]
async fn nobody_has_made_what_they_could_not_make() {
    let setup = setup().await;
    let labels = json!({ "labels": { "app": "a" } });
    for (path, object, field) in [
        (SET, set(labels.clone(), "victim/red"), "spec.template.spec.networks[0].multus.networkName"),
        (POOL, pool("victim/red"), "spec.virtualMachineTemplate.spec.template.spec.networks[0].multus.networkName"),
    ] {
        let refused = ask(&setup, path, "eve", &object, &Value::Null).await;
        let cause = &refused["status"]["details"]["causes"][0];
        assert_eq!((&refused["allowed"], &cause["field"]), (&json!(false), &json!(field)), "{refused}");
        assert!(cause["message"].as_str().unwrap().contains("victim/red is of another namespace"), "{refused}");
        assert_eq!(ask(&setup, path, "admin", &object, &Value::Null).await["allowed"], true);
    }
    for (path, mine) in [(SET, set(labels.clone(), "red")), (POOL, pool("red"))] {
        assert_eq!(ask(&setup, path, "eve", &mine, &Value::Null).await["allowed"], true);
    }
    // What was allowed to somebody stays; what is added is not.
    let old = pool("red");
    assert_eq!(ask(&setup, POOL, "eve", &pool("victim/red"), &old).await["allowed"], false);
    let mut more = pool("victim/red");
    more["spec"]["replicas"] = json!(5);
    assert_eq!(ask(&setup, POOL, "eve", &more, &pool("victim/red")).await["allowed"], true);
    // Labels by which components know each other.
    let ours = json!({ "labels": { "app": "a", "kubevirt.io/created-by": "uid" } });
    let refused = ask(&setup, SET, "eve", &set(ours, "red"), &Value::Null).await;
    assert_eq!(refused["status"]["details"]["causes"][0]["field"], "spec.template.metadata.labels", "{refused}");
}

#[tokio::test]
async fn a_copy_out_of_another_namespace_is_for_those_who_may_have_it() {
    let setup = setup().await;
    let mut object = pool("red");
    let template = &mut object["spec"]["virtualMachineTemplate"];
    template["metadata"]["annotations"] =
        json!({ "ferrovirt.io/copies-allowed": "PersistentVolumeClaim victim/secret" });
    template["spec"]["dataVolumeTemplates"] = json!([{ "metadata": { "name": "root" }, "spec": {
        "source": { "pvc": { "namespace": "victim", "name": "secret" } },
        "storage": { "resources": { "requests": { "storage": "1Gi" } } },
    } }]);
    template["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "root", "dataVolume": { "name": "root" } }]);
    let refused = ask(&setup, POOL, "eve", &object, &Value::Null).await;
    let cause = &refused["status"]["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.virtualMachineTemplate.spec.dataVolumeTemplates[0]", "{refused}");
    assert!(cause["message"].as_str().unwrap().contains("insufficient permissions in clone source namespace victim"));
}

#[tokio::test]
async fn a_template_is_judged_as_the_machine_that_it_makes() {
    let setup = setup().await;
    let mut bad = pool("red");
    bad["spec"]["virtualMachineTemplate"]["spec"]["runStrategy"] = json!("Sometimes");
    let refused = ask(&setup, POOL, "eve", &bad, &Value::Null).await;
    let cause = &refused["status"]["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.virtualMachineTemplate.spec.runStrategy", "{refused}");
    let mut bad = set(json!({ "labels": { "app": "a" } }), "red");
    bad["spec"]["template"]["spec"]["domain"]["cpu"] = json!({ "sockets": 4, "maxSockets": 2 });
    let refused = ask(&setup, SET, "eve", &bad, &Value::Null).await;
    let cause = &refused["status"]["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.template.spec.domain.cpu.sockets", "{refused}");
}

#[tokio::test]
async fn an_instance_is_given_what_presets_of_its_namespace_say() {
    let setup = setup().await;
    let crds: Api<CustomResourceDefinition> = Api::all(setup.client.clone());
    let vmi = json!({ "metadata": { "name": "vmi", "namespace": "tenant", "labels": { "size": "small" } },
        "spec": { "domain": { "devices": {} } } });
    let make = async |user: &str, vmi: &Value| {
        let answer = ask(&setup, "/virtualmachineinstances-mutate", user, vmi, &Value::Null).await;
        let mut made = vmi.clone();
        if let Some(patch) = answer["patch"].as_str() {
            let patch = serde_json::from_slice::<json_patch::Patch>(&BASE64_STANDARD.decode(patch).unwrap()).unwrap();
            json_patch::patch(&mut made, &patch).unwrap();
        }
        (answer, made)
    };
    // Where there is no such kind, there is nothing to give.
    assert_eq!(make("eve", &vmi).await.1["spec"]["domain"]["cpu"]["cores"], 1);

    let path = "../../deploy/crds/virtualmachineinstancepresets.kubevirt.io.yaml";
    let crd = std::fs::read_to_string(path).unwrap();
    crds.create(&PostParams::default(), &serde_saphyr::from_str(&crd).unwrap()).await.unwrap();
    let preset = |namespace: &str, name: &str, cores: u32| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "selector": { "matchLabels": { "size": "small" } }, "domain": { "devices": {}, "cpu": { "cores": cores } } },
        })
    };
    let namespace = |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    let all = [namespace("tenant"), namespace("other"), preset("tenant", "four", 4), preset("other", "eight", 8)];
    apply::all(&setup.client, &Applied::by("test"), &all).await.unwrap();
    // Also a machine's, which virt-controller makes.
    for user in ["eve", "system:serviceaccount:kubevirt:kubevirt-controller"] {
        let (_, made) = make(user, &vmi).await;
        assert_eq!(made["spec"]["domain"]["cpu"]["cores"], 4);
        assert_eq!(made["metadata"]["annotations"]["virtualmachinepreset.kubevirt.io/four"], "kubevirt.io/v1");
        // The defaults come after it.
        assert_eq!(made["spec"]["domain"]["cpu"]["sockets"], 1);
    }
    let mut out = vmi.clone();
    out["metadata"]["annotations"] = json!({ "virtualmachineinstancepresets.admission.kubevirt.io/exclude": "true" });
    assert_eq!(make("eve", &out).await.1["spec"]["domain"]["cpu"]["cores"], 1);

    apply::all(&setup.client, &Applied::by("test"), &[preset("tenant", "two", 2)]).await.unwrap();
    let (refused, _) = make("eve", &vmi).await;
    let said = "VirtualMachinePresets cannot be applied due to conflicts: presets 'four' and 'two' conflict";
    assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(422)));
    assert!(refused["status"]["message"].as_str().unwrap().starts_with(said), "{refused}");
}
