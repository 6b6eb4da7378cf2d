//! Templates are judged when they are made, and again when they change.

use api::template::VirtualMachineTemplate;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{start, wait};

fn is(status: &'static str, generation: i64) -> impl Fn(Option<&VirtualMachineTemplate>) -> bool {
    move |template: Option<&VirtualMachineTemplate>| {
        let conditions = template.and_then(|template| template.status.as_ref()).into_iter().flat_map(|s| &s.conditions);
        conditions.into_iter().any(|condition| {
            condition.type_ == "Ready"
                && condition.status == status
                && condition.observed_generation == Some(generation)
        })
    }
}

#[tokio::test]
async fn a_template_says_whether_machines_can_be_made_of_it() {
    let cluster = start().await;
    let templates: Api<VirtualMachineTemplate> = Api::namespaced(cluster.client.clone(), "default");
    let apply = async |spec: Value| {
        let object = json!({
            "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate", "metadata": { "name": "t" },
            "spec": spec,
        });
        templates.patch("t", &PatchParams::apply("test").force(), &Patch::Apply(object)).await.unwrap();
    };
    let machine = json!({ "metadata": { "name": "${NAME}" }, "spec": { "template": { "spec": { "domain": { "devices": {} } } } } });
    let parameter = |from: &str| json!([{ "name": "NAME", "generate": "expression", "from": from }]);
    apply(json!({ "parameters": parameter("vm-[a-z]{4}"), "virtualMachine": machine })).await;
    wait(&templates, "t", "ready", is("True", 1)).await.unwrap();
    apply(json!({ "parameters": parameter("vm-[a-z]{0}"), "virtualMachine": machine })).await;
    let found = wait(&templates, "t", "not ready", is("False", 2)).await.unwrap();
    let said = &found.status.unwrap().conditions[0].message;
    assert_eq!(said, "spec.parameters[0].from: [a-z]{0}: the length is a number from 1 to 255");
}
