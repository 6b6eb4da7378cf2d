//! Messages by which admission policies change objects: `Object{...}`, `Object.spec{...}` and `JSONPatch{...}`.
//!
//! ```text
//! Object{spec: Object.spec{replicas: 3}} -> a message -> apply configuration, {"spec": {"replicas": 3}}
//! [JSONPatch{op: "remove", path: "/x"}]  -> a list    -> JSON patch
//! ```
//!
//! Guarantees: a message stands in the field its type is named after; what comes of one is no larger than an object may
//! be, however often the expression repeats a part.

use std::collections::BTreeMap;

use base64::Engine as _;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Opaque};
use serde_json::{Map, Value};

use super::builtin;

/// The type of apply configurations.
pub(super) const OBJECT: &str = "Object";
/// The type of operations of JSON patches.
pub(super) const OPERATION: &str = "JSONPatch";
/// Levels of what comes of a message at most.
const DEPTH: usize = 100;
/// Bytes of it at most: those of the largest request.
const BYTES: usize = 3 << 20;

/// A value with a type that has a name and fields.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    name: String,
    pub(super) fields: BTreeMap<String, Cel>,
}

impl Eq for Message {}

impl Opaque for Message {
    fn runtime_type_name(&self) -> &str {
        &self.name
    }
}

impl Message {
    pub(super) fn value(name: &str, fields: BTreeMap<String, Cel>) -> Cel {
        Cel::Opaque(std::sync::Arc::new(Self { name: name.to_owned(), fields }))
    }
}

pub(super) fn as_message(value: &Cel) -> Option<&Message> {
    match value {
        Cel::Opaque(held) => held.downcast_ref(),
        _ => None,
    }
}

/// Whether there are messages of this name.
pub(super) fn exists(name: &str) -> bool {
    name == OPERATION || name == OBJECT || name.strip_prefix(OBJECT).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether messages of this name may have a field.
pub(super) fn has_field(name: &str, field: &str) -> bool {
    name != OPERATION || field == "value" || is_text(name, field)
}

/// Whether it is a field that holds text alone.
pub(super) fn is_text(name: &str, field: &str) -> bool {
    name == OPERATION && matches!(field, "op" | "path" | "from")
}

/// The apply configuration that an expression came to.
///
/// # Errors
/// A sentence when it is none.
pub fn configuration(value: &Cel) -> Result<Value, String> {
    match as_message(value) {
        Some(message) if message.name == OBJECT => Convert::default().value(value, None, 0),
        _ => {
            let found = builtin::type_name(value);
            Err(format!("unsupported return type from ApplyConfiguration expression: {found}"))
        }
    }
}

/// The JSON patch that an expression came to.
///
/// # Errors
/// A sentence when it is none.
pub fn json_patch(value: &Cel) -> Result<Value, String> {
    const LIST: &str = "type mismatch: JSONPatchType.expression should evaluate to array";
    let Cel::List(list) = value else { return Err(LIST.to_owned()) };
    let mut convert = Convert::default();
    let operation = |item: &Cel| match as_message(item) {
        Some(message) if message.name == OPERATION => {
            let member = |(field, value): (&String, &Cel)| {
                let value = convert.value(value, None, 0)?;
                Ok((field.clone(), value))
            };
            // An empty text says as much as none.
            let members: Map<String, Value> = message.fields.iter().map(member).collect::<Result<_, String>>()?;
            Ok(members.into_iter().filter(|(field, value)| field != "from" || value != "").collect())
        }
        _ => Err(format!("{LIST} of JSONPatch, got element of {}", builtin::type_name(item))),
    };
    list.iter().map(operation).collect::<Result<Vec<Value>, String>>().map(Value::Array)
}

/// From values to JSON, within bounds.
#[derive(Default)]
struct Convert {
    bytes: usize,
}

impl Convert {
    /// `place` is the name that the type of a message must have here.
    fn value(&mut self, value: &Cel, place: Option<&str>, depth: usize) -> Result<Value, String> {
        if depth > DEPTH {
            return Err(format!("the value nests too deeply: at most {DEPTH} levels are accepted"));
        }
        self.count(8)?;
        if let Some(message) = as_message(value) {
            let name = message.name.as_str();
            if let Some(place) = place.filter(|place| *place != name) {
                let why = "which matches field name path from root Object type";
                return Err(format!("type mismatch: unexpected type name {name:?}, expected {place:?}, {why}"));
            }
            let member = |(field, value): (&String, &Cel)| {
                self.count(field.len())?;
                Ok((field.clone(), self.value(value, Some(&format!("{name}.{field}")), depth + 1)?))
            };
            return message.fields.iter().map(member).collect::<Result<_, _>>().map(Value::Object);
        }
        match value {
            Cel::Null => Ok(Value::Null),
            Cel::Bool(value) => Ok((*value).into()),
            Cel::Int(value) => Ok((*value).into()),
            Cel::UInt(value) => Ok((*value).into()),
            Cel::Float(value) => match serde_json::Number::from_f64(*value) {
                Some(number) => Ok(number.into()),
                None => Err(format!("{value} is no number of JSON")),
            },
            Cel::String(text) => self.count(text.len()).map(|()| text.as_str().into()),
            Cel::Bytes(bytes) => {
                self.count(bytes.len())?;
                Ok(base64::engine::general_purpose::STANDARD.encode(bytes.as_slice()).into())
            }
            Cel::Timestamp(time) => Ok(time.to_rfc3339().replace("+00:00", "Z").into()),
            Cel::Duration(time) => Ok(format!("{}s", time.num_milliseconds() as f64 / 1000.0).into()),
            Cel::List(list) => {
                list.iter().map(|item| self.value(item, place, depth + 1)).collect::<Result<_, _>>().map(Value::Array)
            }
            Cel::Map(map) => {
                let member = |(key, value): (&Key, &Cel)| {
                    let Key::String(key) = key else { return Err(format!("map key {key:?} is no string")) };
                    self.count(key.len())?;
                    Ok((key.to_string(), self.value(value, place, depth + 1)?))
                };
                map.map.iter().map(member).collect::<Result<_, _>>().map(Value::Object)
            }
            Cel::Opaque(_) | Cel::Function(..) => {
                let name = builtin::type_name(value);
                Err(format!("a value of type {name} cannot be a part of an object"))
            }
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > BYTES {
            return Err(format!("the value is too large: at most {BYTES} bytes are accepted"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
