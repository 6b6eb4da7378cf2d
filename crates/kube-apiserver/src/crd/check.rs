//! What a CustomResourceDefinition must say.

use serde_json::{Value, json};

use crate::error::Cause;
use crate::schema::rules::Rules;
use crate::schema::validate::{self, cause};
use crate::schema::{defaults, parse};

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
                for (place, error) in rules.iter().flat_map(Rules::errors) {
                    let message = format!("Invalid value: {error}");
                    causes.push(cause("FieldValueInvalid", &format!("{at}{place}"), message));
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
    const KINDS: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
    if !kind.is_empty() {
        crate::registry::strategy::one_of(&format!("{at}.type"), &schema["type"], &KINDS, causes);
    }
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_some_and(|a| a != &json!(false)) {
        let message = "Forbidden: must not be used together with properties".to_owned();
        causes.push(cause("FieldValueForbidden", &format!("{at}.additionalProperties"), message));
    }
    if kind == "array" && !schema["items"].is_object() {
        causes.push(cause("FieldValueRequired", &format!("{at}.items"), "Required value: must be specified".into()));
    }
    list_keys(schema, at, causes);
    default(schema, at, causes);
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

/// A list that is a map names fields that each of its items has.
fn list_keys(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let here = format!("{at}.x-kubernetes-list-map-keys");
    let keys = schema["x-kubernetes-list-map-keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    if schema["x-kubernetes-list-type"] != "map" {
        if !keys.is_empty() {
            let message = "Forbidden: must be empty if x-kubernetes-list-type is not map".to_owned();
            causes.push(cause("FieldValueForbidden", &here, message));
        }
        return;
    }
    if keys.is_empty() {
        let message = "Required value: must not be empty if x-kubernetes-list-type is map".to_owned();
        causes.push(cause("FieldValueRequired", &here, message));
    }
    let items = &schema["items"];
    for (index, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        let property = &items["properties"][name];
        if !property.is_object() {
            let message = format!("Invalid value: {key}: entries must all be names of item properties");
            causes.push(cause("FieldValueInvalid", &format!("{here}[{index}]"), message));
        } else if property.get("default").is_none() && !items["required"].as_array().is_some_and(|r| r.contains(key)) {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            let field = format!("{at}.items.properties[{name}].default");
            causes.push(cause("FieldValueRequired", &field, format!("Required value: {why}")));
        }
    }
}

/// A default is a value the field may have.
fn default(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let Some(default) = schema.get("default") else { return };
    let holder = parse::openapi(&json!({"type": "object", "properties": {"default": schema}}));
    let mut object = json!({"default": default});
    defaults::apply(&holder, &mut object);
    let mut found = Vec::new();
    validate::check(&holder, &object, &mut found);
    causes.extend(found.into_iter().map(|cause| Cause { field: format!("{at}.{}", cause.field), ..cause }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(field: Value, expect: &[&str]) {
        let schema = json!({"type": "object", "properties": {"f": field}});
        let mut causes = Vec::new();
        structural(&schema, "s", true, &mut causes);
        let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn keys_of_lists_are_fields_of_their_items() {
        let list = |keys: Value, required: Value| {
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
                "items": {"type": "object", "required": required, "properties": {"k": {"type": "string"}}}})
        };
        let at = "s.properties[f].x-kubernetes-list-map-keys";
        check(list(json!(["k"]), json!(["k"])), &[]);
        check(
            list(json!([]), json!([])),
            &[&format!("{at}: Required value: must not be empty if x-kubernetes-list-type is map")],
        );
        check(
            list(json!(["z"]), json!(["z"])),
            &[&format!("{at}[0]: Invalid value: \"z\": entries must all be names of item properties")],
        );
        check(
            list(json!(["k"]), json!([])),
            &[
                "s.properties[f].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        );
    }

    #[test]
    fn types_are_known() {
        check(
            json!({"type": "text"}),
            &[
                "s.properties[f].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ],
        );
    }

    #[test]
    fn defaults_are_values_of_their_fields() {
        check(json!({"type": "integer", "default": 3}), &[]);
        check(
            json!({"type": "integer", "default": "x"}),
            &[
                "s.properties[f].default: Invalid value: \"string\": default in body must be of type integer: \"string\"",
            ],
        );
        let inner = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "default": 1}}, "default": {}});
        check(inner, &[]);
    }
}
