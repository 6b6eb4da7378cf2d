//! Groups `template.kubevirt.io` and `subresources.template.kubevirt.io`: a virtual machine with parameters, and the machine that comes
//! of it. The language of parameters is OpenShift's: `${NAME}` within texts, `${{NAME}}` for a value that is no text.

mod expression;
pub mod openshift;
pub mod request;
mod substitute;

use std::collections::BTreeMap;

pub use expression::generate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use substitute::Values;

/// The group of templates.
pub const GROUP: &str = "template.kubevirt.io";
/// The group of what is done with them.
pub const SUBRESOURCES: &str = "subresources.template.kubevirt.io";
/// Versions of both groups, the preferred one first.
pub const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// Plural of templates.
pub const PLURAL: &str = "virtualmachinetemplates";
/// What a parameter's `generate` may say.
pub const EXPRESSION: &str = "expression";

/// A virtual machine with parameters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VirtualMachineTemplate {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// The machine and its parameters.
    #[serde(default)]
    pub spec: Spec,
    /// What its controller says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

meta::kind!(
    VirtualMachineTemplate,
    "template.kubevirt.io",
    "v1beta1",
    "virtualmachinetemplates",
    NamespaceResourceScope
);

/// What is known of a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// `Ready`: machines can be made of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The spec of a VirtualMachineTemplate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Told to whoever makes a machine of it, with parameters filled in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What may be filled in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Parameter>,
    /// The machine, in which parameters stand.
    pub virtual_machine: Value,
}

/// What may be filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its name for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// What it is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What it is unless somebody says something else.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// How it is made where nobody says it: `expression`, or not at all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate: String,
    /// The expression.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// It must not be empty.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
}

/// Why no machine comes of a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Refusal {
    /// The field of the template, or of the options.
    pub field: String,
    /// What is wrong with it and what to do.
    pub message: String,
}

/// A machine that came of a template.
#[derive(Clone, Debug, PartialEq)]
pub struct Processed {
    /// The VirtualMachine. Names no namespace but one that a parameter gave.
    pub machine: Value,
    /// What to tell its user; may be empty.
    pub message: String,
}

/// Where randomness comes from: a number below the one that is given, which is never 0.
pub type Random<'a> = &'a mut dyn FnMut(usize) -> usize;

/// Fills in parameters: what `given` says, else their own values, else what is generated.
///
/// # Errors
/// When `given` names a parameter that there is not, one that is required is empty, an expression is none, or what comes of it is no
/// VirtualMachine.
pub fn process(spec: &Spec, given: &BTreeMap<String, String>, random: Random<'_>) -> Result<Processed, Refusal> {
    let values = values(&spec.parameters, given, random)?;
    let refuse = |message: String| Refusal { field: "spec.virtualMachine".to_owned(), message };
    let mut machine = spec.virtual_machine.clone();
    if !machine.is_object() {
        return Err(refuse("is required, and an object".to_owned()));
    }
    // Who makes the machine says where, unless the template asks for it.
    if let Some(metadata) = machine.get_mut("metadata").and_then(Value::as_object_mut)
        && metadata.get("namespace").and_then(Value::as_str).is_some_and(|namespace| !values.is_asked_for_in(namespace))
    {
        metadata.remove("namespace");
    }
    values.fill(&mut machine).map_err(refuse)?;
    machine["apiVersion"] = json!(crate::kubevirt::constants::API_VERSION);
    machine["kind"] = json!("VirtualMachine");
    if let Err(error) = serde_json::from_value::<crate::kubevirt::v1::VirtualMachine>(machine.clone()) {
        return Err(refuse(format!("with its parameters it is no VirtualMachine: {error}")));
    }
    Ok(Processed { machine, message: values.text(&spec.message) })
}

/// Whether a machine can come of a template, whatever its parameters are given as.
///
/// # Errors
/// When a parameter has no name, or another's; its value cannot be generated; or there is no machine.
pub fn check(spec: &Spec) -> Result<(), Refusal> {
    for (at, parameter) in spec.parameters.iter().enumerate() {
        let refuse =
            |name: &str, message: String| Err(Refusal { field: format!("spec.parameters[{at}].{name}"), message });
        if parameter.name.is_empty() {
            return refuse("name", "name the parameter".to_owned());
        }
        if spec.parameters[..at].iter().any(|other| other.name == parameter.name) {
            return refuse("name", format!("another parameter is named {}: name each once", parameter.name));
        }
    }
    let given = spec.parameters.iter().filter(|parameter| parameter.generate.is_empty() && parameter.value.is_empty());
    let given = given.map(|parameter| (parameter.name.clone(), "given".to_owned())).collect();
    values(&spec.parameters, &given, &mut |_| 0)?;
    if spec.virtual_machine.is_object() {
        return Ok(());
    }
    Err(Refusal { field: "spec.virtualMachine".to_owned(), message: "is required, and an object".to_owned() })
}

fn values(all: &[Parameter], given: &BTreeMap<String, String>, random: Random<'_>) -> Result<Values, Refusal> {
    if let Some(unknown) = given.keys().find(|name| !all.iter().any(|parameter| parameter.name == **name)) {
        let known: Vec<&str> = all.iter().map(|parameter| parameter.name.as_str()).collect();
        let message = format!("the template has no parameter {unknown:?}; it has {}", known.join(", "));
        return Err(Refusal { field: "parameters".to_owned(), message });
    }
    let mut values = BTreeMap::new();
    for (at, parameter) in all.iter().enumerate() {
        let field = |name: &str| format!("spec.parameters[{at}].{name}");
        let mut value = given.get(&parameter.name).unwrap_or(&parameter.value).clone();
        if value.is_empty() {
            value = match parameter.generate.as_str() {
                "" => value,
                EXPRESSION => {
                    generate(&parameter.from, random).map_err(|message| Refusal { field: field("from"), message })?
                }
                other => {
                    let message = format!("{other:?} is not known: {EXPRESSION:?} is, or leave it out");
                    return Err(Refusal { field: field("generate"), message });
                }
            };
        }
        if value.is_empty() && parameter.required {
            let message = format!("the parameter {} is required: give it a value", parameter.name);
            return Err(Refusal { field: field("value"), message });
        }
        values.insert(parameter.name.clone(), value);
    }
    Ok(Values(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(parameters: Value, machine: Value) -> Spec {
        serde_json::from_value(json!({
            "message": "VM ${NAME} is there", "parameters": parameters, "virtualMachine": machine,
        }))
        .unwrap()
    }

    fn processed(spec: &Spec, given: &[(&str, &str)]) -> Result<Processed, Refusal> {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        process(spec, &given, &mut |_| 0)
    }

    fn machine(name: &str) -> Value {
        json!({ "metadata": { "name": name, "namespace": "elsewhere" }, "spec": { "template": { "spec": {
            "domain": { "cpu": { "cores": "${{CORES}}" }, "devices": {} },
        } } } })
    }

    #[test]
    fn a_machine_has_the_parameters_of_its_template() {
        let parameters = json!([
            { "name": "NAME", "generate": "expression", "from": "vm-[a-z]{3}" },
            { "name": "CORES", "value": "2" },
        ]);
        let spec = spec(parameters, machine("${NAME}"));
        let found = processed(&spec, &[]).unwrap();
        assert_eq!(found.message, "VM vm-aaa is there");
        assert_eq!(found.machine["metadata"], json!({ "name": "vm-aaa" }));
        assert_eq!(found.machine["kind"], "VirtualMachine");
        let found = processed(&spec, &[("NAME", "mine"), ("CORES", "4")]).unwrap().machine;
        assert_eq!(
            (&found["metadata"]["name"], found.pointer("/spec/template/spec/domain/cpu/cores")),
            (&json!("mine"), Some(&json!(4)))
        );
    }

    #[test]
    fn a_namespace_that_a_parameter_names_stays() {
        let mut machine = machine("x");
        machine["metadata"]["namespace"] = json!("${WHERE}");
        let parameters = json!([{ "name": "WHERE", "value": "there" }, { "name": "CORES", "value": "1" }]);
        let found = processed(&spec(parameters, machine), &[]).unwrap();
        assert_eq!(found.machine["metadata"]["namespace"], "there");
    }

    #[test]
    fn a_template_is_checked_without_its_parameters() {
        let check =
            |parameters: Value, machine: Value| check(&spec(parameters, machine)).err().map(|found| found.field);
        let required = json!([{ "name": "NAME", "required": true }, { "name": "CORES", "generate": "expression", "from": "[1-4]{1}" }]);
        assert_eq!(check(required, machine("${NAME}")), None);
        assert_eq!(check(json!([{}]), machine("x")).as_deref(), Some("spec.parameters[0].name"));
        assert_eq!(
            check(json!([{ "name": "A" }, { "name": "A" }]), machine("x")).as_deref(),
            Some("spec.parameters[1].name")
        );
        let endless = json!([{ "name": "A", "generate": "expression", "from": "[a-z]{999}" }]);
        assert_eq!(check(endless, machine("x")).as_deref(), Some("spec.parameters[0].from"));
        assert_eq!(check(json!([]), json!("x")).as_deref(), Some("spec.virtualMachine"));
    }

    #[track_caller]
    fn refused(parameters: Value, machine: Value, given: &[(&str, &str)], expect: &str) {
        assert_eq!(processed(&spec(parameters, machine), given).unwrap_err().to_string(), expect);
    }

    #[test]
    fn what_cannot_be_filled_in_is_refused_with_the_field() {
        let one = || json!([{ "name": "NAME", "required": true }]);
        refused(one(), json!({}), &[], "spec.parameters[0].value: the parameter NAME is required: give it a value");
        refused(
            one(),
            json!({}),
            &[("NAMES", "x")],
            "parameters: the template has no parameter \"NAMES\"; it has NAME",
        );
        let generator = json!([{ "name": "NAME", "generate": "uuid" }]);
        refused(
            generator,
            json!({}),
            &[],
            "spec.parameters[0].generate: \"uuid\" is not known: \"expression\" is, or leave it out",
        );
        refused(json!([]), json!([]), &[], "spec.virtualMachine: is required, and an object");
        let cores = json!([{ "name": "CORES", "value": "two" }]);
        let said =
            "spec.virtualMachine: ${{CORES}} stands for \"two\", which is no value in JSON: use ${CORES} for a text";
        refused(cores, machine("x"), &[], said);
        let cores = json!([{ "name": "CORES", "value": "[]" }]);
        let found = processed(&spec(cores, machine("x")), &[]).unwrap_err();
        assert!(found.message.starts_with("with its parameters it is no VirtualMachine: "), "{found}");
    }
}
