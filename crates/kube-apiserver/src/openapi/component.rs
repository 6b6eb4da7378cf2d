//! Component schemas: a structural schema written as OpenAPI, shared types by reference.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use apimachinery::schema::{ListType, Schema, Type, builtin};

use super::descriptions::Descriptions;
use crate::registry::Resource;

/// Which OpenAPI is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Swagger 2.0: `#/definitions/`, no alternatives, no null.
    V2,
    /// OpenAPI 3.0: `#/components/schemas/`.
    V3,
}

impl Dialect {
    pub(super) fn reference(self, name: &str) -> Value {
        let prefix = if self == Self::V2 { "#/definitions/" } else { "#/components/schemas/" };
        json!({"$ref": format!("{prefix}{name}")})
    }
}

/// Parts of a node beyond its structure which Swagger 2.0 also knows.
const V2_RULES: [&str; 16] = [
    "title",
    "multipleOf",
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
    "maxProperties",
    "minProperties",
    "example",
    "externalDocs",
];

const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// Components collected so far, and shared types still to be written.
pub(super) struct Components<'a> {
    dialect: Dialect,
    descriptions: &'a Descriptions,
    done: BTreeMap<String, Value>,
    wanted: BTreeSet<String>,
}

impl<'a> Components<'a> {
    pub(super) fn new(dialect: Dialect, descriptions: &'a Descriptions) -> Self {
        // What writes and deletions take and answer is referred to by every path.
        let meta = |kind: &str| format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}");
        Self {
            dialect,
            descriptions,
            done: BTreeMap::new(),
            wanted: ["DeleteOptions", "Status", "Patch"].map(meta).into(),
        }
    }

    /// Adds a resource's kind and its list.
    pub(super) fn add(&mut self, resource: &Resource) {
        let name = name(resource);
        let mut node = self.body(&resource.schema);
        if let Some(map) = node.as_object_mut() {
            map.entry("properties").or_insert_with(|| json!({}));
        }
        for field in ["apiVersion", "kind"] {
            if node["properties"][field].is_null() {
                node["properties"][field] = json!({"type": "string"});
            }
            // Kinds that are defined here say of these two what every other kind says.
            if let Some(text) = self.descriptions.of("io.k8s.api.core.v1.Pod", field) {
                self.describe(&mut node["properties"][field], text);
            }
        }
        node["type"] = "object".into();
        node["x-kubernetes-group-version-kind"] = gvk(resource, &resource.kind);
        self.done.insert(name.clone(), node);
        if resource.verbs.iter().any(|verb| verb == "list") {
            self.wanted.insert(LIST_META.to_owned());
            let items = json!({"type": "array", "items": self.dialect.reference(&name)});
            let list = json!({"type": "object", "required": ["items"],
                "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "items": items,
                    "metadata": self.dialect.reference(LIST_META)},
                "x-kubernetes-group-version-kind": gvk(resource, &resource.list_kind)});
            self.done.insert(format!("{name}List"), list);
        }
        for (_, _, kind) in &resource.subresources {
            let (group, version) = crate::discovery::foreign(kind).unwrap_or((&resource.group, &resource.version));
            if let Some(schema) = builtin::schema(group, version, kind) {
                self.wanted.insert(schema.type_name.clone());
            }
        }
        if resource.scale.is_some() {
            self.wanted.insert("io.k8s.api.autoscaling.v1.Scale".to_owned());
        }
    }

    /// Every component with what it refers to.
    pub(super) fn finish(mut self) -> Value {
        while let Some(name) = self.wanted.pop_first() {
            if self.done.contains_key(&name) {
                continue;
            }
            let Some(schema) = builtin::definition(&name) else { continue };
            let mut node = self.body(&schema);
            if let Some(kind) = shared_kind(&name) {
                node["x-kubernetes-group-version-kind"] = kind;
            }
            self.done.insert(name, node);
        }
        json!(self.done)
    }

    /// A node where it is used: shared types become references.
    fn node(&mut self, schema: &Schema) -> Value {
        if schema.type_name.is_empty() {
            return self.body(schema);
        }
        if !self.done.contains_key(&schema.type_name) {
            self.wanted.insert(schema.type_name.clone());
        }
        let reference = self.dialect.reference(&schema.type_name);
        let mut extensions = Map::new();
        merge_words(schema, &mut extensions);
        if let Some(default) = &schema.default {
            extensions.insert("default".to_owned(), default.clone());
        }
        match (extensions.is_empty(), self.dialect) {
            (true, _) => reference,
            (false, Dialect::V3) => {
                extensions.insert("allOf".to_owned(), json!([reference]));
                Value::Object(extensions)
            }
            (false, Dialect::V2) => {
                extensions.insert("$ref".to_owned(), reference["$ref"].clone());
                Value::Object(extensions)
            }
        }
    }

    /// A node written out.
    fn body(&mut self, schema: &Schema) -> Value {
        let mut map = Map::new();
        let mut set = |key: &str, value: Value| {
            map.insert(key.to_owned(), value);
        };
        match type_word(schema.type_) {
            Some(word) => set("type", word.into()),
            None if schema.int_or_string && !schema.type_name.is_empty() => self.scalar(schema, &mut set),
            None => {}
        }
        if schema.int_or_string && schema.type_name.is_empty() {
            set("x-kubernetes-int-or-string", true.into());
        }
        for (key, text) in [("format", &schema.format), ("description", &schema.description)] {
            if !text.is_empty() {
                set(key, text.as_str().into());
            }
        }
        if let Some(text) = self.descriptions.of(&schema.type_name, "") {
            set("description", text.into());
        }
        if schema.nullable && self.dialect == Dialect::V3 {
            set("nullable", true.into());
        }
        if schema.preserve_unknown && schema.type_name.is_empty() {
            set("x-kubernetes-preserve-unknown-fields", true.into());
        }
        if schema.embedded_resource {
            set("x-kubernetes-embedded-resource", true.into());
        }
        if schema.atomic_map {
            set("x-kubernetes-map-type", "atomic".into());
        }
        if !schema.required.is_empty() {
            set("required", json!(schema.required));
        }
        if !schema.enum_.is_empty() {
            set("enum", json!(schema.enum_));
        }
        if let Some(default) = &schema.default {
            set("default", default.clone());
        }
        match &schema.list_type {
            ListType::Set => set("x-kubernetes-list-type", "set".into()),
            ListType::Map(keys) => {
                set("x-kubernetes-list-type", "map".into());
                set("x-kubernetes-list-map-keys", json!(keys));
            }
            ListType::Atomic if schema.type_ == Type::Array => set("x-kubernetes-list-type", "atomic".into()),
            ListType::Atomic => {}
        }
        merge_words(schema, &mut map);
        for (key, value) in &schema.rules {
            let known = self.dialect == Dialect::V3 || V2_RULES.contains(&key.as_str()) || key.starts_with("x-");
            if known && !map.contains_key(key) {
                map.insert(key.clone(), value.clone());
            }
        }
        if !schema.properties.is_empty() {
            let mut properties = Map::new();
            for (key, field) in &schema.properties {
                let mut node = self.node(field);
                if let Some(text) = self.descriptions.of(&schema.type_name, key) {
                    self.describe(&mut node, text);
                }
                properties.insert(key.clone(), node);
            }
            map.insert("properties".to_owned(), Value::Object(properties));
        }
        if let Some(additional) = &schema.additional {
            map.insert("additionalProperties".to_owned(), self.node(additional));
        }
        if let Some(items) = &schema.items {
            map.insert("items".to_owned(), self.node(items));
        }
        Value::Object(map)
    }

    /// Says what a node is for, unless it says so itself.
    fn describe(&self, node: &mut Value, text: &str) {
        let Some(map) = node.as_object_mut() else { return };
        // In the newer dialect nothing may stand beside a reference.
        if self.dialect == Dialect::V3
            && let Some(reference) = map.remove("$ref")
        {
            map.insert("allOf".to_owned(), json!([{"$ref": reference}]));
        }
        map.entry("description").or_insert_with(|| text.into());
    }

    /// The two shipped scalars that are a number or a string.
    fn scalar(&self, schema: &Schema, set: &mut impl FnMut(&str, Value)) {
        let integer = schema.type_name.ends_with("IntOrString");
        if integer {
            set("format", "int-or-string".into());
        }
        match self.dialect {
            Dialect::V2 => set("type", "string".into()),
            Dialect::V3 => {
                let number = if integer { "integer" } else { "number" };
                set("oneOf", json!([{"type": number}, {"type": "string"}]));
            }
        }
    }
}

/// Strategic merge words of a field.
fn merge_words(schema: &Schema, map: &mut Map<String, Value>) {
    if !schema.patch_strategy.is_empty() {
        map.insert("x-kubernetes-patch-strategy".to_owned(), schema.patch_strategy.join(",").into());
    }
    if !schema.patch_merge_key.is_empty() {
        map.insert("x-kubernetes-patch-merge-key".to_owned(), schema.patch_merge_key.as_str().into());
    }
}

fn type_word(type_: Type) -> Option<&'static str> {
    match type_ {
        Type::Any => None,
        Type::Object => Some("object"),
        Type::Array => Some("array"),
        Type::String => Some("string"),
        Type::Integer => Some("integer"),
        Type::Number => Some("number"),
        Type::Boolean => Some("boolean"),
    }
}

/// The component's name of a resource's kind: `io.k8s.api.core.v1.Pod`, `io.kubevirt.v1.VirtualMachine`.
pub(super) fn name(resource: &Resource) -> String {
    if !resource.schema.type_name.is_empty() {
        return resource.schema.type_name.clone();
    }
    let group: Vec<&str> = resource.group.split('.').rev().collect();
    format!("{}.{}.{}", group.join("."), resource.version, resource.kind)
}

pub(super) fn gvk(resource: &Resource, kind: &str) -> Value {
    json!([{"group": resource.group, "version": resource.version, "kind": kind}])
}

/// The kind a shared type is, for those which clients send or receive by themselves.
fn shared_kind(name: &str) -> Option<Value> {
    let (package, kind) = name.rsplit_once('.')?;
    let entry = |group: &str, version: &str| Some(json!([{"group": group, "version": version, "kind": kind}]));
    match (package, kind) {
        ("io.k8s.apimachinery.pkg.apis.meta.v1", "DeleteOptions" | "Status") => entry("", "v1"),
        ("io.k8s.api.autoscaling.v1", "Scale") => entry("autoscaling", "v1"),
        ("io.k8s.api.policy.v1", "Eviction") => entry("policy", "v1"),
        ("io.k8s.api.authentication.v1", "TokenRequest") => entry("authentication.k8s.io", "v1"),
        ("io.k8s.api.core.v1", "Binding") => entry("", "v1"),
        _ => None,
    }
}
