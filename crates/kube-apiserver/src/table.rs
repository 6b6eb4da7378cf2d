//! `metav1.Table`: objects as rows of cells, which is what `kubectl get` prints.
//!
//! Columns come from the registry. A built-in's cells are computed as Kubernetes computes them; a custom resource's come
//! from the JSONPaths of its printer columns.

mod cells;
mod duration;
pub mod jsonpath;
mod network;
mod node;
mod pod;
mod storage;
mod view;
mod workload;

use std::collections::HashMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use duration::human;

use crate::openapi::Descriptions;
use crate::openapi::descriptions::of_metadata;
use crate::registry::builtin;
use crate::registry::{Column, Resource};

/// The table of some objects of one resource. `include` is the `includeObject` parameter: `None`, `Object`, or anything else
/// for the metadata alone. The list's own metadata is for the caller to add.
pub fn render(resource: &Resource, objects: &[Value], include: &str, now: Timestamp) -> Value {
    let rows: Vec<Value> = objects.iter().map(|object| line(resource, object, include, now)).collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "columnDefinitions": columns(resource), "rows": rows})
}

/// The row of one object.
pub fn line(resource: &Resource, object: &Value, include: &str, now: Timestamp) -> Value {
    let shown = match include {
        "None" => Value::Null,
        "Object" => object.clone(),
        _ => json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]}),
    };
    let mut row = json!({"cells": row(resource, object, now), "object": shown});
    if let (true, phase @ Some("Succeeded" | "Failed")) = (is_pod(resource), object["status"]["phase"].as_str()) {
        row["conditions"] = json!([{"type": "Completed", "status": "True", "reason": phase,
            "message": "The pod has finished"}]);
    }
    row
}

fn is_pod(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "pods"
}

fn columns(resource: &Resource) -> Vec<Value> {
    let define = |name: &str, type_: &str, format: &str, description: &str, priority: i32| json!({"name": name, "type": type_, "format": format, "description": description, "priority": priority});
    if computed(resource) {
        let described = |c: &Column| define(&c.name, &c.type_, &c.format, described(resource, c), c.priority);
        return resource.columns.iter().map(described).collect();
    }
    let listed = resource.columns.iter().map(|c| define(&c.name, &c.type_, &c.format, &c.description, c.priority));
    let name = define("Name", "string", "name", of_metadata("name"), 0);
    let age = || define("Age", "date", "", of_metadata("creationTimestamp"), 0);
    let default_age = resource.columns.is_empty().then(age);
    std::iter::once(name).chain(listed).chain(default_age).collect()
}

/// What the API says of the field of a shipped kind that a column shows, where one is the column's namesake.
fn described<'a>(resource: &Resource, column: &'a Column) -> &'a str {
    /// By type and column.
    static TEXTS: LazyLock<HashMap<(String, String), String>> = LazyLock::new(|| {
        let descriptions = Descriptions::load();
        let of = |resource: &Resource, column: &Column| {
            let (type_name, field) = match column.name.as_str() {
                "Name" => (OBJECT_META, "name".to_owned()),
                "Age" => (OBJECT_META, "creationTimestamp".to_owned()),
                name => (resource.schema.type_name.as_str(), name.to_ascii_lowercase()),
            };
            let text = descriptions.of(type_name, &field)?.to_owned();
            Some(((resource.schema.type_name.clone(), column.name.clone()), text))
        };
        let shipped = builtin::resources();
        shipped.iter().flat_map(|r| r.columns.iter().filter_map(move |c| of(r, c))).collect()
    });
    let key = (resource.schema.type_name.clone(), column.name.clone());
    TEXTS.get(&key).map_or(column.description.as_str(), String::as_str)
}

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Whether the columns are those of a built-in with cells made by code.
fn computed(resource: &Resource) -> bool {
    resource.crd.is_none() && !resource.columns.is_empty()
}

fn row(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    let name = object["metadata"]["name"].clone();
    if !computed(resource) {
        let age = || duration::since(&object["metadata"]["creationTimestamp"], now).into();
        let cells = resource.columns.iter().map(|column| printed(column, object, now));
        let default_age = resource.columns.is_empty().then(age);
        return std::iter::once(name).chain(cells).chain(default_age).collect();
    }
    let mut cells = cells::of(resource, object, now);
    cells.resize(resource.columns.len(), Value::Null);
    cells
}

/// The cell of a printer column.
fn printed(column: &Column, object: &Value, now: Timestamp) -> Value {
    let Some(value) = jsonpath::first(&column.json_path, object) else { return Value::Null };
    match column.type_.as_str() {
        "integer" => value.as_i64().or_else(|| value.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from),
        "number" if value.is_number() => value.clone(),
        "boolean" if value.is_boolean() => value.clone(),
        "date" => duration::since(value, now).into(),
        "string" => match value {
            Value::String(_) => value.clone(),
            Value::Null => Value::Null,
            other => other.to_string().into(),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests;
