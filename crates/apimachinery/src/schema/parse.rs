//! An OpenAPI v3 structural schema, as a CustomResourceDefinition holds it, into a [`Schema`].

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{ListType, Schema, Type, builtin, shared};
use crate::tree::strings;

/// Keys that became fields of [`Schema`]; all others are rules.
const STRUCTURE: [&str; 19] = [
    "type",
    "format",
    "description",
    "nullable",
    "properties",
    "additionalProperties",
    "items",
    "required",
    "default",
    "enum",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
    "$ref",
];

/// Parses a node and all below it. Words it does not know are kept as rules.
pub fn openapi(node: &Value) -> Schema {
    parse(node, &mut |_, schema| Arc::new(schema))
}

/// `keep` makes of each node below the first, which it is given with what it was parsed from, what its parent holds.
fn parse(node: &Value, keep: &mut dyn FnMut(&Value, Schema) -> Arc<Schema>) -> Schema {
    let Some(map) = node.as_object() else { return Schema::default() };
    let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let flag = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or(false);
    let type_ = match map.get("type").and_then(Value::as_str) {
        Some("object") => Type::Object,
        Some("array") => Type::Array,
        Some("string") => Type::String,
        Some("integer") => Type::Integer,
        Some("number") => Type::Number,
        Some("boolean") => Type::Boolean,
        _ => Type::Any,
    };
    let mut below = |of: &Value| {
        let schema = parse(of, keep);
        keep(of, schema)
    };
    let rules: Map<String, Value> =
        map.iter().filter(|(key, _)| !STRUCTURE.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
    Schema {
        type_,
        format: text("format"),
        description: text("description"),
        nullable: flag("nullable"),
        int_or_string: flag("x-kubernetes-int-or-string"),
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        embedded_resource: flag("x-kubernetes-embedded-resource"),
        properties: map
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(name, of)| (name.clone(), below(of)))
            .collect(),
        additional: map.get("additionalProperties").and_then(|of| match of {
            Value::Bool(false) => None,
            Value::Bool(true) => Some(below(&json!({"x-kubernetes-preserve-unknown-fields": true}))),
            of => Some(below(of)),
        }),
        items: map.get("items").map(&mut below),
        required: strings(map.get("required").unwrap_or(&Value::Null)),
        default: map.get("default").cloned(),
        enum_: map.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
        list_type: match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(strings(map.get("x-kubernetes-list-map-keys").unwrap_or(&Value::Null))),
            _ => ListType::Atomic,
        },
        atomic_map: map.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
        patch_strategy: Vec::new(),
        patch_merge_key: String::new(),
        rules,
        type_name: String::new(),
    }
}

/// The schema of a custom resource: what the CRD says, with the fields every object has. What other custom resources have as well
/// is held once.
pub fn custom_resource(node: Option<&Value>, preserve_unknown: bool) -> Schema {
    let mut schema = match node {
        Some(node) => parse(node, &mut shared::keep),
        None => Schema { type_: Type::Object, preserve_unknown: true, ..Schema::default() },
    };
    schema.preserve_unknown |= preserve_unknown;
    schema.type_ = Type::Object;
    let string = || Arc::new(Schema { type_: Type::String, ..Schema::default() });
    schema.properties.insert("apiVersion".into(), string());
    schema.properties.insert("kind".into(), string());
    if let Some(metadata) = builtin::definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
        // A CRD may restrict metadata.name and generateName with rules of its own.
        let own = schema.properties.get("metadata").cloned();
        let metadata = match own.filter(|own| !own.properties.is_empty()) {
            None => metadata,
            Some(own) => {
                let mut merged = (*metadata).clone();
                for field in ["name", "generateName"] {
                    if let Some(rule) = own.properties.get(field) {
                        merged.properties.insert(field.into(), rule.clone());
                    }
                }
                Arc::new(merged)
            }
        };
        schema.properties.insert("metadata".into(), metadata);
    }
    schema
}
