//! A stored object: its JSON bytes and the few facts that are read without parsing them.
//!
//! The bytes of an object that was written lie within those of the line by which watches tell of the write, so that all
//! watchers are handed the same bytes and nothing is held twice.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use bytes::Bytes;
use serde_json::Value;

/// Where an object lives. `resource` is the storage's group resource, `deployments.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Group resource.
    pub resource: Arc<str>,
    /// Namespace, empty for cluster-wide objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl Key {
    /// A key.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }
}

/// See the module. The bytes hold the same resourceVersion as `revision`.
#[derive(Debug)]
pub struct Object {
    /// Where it lives.
    pub key: Key,
    /// Its resourceVersion.
    pub revision: u64,
    /// The object in its storage version.
    pub json: Bytes,
    /// `metadata.labels`.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// The line of a watch that tells of the write it comes from; empty for one read back from disk.
    line: Bytes,
    told: EventKind,
    /// Where the digits of the resourceVersion lie in the bytes.
    digits: std::ops::Range<usize>,
    selected: Selected,
}

/// Fields that were looked up in the bytes, by their paths: hundreds of watchers may each select by the same one.
type Selected = RwLock<Vec<(Box<str>, Arc<str>)>>;

impl Object {
    /// The object as a tree. Bytes in the store came from a tree, so this cannot fail; null if memory was corrupted.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    /// The text of `metadata`; what follows it is passed over and not parsed.
    pub fn metadata(&self) -> &str {
        serde_json::from_slice::<Part<'_>>(&self.json).map_or("{}", |part| part.metadata.get())
    }

    /// Whether its deletion has begun.
    pub fn terminating(&self) -> bool {
        self.value()["metadata"]["deletionTimestamp"].is_string()
    }

    /// The text of a field, from `look` the first time it is asked for.
    pub fn selected(&self, path: &str, look: impl FnOnce(&[u8]) -> String) -> Arc<str> {
        let known = self.selected.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = known.iter().find(|(known, _)| &**known == path) {
            return text.clone();
        }
        drop(known);
        let text: Arc<str> = look(&self.json).into();
        let mut known = self.selected.write().unwrap_or_else(PoisonError::into_inner);
        if known.iter().all(|(known, _)| &**known != path) {
            known.push((path.into(), text.clone()));
        }
        text
    }

    /// The line that tells a watch of this object, if it is at hand.
    #[inline]
    pub fn line(&self, kind: EventKind) -> Option<Bytes> {
        (kind == self.told && !self.line.is_empty()).then(|| self.line.clone())
    }

    /// The object as it was when it went, with the resourceVersion of its going.
    pub fn deleted_at(&self, revision: u64) -> Self {
        let (head, tail) = (&self.json[..self.digits.start], &self.json[self.digits.end..]);
        Self::written(self.key.clone(), self.labels.clone(), EventKind::Deleted, revision, head, tail)
    }

    /// An object of the bytes before and after its resourceVersion.
    fn written(
        key: Key,
        labels: Vec<(Box<str>, Box<str>)>,
        told: EventKind,
        revision: u64,
        head: &[u8],
        tail: &[u8],
    ) -> Self {
        let text = revision.to_string();
        let before = told.line_head();
        let line = Bytes::from([before, head, text.as_bytes(), tail, LINE_TAIL].concat());
        let json = line.slice(before.len()..line.len() - LINE_TAIL.len());
        let digits = head.len()..head.len() + text.len();
        Self { key, revision, json, labels, line, told, digits, selected: Selected::default() }
    }

    /// An object read back from disk; None when the bytes are not one. Only what is kept beside the bytes is made of them.
    pub(super) fn from_disk(key: Key, revision: u64, json: &[u8]) -> Option<Self> {
        let Facts { metadata } = serde_json::from_slice(json).ok()?;
        let start = (metadata.resource_version.as_ptr() as usize).checked_sub(json.as_ptr() as usize)?;
        let digits = start..start + metadata.resource_version.len();
        let labels = metadata.labels.unwrap_or_default();
        let labels = labels.iter().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into()))).collect();
        let json = Bytes::copy_from_slice(json);
        let (line, told) = (Bytes::new(), EventKind::Added);
        Some(Self { key, revision, json, labels, line, told, digits, selected: Selected::default() })
    }
}

/// What follows the object in the line of a watch.
pub const LINE_TAIL: &[u8] = b"}\n";

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Created.
    Added,
    /// Updated.
    Modified,
    /// Removed.
    Deleted,
}

impl EventKind {
    /// The word for it in a watch.
    pub fn word(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }

    /// What precedes the object in the line of a watch.
    #[inline]
    pub fn line_head(self) -> &'static [u8] {
        match self {
            Self::Added => br#"{"type":"ADDED","object":"#,
            Self::Modified => br#"{"type":"MODIFIED","object":"#,
            Self::Deleted => br#"{"type":"DELETED","object":"#,
        }
    }
}

#[derive(serde::Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    metadata: &'a serde_json::value::RawValue,
}

/// The parts of an object's bytes that are looked at when they are read back.
#[derive(serde::Deserialize)]
struct Facts<'a> {
    #[serde(borrow)]
    metadata: MetadataFacts<'a>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataFacts<'a> {
    resource_version: &'a str,
    labels: Option<serde_json::Map<String, Value>>,
}

/// The bytes of an object. They begin with its apiVersion and kind, so that lists, which say both once, can leave them out.
pub fn to_json(object: &Value) -> Vec<u8> {
    struct TypeFirst<'a>(&'a serde_json::Map<String, Value>);
    impl serde::Serialize for TypeFirst<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            const FIRST: [&str; 2] = ["apiVersion", "kind"];
            let first = FIRST.iter().filter_map(|field| self.0.get_key_value(*field));
            serializer.collect_map(first.chain(self.0.iter().filter(|(field, _)| !FIRST.contains(&field.as_str()))))
        }
    }
    let bytes = match object {
        Value::Object(map) => serde_json::to_vec(&TypeFirst(map)),
        other => serde_json::to_vec(other),
    };
    bytes.unwrap_or_default()
}

/// An object serialized but for its resourceVersion, which only the writer knows.
#[derive(Debug)]
pub struct Body {
    head: Vec<u8>,
    tail: Vec<u8>,
    labels: Vec<(Box<str>, Box<str>)>,
}

/// Stands in the resourceVersion's place until the writer assigns one: random, so that no user's text holds it, after a
/// byte which JSON leaves alone and hardly any text has, so that it is found in one quick pass.
fn revision_mark() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("{RARE}{}", uuid::Uuid::new_v4().simple()))
}

const RARE: char = '\u{7f}';

/// Where `mark` begins in `bytes`.
fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    let rare = bytes.iter().enumerate().filter(|(_, byte)| **byte == RARE as u8);
    rare.map(|(at, _)| at).find(|at| bytes[*at..].starts_with(mark))
}

impl Body {
    /// Serializes `object`, whatever resourceVersion it carries.
    pub fn new(mut object: Value) -> Self {
        let labels = match object.pointer("/metadata/labels") {
            Some(Value::Object(map)) => {
                map.iter().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into()))).collect()
            }
            _ => Vec::new(),
        };
        if !object["metadata"].is_object() {
            object["metadata"] = Value::Object(serde_json::Map::new());
        }
        object["metadata"]["resourceVersion"] = Value::from(revision_mark());
        let mut head = to_json(&object);
        let needle = revision_mark().as_bytes();
        let at = find(&head, needle).unwrap_or(0);
        let tail = head.split_off(at)[needle.len()..].to_vec();
        Self { head, tail, labels }
    }

    pub(super) fn finish(self, key: Key, revision: u64, told: EventKind) -> Object {
        Object::written(key, self.labels, told, revision, &self.head, &self.tail)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn revision_is_spliced_into_the_bytes() {
        let body =
            Body::new(json!({"metadata": {"name": "a", "labels": {"k": "v"}}, "x": "\"resourceVersion\":\"9\""}));
        let object = body.finish(Key::new("pods", "n", "a"), 9, EventKind::Added);
        assert_eq!(object.value()["metadata"]["resourceVersion"], "9");
        let later = object.deleted_at(12345);
        assert_eq!(later.value()["metadata"]["resourceVersion"], "12345");
        assert_eq!(later.deleted_at(7).value()["x"], object.value()["x"]);
        assert_eq!(later.labels, vec![("k".into(), "v".into())]);
        assert_eq!(serde_json::from_str::<Value>(later.metadata()).unwrap(), later.value()["metadata"]);
    }

    #[test]
    fn the_line_of_a_watch_is_at_hand() {
        let object = Body::new(json!({"x": 1})).finish(Key::new("pods", "n", "a"), 9, EventKind::Modified);
        let line = object.line(EventKind::Modified).unwrap();
        let event: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(event, json!({"type": "MODIFIED", "object": object.value()}));
        assert!(line.ends_with(b"}\n") && object.line(EventKind::Added).is_none());
        let gone: Value = serde_json::from_slice(&object.deleted_at(10).line(EventKind::Deleted).unwrap()).unwrap();
        assert_eq!((gone["type"].as_str(), gone["object"]["x"].as_i64()), (Some("DELETED"), Some(1)));
    }
}
