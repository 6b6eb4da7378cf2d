//! The stored form of a definition: what says nothing is not there.

use serde_json::Value;

use apimachinery::schema::{parse, prune};

/// Lists of a schema that mean nothing when they are empty.
const LISTS: [&str; 7] =
    ["allOf", "anyOf", "oneOf", "enum", "required", "x-kubernetes-list-map-keys", "x-kubernetes-validations"];
/// Flags of a schema that are false when they are not there.
const FLAGS: [&str; 6] = [
    "uniqueItems",
    "nullable",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];

/// Gives a definition's spec its stored form.
pub(super) fn canonical(spec: &mut Value) {
    if spec["preserveUnknownFields"] == false {
        remove(spec, "preserveUnknownFields");
    }
    if let Some(names) = spec.get_mut("names") {
        drop_empty(names, &["shortNames", "categories"]);
    }
    if let Some(service) = spec.pointer_mut("/conversion/webhook/clientConfig/service").filter(|s| s.is_object())
        && service["port"].is_null()
    {
        service["port"] = 443.into();
    }
    for version in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        if !version.is_object() {
            continue;
        }
        drop_empty(version, &["additionalPrinterColumns", "selectableFields"]);
        for flag in ["served", "storage"] {
            if version[flag].is_null() {
                version[flag] = false.into();
            }
        }
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            self::schema(schema);
        }
    }
}

fn schema(node: &mut Value) {
    drop_empty(node, &LISTS);
    if let Some(mut default) = node.get_mut("default").filter(|default| default.is_object()).map(Value::take) {
        prune::embedded_metadata(&parse::openapi(node), &mut default);
        node["default"] = default;
    }
    for flag in FLAGS {
        if node[flag] == false {
            remove(node, flag);
        }
    }
    for rule in node.get_mut("x-kubernetes-validations").and_then(Value::as_array_mut).into_iter().flatten() {
        for text in ["message", "messageExpression", "fieldPath"] {
            if rule[text] == "" {
                remove(rule, text);
            }
        }
    }
    for of in ["properties", "patternProperties", "definitions"] {
        for child in node.get_mut(of).and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut()) {
            schema(child);
        }
    }
    for of in ["items", "additionalProperties", "not"] {
        if let Some(child) = node.get_mut(of).filter(|child| child.is_object()) {
            schema(child);
        }
    }
    for of in ["allOf", "anyOf", "oneOf"] {
        node.get_mut(of).and_then(Value::as_array_mut).into_iter().flatten().for_each(schema);
    }
}

fn remove(node: &mut Value, field: &str) {
    if let Some(map) = node.as_object_mut() {
        map.remove(field);
    }
}

fn drop_empty(node: &mut Value, fields: &[&str]) {
    if let Some(map) = node.as_object_mut() {
        for field in fields {
            if map.get(*field).is_some_and(|list| list.as_array().is_some_and(Vec::is_empty)) {
                map.remove(*field);
            }
        }
    }
}
