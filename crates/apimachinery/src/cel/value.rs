//! JSON as values: with a schema for custom resources, without one for what admission looks at.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::Key;
use serde_json::Value;

use super::eval::map_of;
use crate::schema::{Schema, Type};

/// An optional.
#[must_use]
pub fn optional(value: Option<Cel>) -> Cel {
    value.map_or_else(super::eval::none, super::eval::some)
}

/// A JSON value as it is.
#[must_use]
pub fn plain(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => number(n),
        Value::String(s) => Cel::String(Arc::new(s.clone())),
        Value::Array(list) => Cel::List(Arc::new(list.iter().map(plain).collect())),
        Value::Object(map) => {
            let entries: HashMap<Key, Cel> =
                map.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), plain(v))).collect();
            map_of(entries)
        }
    }
}

fn number(n: &serde_json::Number) -> Cel {
    match (n.as_i64(), n.as_u64(), n.as_f64()) {
        (Some(i), _, _) => Cel::Int(i),
        (None, Some(u), _) => Cel::UInt(u),
        (None, None, Some(f)) => Cel::Float(f),
        _ => Cel::Null,
    }
}

/// A value of a schema: texts of a format are dates, durations and bytes, numbers are of their declared kind, and the
/// names of fields are escaped where they could not be written.
#[must_use]
pub fn typed(schema: &Schema, value: &Value) -> Cel {
    match (value, schema.type_) {
        (Value::Number(n), Type::Number) => n.as_f64().map_or(Cel::Null, Cel::Float),
        (Value::Number(n), Type::Integer) => {
            n.as_i64().map_or_else(|| n.as_f64().map_or(Cel::Null, |f| Cel::Int(f as i64)), Cel::Int)
        }
        (Value::String(text), Type::String) => of_format(&schema.format, text),
        (Value::Array(list), _) => match &schema.items {
            Some(of) => Cel::List(Arc::new(list.iter().map(|item| typed(of, item)).collect())),
            None => plain(value),
        },
        (Value::Object(map), _) => {
            let entries = map.iter().map(|(name, value)| match schema.properties.get(name) {
                Some(of) => (Key::String(Arc::new(escaped(name))), typed(of, value)),
                None => {
                    let value = schema.additional.as_ref().map_or_else(|| plain(value), |of| typed(of, value));
                    (Key::String(Arc::new(name.clone())), value)
                }
            });
            map_of(entries.collect())
        }
        _ => plain(value),
    }
}

fn of_format(format: &str, text: &str) -> Cel {
    let parsed = match format {
        "date-time" => super::eval::library::convert("timestamp", text),
        "date" => super::eval::library::convert("timestamp", &format!("{text}T00:00:00Z")),
        "duration" => super::eval::library::convert("duration", text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).ok().map(|bytes| Cel::Bytes(Arc::new(bytes))),
        _ => None,
    };
    parsed.unwrap_or_else(|| Cel::String(Arc::new(text.to_owned())))
}

const RESERVED: [&str; 20] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];

/// A field's name as expressions write it.
#[must_use]
pub fn escaped(name: &str) -> String {
    if RESERVED.contains(&name) || name == "while" {
        return format!("__{name}__");
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}
