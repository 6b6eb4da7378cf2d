//! Field selectors.

use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::labels::Labels;
use kube_store::Object;

use crate::registry::Resource;

/// Whether an object has the labels that are asked for.
pub(super) fn has_labels(object: &Object, labels: &Labels) -> bool {
    labels.is_empty()
        || labels.matches(|key| object.labels.iter().find(|(k, _)| &**k == key).map(|(_, value)| &**value))
}

/// A field selector; the empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields(Vec<(String, String, bool)>);

impl Fields {
    /// Parses `metadata.name=a,spec.nodeName!=b` and checks that the resource supports the fields.
    pub(super) fn parse(text: &str, resource: &Resource) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (field, value, true)
            } else {
                return Err(ApiError::bad_request(format!("invalid selector: {text:?}; can't understand {term:?}")));
            };
            let known = matches!(field, "metadata.name" | "metadata.namespace")
                || resource.selectable_fields.iter().any(|path| path.trim_start_matches('.') == field);
            if !known {
                return Err(ApiError::bad_request(format!("field label not supported: {field}")));
            }
            terms.push((field.to_owned(), unescape(value), equal));
        }
        Ok(Self(terms))
    }

    /// Narrows the selector to one name, unless it is empty.
    pub(super) fn select_name(&mut self, name: &str) {
        let term = ("metadata.name".to_owned(), name.to_owned(), true);
        if !name.is_empty() && !self.0.contains(&term) {
            self.0.push(term);
        }
    }

    /// Whether nothing is asked.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object satisfies all terms. Of its bytes only the fields asked for are made into values.
    pub(super) fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|(field, expect, equal)| {
            let same = match field.as_str() {
                "metadata.name" => *object.key.name == **expect,
                "metadata.namespace" => *object.key.namespace == **expect,
                path => *object.selected(path, |json| field_of(json, path)) == **expect,
            };
            same == *equal
        })
    }
}

fn field_of(json: &[u8], path: &str) -> String {
    // Events are stored in their core version, whatever names the other one has.
    let found = lookup(json, path).filter(|found| !found.is_null());
    match found {
        Some(Value::String(text)) => text,
        Some(Value::Object(map)) => map.get("component").and_then(Value::as_str).unwrap_or_default().to_owned(),
        Some(other) => other.to_string(),
        None => match path {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.replicas" | "status.successful" => "0".to_owned(),
            _ => String::new(),
        },
    }
}

/// The value at a path, skipping over everything else.
fn lookup(json: &[u8], path: &str) -> Option<Value> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    At { path }.deserialize(&mut reader).ok().flatten()
}

/// Reads one path of a document.
struct At<'a> {
    path: &'a str,
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<Value>;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        if self.path.is_empty() {
            Value::deserialize(deserializer).map(Some)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an object with the field {:?}", self.path)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Value>, A::Error> {
        let (name, rest) = self.path.split_once('.').unwrap_or((self.path, ""));
        let mut found = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == name {
                found = map.next_value_seed(At { path: rest })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

fn split_unescaped(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let last = terms.len() - 1;
        match c {
            '\\' => {
                terms[last].push(c);
                terms[last].extend(chars.next());
            }
            ',' => terms.push(String::new()),
            c => terms[last].push(c),
        }
    }
    terms
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_without_reading_the_rest() {
        let json = br#"{"spec":{"nodeName":"n","deep":{"x":[1,{"a":2}]}},"status":{"phase":"Running"},"n":5}"#;
        for (path, expect) in [
            ("spec.nodeName", "n"),
            ("status.phase", "Running"),
            ("n", "5"),
            ("spec.none", ""),
            ("spec.nodeName.x", ""),
        ] {
            assert_eq!(field_of(json, path), expect, "{path}");
        }
    }
}
