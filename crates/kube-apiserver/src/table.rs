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
mod workload;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use duration::human;

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
    let listed = resource.columns.iter().map(|c| define(&c.name, &c.type_, &c.format, &c.description, c.priority));
    if computed(resource) {
        return listed.collect();
    }
    let name = define("Name", "string", "name", "Unique within the namespace", 0);
    let age = || define("Age", "date", "", "Time since the object was created", 0);
    let default_age = resource.columns.is_empty().then(age);
    std::iter::once(name).chain(listed).chain(default_age).collect()
}

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
