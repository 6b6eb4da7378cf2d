//! An object with shorthands for reading it.

use jiff::Timestamp;
use serde_json::Value;

use super::duration;

pub(super) const NONE: &str = "<none>";

/// An object with shorthands for reading it.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) object: &'a Value,
    pub(super) now: Timestamp,
}

impl<'a> View<'a> {
    /// The value at a JSON pointer, null when absent.
    pub(super) fn at(self, pointer: &str) -> &'a Value {
        self.object.pointer(pointer).unwrap_or(&Value::Null)
    }
    pub(super) fn text(self, pointer: &str) -> &'a str {
        self.at(pointer).as_str().unwrap_or_default()
    }
    /// The text, or `<none>`.
    pub(super) fn or_none(self, pointer: &str) -> Value {
        let text = self.text(pointer);
        if text.is_empty() { NONE.into() } else { text.into() }
    }
    pub(super) fn number(self, pointer: &str) -> i64 {
        self.at(pointer).as_i64().unwrap_or(0)
    }
    pub(super) fn list(self, pointer: &str) -> &'a [Value] {
        self.at(pointer).as_array().map(Vec::as_slice).unwrap_or_default()
    }
    pub(super) fn name(self) -> Value {
        self.at("/metadata/name").clone()
    }
    pub(super) fn age(self) -> Value {
        self.since("/metadata/creationTimestamp")
    }
    pub(super) fn since(self, pointer: &str) -> Value {
        duration::since(self.at(pointer), self.now).into()
    }
}

pub(super) fn count(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

/// `k=v,k=v`, or `<none>`.
pub(super) fn pairs(map: &Value) -> String {
    let pairs: Vec<String> =
        map.as_object().into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}

/// A label selector as `kubectl` writes it.
pub(super) fn selector(selector: &Value) -> String {
    let mut parts: Vec<String> = match pairs(&selector["matchLabels"]) {
        none if none == NONE => Vec::new(),
        pairs => vec![pairs],
    };
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        parts.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    if parts.is_empty() { NONE.to_owned() } else { parts.join(",") }
}
