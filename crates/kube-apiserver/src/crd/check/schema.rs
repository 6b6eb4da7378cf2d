//! The rules of structural schemas: every node has a type, branches of allOf and its like only restrict what is
//! declared, lists that are sets or maps can be merged, defaults are values of their fields.

use serde_json::{Value, json};

use apimachinery::error::Cause;

use super::{forbidden, invalid, required, text, unsupported};

mod branches;
mod default;
mod pattern;

use branches::{junctors, spelled_branches};

/// Causes reported at most.
const ENOUGH: usize = 20;

const KINDS: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Words of OpenAPI and JSON schema that structural schemas do without.
const FOREIGN: [&str; 8] = [
    "$ref",
    "definitions",
    "dependencies",
    "additionalItems",
    "patternProperties",
    "id",
    "discriminator",
    "deprecated",
];

/// What a schema may say at its root when status is a subresource: its part below `status` must mean the same alone.
const WITH_STATUS: [&str; 23] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
    "x-kubernetes-selectable-fields",
];

/// `status` says whether status is a subresource.
pub(super) fn check(schema: &Value, status: bool, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(&schema["type"]);
    if status {
        with_status(schema, at, causes);
    }
    let found = causes.len();
    if kind.is_empty() {
        causes.push(required(&format!("{at}.type"), "must not be empty at the root"));
    } else if kind != "object" {
        causes.push(invalid(&format!("{at}.type"), &schema["type"], "must be object at the root"));
    }
    if schema["nullable"] == true {
        causes.push(forbidden(&format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
    if is_set(&schema["additionalProperties"]) || schema["additionalProperties"] == false {
        causes.push(forbidden(&format!("{at}.additionalProperties"), "must not be used at the root"));
    }
    metadata(&schema["properties"]["metadata"], &format!("{at}.properties[metadata]"), causes);
    node(schema, at, true, causes);
    junctors(schema, schema, (at, at), causes);
    if causes.len() == found {
        default::check(schema, at, causes);
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

fn with_status(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(&schema["type"]);
    if !kind.is_empty() && kind != "object" {
        let why =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        causes.push(invalid(&format!("{at}.type"), &schema["type"], why));
    }
    let keys = schema.as_object().into_iter().flatten();
    let set = |key: &str, value: &Value| is_set(value) || (key == "additionalProperties" && !value.is_null());
    let strange = keys.filter(|(key, value)| set(key, value)).find(|(key, _)| !WITH_STATUS.contains(&key.as_str()));
    if let Some((key, _)) = strange {
        let why = format!("{key} is not allowed at the root of the schema if the status subresource is enabled");
        causes.push(invalid(at, schema, &why));
    }
}

/// The server knows what metadata is; a definition may restrict names alone.
fn metadata(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let Some(map) = schema.as_object() else { return };
    let names = map.get("properties").and_then(Value::as_object);
    let strange = names.is_some_and(|names| names.keys().any(|name| name != "name" && name != "generateName"))
        || map.iter().any(|(key, value)| {
            !matches!(key.as_str(), "type" | "properties" | "default")
                && (is_set(value) || key == "additionalProperties")
        });
    if strange {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        causes.push(forbidden(at, why));
    }
}

fn node(schema: &Value, at: &str, root: bool, causes: &mut Vec<Cause>) {
    if causes.len() > ENOUGH {
        return;
    }
    type_of(schema, at, root, causes);
    extensions(schema, at, causes);
    for word in FOREIGN.iter().filter(|word| schema.get(**word).is_some()) {
        causes.push(forbidden(&format!("{at}.{word}"), &format!("{word} is not supported")));
    }
    if schema["uniqueItems"] == true {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(forbidden(&format!("{at}.uniqueItems"), why));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(error) = pattern::check(pattern)
    {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        causes.push(invalid(&format!("{at}.pattern"), &schema["pattern"], &why));
    }
    if root || schema["x-kubernetes-embedded-resource"] == true {
        known_fields(&schema["properties"], at, causes);
    }
    if named(schema) && schema.get("additionalProperties").is_some_and(|a| a != &json!(true)) {
        let why = "additionalProperties and properties are mutual exclusive";
        causes.push(forbidden(&format!("{at}.additionalProperties"), why));
    }
    if text(&schema["type"]) == "array" && !schema["items"].is_object() {
        let why = if schema["items"].is_array() {
            "items must be a schema object and not an array"
        } else {
            "must be specified"
        };
        causes.push(required(&format!("{at}.items"), why));
    }
    list(schema, at, causes);
    spelled_branches(schema, at, causes);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        node(child, &format!("{at}.properties[{name}]"), false, causes);
    }
    for word in ["additionalProperties", "items"] {
        if schema[word].is_object() {
            node(&schema[word], &format!("{at}.{word}"), false, causes);
        }
    }
}

fn named(schema: &Value) -> bool {
    schema["properties"].as_object().is_some_and(|map| !map.is_empty())
}

/// What every object has has the type it has.
fn known_fields(properties: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (name, kind) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        let schema = &properties[name];
        if schema.is_object() && text(&schema["type"]) != kind {
            let said = Value::from(text(&schema["type"]));
            causes.push(invalid(&format!("{at}.properties[{name}].type"), &said, &format!("must be {kind}")));
        }
    }
}

fn type_of(schema: &Value, at: &str, root: bool, causes: &mut Vec<Cause>) {
    let field = format!("{at}.type");
    let kind = text(&schema["type"]);
    let either = schema["x-kubernetes-int-or-string"] == true;
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if kind.is_empty() {
        // What embeds an object must be one, which is said elsewhere.
        let embeds = schema["x-kubernetes-embedded-resource"] == true;
        if !root && !either && !open && !embeds {
            let what = if at.ends_with(".items") { "array items" } else { "object fields" };
            causes.push(required(&field, &format!("must not be empty for specified {what}")));
        }
    } else if !KINDS.contains(&kind) {
        causes.push(unsupported(&field, &schema["type"], &KINDS));
        if kind == "null" {
            causes.push(forbidden(&field, "type cannot be set to null, use nullable as an alternative"));
        }
    }
}

/// What Kubernetes adds to schemas.
fn extensions(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(&schema["type"]);
    if schema.get("x-kubernetes-preserve-unknown-fields").is_some_and(|value| value == false) {
        let field = format!("{at}.x-kubernetes-preserve-unknown-fields");
        causes.push(invalid(&field, &json!(false), "must be true or undefined"));
    }
    if schema["x-kubernetes-embedded-resource"] == true {
        if kind != "object" {
            let why = "must be object if x-kubernetes-embedded-resource is true";
            let field = format!("{at}.type");
            causes.push(if kind.is_empty() { required(&field, why) } else { invalid(&field, &schema["type"], why) });
        }
        if schema["additionalProperties"].is_object() || schema["additionalProperties"] == true {
            let why = "must not be used if x-kubernetes-embedded-resource is set";
            causes.push(forbidden(&format!("{at}.additionalProperties"), why));
        }
        if schema["x-kubernetes-preserve-unknown-fields"] != true && !named(schema) {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            causes.push(required(&format!("{at}.properties"), why));
        }
    }
    if schema["x-kubernetes-int-or-string"] == true {
        for word in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if schema[word] == true {
                let why = "must be false if x-kubernetes-int-or-string is true";
                causes.push(invalid(&format!("{at}.{word}"), &json!(true), why));
            }
        }
    }
    known_lists(schema, at, causes);
}

/// How lists and maps are merged, where it is said.
fn known_lists(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(&schema["type"]);
    let typed = [("x-kubernetes-map-type", "object"), ("x-kubernetes-list-type", "array")];
    for (word, wanted) in typed.iter().filter(|(word, wanted)| schema[*word].is_string() && kind != *wanted) {
        let why = format!("must be {wanted} if {word} is specified");
        let field = format!("{at}.type");
        causes.push(if kind.is_empty() { required(&field, &why) } else { invalid(&field, &schema["type"], &why) });
    }
    for (word, known) in
        [("x-kubernetes-map-type", &["atomic", "granular"][..]), ("x-kubernetes-list-type", &["atomic", "set", "map"])]
    {
        let said = text(&schema[word]);
        if !said.is_empty() && !known.contains(&said) {
            causes.push(unsupported(&format!("{at}.{word}"), &schema[word], known));
        }
    }
}

/// Lists that are sets or maps.
fn list(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let items = &schema["items"];
    let kind = text(&schema["x-kubernetes-list-type"]);
    if kind == "set" {
        let inner = match text(&items["type"]) {
            "array" if !matches!(text(&items["x-kubernetes-list-type"]), "" | "atomic") => "x-kubernetes-list-type",
            "object" if text(&items["x-kubernetes-map-type"]) != "atomic" => "x-kubernetes-map-type",
            _ => "",
        };
        if !inner.is_empty() {
            let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
            causes.push(invalid(&format!("{at}.items.{inner}"), &items[inner], why));
        }
    }
    if matches!(kind, "set" | "map") && items["nullable"] == true {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        causes.push(forbidden(&format!("{at}.items.nullable"), &why));
    }
    keys(schema, at, causes);
}

/// A list that is a map names fields that each of its items has.
fn keys(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let here = format!("{at}.x-kubernetes-list-map-keys");
    let keys = schema["x-kubernetes-list-map-keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kind = &schema["x-kubernetes-list-type"];
    if kind != "map" {
        if !keys.is_empty() {
            let (field, why) =
                (format!("{at}.x-kubernetes-list-type"), "must be map if x-kubernetes-list-map-keys is non-empty");
            causes.push(if kind.is_null() { required(&field, why) } else { invalid(&field, kind, why) });
        }
        return;
    }
    if keys.is_empty() {
        causes.push(required(&here, "must not be empty if x-kubernetes-list-type is map"));
    }
    let items = &schema["items"];
    if items.is_object() && items["type"] != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        causes.push(invalid(&format!("{at}.items.type"), &items["type"], why));
        return;
    }
    for (index, key) in keys.iter().enumerate() {
        let name = text(key);
        let property = &items["properties"][name];
        let place = format!("{at}.items.properties[{name}]");
        if keys[..index].contains(key) {
            causes.push(invalid(&here, &schema["x-kubernetes-list-map-keys"], "must not contain duplicate entries"));
        }
        if !property.is_object() {
            let list = &schema["x-kubernetes-list-map-keys"];
            causes.push(invalid(&here, list, "entries must all be names of item properties"));
            continue;
        }
        if matches!(text(&property["type"]), "array" | "object") {
            let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            causes.push(invalid(&format!("{place}.type"), &property["type"], why));
        }
        if property["nullable"] == true {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            causes.push(forbidden(&format!("{place}.nullable"), why));
        }
        if property.get("default").is_none() && !items["required"].as_array().is_some_and(|r| r.contains(key)) {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            causes.push(required(&format!("{place}.default"), why));
        }
    }
}
