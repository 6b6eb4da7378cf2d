//! The webhooks of the validator, on a cluster with templates of several tenants.

use axum::body::Body;
use http::Request;
use kube::Client;
use kube_apiserver::ApiServer;
use serde_json::{Value, json};
use ssp::validator::Validator;
use ssp::validator::judge::{MACHINES, TEMPLATES};
use tower::ServiceExt;

use crate::cluster::{apply, cluster, kind, namespace};

const COMMON: &str = "kubevirt";

struct Setup {
    _server: ApiServer,
    client: Client,
    validator: Validator,
}

fn rules(message: &str) -> String {
    json!([{
        "rule": "integer", "name": "cores", "path": "jsonpath::.spec.domain.cpu.cores", "message": message, "max": 2,
    }])
    .to_string()
}

/// A template whose machines have two cores at most.
fn template(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "template.kubevirt.io/v1alpha1", "kind": "VirtualMachineTemplate",
        "metadata": {
            "name": name, "namespace": namespace, "labels": { "template.kubevirt.io/type": "base" },
            "annotations": { "validations": rules(&format!("Too many cores for {namespace}/{name}")) },
        },
        "spec": { "virtualMachine": {} },
    })
}

/// A machine with four cores.
fn machine(namespace: &str, name: &str, of: (&str, &str)) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": { "name": name, "namespace": namespace, "labels": {
            "vm.kubevirt.io/template.namespace": of.0, "vm.kubevirt.io/template": of.1,
        } },
        "spec": { "runStrategy": "Halted", "template": { "spec": { "domain": { "cpu": { "cores": 4 }, "devices": {} } } } },
    })
}

impl Setup {
    /// Tenants `red` and `blue`, each with a template, and a common one.
    async fn new() -> Self {
        let (server, client) = cluster().await;
        apply(&client, &[COMMON, "red", "blue"].map(namespace)).await;
        let templates = [template(COMMON, "fedora"), template("red", "own"), template("blue", "secret")];
        apply(&client, &templates).await;
        let validator = Validator::new(client.clone(), COMMON);
        Self { _server: server, client, validator }
    }

    async fn post(&self, path: &str, request: &Value) -> Value {
        let body = Body::from(json!({ "request": request }).to_string());
        let response = self.validator.router().oneshot(Request::post(path).body(body).unwrap()).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()["response"].clone()
    }

    /// What is answered when `user` creates `machine`.
    async fn create(&self, user: &str, machine: &Value) -> Value {
        let groups = if user == "admin" { ["system:masters"] } else { ["system:authenticated"] };
        let request = json!({
            "uid": "1", "operation": "CREATE", "namespace": machine["metadata"]["namespace"],
            "name": machine["metadata"]["name"], "userInfo": { "username": user, "groups": groups }, "object": machine,
        });
        self.post(MACHINES, &request).await
    }

    async fn delete(&self, template: &Value) -> Value {
        let metadata = &template["metadata"];
        let request = json!({
            "uid": "1", "operation": "DELETE", "namespace": metadata["namespace"], "name": metadata["name"],
            "oldObject": template,
        });
        self.post(TEMPLATES, &request).await
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.validator.registry()).unwrap();
        text
    }
}

fn message(answer: &Value) -> &str {
    assert_eq!(answer["allowed"], false, "{answer}");
    answer["status"]["message"].as_str().unwrap()
}

#[track_caller]
fn admitted(answer: &Value) {
    assert_eq!(*answer, json!({ "uid": "1", "allowed": true }));
}

#[tokio::test]
async fn a_machine_is_held_to_its_template() {
    let setup = Setup::new().await;
    let refused = setup.create("eve", &machine("red", "m", (COMMON, "fedora"))).await;
    let said = "Too many cores for kubevirt/fedora: value 4 is higher than maximum [2]";
    assert_eq!(message(&refused), said);
    let cause = json!({ "reason": "FieldValueInvalid", "field": ".spec.domain.cpu.cores", "message": said });
    assert_eq!(refused["status"]["details"]["causes"], json!([cause]));
    assert_eq!((&refused["status"]["code"], &refused["status"]["reason"]), (&json!(422), &json!("Invalid")));
    assert!(message(&setup.create("eve", &machine("red", "m", ("red", "own"))).await).contains("red/own"));
    let mut small = machine("red", "m", (COMMON, "fedora"));
    small["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = json!(2);
    admitted(&setup.create("eve", &small).await);
    assert!(setup.metrics().contains("kubevirt_ssp_template_validator_rejected_total 2\n"), "{}", setup.metrics());
}

#[tokio::test]
async fn a_template_of_openshift_counts_where_it_is_served() {
    let setup = Setup::new().await;
    apply(&setup.client, &[kind("template.openshift.io", "v1", "templates", "Template")]).await;
    let template = json!({
        "apiVersion": "template.openshift.io/v1", "kind": "Template",
        "metadata": { "name": "fedora", "namespace": COMMON, "annotations": { "validations": rules("As OpenShift says") } },
    });
    apply(&setup.client, &[template]).await;
    let refused = setup.create("eve", &machine("red", "m", (COMMON, "fedora"))).await;
    assert!(message(&refused).starts_with("As OpenShift says: "), "{refused}");
}

#[tokio::test]
async fn its_own_rules_count_instead_and_it_may_be_held_to_nothing() {
    let setup = Setup::new().await;
    let annotated = |key: &str, value: &str| {
        let mut machine = machine("red", "m", (COMMON, "fedora"));
        machine["metadata"]["annotations"] = json!({ (key): value });
        machine
    };
    let own = annotated("vm.kubevirt.io/validations", &rules("As it says itself"));
    assert!(message(&setup.create("eve", &own).await).starts_with("As it says itself: "));
    admitted(&setup.create("eve", &annotated("vm.kubevirt.io/validations", "")).await);
    admitted(&setup.create("eve", &annotated("vm.kubevirt.io/skip-validations", "")).await);
    let broken = setup.create("eve", &annotated("vm.kubevirt.io/validations", "{}")).await;
    let said = "metadata.annotations[vm.kubevirt.io/validations]: it is not a list of rules; correct it, or annotate the machine with vm.kubevirt.io/skip-validations";
    assert_eq!(message(&broken), said);
}

#[tokio::test]
async fn a_machine_without_a_template_or_that_ends_is_admitted() {
    let setup = Setup::new().await;
    admitted(&setup.create("eve", &machine("red", "m", (COMMON, "none"))).await);
    admitted(&setup.create("eve", &machine("red", "m", ("nowhere-else", ""))).await);
    let mut ends = machine("red", "m", (COMMON, "fedora"));
    ends["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    admitted(&setup.create("eve", &ends).await);
}

#[tokio::test]
async fn nobody_learns_of_the_templates_of_others_by_naming_them() {
    let setup = Setup::new().await;
    let there = setup.create("eve", &machine("red", "m", ("blue", "secret"))).await;
    let warning = |name: &str| {
        format!("vm.kubevirt.io/template: eve may not read template blue/{name}: no rules of it are applied")
    };
    assert_eq!(there, json!({ "uid": "1", "allowed": true, "warnings": [warning("secret")] }));
    let not_there = setup.create("eve", &machine("red", "m", ("blue", "guessed"))).await;
    assert_eq!(not_there, json!({ "uid": "1", "allowed": true, "warnings": [warning("guessed")] }));
    // Who may read it is held to it.
    assert!(message(&setup.create("admin", &machine("red", "m", ("blue", "secret"))).await).contains("blue/secret"));
    // No request is made of what is no name.
    for name in ["../../../api/v1/namespaces/kube-system/secrets", "secret?watch=true", "."] {
        admitted(&setup.create("eve", &machine("red", "m", ("blue", name))).await);
    }
}

#[tokio::test]
async fn a_base_template_stays_while_machines_are_held_to_it() {
    let setup = Setup::new().await;
    let common = template(COMMON, "fedora");
    admitted(&setup.delete(&common).await);
    let mut annotated = machine("blue", "by-annotation", ("", ""));
    annotated["metadata"]["labels"] = json!({});
    annotated["metadata"]["annotations"] =
        json!({ "vm.kubevirt.io/template-namespace": COMMON, "vm.kubevirt.io/template": "fedora" });
    let mut own = machine("blue", "own-rules", (COMMON, "fedora"));
    own["metadata"]["annotations"] = json!({ "vm.kubevirt.io/validations": "[]" });
    let other = machine("red", "of-another", (COMMON, "rhel9"));
    apply(&setup.client, &[machine("red", "by-label", (COMMON, "fedora")), annotated, own, other]).await;
    let refused = setup.delete(&common).await;
    let said = "Template cannot be deleted, because the following VMs are referencing it for validation: blue/by-annotation, red/by-label";
    assert_eq!(message(&refused), said);
    let mut made = common.clone();
    made["metadata"]["labels"] = json!({ "template.kubevirt.io/type": "vm" });
    admitted(&setup.delete(&made).await);
}

#[tokio::test]
async fn nobody_keeps_the_template_of_others_from_being_deleted_by_naming_it() {
    let setup = Setup::new().await;
    apply(&setup.client, &[machine("red", "squatter", ("blue", "secret"))]).await;
    admitted(&setup.delete(&template("blue", "secret")).await);
    apply(&setup.client, &[machine("blue", "of-it", ("blue", "secret"))]).await;
    assert!(message(&setup.delete(&template("blue", "secret")).await).ends_with(": blue/of-it"));
}
