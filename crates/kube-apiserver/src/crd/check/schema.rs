//! The rules of structural schemas: every node has a type, branches of allOf and its like only restrict what is
//! declared, lists that are sets or maps can be merged, defaults are values of their fields.

use serde_json::{Value, json};

use super::{forbidden, invalid, required, text, unsupported};
use crate::error::Cause;
use crate::schema::{defaults, parse, prune, validate};

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

pub(super) fn check(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(&schema["type"]);
    if kind.is_empty() {
        causes.push(required(&format!("{at}.type"), "must not be empty at the root"));
    } else if kind != "object" {
        causes.push(invalid(&format!("{at}.type"), &schema["type"], "must be object at the root"));
    }
    if schema["nullable"] == true {
        causes.push(forbidden(&format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
    if schema["additionalProperties"].is_object() {
        causes.push(forbidden(&format!("{at}.additionalProperties"), "must not be used at the root"));
    }
    metadata(&schema["properties"]["metadata"], &format!("{at}.properties[metadata]"), causes);
    node(schema, at, true, causes);
}

/// The server knows what metadata is; a definition may restrict names alone.
fn metadata(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let Some(map) = schema.as_object() else { return };
    let names = map.get("properties").and_then(Value::as_object);
    let strange = names.is_some_and(|names| names.keys().any(|name| name != "name" && name != "generateName"))
        || map.keys().any(|key| !matches!(key.as_str(), "type" | "description" | "properties"));
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
    extensions(schema, at, root, causes);
    for word in FOREIGN.iter().filter(|word| schema.get(**word).is_some()) {
        causes.push(forbidden(&format!("{at}.{word}"), &format!("{word} is not supported")));
    }
    if schema["uniqueItems"] == true {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(forbidden(&format!("{at}.uniqueItems"), why));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(error) = regex::RegexBuilder::new(pattern).size_limit(1 << 20).build()
    {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        causes.push(invalid(&format!("{at}.pattern"), &schema["pattern"], &why));
    }
    let named = schema["properties"].as_object().is_some_and(|map| !map.is_empty());
    if named && schema.get("additionalProperties").is_some_and(|a| a != &json!(true)) {
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
    default(schema, at, causes);
    junctors(schema, schema, (at, at), causes);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{at}.properties[{name}]");
        if root && matches!(name.as_str(), "metadata" | "apiVersion" | "kind") {
            if child.get("default").is_some() {
                causes.push(forbidden(&format!("{place}.default"), &format!("must not be set in top-level {name}")));
            }
            continue;
        }
        node(child, &place, false, causes);
    }
    for word in ["additionalProperties", "items"] {
        if schema[word].is_object() {
            node(&schema[word], &format!("{at}.{word}"), false, causes);
        }
    }
}

fn type_of(schema: &Value, at: &str, root: bool, causes: &mut Vec<Cause>) {
    let field = format!("{at}.type");
    let kind = text(&schema["type"]);
    let either = schema["x-kubernetes-int-or-string"] == true;
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if kind.is_empty() {
        if !root && !either && !open {
            let what = if at.ends_with(".items") { "array items" } else { "object fields" };
            causes.push(required(&field, &format!("must not be empty for specified {what}")));
        }
    } else if kind == "null" {
        causes.push(forbidden(&field, "type cannot be set to null, use nullable as an alternative"));
    } else if !KINDS.contains(&kind) {
        causes.push(unsupported(&field, &schema["type"], &KINDS));
    } else if either {
        causes.push(forbidden(&field, "must be empty if x-kubernetes-int-or-string is true"));
    }
}

/// What Kubernetes adds to schemas.
fn extensions(schema: &Value, at: &str, root: bool, causes: &mut Vec<Cause>) {
    let kind = text(&schema["type"]);
    if schema.get("x-kubernetes-preserve-unknown-fields").is_some_and(|value| value == false) {
        let field = format!("{at}.x-kubernetes-preserve-unknown-fields");
        causes.push(invalid(&field, &json!(false), "must be true or undefined"));
    }
    if schema["x-kubernetes-embedded-resource"] == true {
        if root {
            causes.push(forbidden(&format!("{at}.x-kubernetes-embedded-resource"), "must not be used at the root"));
        }
        if kind != "object" {
            let why = "must be object if x-kubernetes-embedded-resource is true";
            causes.push(required(&format!("{at}.type"), why));
        }
        if schema["x-kubernetes-preserve-unknown-fields"] != true && !schema["properties"].is_object() {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            causes.push(required(&format!("{at}.properties"), why));
        }
    }
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

/// A default is a value the field may have, with nothing in it the schema does not know.
fn default(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let Some(default) = schema.get("default") else { return };
    let holder = parse::openapi(&json!({"type": "object", "properties": {"default": schema}}));
    let mut object = json!({"default": default});
    if !prune::unknown(&holder, &mut object.clone()).is_empty() {
        causes.push(invalid(&format!("{at}.default"), default, "must not have unknown fields"));
    }
    defaults::apply(&holder, &mut object);
    let mut found = Vec::new();
    validate::check(&holder, &object, &mut found);
    causes.extend(found.into_iter().map(|cause| Cause { field: format!("{at}.{}", cause.field), ..cause }));
}

/// Below allOf, anyOf, oneOf and not, values are restricted and nothing is declared.
fn junctors(schema: &Value, declared: &Value, (base, at): (&str, &str), causes: &mut Vec<Cause>) {
    for word in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in schema[word].as_array().into_iter().flatten().enumerate() {
            // anyOf of an integer and a string is how int-or-string is said.
            let spelled = declared["x-kubernetes-int-or-string"] == true;
            restricting(branch, declared, spelled, (base, &format!("{at}.{word}[{index}]")), causes);
        }
    }
    if schema["not"].is_object() {
        restricting(&schema["not"], declared, false, (base, &format!("{at}.not")), causes);
    }
}

/// `base` is where `declared` stands.
fn restricting(branch: &Value, declared: &Value, spelled: bool, (base, at): (&str, &str), causes: &mut Vec<Cause>) {
    if causes.len() > ENOUGH {
        return;
    }
    for (word, state) in [
        ("type", "empty"),
        ("title", "empty"),
        ("description", "empty"),
        ("default", "undefined"),
        ("additionalProperties", "undefined"),
        ("nullable", "false"),
    ] {
        let set = match &branch[word] {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            _ => true,
        };
        if set && !(word == "type" && spelled) {
            causes.push(forbidden(&format!("{at}.{word}"), &format!("must be {state} to be structural")));
        }
    }
    for word in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"]
    {
        if branch[word] == true {
            causes.push(forbidden(&format!("{at}.{word}"), "must be false to be structural"));
        }
    }
    for (name, child) in branch["properties"].as_object().into_iter().flatten() {
        let place = format!("{at}.properties[{name}]");
        match declared["properties"].get(name) {
            Some(own) => {
                let base = format!("{base}.properties[{name}]");
                restricting(child, own, own["x-kubernetes-int-or-string"] == true, (&base, &place), causes);
            }
            None => {
                let open = declared["x-kubernetes-preserve-unknown-fields"] == true
                    || declared["x-kubernetes-embedded-resource"] == true
                    || declared["additionalProperties"].is_object();
                if !open {
                    let field = format!("{base}.properties[{name}]");
                    causes.push(required(&field, &format!("because it is defined in {place}")));
                }
            }
        }
    }
    if branch["items"].is_object() {
        let own = &declared["items"];
        let (base, at) = (format!("{base}.items"), format!("{at}.items"));
        restricting(&branch["items"], own, own["x-kubernetes-int-or-string"] == true, (&base, &at), causes);
    }
    junctors(branch, declared, (base, at), causes);
}
