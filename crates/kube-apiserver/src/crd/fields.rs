//! The fields of the schemas in a definition: what is not one of them is named and dropped, and each has a value of its kind.

use serde_json::Value;

/// What a field of a schema holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Whole,
    Flag,
    Texts,
    Anything,
    Schema,
    Schemas,
    Named,
    /// A schema, or true or false.
    Perhaps,
    /// A schema, or a list of them.
    Items,
}

fn kind(field: &str) -> Option<Kind> {
    Some(match field {
        "id"
        | "$schema"
        | "$ref"
        | "description"
        | "type"
        | "format"
        | "title"
        | "pattern"
        | "x-kubernetes-list-type"
        | "x-kubernetes-map-type" => Kind::Text,
        "maximum" | "minimum" | "multipleOf" => Kind::Number,
        "maxLength" | "minLength" | "maxItems" | "minItems" | "maxProperties" | "minProperties" => Kind::Whole,
        "exclusiveMaximum"
        | "exclusiveMinimum"
        | "uniqueItems"
        | "nullable"
        | "x-kubernetes-preserve-unknown-fields"
        | "x-kubernetes-embedded-resource"
        | "x-kubernetes-int-or-string" => Kind::Flag,
        "required" | "x-kubernetes-list-map-keys" => Kind::Texts,
        "default" | "example" | "enum" | "externalDocs" | "dependencies" | "x-kubernetes-validations" => Kind::Anything,
        "not" => Kind::Schema,
        "allOf" | "anyOf" | "oneOf" => Kind::Schemas,
        "properties" | "patternProperties" | "definitions" => Kind::Named,
        "additionalProperties" | "additionalItems" => Kind::Perhaps,
        "items" => Kind::Items,
        _ => return None,
    })
}

fn fits(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Text => value.is_string(),
        Kind::Number => value.is_number(),
        Kind::Whole => value.is_i64() || value.is_u64(),
        Kind::Flag => value.is_boolean(),
        Kind::Texts => value.as_array().is_some_and(|list| list.iter().all(|v| v.is_string() || v.is_null())),
        Kind::Anything => true,
        Kind::Schema | Kind::Named => value.is_object(),
        Kind::Schemas => value.is_array(),
        Kind::Perhaps => value.is_object() || value.is_boolean(),
        Kind::Items => value.is_object() || value.is_array(),
    }
}

/// Why the schemas of a definition cannot be read; None when they can.
pub(crate) fn mismatch(crd: &Value) -> Option<String> {
    let versions = crd["spec"]["versions"].as_array()?;
    versions.iter().enumerate().find_map(|(index, version)| {
        let at = format!("spec.versions[{index}].schema.openAPIV3Schema");
        unreadable(version["schema"].get("openAPIV3Schema")?, &at)
    })
}

fn unreadable(schema: &Value, at: &str) -> Option<String> {
    if schema.is_null() {
        return None;
    }
    let Some(map) = schema.as_object() else { return Some(format!("{at} must be an object")) };
    for (field, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let place = format!("{at}.{field}");
        let Some(kind) = kind(field) else { continue };
        if !fits(kind, value) {
            return Some(format!("{place} has a value of another type: {value}"));
        }
        let below = match (kind, value) {
            (Kind::Schema | Kind::Perhaps | Kind::Items, Value::Object(_)) => unreadable(value, &place),
            (Kind::Schemas | Kind::Items, Value::Array(list)) => {
                list.iter().enumerate().find_map(|(index, item)| unreadable(item, &format!("{place}[{index}]")))
            }
            (Kind::Named, Value::Object(named)) => {
                named.iter().find_map(|(name, child)| unreadable(child, &format!("{place}.{name}")))
            }
            _ => None,
        };
        if below.is_some() {
            return below;
        }
    }
    None
}

/// Drops what is no field of a schema, and yields the paths.
pub(crate) fn unknown(crd: &mut Value) -> Vec<String> {
    let mut found = Vec::new();
    let versions = crd.get_mut("spec").and_then(|spec| spec.get_mut("versions")).and_then(Value::as_array_mut);
    for (index, version) in versions.into_iter().flatten().enumerate() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            prune(schema, &format!("spec.versions[{index}].schema.openAPIV3Schema"), &mut found);
        }
    }
    found
}

fn prune(schema: &mut Value, at: &str, found: &mut Vec<String>) {
    let Some(map) = schema.as_object_mut() else { return };
    map.retain(|field, _| {
        let known = kind(field).is_some();
        if !known {
            found.push(format!("{at}.{field}"));
        }
        known
    });
    for (field, value) in map.iter_mut() {
        let place = format!("{at}.{field}");
        match (kind(field), value) {
            (Some(Kind::Schema | Kind::Perhaps | Kind::Items), value @ Value::Object(_)) => prune(value, &place, found),
            (Some(Kind::Schemas | Kind::Items), Value::Array(list)) => {
                for (index, item) in list.iter_mut().enumerate() {
                    prune(item, &format!("{place}[{index}]"), found);
                }
            }
            (Some(Kind::Named), Value::Object(named)) => {
                for (name, child) in named.iter_mut() {
                    prune(child, &format!("{place}.{name}"), found);
                }
            }
            _ => {}
        }
    }
}
