//! The kinds the server ships: their schemas, from generated data parsed once.
//!
//! Identical leaves (most fields are a plain string) and every referenced type are one shared node, so the whole set costs
//! about a megabyte. A type that contains itself ends in an untyped node which keeps the type's name.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use super::{ListType, Schema, Type};
use crate::tree::strings;

static SCHEMAS: &str = include_str!("../generated/schemas.json");

static TYPES: LazyLock<HashMap<String, Arc<Schema>>> = LazyLock::new(|| {
    let definitions: BTreeMap<String, Value> = serde_json::from_str(SCHEMAS).unwrap_or_default();
    let mut builder =
        Builder { definitions: &definitions, done: HashMap::new(), open: Vec::new(), leaves: HashMap::new() };
    for name in definitions.keys() {
        builder.named(name);
    }
    builder.done
});

/// The schema of a shipped kind, also of kinds that are only request bodies (`Eviction`, `DeleteOptions`).
pub fn schema(group: &str, version: &str, kind: &str) -> Option<Arc<Schema>> {
    let package = match group {
        "" => "api.core",
        "apiextensions.k8s.io" => "apiextensions-apiserver.pkg.apis.apiextensions",
        "apiregistration.k8s.io" => "kube-aggregator.pkg.apis.apiregistration",
        "meta.k8s.io" => "apimachinery.pkg.apis.meta",
        _ => return definition(&format!("io.k8s.api.{}.{version}.{kind}", group.split('.').next()?)),
    };
    definition(&format!("io.k8s.{package}.{version}.{kind}")).or_else(|| {
        // Options and statuses travel under whatever group version the request is for.
        definition(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")).filter(|_| group.is_empty())
    })
}

/// A type by its definition name, `io.k8s.api.core.v1.PodSpec`.
pub fn definition(name: &str) -> Option<Arc<Schema>> {
    TYPES.get(name).cloned()
}

/// The metadata that every object has.
pub fn object_meta() -> &'static Arc<Schema> {
    static OBJECT_META: LazyLock<Arc<Schema>> =
        LazyLock::new(|| definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap_or_default());
    &OBJECT_META
}

struct Builder<'a> {
    definitions: &'a BTreeMap<String, Value>,
    done: HashMap<String, Arc<Schema>>,
    /// Types being built, to notice recursion.
    open: Vec<String>,
    leaves: HashMap<String, Arc<Schema>>,
}

impl Builder<'_> {
    fn named(&mut self, name: &str) -> Arc<Schema> {
        if let Some(schema) = self.done.get(name) {
            return schema.clone();
        }
        let definition = self.definitions.get(name).and_then(Value::as_object);
        let (Some(definition), false) = (definition, self.open.iter().any(|open| open == name)) else {
            return Arc::new(Schema {
                type_: Type::Object,
                preserve_unknown: true,
                type_name: name.to_owned(),
                ..Schema::default()
            });
        };
        self.open.push(name.to_owned());
        let mut schema = self.node(definition);
        self.open.pop();
        schema.type_name = name.to_owned();
        let schema = Arc::new(schema);
        self.done.insert(name.to_owned(), schema.clone());
        schema
    }

    fn child(&mut self, node: &Value) -> Arc<Schema> {
        let Some(map) = node.as_object() else { return Arc::default() };
        match map.get("$ref").and_then(Value::as_str) {
            Some(name) if map.len() == 1 => self.named(name),
            Some(name) => {
                // A field may refine the type it refers to: a merge strategy, a default.
                let mut schema = (*self.named(name)).clone();
                extend(&mut schema, map);
                Arc::new(schema)
            }
            None => {
                let leaf = !map.contains_key("properties");
                let key = if leaf { node.to_string() } else { String::new() };
                if let Some(schema) = self.leaves.get(&key) {
                    return schema.clone();
                }
                let schema = Arc::new(self.node(map));
                if leaf {
                    self.leaves.insert(key, schema.clone());
                }
                schema
            }
        }
    }

    fn node(&mut self, map: &Map<String, Value>) -> Schema {
        let mut schema = Schema {
            type_: match map.get("type").and_then(Value::as_str) {
                Some("object") => Type::Object,
                Some("array") => Type::Array,
                Some("string") => Type::String,
                Some("integer") => Type::Integer,
                Some("number") => Type::Number,
                Some("boolean") => Type::Boolean,
                _ => Type::Any,
            },
            additional: map.get("additionalProperties").map(|node| self.child(node)),
            items: map.get("items").map(|node| self.child(node)),
            ..Schema::default()
        };
        if let Some(properties) = map.get("properties").and_then(Value::as_object) {
            schema.properties = properties.iter().map(|(name, node)| (name.clone(), self.child(node))).collect();
        }
        extend(&mut schema, map);
        schema
    }
}

/// Sets what a node says besides its structure.
fn extend(schema: &mut Schema, map: &Map<String, Value>) {
    for (key, value) in map {
        let text = value.as_str().unwrap_or_default();
        match key.as_str() {
            "format" => schema.format = text.to_owned(),
            "required" => schema.required = strings(value),
            "default" => schema.default = Some(value.clone()),
            "x-kubernetes-int-or-string" => schema.int_or_string = true,
            "x-kubernetes-preserve-unknown-fields" => schema.preserve_unknown = true,
            "x-kubernetes-list-type" => {
                schema.list_type = match text {
                    "set" => ListType::Set,
                    "map" => ListType::Map(strings(map.get("x-kubernetes-list-map-keys").unwrap_or(&Value::Null))),
                    _ => ListType::Atomic,
                }
            }
            "x-kubernetes-map-type" => schema.atomic_map = text == "atomic",
            "x-kubernetes-patch-strategy" => schema.patch_strategy = text.split(',').map(str::to_owned).collect(),
            "x-kubernetes-patch-merge-key" => schema.patch_merge_key = text.to_owned(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_know_how_their_lists_merge_and_recursion_ends() {
        let pod = schema("", "v1", "Pod").unwrap();
        let containers = &pod.properties["spec"].properties["containers"];
        assert_eq!(containers.list_type, ListType::Map(vec!["name".into()]));
        assert_eq!(containers.patch_merge_key, "name");
        let crd = schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
        let versions = crd.properties["spec"].properties["versions"].items.clone().unwrap();
        let open = &versions.properties["schema"].properties["openAPIV3Schema"];
        assert!(open.properties["not"].preserve_unknown);
        assert!(schema("policy", "v1", "Eviction").is_some());
        assert!(schema("", "v1", "DeleteOptions").is_some());
        assert_eq!(crd.properties["spec"].properties["conversion"].type_, Type::Object);
    }
}
