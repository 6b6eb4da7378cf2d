//! Users who write machines that name instance types, preferences, and volumes that name them.

use axum::body::Body;
use axum::http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{ADMIN, Setup, setup};

async fn scene() -> Setup {
    let setup = setup().await;
    let crds: Api<CustomResourceDefinition> = Api::all(setup.client.clone());
    for name in [
        "virtualmachineclusterinstancetypes.instancetype",
        "virtualmachineinstancetypes.instancetype",
        "virtualmachineclusterpreferences.instancetype",
        "datasources.cdi",
        "datavolumes.cdi",
    ] {
        let crd = std::fs::read_to_string(format!("../../deploy/crds/{name}.kubevirt.io.yaml")).unwrap();
        crds.create(&PostParams::default(), &serde_saphyr::from_str(&crd).unwrap()).await.unwrap();
    }
    let version = "instancetype.kubevirt.io/v1beta1";
    let small = json!({
        "apiVersion": version, "kind": "VirtualMachineClusterInstancetype", "metadata": { "name": "small" },
        "spec": { "cpu": { "guest": 1 }, "memory": { "guest": "1Gi" } },
    });
    let linux = json!({
        "apiVersion": version, "kind": "VirtualMachineClusterPreference", "metadata": { "name": "linux" },
        "spec": {
            "devices": { "preferredDiskBus": "virtio" },
            "machine": { "preferredMachineType": "pc" },
            "volumes": { "preferredStorageClassName": "fast" },
        },
    });
    let desktop = json!({
        "apiVersion": version, "kind": "VirtualMachineClusterPreference", "metadata": { "name": "desktop" },
        "spec": { "requirements": { "memory": { "guest": "4Gi" } } },
    });
    apply(&setup, &[small, linux, desktop]).await;
    setup
}

async fn apply(setup: &Setup, all: &[Value]) {
    apply::all(&setup.client, &Applied::by("test"), all).await.unwrap();
}

fn vm(change: Value) -> Value {
    let mut vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": { "name": "vm", "namespace": "default" },
        "spec": { "runStrategy": "Halted", "template": { "spec": {
            "domain": { "devices": {} }, "volumes": [{ "name": "root", "persistentVolumeClaim": { "claimName": "root" } }],
        } } },
    });
    json_patch::merge(&mut vm["spec"], &change);
    vm
}

async fn ask(setup: &Setup, path: &str, user: &str, object: &Value, old: &Value) -> Value {
    let review = json!({ "request": {
        "uid": "1", "operation": if old.is_null() { "CREATE" } else { "UPDATE" }, "namespace": "default", "name": "vm",
        "userInfo": { "username": user, "groups": ["system:authenticated"] }, "object": object, "oldObject": old,
    } });
    let request = Request::post(path).body(Body::from(review.to_string())).unwrap();
    let response = setup.router.clone().oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap()["response"].clone()
}

/// What becomes of `object` when `user` writes it, or why it is refused.
async fn write(setup: &Setup, user: &str, object: &Value, old: &Value) -> Result<Value, String> {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    let mutated = ask(setup, "/virtualmachines-mutate", user, object, old).await;
    if mutated["allowed"] != true {
        return Err(mutated["status"]["message"].as_str().unwrap_or_default().to_owned());
    }
    let mut object = object.clone();
    if let Some(patch) = mutated["patch"].as_str() {
        let patch = serde_json::from_slice::<json_patch::Patch>(&BASE64_STANDARD.decode(patch).unwrap()).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
    }
    let judged = ask(setup, "/virtualmachines-validate", user, &object, old).await;
    if judged["allowed"] == true {
        return Ok(object);
    }
    Err(judged["status"]["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_reference_that_says_nothing_or_too_much_is_refused() {
    let setup = scene().await;
    let check = async |matcher: Value, expect: &str| {
        let said = write(&setup, "eve", &vm(json!({ "instancetype": matcher })), &Value::Null).await;
        assert!(said.as_ref().is_err_and(|why| why.contains(expect)), "{matcher}: {said:?}");
    };
    check(json!({}), "Either Name or InferFromVolume should be provided within the InstancetypeMatcher").await;
    let both = json!({ "name": "small", "inferFromVolume": "root" });
    check(both, "Name already set, should be cleared before setting inferFromVolume").await;
    let policy = json!({ "inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Hope" });
    check(policy, "Invalid value 'Hope' for InferFromVolumeFailurePolicy").await;
    let kind = json!({ "name": "small", "kind": "VirtualMachine" });
    check(kind, "got unexpected kind in InstancetypeMatcher: VirtualMachine").await;
    let old = vm(json!({ "instancetype": { "name": "small", "revisionName": "r" } }));
    let new = vm(json!({ "instancetype": { "name": "large", "revisionName": "r" } }));
    let said = write(&setup, "eve", &new, &old).await.unwrap_err();
    assert!(said.contains("the Matcher Name has been updated without updating the RevisionName"), "{said}");
}

#[tokio::test]
async fn a_machine_is_judged_as_it_would_run() {
    let setup = scene().await;
    let both = json!({ "instancetype": { "name": "small" }, "preference": { "name": "linux" } });
    let stored = write(&setup, "eve", &vm(both.clone()), &Value::Null).await.unwrap();
    assert_eq!(stored["spec"]["instancetype"], json!({ "name": "small" }));
    assert_eq!(stored["spec"]["template"]["spec"]["domain"]["machine"]["type"], "pc");
    let mut sized = vm(both);
    sized["spec"]["template"]["spec"]["domain"]["cpu"] = json!({ "sockets": 2 });
    let said = write(&setup, "eve", &sized, &Value::Null).await.unwrap_err();
    let conflict = "VM field(s) spec.template.spec.domain.cpu.sockets conflicts with selected instance type";
    assert!(said.contains(conflict), "{said}");
    let large = json!({ "instancetype": { "name": "small" }, "preference": { "name": "desktop" } });
    let said = write(&setup, "eve", &vm(large), &Value::Null).await.unwrap_err();
    let unmet = "insufficient Memory resources of 1Gi provided by instance type, preference requires 4Gi";
    assert!(said.contains(unmet), "{said}");
    // What does not exist yet may come.
    write(&setup, "eve", &vm(json!({ "instancetype": { "name": "none" } })), &Value::Null).await.unwrap();
}

#[tokio::test]
async fn the_storage_class_of_new_disks_is_the_preferred_one_unless_another_is_named() {
    let setup = scene().await;
    let template = |name: &str, class: Value| {
        json!({ "metadata": { "name": name }, "spec": { "source": { "blank": {} }, "storage": {
            "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": class,
        } } })
    };
    let templates = json!([template("a", Value::Null), template("b", json!("slow"))]);
    let named = json!({ "preference": { "name": "linux" }, "instancetype": { "name": "small" }, "dataVolumeTemplates": templates });
    let mut object = vm(named);
    object["spec"]["template"]["spec"]["volumes"] =
        json!([{ "name": "a", "dataVolume": { "name": "a" } }, { "name": "b", "dataVolume": { "name": "b" } }]);
    let stored = write(&setup, "eve", &object, &Value::Null).await.unwrap();
    let class =
        |index: usize| stored["spec"]["dataVolumeTemplates"][index]["spec"]["storage"]["storageClassName"].clone();
    assert_eq!((class(0), class(1)), (json!("fast"), json!("slow")));
}

fn labelled(namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

fn defaults() -> Value {
    json!({
        "instancetype.kubevirt.io/default-instancetype": "small",
        "instancetype.kubevirt.io/default-preference": "linux",
        "instancetype.kubevirt.io/default-preference-kind": "VirtualMachineClusterPreference",
    })
}

#[tokio::test]
async fn what_the_labels_of_a_volume_name_is_inferred() {
    let setup = scene().await;
    apply(&setup, &[labelled("default", "root", defaults()), labelled("default", "plain", json!({}))]).await;
    let infer = json!({ "inferFromVolume": "root" });
    let both = json!({ "instancetype": infer, "preference": infer });
    let stored = write(&setup, "eve", &vm(both.clone()), &Value::Null).await.unwrap();
    assert_eq!(stored["spec"]["instancetype"], json!({ "name": "small" }));
    let preference = json!({ "name": "linux", "kind": "VirtualMachineClusterPreference" });
    assert_eq!(stored["spec"]["preference"], preference);

    let volume = |source: Value| json!({ "template": { "spec": { "volumes": [source] } } });
    let mut plain = vm(both);
    json_patch::merge(
        &mut plain["spec"],
        &volume(json!({ "name": "root", "persistentVolumeClaim": { "claimName": "plain" } })),
    );
    let said = write(&setup, "eve", &plain, &Value::Null).await.unwrap_err();
    assert!(
        said.contains("unable to find required instancetype.kubevirt.io/default-instancetype label on the volume"),
        "{said}"
    );
    let ignored = json!({ "inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore" });
    plain["spec"]["instancetype"] = ignored.clone();
    plain["spec"]["preference"] = ignored;
    plain["spec"]["template"]["spec"]["domain"]["memory"] = json!({ "guest": "64Mi" });
    let stored = write(&setup, "eve", &plain, &Value::Null).await.unwrap();
    assert!(stored["spec"].get("instancetype").is_none() && stored["spec"].get("preference").is_none(), "{stored}");
    let mut unknown = vm(json!({ "preference": { "inferFromVolume": "nothing" } }));
    unknown["spec"]["template"]["spec"]["domain"]["memory"] = json!({ "guest": "64Mi" });
    let said = write(&setup, "eve", &unknown, &Value::Null).await.unwrap_err();
    assert!(said.contains("unable to find volume nothing to infer defaults"), "{said}");
}

/// Who may not look at a claim of another namespace does not learn what it is labelled with, whichever way they name it.
#[tokio::test]
async fn labels_of_other_namespaces_are_told_to_whom_may_read_them() {
    let setup = scene().await;
    let namespace = |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    let hidden = json!({ "instancetype.kubevirt.io/default-instancetype": "secret-name" });
    apply(&setup, &[namespace("victim"), labelled("victim", "disk", hidden)]).await;
    let own = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": "mine", "namespace": "default" },
        "spec": { "source": { "pvc": { "namespace": "victim", "name": "disk" } } },
    });
    let data = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "d", "namespace": "default" },
        "spec": { "source": { "pvc": { "namespace": "victim", "name": "disk" } }, "storage": {} },
    });
    apply(&setup, &[own, data]).await;
    let template = |spec: Value| json!([{ "metadata": { "name": "t" }, "spec": spec }]);
    let through = [
        template(json!({ "source": { "pvc": { "namespace": "victim", "name": "disk" } }, "storage": {} })),
        template(json!({ "sourceRef": { "kind": "DataSource", "name": "mine" }, "storage": {} })),
        json!([]),
    ];
    for templates in through {
        let name = if templates == json!([]) { "d" } else { "t" };
        let mut object = vm(json!({ "instancetype": { "inferFromVolume": "root" }, "dataVolumeTemplates": templates }));
        object["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "root", "dataVolume": { "name": name } }]);
        // What virt-controller makes of a pool's template, it makes for whoever wrote that.
        for user in ["eve", "system:serviceaccount:kubevirt:kubevirt-controller"] {
            let mutated = ask(&setup, "/virtualmachines-mutate", user, &object, &Value::Null).await;
            assert_eq!(
                (mutated["allowed"].as_bool(), mutated["status"]["code"].as_i64()),
                (Some(false), Some(403)),
                "{mutated}"
            );
            assert!(!mutated.to_string().contains("secret-name"), "{mutated}");
        }
    }
}

#[tokio::test]
async fn a_machine_is_written_out_for_whom_may_ask() {
    let setup = scene().await;
    let path = "/namespaces/default/expand-vm-spec";
    let object = vm(json!({ "instancetype": { "name": "small" }, "preference": { "name": "linux" } }));
    let expand =
        async |body: String, user: &str, groups: &[&str]| setup.send("PUT", path, Body::from(body), user, groups).await;
    let (code, _) = expand(object.to_string(), "eve", &["system:authenticated"]).await;
    assert_eq!(code, 403);
    let (code, body) = expand(object.to_string(), "admin", ADMIN).await;
    assert_eq!(code, 200, "{body}");
    let spec = &body["spec"];
    assert!(spec.get("instancetype").is_none() && spec.get("preference").is_none(), "{body}");
    let domain = &spec["template"]["spec"]["domain"];
    assert_eq!((&domain["cpu"]["sockets"], &domain["memory"]["guest"]), (&json!(1), &json!("1Gi")));
    assert_eq!(domain["devices"]["disks"], json!([{ "name": "root", "disk": { "bus": "virtio" } }]));
    assert!(domain["firmware"].get("uuid").is_none(), "{body}");

    let refused = async |body: String, expect: &str| {
        let (code, answer) = expand(body, "admin", ADMIN).await;
        let said = answer["message"].as_str().unwrap_or_default().to_owned();
        assert!(code == 400 && said.contains(expect), "{code} {said}");
    };
    refused(String::new(), "empty request body").await;
    refused("[]".to_owned(), "Object is not a valid VirtualMachine").await;
    let mut elsewhere = object.clone();
    elsewhere["metadata"]["namespace"] = json!("other");
    refused(elsewhere.to_string(), "VM namespace must be empty or default").await;
    let none = vm(json!({ "instancetype": { "name": "none" } }));
    refused(none.to_string(), "virtualmachineclusterinstancetypes.instancetype.kubevirt.io \"none\" not found").await;

    apply(&setup, &[object]).await;
    let (code, body) = setup.call("GET", "/namespaces/default/virtualmachines/vm/expand-spec", "admin", ADMIN).await;
    assert_eq!((code, &body["spec"]["template"]["spec"]["domain"]["memory"]["guest"]), (200, &json!("1Gi")), "{body}");
}
