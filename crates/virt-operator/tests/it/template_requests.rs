//! Who wants a template of a machine must be allowed to have it: virt-controller, which copies the disks, may copy any.

use api::template::request::VirtualMachineTemplateRequest;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply::{self, Applied};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};
use virt_operator::manifests::{self, Input, crds};

/// A cluster with the policies, two tenants' namespaces, and the roles of users.
async fn cluster() -> (ApiServer, Client) {
    let server = ApiServer::in_memory().await.unwrap();
    let admin = server.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for (_, yaml) in crds::ALL.iter().filter(|(name, _)| name.starts_with("virtualmachinetemplaterequests.")) {
        definitions.create(&PostParams::default(), &serde_saphyr::from_str(yaml).unwrap()).await.unwrap();
    }
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    for name in ["kubevirt", "eve", "victim"] {
        let namespace = json!({ "metadata": { "name": name } });
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    }
    let input = Input { namespace: "kubevirt".into(), replicas: 1, ..Default::default() };
    let rights = manifests::render(&input).into_iter().filter(|manifest| {
        let kind = manifest["kind"].as_str().unwrap_or_default();
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        kind.contains("Role") || (kind.starts_with("ValidatingAdmissionPolicy") && name.starts_with("virt-template"))
    });
    apply::all(&admin, &Applied::by(virt_operator::MANAGER), &rights.collect::<Vec<_>>()).await.unwrap();
    (server, admin)
}

fn role(name: &str, namespace: &str, rules: Value) -> [Value; 2] {
    let rbac = "rbac.authorization.k8s.io";
    let metadata = json!({ "name": name, "namespace": namespace });
    [
        json!({ "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": metadata, "rules": rules }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": name },
            "subjects": [{ "apiGroup": rbac, "kind": "User", "name": "eve" }],
        }),
    ]
}

fn rule(group: &str, resource: &str) -> Value {
    json!({ "apiGroups": [group], "resources": [resource], "verbs": ["create", "get", "patch"] })
}

/// What Eve is told who wants a template, in her namespace, of the machine of `namespace`; nothing when she gets it.
async fn said(server: &ApiServer, name: &str, namespace: &str) -> String {
    let eve =
        server.client_as(User { name: "eve".into(), groups: vec!["system:authenticated".into()], ..User::default() });
    let wanted = json!({
        "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplateRequest", "metadata": { "name": name },
        "spec": { "virtualMachineRef": { "namespace": namespace, "name": "vm" } },
    });
    let api: Api<VirtualMachineTemplateRequest> = Api::namespaced(eve, "eve");
    match api.patch(name, &PatchParams::apply("eve"), &Patch::Apply(wanted)).await {
        Ok(_) => String::new(),
        Err(kube::Error::Api(status)) => status.message,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_template_takes_the_rights_to_its_machine_its_disks_and_itself() {
    let (server, admin) = cluster().await;
    let by = Applied::by("admin");
    let template = "template.kubevirt.io";
    let grant = async |name: &str, namespace: &str, rules: Value| {
        apply::all(&admin, &by, &role(name, namespace, rules)).await.unwrap();
    };
    grant("ask", "eve", json!([rule(template, "virtualmachinetemplaterequests")])).await;
    let refused = said(&server, "a", "eve").await;
    assert!(refused.contains("User is not allowed to create DataVolumes in namespace eve"), "{refused}");
    grant("disks", "eve", json!([rule("cdi.kubevirt.io", "datavolumes")])).await;
    let refused = said(&server, "a", "eve").await;
    assert!(refused.contains("User is not allowed to create VirtualMachineTemplates in namespace eve"), "{refused}");
    grant("templates", "eve", json!([rule(template, "virtualmachinetemplates")])).await;
    assert_eq!(said(&server, "a", "eve").await, "");
    // The machine of somebody else is his, until he shares it.
    let refused = said(&server, "b", "victim").await;
    let why = "User is not allowed to use VirtualMachine victim/vm as a source for VirtualMachineTemplateRequests";
    assert!(refused.contains(why), "{refused}");
    grant("share", "victim", json!([rule(template, "virtualmachinetemplaterequests/source")])).await;
    assert_eq!(said(&server, "b", "victim").await, "");
}
