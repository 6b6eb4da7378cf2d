//! Answers in protobuf: the walk of [`super::decode`] backwards.

use base64::Engine;
use serde_json::{Map, Value};

use super::table::{self, Field, MESSAGES, Message};
use super::{MAGIC, wire};

/// An object, or a part of it, that cannot be told in protobuf.
#[derive(Debug, thiserror::Error)]
#[error("{0} has no protobuf form")]
pub struct Unfit(String);

type Outcome<T = ()> = Result<T, Unfit>;

fn unfit<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Unfit(what.into()))
}

/// An object, or a list of objects, as a body.
pub fn encode(object: &Value) -> Outcome<Vec<u8>> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if let Some(name) = table::of_kind(api_version, kind) {
        let mut raw = Vec::new();
        message(&name, object, &mut raw)?;
        return Ok(envelope(api_version, kind, &raw));
    }
    let (Some(item), Value::Array(objects)) = (kind.strip_suffix("List"), &object["items"]) else {
        return unfit(format!("{kind} of {api_version}"));
    };
    let mut items = Items::new(api_version, item)?;
    objects.iter().try_for_each(|object| items.push(object))?;
    items.list(kind, &object["metadata"])
}

/// The items of a list, as they come.
pub(in crate::rest) struct Items {
    api_version: String,
    message: String,
    bytes: Vec<u8>,
}

impl Items {
    /// Of a kind.
    pub(in crate::rest) fn new(api_version: &str, kind: &str) -> Outcome<Self> {
        match table::of_kind(api_version, kind) {
            Some(message) => Ok(Self { api_version: api_version.to_owned(), message, bytes: Vec::new() }),
            None => unfit(format!("{kind} of {api_version}")),
        }
    }
    pub(in crate::rest) fn push(&mut self, object: &Value) -> Outcome {
        let mut item = Vec::new();
        message(&self.message, object, &mut item)?;
        wire::bytes(2, &item, &mut self.bytes);
        Ok(())
    }
    /// The list of them, as a body.
    pub(in crate::rest) fn list(self, kind: &str, metadata: &Value) -> Outcome<Vec<u8>> {
        let (mut told, mut raw) = (Vec::new(), Vec::new());
        message("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta", metadata, &mut told)?;
        wire::bytes(1, &told, &mut raw);
        raw.extend_from_slice(&self.bytes);
        Ok(envelope(&self.api_version, kind, &raw))
    }
}

/// One event of a watch.
pub(in crate::rest) fn frame(event: &str, object: &Value) -> Outcome<Vec<u8>> {
    let (mut extension, mut told) = (Vec::new(), vec![0; 4]);
    wire::bytes(1, &encode(object)?, &mut extension);
    wire::bytes(1, event.as_bytes(), &mut told);
    wire::bytes(2, &extension, &mut told);
    let length = u32::try_from(told.len() - 4).or_else(|_| unfit("an event of four gigabytes"))?;
    told[..4].copy_from_slice(&length.to_be_bytes());
    Ok(told)
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let (mut meta, mut out) = (Vec::new(), Vec::with_capacity(raw.len() + 128));
    wire::bytes(1, api_version.as_bytes(), &mut meta);
    wire::bytes(2, kind.as_bytes(), &mut meta);
    out.extend_from_slice(MAGIC);
    wire::bytes(1, &meta, &mut out);
    wire::bytes(2, raw, &mut out);
    // How the object is packed: not at all.
    wire::bytes(3, b"", &mut out);
    wire::bytes(4, b"", &mut out);
    out
}

fn message(name: &str, object: &Value, out: &mut Vec<u8>) -> Outcome {
    let (Some(message), Value::Object(map)) = (MESSAGES.get(name), object) else {
        // Null is what Go makes an empty structure of.
        return if object.is_null() { Ok(()) } else { unfit(name) };
    };
    if fields(message, map, out)? < map.len() {
        // What kind an object within another one is, the field says.
        let known = |key: &str| matches!(key, "apiVersion" | "kind") || has(message, key);
        if let Some((key, _)) = map.iter().find(|(key, value)| !value.is_null() && !known(key)) {
            return unfit(format!("the field {key} of {name}"));
        }
    }
    Ok(())
}

fn has(message: &Message, key: &str) -> bool {
    message.values().any(|field| match field.name.as_str() {
        "" => MESSAGES.get(&field.nested).is_some_and(|embedded| has(embedded, key)),
        name => name == key,
    })
}

/// Writes the fields of a message that the object has, and counts them.
fn fields(message: &Message, map: &Map<String, Value>, out: &mut Vec<u8>) -> Outcome<usize> {
    let mut count = 0;
    for (number, field) in message {
        if field.name.is_empty() {
            let Some(embedded) = MESSAGES.get(&field.nested) else { return unfit(&field.nested) };
            let mut inner = Vec::new();
            let found = fields(embedded, map, &mut inner)?;
            if found > 0 {
                wire::bytes(*number, &inner, out);
            }
            count += found;
        } else if let Some(value) = map.get(&field.name) {
            count += 1;
            if !value.is_null() {
                one_or_many(*number, field, value, out)?;
            }
        }
    }
    Ok(count)
}

fn one_or_many(number: u32, field: &Field, value: &Value, out: &mut Vec<u8>) -> Outcome {
    let Field { name, code, nested } = field;
    if let Some(code) = code.strip_prefix('*') {
        let Value::Array(items) = value else { return unfit(name) };
        items.iter().try_for_each(|item| single(number, name, (code, nested), item, out))
    } else if let Some(code) = code.strip_prefix('{') {
        let Value::Object(entries) = value else { return unfit(name) };
        entries.iter().try_for_each(|(key, value)| {
            let mut entry = Vec::new();
            wire::bytes(1, key.as_bytes(), &mut entry);
            single(2, name, (code, nested), value, &mut entry)?;
            wire::bytes(number, &entry, out);
            Ok(())
        })
    } else {
        single(number, name, (code, nested), value, out)
    }
}

/// One value; null, which stands in lists and maps, is the type's zero.
fn single(number: u32, name: &str, (code, nested): (&str, &str), value: &Value, out: &mut Vec<u8>) -> Outcome {
    let mut inner = Vec::new();
    match (code, value) {
        ("s", Value::String(text)) => inner.extend_from_slice(text.as_bytes()),
        ("y", Value::String(text)) => {
            inner = base64::engine::general_purpose::STANDARD.decode(text).or_else(|_| unfit(name))?;
        }
        ("i", value) => {
            wire::number(number, integer(value).map_or_else(|| unfit(name), Ok)?, out);
            return Ok(());
        }
        ("b", Value::Bool(on)) => {
            wire::number(number, i64::from(*on), out);
            return Ok(());
        }
        ("d", Value::Number(double)) => {
            wire::double(number, double.as_f64().unwrap_or_default(), out);
            return Ok(());
        }
        ("m", value) => message(nested, value, &mut inner)?,
        ("w", Value::Array(texts)) => texts.iter().try_for_each(|text| single(1, name, ("s", ""), text, &mut inner))?,
        ("T" | "U", Value::String(text)) => time(name, text, code == "U", &mut inner)?,
        ("Q", Value::String(text)) => wire::bytes(1, text.as_bytes(), &mut inner),
        ("Q", Value::Number(amount)) => wire::bytes(1, amount.to_string().as_bytes(), &mut inner),
        ("I", Value::String(text)) => {
            wire::number(1, 1, &mut inner);
            wire::bytes(3, text.as_bytes(), &mut inner);
        }
        ("I", value) => {
            wire::number(1, 0, &mut inner);
            wire::number(2, integer(value).map_or_else(|| unfit(name), Ok)?, &mut inner);
        }
        ("R" | "J", Value::Null) => {}
        ("R" | "J", value) => wire::bytes(1, value.to_string().as_bytes(), &mut inner),
        ("A" | "B" | "C", value) => either(name, (code, nested), value, &mut inner)?,
        ("s" | "y" | "Q" | "w" | "T" | "U", Value::Null) => {}
        _ => return unfit(name),
    }
    wire::bytes(number, &inner, out);
    Ok(())
}

/// A schema, or what stands in place of one: schemas (`A`), a flag (`B`), texts (`C`).
fn either(name: &str, (code, nested): (&str, &str), value: &Value, out: &mut Vec<u8>) -> Outcome {
    let schema = ("m", nested);
    match (code, value) {
        ("A" | "C", Value::Object(_)) => single(1, name, schema, value, out),
        ("A", Value::Array(items)) => items.iter().try_for_each(|item| single(2, name, schema, item, out)),
        ("B", Value::Bool(_)) => single(1, name, ("b", ""), value, out),
        ("B", Value::Object(_)) => {
            wire::number(1, 1, out);
            single(2, name, schema, value, out)
        }
        ("C", Value::Array(items)) => items.iter().try_for_each(|item| single(2, name, ("s", ""), item, out)),
        _ => unfit(name),
    }
}

/// A whole number, with or without a fraction of zero.
fn integer(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < EXACT).then_some(number as i64);
    match value {
        Value::Null => Some(0),
        value => value.as_i64().or_else(|| value.as_f64().and_then(whole)),
    }
}

/// Times have seconds; only those that say so have microseconds.
fn time(name: &str, text: &str, micro: bool, out: &mut Vec<u8>) -> Outcome {
    let Ok(stamp) = text.parse::<jiff::Timestamp>() else { return unfit(name) };
    wire::number(1, stamp.as_second(), out);
    wire::number(2, if micro { i64::from(stamp.subsec_nanosecond()) } else { 0 }, out);
    Ok(())
}
