//! OpenShift's Template, as far as it is a machine with parameters, and the VirtualMachineTemplate that says the same.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{GROUP, Parameter, Refusal, Spec, VERSIONS};

/// The VirtualMachineTemplate that says what `template` says. Of its metadata the name, the namespace, labels and annotations stay.
///
/// # Errors
/// When `template` is no Template, or has other than one object, or one that is no VirtualMachine; or labels, which a
/// VirtualMachineTemplate has no place for.
pub fn convert(template: &Value) -> Result<Value, Refusal> {
    let refuse = |field: &str, message: String| Err(Refusal { field: field.to_owned(), message });
    if template["kind"] != "Template" {
        return refuse("kind", format!("is {}, and not \"Template\"", template["kind"]));
    }
    let objects = template["objects"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [machine] = objects else {
        return refuse("objects", format!("has {} objects: a VirtualMachineTemplate is of one machine", objects.len()));
    };
    if machine["kind"] != "VirtualMachine" {
        return refuse("objects[0].kind", format!("is {}, and not \"VirtualMachine\"", machine["kind"]));
    }
    if template["labels"].as_object().is_some_and(|labels| !labels.is_empty()) {
        let message = "are given to every object: write them into objects[0].metadata.labels, and leave them out here";
        return refuse("labels", message.to_owned());
    }
    let read = |field: &str| template[field].clone();
    let parameters: Vec<Parameter> = match read("parameters") {
        Value::Null => Vec::new(),
        parameters => match serde_json::from_value(parameters) {
            Ok(parameters) => parameters,
            Err(error) => return refuse("parameters", error.to_string()),
        },
    };
    let metadata: ObjectMeta = match serde_json::from_value(read("metadata")) {
        Ok(metadata) => metadata,
        Err(error) => return refuse("metadata", error.to_string()),
    };
    let metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        labels: metadata.labels,
        annotations: metadata.annotations,
        ..ObjectMeta::default()
    };
    let message = template["message"].as_str().unwrap_or_default().to_owned();
    let spec = Spec { message, parameters, virtual_machine: machine.clone() };
    Ok(json!({
        "apiVersion": format!("{GROUP}/{}", VERSIONS[0]), "kind": "VirtualMachineTemplate", "metadata": metadata, "spec": spec,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(objects: Value) -> Value {
        json!({
            "apiVersion": "template.openshift.io/v1", "kind": "Template",
            "metadata": { "name": "t", "namespace": "ns", "labels": { "a": "b" }, "uid": "x", "resourceVersion": "5" },
            "message": "hello ${NAME}", "parameters": [{ "name": "NAME", "required": true }], "objects": objects,
        })
    }

    #[test]
    fn a_template_of_one_machine_is_converted() {
        let machine =
            json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "${NAME}" } });
        let expect = json!({
            "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate",
            "metadata": { "name": "t", "namespace": "ns", "labels": { "a": "b" } },
            "spec": { "message": "hello ${NAME}", "parameters": [{ "name": "NAME", "required": true }], "virtualMachine": machine },
        });
        assert_eq!(convert(&template(json!([machine]))).unwrap(), expect);
    }

    #[track_caller]
    fn refused(template: &Value, expect: &str) {
        assert_eq!(convert(template).unwrap_err().to_string(), expect);
    }

    #[test]
    fn what_has_no_place_in_a_virtual_machine_template_is_refused() {
        let machine = json!({ "kind": "VirtualMachine" });
        refused(&json!({ "kind": "List" }), "kind: is \"List\", and not \"Template\"");
        let none = "objects: has 0 objects: a VirtualMachineTemplate is of one machine";
        refused(&template(json!([])), none);
        refused(&template(json!([{ "kind": "Pod" }])), "objects[0].kind: is \"Pod\", and not \"VirtualMachine\"");
        let mut labelled = template(json!([machine]));
        labelled["labels"] = json!({ "a": "b" });
        let said =
            "labels: are given to every object: write them into objects[0].metadata.labels, and leave them out here";
        refused(&labelled, said);
    }
}
