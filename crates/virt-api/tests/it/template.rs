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

async fn create(setup: &Setup, parameters: Value, user: &str, groups: &[&str]) -> (u16, Value) {
    let body = Body::from(json!({ "parameters": parameters }).to_string());
    let path = "/namespaces/default/virtualmachinetemplates/small/create";
    setup.send_to(GROUP, "POST", path, body, user, groups).await
}

/// Gives `eve` a role in the namespace of the template.
async fn grant(setup: &Setup, name: &str, rules: Value) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": name, "namespace": "default" },
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": name, "namespace": "default" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve" }],
    });
    apply::all(&setup.client, &Applied::by("test"), &[role, binding]).await.unwrap();
}

#[tokio::test]
async fn a_machine_is_made_of_a_template_for_whoever_may_create_machines() {
    let setup = prepared().await;
    let eve = &["system:authenticated"];
    assert_eq!(create(&setup, json!({ "NAME": "web" }), "eve", eve).await.0, 403);
    let may_ask = json!([{
        "apiGroups": ["subresources.template.kubevirt.io"], "resources": ["virtualmachinetemplates/create"], "verbs": ["create"],
    }]);
    grant(&setup, "ask", may_ask).await;
    let (code, said) = create(&setup, json!({ "NAME": "web" }), "eve", eve).await;
    assert_eq!(code, 403, "who may not create machines gets none by a template: {said}");
    let may_create = json!([{ "apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"], "verbs": ["create"] }]);
    grant(&setup, "create", may_create).await;
    let (code, made) = create(&setup, json!({ "NAME": "web" }), "eve", eve).await;
    assert_eq!((code, made["virtualMachine"]["metadata"]["name"].as_str()), (200, Some("web")), "{made}");
    let machines: Api<api::kubevirt::v1::VirtualMachine> = Api::namespaced(setup.client.clone(), "default");
    assert!(machines.get_opt("web").await.unwrap().is_some());
    assert_eq!(create(&setup, json!({ "NAME": "web" }), "eve", eve).await.0, 409);
}

#[tokio::test]
async fn a_machine_of_a_template_has_no_network_that_its_user_may_not_use() {
    let setup = prepared().await;
    let merge = json!({ "spec": { "virtualMachine": { "spec": { "template": { "spec": {
        "domain": { "devices": { "interfaces": [{ "name": "lan", "bridge": {} }] } },
        "networks": [{ "name": "lan", "multus": { "networkName": "kube-system/secret" } }],
    } } } } } });
    let resource = kube::api::ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(
        "template.kubevirt.io",
        "v1beta1",
        "VirtualMachineTemplate",
    ));
    let templates: Api<kube::api::DynamicObject> = Api::namespaced_with(setup.client.clone(), "default", &resource);
    let how = kube::api::PatchParams::default();
    templates.patch("small", &how, &kube::api::Patch::Merge(merge)).await.unwrap();
    let rules = json!([
        { "apiGroups": ["subresources.template.kubevirt.io"], "resources": ["virtualmachinetemplates/create"], "verbs": ["create"] },
        { "apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"], "verbs": ["create"] },
    ]);
    grant(&setup, "machines", rules).await;
    let (code, said) = create(&setup, json!({ "NAME": "web" }), "eve", &["system:authenticated"]).await;
    assert!(code == 403 && said["message"].as_str().unwrap().contains("kube-system"), "{code} {said}");
    let machines: Api<api::kubevirt::v1::VirtualMachine> = Api::namespaced(setup.client.clone(), "default");
    assert!(machines.get_opt("web").await.unwrap().is_none());
}
