//! allOf, anyOf, oneOf and not: below them, values are restricted and nothing is declared.

use serde_json::{Value, json};

use apimachinery::error::Cause;

use super::super::{forbidden, required};
use super::{is_set, known_lists};

const WORDS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// The branches of a schema with their paths.
fn branches<'a>(schema: &'a Value, at: &str) -> Vec<(&'a Value, String)> {
    let mut all = Vec::new();
    for word in WORDS {
        for (index, branch) in schema[word].as_array().into_iter().flatten().enumerate() {
            all.push((branch, format!("{at}.{word}[{index}]")));
        }
    }
    if schema["not"].is_object() {
        all.push((&schema["not"], format!("{at}.not")));
    }
    all
}

/// Checks the branches of a declared schema. An anyOf of an integer and a string is how int-or-string is said, alone or
/// as the first of an allOf.
pub(super) fn spelled_branches(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let spelled = json!([{"type": "integer"}, {"type": "string"}]);
    let either = schema["x-kubernetes-int-or-string"] == true;
    let any_of = either && schema["anyOf"] == spelled;
    let all_of = either && schema["allOf"][0] == json!({"anyOf": spelled});
    for (branch, place) in branches(schema, at) {
        let skipped =
            (any_of && place.starts_with(&format!("{at}.anyOf["))) || (all_of && place == format!("{at}.allOf[0]"));
        if !skipped {
            restricting(branch, &place, causes);
        }
    }
}

/// Checks what stands below a branch.
fn restricting(branch: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (word, state) in [
        ("type", "empty"),
        ("title", "empty"),
        ("description", "empty"),
        ("default", "undefined"),
        ("additionalProperties", "undefined"),
        ("nullable", "false"),
        ("x-kubernetes-preserve-unknown-fields", "false"),
        ("x-kubernetes-embedded-resource", "false"),
        ("x-kubernetes-int-or-string", "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-map-type", "undefined"),
        ("x-kubernetes-validations", "empty"),
    ] {
        if is_set(&branch[word]) {
            causes.push(forbidden(&format!("{at}.{word}"), &format!("must be {state} to be structural")));
        }
    }
    known_lists(branch, at, causes);
    for (name, child) in branch["properties"].as_object().into_iter().flatten() {
        let place = format!("{at}.properties[{name}]");
        if name == "metadata" {
            causes.push(forbidden(&place, "must not be specified in a nested context"));
        }
        restricting(child, &place, causes);
    }
    if branch["items"].is_object() {
        restricting(&branch["items"], &format!("{at}.items"), causes);
    }
    for (inner, place) in branches(branch, at) {
        restricting(inner, &place, causes);
    }
}

/// What branches at the root restrict is declared. `base` is where `declared` stands.
pub(super) fn junctors(schema: &Value, declared: &Value, (base, at): (&str, &str), causes: &mut Vec<Cause>) {
    for (branch, place) in branches(schema, at) {
        complete(branch, declared, (base, &place), causes);
    }
}

fn complete(branch: &Value, declared: &Value, (base, at): (&str, &str), causes: &mut Vec<Cause>) {
    for (name, child) in branch["properties"].as_object().into_iter().flatten() {
        let place = format!("{at}.properties[{name}]");
        let field = format!("{base}.properties[{name}]");
        match declared["properties"].get(name) {
            Some(own) => complete(child, own, (&field, &place), causes),
            None => causes.push(required(&field, &format!("because it is defined in {place}"))),
        }
    }
    if branch["items"].is_object() {
        let (field, place) = (format!("{base}.items"), format!("{at}.items"));
        if declared["items"].is_object() {
            complete(&branch["items"], &declared["items"], (&field, &place), causes);
        } else {
            causes.push(required(&field, &format!("because it is defined in {place}")));
        }
    }
    junctors(branch, declared, (base, at), causes);
}
