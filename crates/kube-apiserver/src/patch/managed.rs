//! `metadata.managedFields`: which writer set which field.
//!
//! Guarantees: a field changed by an update belongs to that writer and to no other; a field that no longer exists belongs to
//! nobody; writers left without fields disappear; a write that changes nothing leaves the list as it was.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::fieldset::Set;
use super::typed::{Node, diff, retain_present};
use crate::schema::Schema;

/// Updaters beyond this many are folded, oldest first, into one named [`ANCIENT`].
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// One writer's entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Field manager.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// Version the writer spoke.
    pub api_version: String,
    /// RFC 3339, whole seconds.
    pub time: String,
    /// Empty for the main resource.
    pub subresource: String,
    /// What it owns.
    pub set: Set,
}

impl Entry {
    /// Whether both are the same writer. An applier stays itself when it changes version.
    pub fn is(&self, manager: &str, operation: &str, api_version: &str, subresource: &str) -> bool {
        self.manager == manager
            && self.operation == operation
            && self.subresource == subresource
            && (operation == "Apply" || self.api_version == api_version)
    }

    fn encode(&self) -> Value {
        let words = [
            ("manager", self.manager.as_str()),
            ("operation", self.operation.as_str()),
            ("apiVersion", self.api_version.as_str()),
            ("time", self.time.as_str()),
            ("fieldsType", "FieldsV1"),
            ("subresource", self.subresource.as_str()),
        ];
        let said = words.into_iter().filter(|(key, word)| *key != "subresource" || !word.is_empty());
        let mut entry: Map<String, Value> = said.map(|(key, word)| (key.to_owned(), word.into())).collect();
        // Moved in: `json!` would copy the tree.
        entry.insert("fieldsV1".to_owned(), self.set.encode());
        Value::Object(entry)
    }

    fn decode(entry: &Value) -> Self {
        Self { set: Set::decode(&entry["fieldsV1"]), ..Self::decode_writer(entry) }
    }

    /// The writer alone; the fields stay undecoded.
    fn decode_writer(entry: &Value) -> Self {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        Self {
            manager: text("manager"),
            operation: text("operation"),
            api_version: text("apiVersion"),
            time: text("time"),
            subresource: text("subresource"),
            set: Set::default(),
        }
    }

    fn order(&self) -> (&str, &str, &str, &str, &str) {
        (&self.operation, &self.time, &self.manager, &self.api_version, &self.subresource)
    }
}

/// The entries of an object; empty when it has none.
pub fn entries(object: &Value) -> Vec<Entry> {
    let list = object["metadata"]["managedFields"].as_array();
    list.into_iter().flatten().filter(|entry| entry["operation"].is_string()).map(Entry::decode).collect()
}

/// Stores entries in an object: those without fields are dropped, appliers come first, then by age.
pub fn store(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.set.is_empty());
    let encoded: Vec<Value> = entries.iter().map(Entry::encode).collect();
    arrange(object, entries.into_iter().zip(encoded).collect());
}

fn arrange(object: &mut Value, mut entries: Vec<(Entry, Value)>) {
    entries.sort_by(|(a, _), (b, _)| a.order().cmp(&b.order()));
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), entries.into_iter().map(|(_, raw)| raw).collect());
    }
}

/// The time as managed fields carry it.
pub fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `after` with its `managedFields` brought up to date for a write that is not an apply.
///
/// `after` may carry managed fields of its own (a client that edits them, or `[{}]` to forget them all); else those of
/// `before` are the starting point.
#[expect(
    clippy::too_many_arguments,
    reason = "the identity of a writer is four words, and the call sites have them apart"
)]
pub fn update(
    schema: &Schema,
    before: Option<&Value>,
    mut after: Value,
    manager: &str,
    operation: &str,
    api_version: &str,
    subresource: &str,
    now: Timestamp,
) -> Value {
    let root = Node::root(schema);
    // A part of the object is written by those who look at no more than that part: they say nothing of owners.
    let given = subresource.is_empty()
        && after["metadata"]["managedFields"].as_array().is_some_and(|list| list.iter().any(|entry| !entry.is_null()));
    let reset =
        given && after["metadata"]["managedFields"].as_array().is_some_and(|list| list.iter().all(|e| *e == json!({})));
    if reset {
        store(&mut after, Vec::new());
        return after;
    }
    let mut removed = false;
    let changed = diff(root, before, &after, &mut removed);
    if !given {
        match before.and_then(|before| before["metadata"].get("managedFields")) {
            Some(list) if after["metadata"].get("managedFields") == Some(list) => {}
            Some(list) => after["metadata"]["managedFields"] = list.clone(),
            None => {
                after["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
            }
        }
    }
    if changed.is_empty() && !removed {
        return after;
    }
    let mine = Entry {
        manager: manager.to_owned(),
        operation: operation.to_owned(),
        api_version: api_version.to_owned(),
        subresource: subresource.to_owned(),
        ..Entry::default()
    };
    // Entries this write does not concern are neither decoded nor encoded.
    let (mut touched, mut untouched) = (Vec::new(), Vec::new());
    let list = match after["metadata"].get_mut("managedFields").map(Value::take) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    for raw in list.into_iter().filter(|raw| raw["operation"].is_string()) {
        let writer = Entry::decode_writer(&raw);
        let is_mine = writer.is(manager, operation, api_version, subresource);
        if !is_mine && !removed && !changed.meets(&raw["fieldsV1"]) {
            untouched.push((writer, raw));
            continue;
        }
        let mut entry = Entry { set: Set::decode(&raw["fieldsV1"]), ..writer };
        if !is_mine {
            entry.set.subtract(&changed);
        }
        if removed {
            retain_present(&mut entry.set, root, &after);
        }
        touched.push(entry);
    }
    if !changed.is_empty() {
        claim(&mut touched, changed, mine, now);
    }
    if touched.len() + untouched.len() > MAX_UPDATERS {
        // Of writers of one second the latest comes last, so that it is folded last.
        let mut all: Vec<Entry> = untouched.drain(..).map(|(_, raw)| Entry::decode(&raw)).collect();
        all.append(&mut touched);
        fold(&mut all);
        touched = all;
    }
    touched.retain(|entry| !entry.set.is_empty());
    untouched.extend(touched.into_iter().map(|entry| {
        let raw = entry.encode();
        (entry, raw)
    }));
    arrange(&mut after, untouched);
    after
}

fn claim(entries: &mut Vec<Entry>, set: Set, writer: Entry, now: Timestamp) {
    let is_it = |e: &&mut Entry| e.is(&writer.manager, &writer.operation, &writer.api_version, &writer.subresource);
    match entries.iter_mut().find(is_it) {
        Some(mine) => {
            mine.set.union(&set);
            mine.time = stamp(now);
        }
        None => entries.push(Entry { time: stamp(now), set, ..writer }),
    }
}

/// Bounds the number of updaters, for objects written by ever new names.
fn fold(entries: &mut Vec<Entry>) {
    while entries.iter().filter(|e| e.operation == "Update" && !e.set.is_empty()).count() > MAX_UPDATERS {
        let oldest = |entries: &[Entry]| {
            let updaters = entries.iter().enumerate().filter(|(_, e)| e.operation == "Update" && e.manager != ANCIENT);
            updaters.min_by(|(_, a), (_, b)| a.time.cmp(&b.time)).map(|(at, _)| at)
        };
        let Some(at) = oldest(entries) else { return };
        let old = entries.remove(at);
        match entries.iter_mut().find(|e| e.is(ANCIENT, "Update", &old.api_version, "")) {
            Some(ancient) => ancient.set.union(&old.set),
            None => entries.push(Entry { manager: ANCIENT.to_owned(), subresource: String::new(), ..old }),
        }
    }
}
