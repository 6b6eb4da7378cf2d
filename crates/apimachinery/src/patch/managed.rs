//! `metadata.managedFields`: which writer set which field.
//!
//! Guarantees: a field changed by an update belongs to that writer and to no other; a field that no longer exists belongs to
//! nobody; writers left without fields disappear; a write that changes nothing leaves the list as it was.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::fieldset::Set;
use super::typed::{Node, diff, retain_present};
use super::versions::Elsewhere;
use crate::schema::Schema;

/// Updaters beyond this many are folded, oldest first, into one named [`ANCIENT`].
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// Who writes, in which words, and when.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// Field manager.
    pub manager: &'a str,
    /// Version it speaks.
    pub api_version: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// Time of the write.
    pub now: Timestamp,
}

impl Writer<'_> {
    /// An entry of this writer's.
    pub(super) fn entry(&self, operation: &str, set: Set) -> Entry {
        Entry {
            manager: self.manager.to_owned(),
            operation: operation.to_owned(),
            api_version: self.api_version.to_owned(),
            time: stamp(self.now),
            subresource: self.subresource.to_owned(),
            set,
        }
    }
}

/// One writer's entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Field manager.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// Version the writer spoke.
    pub api_version: String,
    /// Of the last change, RFC 3339, whole seconds; empty for who only wished for what there was.
    pub time: String,
    /// Empty for the main resource.
    pub subresource: String,
    /// What it owns.
    pub set: Set,
}

impl Entry {
    /// Whether it is this writer's. An applier stays itself when it changes version.
    pub(super) fn is_of(&self, writer: &Writer<'_>, operation: &str) -> bool {
        self.manager == writer.manager
            && self.operation == operation
            && self.subresource == writer.subresource
            && (operation == "Apply" || self.api_version == writer.api_version)
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
        let said = words.into_iter().filter(|(key, word)| !matches!(*key, "subresource" | "time") || !word.is_empty());
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

/// Whether a write brings managed fields of its own. A part of the object is written by those who look at no more than
/// that part: they say nothing of owners.
fn given(after: &Value, subresource: &str) -> bool {
    let list = after["metadata"]["managedFields"].as_array();
    subresource.is_empty() && list.is_some_and(|list| list.iter().any(|entry| !entry.is_null()))
}

/// The versions other than `api_version` in which owners of an object wrote that is about to be changed.
pub fn versions(before: Option<&Value>, after: &Value, writer: &Writer<'_>) -> Vec<String> {
    let source = if given(after, writer.subresource) { Some(after) } else { before };
    let list = source.and_then(|object| object["metadata"]["managedFields"].as_array());
    let mut names: Vec<&str> = list.into_iter().flatten().filter_map(|entry| entry["apiVersion"].as_str()).collect();
    names.retain(|name| *name != writer.api_version);
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(str::to_owned).collect()
}

/// What a write did, in the words of one version.
struct Change<'a> {
    root: Node<'a>,
    after: &'a Value,
    /// What is new or different.
    set: Set,
    /// Whether something has gone.
    removed: bool,
}

impl<'a> Change<'a> {
    fn between(root: Node<'a>, before: Option<&Value>, after: &'a Value) -> Self {
        let mut removed = false;
        let set = diff(root, before, after, &mut removed);
        Self { root, after, set, removed }
    }

    fn concerns(&self, fields: &Value) -> bool {
        self.removed || self.set.meets(fields)
    }
}

/// `after` with its `managedFields` brought up to date for a write that is not an apply.
///
/// `after` may carry managed fields of its own (a client that edits them, or `[]` or `[{}]` to forget them all); else those of
/// `before` are the starting point. Owners whose version could not be shown stay as they are: that is to say they may own
/// more than they should until their next write, and none of them is forgotten.
pub fn update(
    schema: &Schema,
    before: Option<&Value>,
    mut after: Value,
    writer: &Writer<'_>,
    elsewhere: &Elsewhere,
) -> Value {
    let root = Node::root(schema);
    let given = given(&after, writer.subresource);
    let reset =
        given && after["metadata"]["managedFields"].as_array().is_some_and(|list| list.iter().all(|e| *e == json!({})));
    let emptied = before.is_some()
        && writer.subresource.is_empty()
        && after["metadata"]["managedFields"].as_array().is_some_and(Vec::is_empty);
    if reset || emptied {
        store(&mut after, Vec::new());
        return after;
    }
    let own = after.pointer_mut("/metadata/managedFields").map(Value::take);
    let list = if given { own } else { before.and_then(|before| before["metadata"].get("managedFields").cloned()) };
    let change = Change::between(root, before, &after);
    if change.set.is_empty() && !change.removed {
        match (list, after.get_mut("metadata").and_then(Value::as_object_mut)) {
            (Some(list), Some(metadata)) => drop(metadata.insert("managedFields".to_owned(), list)),
            (None, Some(metadata)) => drop(metadata.remove("managedFields")),
            _ => {}
        }
        return after;
    }
    let entries = settle(list.unwrap_or_default(), &change, writer, elsewhere);
    arrange(&mut after, entries);
    after
}

/// The entries of `list` after a change, each with its encoded form.
fn settle(list: Value, change: &Change<'_>, writer: &Writer<'_>, elsewhere: &Elsewhere) -> Vec<(Entry, Value)> {
    let mut shown: HashMap<String, Change<'_>> = HashMap::new();
    // Entries this write does not concern are neither decoded nor encoded.
    let (mut touched, mut untouched) = (Vec::new(), Vec::new());
    let list = if let Value::Array(list) = list { list } else { Vec::new() };
    for raw in list.into_iter().filter(|raw| raw["operation"].is_string()) {
        let owner = Entry::decode_writer(&raw);
        if elsewhere.has_lost(&owner.api_version) {
            continue;
        }
        let change = match elsewhere.of(&owner.api_version) {
            None => change,
            Some(Ok(view)) => &*shown
                .entry(owner.api_version.clone())
                .or_insert_with(|| Change::between(view.root(), view.before.as_ref(), &view.after)),
            Some(Err(_)) => {
                untouched.push((owner, raw));
                continue;
            }
        };
        let is_mine = owner.is_of(writer, "Update");
        if !is_mine && !change.concerns(&raw["fieldsV1"]) {
            untouched.push((owner, raw));
            continue;
        }
        let mut entry = Entry { set: Set::decode(&raw["fieldsV1"]), ..owner };
        if !is_mine {
            entry.set.subtract(&change.set);
        }
        if change.removed {
            retain_present(&mut entry.set, change.root, change.after);
        }
        touched.push(entry);
    }
    if !change.set.is_empty() {
        claim(&mut touched, &change.set, writer);
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
    untouched
}

fn claim(entries: &mut Vec<Entry>, set: &Set, writer: &Writer<'_>) {
    match entries.iter_mut().find(|entry| entry.is_of(writer, "Update")) {
        Some(mine) => {
            mine.set.union(set);
            mine.time = stamp(writer.now);
        }
        None => entries.push(writer.entry("Update", set.clone())),
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
        let is_ancient = |e: &&mut Entry| {
            e.manager == ANCIENT
                && e.operation == "Update"
                && e.api_version == old.api_version
                && e.subresource.is_empty()
        };
        match entries.iter_mut().find(is_ancient) {
            Some(ancient) => ancient.set.union(&old.set),
            None => entries.push(Entry { manager: ANCIENT.to_owned(), subresource: String::new(), ..old }),
        }
    }
}
