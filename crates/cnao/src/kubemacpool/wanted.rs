//! What a request wants of the pool, whatever kind of object it is about. Pure.

use std::collections::HashMap;

use jiff::Timestamp;
use kit::admission::Cause;
use serde_json::{Value, json};

use super::mac::Mac;

/// Annotation of an object: when the last request was admitted that had addresses reserved.
pub const TRANSACTION: &str = "kubemacpool.io/transaction-timestamp";
/// How many interfaces of one object can have addresses of the pool. Each is a write to the API server.
pub const MOST_INTERFACES: usize = 256;
/// Longest name of an object and of an interface, in bytes.
const LONGEST_NAME: usize = 253;

/// An interface that wants an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Where it is in the object's list.
    pub at: usize,
    /// The interface, as reservations name it.
    pub interface: String,
    /// The address that the request names; none to have one chosen.
    pub given: Option<Mac>,
}

/// True when an object can have this name: it can be part of a path and of what a reservation says. Whoever sends another one
/// asks for something else than an object.
pub(super) fn is_name(name: &str) -> bool {
    let may_be = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(may_be) && !name.starts_with('.')
}

/// What is wrong with the name of an interface, other than what KubeVirt says of it.
pub(super) fn name_too_long(field: String, name: &str) -> Option<Cause> {
    if name.len() <= LONGEST_NAME {
        return None;
    }
    let message = format!("{field} is {} bytes long: it may be {LONGEST_NAME}", name.len());
    Some(Cause { reason: "FieldValueTooLong", field, message })
}

/// What is wrong with a list of so many interfaces.
pub(super) fn too_many(field: &str, count: usize) -> Option<Cause> {
    let message = format!(
        "{field} has {count} interfaces: at most {MOST_INTERFACES} of one object can have MAC addresses of the pool"
    );
    let cause = Cause { reason: "FieldValueTooMany", field: field.to_owned(), message };
    (count > MOST_INTERFACES).then_some(cause)
}

/// What is wrong with a text that is to be an address.
pub(super) fn malformed(field: String, text: &str) -> Cause {
    let shown = meta::text::brief(text, 64);
    let message = format!("{field} is {shown:?}: {}", super::mac::Malformed);
    Cause { reason: "FieldValueInvalid", field, message }
}

/// What is wrong with values that occur more than once, each with its field and what it is called.
pub(super) fn duplicates<'a, T>(values: impl Iterator<Item = (String, T)>, what: &str, remedy: &str) -> Vec<Cause>
where
    T: std::fmt::Display + std::hash::Hash + Eq + 'a,
{
    let mut first: HashMap<T, String> = HashMap::new();
    let mut causes = Vec::new();
    for (field, value) in values {
        if let Some(other) = first.get(&value) {
            let shown = value.to_string();
            let shown = meta::text::brief(&shown, 64);
            let message = format!("{field} is {shown}, which is the {what} of {other}, too: {remedy}");
            causes.push(Cause { reason: "FieldValueDuplicate", field, message });
        } else {
            first.insert(value, field);
        }
    }
    causes
}

/// The operations that note when the request was admitted.
pub(super) fn stamp(object: &Value, now: Timestamp) -> Value {
    let text = now.to_string();
    if object.pointer("/metadata/annotations").is_some_and(Value::is_object) {
        let path = format!("/metadata/annotations/{}", escaped(TRANSACTION));
        return json!({ "op": "add", "path": path, "value": text });
    }
    json!({ "op": "add", "path": "/metadata/annotations", "value": { (TRANSACTION): text } })
}

/// A key as part of a path of a patch.
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_object_has_are_known() {
        for name in ["vm", "a.b-c", &"a".repeat(253)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a/b", "..", "../x", "a?watch=1", "A", "ä", &"a".repeat(254)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn the_annotation_is_added_to_those_there_are() {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let bare = stamp(&json!({ "metadata": {} }), now);
        assert_eq!(bare["value"], json!({ TRANSACTION: "2026-01-02T03:04:05Z" }));
        let path = "/metadata/annotations/kubemacpool.io~1transaction-timestamp";
        let expect = json!({ "op": "add", "path": path, "value": "2026-01-02T03:04:05Z" });
        assert_eq!(stamp(&json!({ "metadata": { "annotations": {} } }), now), expect);
    }
}
