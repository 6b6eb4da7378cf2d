//! A default is a value the field may have, with nothing in it that the schema does not know.

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::rules::Rules;
use apimachinery::schema::{parse, prune, validate};

use super::super::{forbidden, invalid, required};

/// Checks all defaults of a structural schema.
pub(super) fn check(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    for name in ["apiVersion", "kind", "metadata"] {
        let place = format!("{at}.properties[{name}]");
        unset(&schema["properties"][name], name, &place, causes);
    }
    own(schema, at, true, causes);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            below(child, &format!("{at}.properties[{name}]"), causes);
        }
    }
}

/// The server sets these.
fn unset(schema: &Value, name: &str, at: &str, causes: &mut Vec<Cause>) {
    if schema.get("default").is_some_and(|default| !default.is_null()) {
        causes.push(forbidden(&format!("{at}.default"), &format!("must not be set in top-level {name}")));
    }
    for (inner, child) in schema["properties"].as_object().into_iter().flatten() {
        unset(child, name, &format!("{at}.properties[{inner}]"), causes);
    }
}

fn below(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    own(schema, at, false, causes);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        below(child, &format!("{at}.properties[{name}]"), causes);
    }
    for word in ["additionalProperties", "items"] {
        if schema[word].is_object() {
            below(&schema[word], &format!("{at}.{word}"), causes);
        }
    }
}

/// The default of one schema; that of the `root` is a whole object.
fn own(schema: &Value, at: &str, root: bool, causes: &mut Vec<Cause>) {
    let Some(default) = schema.get("default").filter(|default| !default.is_null()) else { return };
    let field = format!("{at}.default");
    let holder = std::sync::Arc::new(parse::openapi(&json!({"type": "object", "properties": {"default": schema}})));
    let object = json!({"default": default});
    if !prune::unknown(&holder, &mut object.clone()).is_empty() {
        causes.push(invalid(&field, default, "must not have unknown fields"));
        return;
    }
    if schema["x-kubernetes-embedded-resource"] == true || root {
        for key in ["apiVersion", "kind"].into_iter().filter(|key| default[*key].as_str().is_none_or(str::is_empty)) {
            causes.push(required(&format!("{field}.{key}"), ""));
        }
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return;
    }
    let mut wrong = Vec::new();
    validate::check(&holder, &object, &mut wrong);
    // That nothing in a list is there twice is asked of what is stored.
    wrong.retain(|cause| cause.reason != "FieldValueDuplicate");
    if wrong.is_empty()
        && let Some(rules) = Rules::compile(&holder)
    {
        rules.check(&object, None, &mut wrong, &mut Vec::new());
        if wrong.is_empty() {
            rules.check(&object, Some(&object), &mut wrong, &mut Vec::new());
        }
    }
    causes.extend(wrong.into_iter().map(|cause| {
        let place = if cause.field == validate::WHOLE { field.clone() } else { format!("{at}.{}", cause.field) };
        Cause { field: place, ..cause }
    }));
}
