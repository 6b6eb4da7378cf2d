//! Values the language has beside data: its types, and failures that wait for a later operand.

use std::sync::Arc;

use kube_cel::cel::Value;
use kube_cel::cel::objects::Opaque;

/// A type as a value, `type(1) == int`.
#[derive(Debug, PartialEq, Eq)]
struct TypeName(String);

impl Opaque for TypeName {
    fn runtime_type_name(&self) -> &'static str {
        "type"
    }
}

/// A failure kept in the variable of a comprehension: a later element may decide without it.
#[derive(Debug, PartialEq, Eq)]
struct Failure(String);

impl Opaque for Failure {
    fn runtime_type_name(&self) -> &'static str {
        "failure"
    }
}

pub(super) fn failed(text: String) -> Value {
    Value::Opaque(Arc::new(Failure(text)))
}

pub(super) fn failure(value: &Value) -> Option<String> {
    match value {
        Value::Opaque(held) => held.downcast_ref::<Failure>().map(|failure| failure.0.clone()),
        _ => None,
    }
}

const TYPES: [&str; 10] = ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"];

/// The type of this name.
pub(super) fn type_named(name: &str) -> Option<Value> {
    TYPES.contains(&name).then(|| named(name))
}

fn named(name: &str) -> Value {
    Value::Opaque(Arc::new(TypeName(name.to_owned())))
}

/// The name of a value's type.
pub(super) fn type_name(value: &Value) -> &str {
    match value {
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::UInt(_) => "uint",
        Value::Float(_) => "double",
        Value::String(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Null => "null_type",
        Value::Timestamp(_) => "google.protobuf.Timestamp",
        Value::Duration(_) => "google.protobuf.Duration",
        Value::Opaque(held) => held.runtime_type_name(),
        Value::Function(..) => "function",
    }
}

/// `type(value)`.
pub(super) fn type_of(value: &Value) -> Value {
    named(type_name(value))
}
