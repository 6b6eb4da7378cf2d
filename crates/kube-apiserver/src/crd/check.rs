//! What a CustomResourceDefinition must say.

use serde_json::{Value, json};

use crate::error::Cause;
use crate::schema::rules::Rules;
use crate::schema::validate::cause;

/// Adds a cause for everything that keeps a definition from being served.
pub(crate) fn validate(crd: &Value, causes: &mut Vec<Cause>) {
    let spec = &crd["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let name = text(&crd["metadata"]["name"]);
    if name != format!("{plural}.{group}") {
        let message = format!("Invalid value: {name:?}: must be spec.names.plural+\".\"+spec.group");
        causes.push(cause("FieldValueInvalid", "metadata.name", message));
    }
    for (field, value) in
        [("spec.group", &group), ("spec.names.plural", &plural), ("spec.names.kind", &text(&spec["names"]["kind"]))]
    {
        if value.is_empty() {
            causes.push(cause("FieldValueRequired", field, "Required value".into()));
        }
    }
    crate::registry::strategy::one_of("spec.scope", &spec["scope"], &["Cluster", "Namespaced"], causes);
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let storage = versions.iter().filter(|version| version["storage"] == true).count();
    if storage != 1 {
        let message =
            format!("Invalid value: {}: must have exactly one version marked as storage version", json!(storage));
        causes.push(cause("FieldValueInvalid", "spec.versions", message));
    }
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        match version["schema"].get("openAPIV3Schema") {
            None => {
                let message = "Required value: schemas are required".to_owned();
                causes.push(cause("FieldValueRequired", &format!("{at}.schema.openAPIV3Schema"), message));
            }
            Some(schema) => {
                let at = format!("{at}.schema.openAPIV3Schema");
                structural(schema, &at, true, causes);
                let rules = Rules::compile(schema, &group, "", "");
                for error in rules.iter().flat_map(Rules::errors) {
                    causes.push(cause(
                        "FieldValueInvalid",
                        &at,
                        format!("Invalid value: x-kubernetes-validations: {error}"),
                    ));
                }
            }
        }
    }
}

/// The main rules of structural schemas: every node has a type, properties and additionalProperties exclude each other.
fn structural(schema: &Value, at: &str, root: bool, causes: &mut Vec<Cause>) {
    if causes.len() > 20 {
        return;
    }
    let free = schema["x-kubernetes-int-or-string"] == true || schema["x-kubernetes-preserve-unknown-fields"] == true;
    let kind = schema["type"].as_str().unwrap_or_default();
    if kind.is_empty() && (root || !free) {
        let message = "Required value: must not be empty for specified object fields".to_owned();
        causes.push(cause("FieldValueRequired", &format!("{at}.type"), message));
    } else if root && kind != "object" {
        let message = format!("Invalid value: {kind:?}: must be object at the root");
        causes.push(cause("FieldValueInvalid", &format!("{at}.type"), message));
    }
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_some_and(|a| a != &json!(false)) {
        let message = "Forbidden: must not be used together with properties".to_owned();
        causes.push(cause("FieldValueForbidden", &format!("{at}.additionalProperties"), message));
    }
    if kind == "array" && !schema["items"].is_object() {
        causes.push(cause("FieldValueRequired", &format!("{at}.items"), "Required value: must be specified".into()));
    }
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        if root && matches!(name.as_str(), "metadata" | "apiVersion" | "kind") {
            continue;
        }
        structural(child, &format!("{at}.properties[{name}]"), false, causes);
    }
    if schema["additionalProperties"].is_object() {
        structural(&schema["additionalProperties"], &format!("{at}.additionalProperties"), false, causes);
    }
    if schema["items"].is_object() {
        structural(&schema["items"], &format!("{at}.items"), false, causes);
    }
}
