//! Machines of templates, for whoever may process them.

use axum::body::Body;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{ADMIN, Setup, setup};

const GROUP: &str = "subresources.template.kubevirt.io/v1beta1";

async fn prepared() -> Setup {
    let setup = setup().await;
    let path = "../../deploy/crds/virtualmachinetemplates.template.kubevirt.io.yaml";
    let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(setup.client.clone());
    crds.create(&PostParams::default(), &crd).await.unwrap();
    let template = json!({
        "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate",
        "metadata": { "name": "small", "namespace": "default" },
        "spec": {
            "message": "log in as ${NAME}",
            "parameters": [
                { "name": "NAME", "generate": "expression", "from": "vm-[a-z0-9]{8}" },
                { "name": "CORES", "value": "1" },
            ],
            "virtualMachine": {
                "metadata": { "name": "${NAME}", "namespace": "kube-system" },
                "spec": { "runStrategy": "Halted", "template": { "spec": {
                    "domain": { "cpu": { "cores": "${{CORES}}" }, "devices": {} },
                } } },
            },
        },
    });
    let by = Applied::by("test");
    // A kind is served a moment after its definition was made.
    while apply::all(&setup.client, &by, std::slice::from_ref(&template)).await.is_err() {
        tokio::task::yield_now().await;
    }
    setup
}

async fn process(setup: &Setup, name: &str, parameters: Value, user: &str, groups: &[&str]) -> (u16, Value) {
    let body = match parameters {
        Value::Null => Body::empty(),
        given => Body::from(json!({ "parameters": given }).to_string()),
    };
    let path = format!("/namespaces/default/virtualmachinetemplates/{name}/process");
    setup.send_to(GROUP, "POST", &path, body, user, groups).await
}

#[tokio::test]
async fn a_template_is_processed_with_parameters() {
    let setup = prepared().await;
    let (code, made) = process(&setup, "small", json!({ "NAME": "web", "CORES": "3" }), "admin", ADMIN).await;
    assert_eq!(code, 200, "{made}");
    let kind = (made["apiVersion"].as_str(), made["kind"].as_str());
    assert_eq!(kind, (Some(GROUP), Some("ProcessedVirtualMachineTemplate")));
    assert_eq!((&made["message"], &made["templateRef"]["name"]), (&json!("log in as web"), &json!("small")));
    // Where the machine is made is for its maker to say.
    assert_eq!(made["virtualMachine"]["metadata"], json!({ "name": "web" }));
    assert_eq!(made["virtualMachine"].pointer("/spec/template/spec/domain/cpu/cores"), Some(&json!(3)));
    let (_, one) = process(&setup, "small", Value::Null, "admin", ADMIN).await;
    let (_, other) = process(&setup, "small", Value::Null, "admin", ADMIN).await;
    let name = |made: &Value| made["virtualMachine"]["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name(&one).len() == 11 && name(&one) != name(&other), "{one} {other}");
}

#[tokio::test]
async fn what_cannot_be_processed_is_refused_with_the_field() {
    let setup = prepared().await;
    let refused = async |name: &str, parameters: Value| {
        let (code, body) = process(&setup, name, parameters, "admin", ADMIN).await;
        (code, body["message"].as_str().unwrap_or_default().to_owned())
    };
    let (code, said) = refused("small", json!({ "SIZE": "1" })).await;
    let expect = "VirtualMachineTemplate.template.kubevirt.io \"small\" is invalid: parameters: the template has no parameter \
                  \"SIZE\"; it has NAME, CORES";
    assert_eq!((code, said.as_str()), (422, expect));
    assert_eq!(refused("none", Value::Null).await.0, 404);
    let (code, said) = refused("small", json!({ "NAME": 5 })).await;
    assert!(code == 400 && said.starts_with("the body is no ProcessOptions: "), "{said}");
}

#[tokio::test]
async fn who_may_not_process_a_template_learns_nothing_of_it() {
    let setup = prepared().await;
    for name in ["small", "none", "..", "small%2f..%2fother"] {
        let (code, body) = process(&setup, name, Value::Null, "eve", &["system:authenticated"]).await;
        assert!(matches!(code, 403 | 404), "{name}: {code}");
        assert!(!body.to_string().contains("vm-["), "{name}: {body}");
    }
    let (code, _) = process(&setup, "small", Value::Null, "eve", &["system:authenticated"]).await;
    assert_eq!(code, 403);
}
