//! Values seen through their schema: which part is one field, which is a map of fields, which list is keyed.
//!
//! Everything of server-side apply that looks at values is here: the fields a value sets, the difference of two values,
//! laying one over another and taking fields away. Untyped parts are maps of fields whose lists are one field each.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::fieldset::{Set, field};
use crate::schema::{ListType, Schema, Type, builtin};

/// Fields the server writes and nobody owns.
const UNOWNED_META: [&str; 11] = [
    "clusterName",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    Metadata,
    Inner,
}

/// A point of the schema, or none where the value is untyped.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    schema: Option<&'a Schema>,
    place: Place,
}

/// How a value divides into fields.
enum Shape<'v> {
    /// One field: a scalar, or something atomic.
    Leaf,
    Map(&'v Map<String, Value>),
    /// Elements by their path element, in order.
    List(Vec<(String, &'v Value)>),
}

impl<'a> Node<'a> {
    /// The object itself.
    pub fn root(schema: &'a Schema) -> Self {
        Self { schema: Some(schema), place: Place::Root }
    }

    pub(super) fn child(self, key: &str) -> Self {
        if self.place == Place::Root && key == "metadata" {
            return Self { schema: Some(builtin::object_meta()), place: Place::Metadata };
        }
        let schema = self.schema.and_then(|s| s.properties.get(key).or(s.additional.as_ref())).map(|schema| &**schema);
        Self { schema, place: Place::Inner }
    }

    pub(super) fn items(self) -> Self {
        Self { schema: self.schema.and_then(|s| s.items.as_deref()), place: Place::Inner }
    }

    fn unowned(self, key: &str) -> bool {
        match self.place {
            Place::Root => key == "apiVersion" || key == "kind",
            Place::Metadata => UNOWNED_META.contains(&key),
            Place::Inner => false,
        }
    }

    /// Whether `key` is a named field here and not a key of a map.
    pub(super) fn declares(self, key: &str) -> bool {
        self.schema.is_some_and(|s| s.properties.contains_key(key))
    }

    /// Whether the schema is complete here and does not have `key`.
    pub(super) fn lacks(self, key: &str) -> bool {
        let closed = |s: &Schema| !s.properties.is_empty() && s.additional.is_none() && !s.preserve_unknown;
        let object = self.place == Place::Root || self.schema.is_some_and(|s| s.embedded_resource);
        let implied = object && matches!(key, "apiVersion" | "kind" | "metadata");
        self.schema.is_some_and(closed) && !self.declares(key) && !implied
    }

    /// Whether this is a list whose elements are told apart.
    pub(super) fn is_keyed(self) -> bool {
        self.schema.is_some_and(|s| s.list_type != ListType::Atomic)
    }

    /// Whether a value is one field as a whole, though it has parts.
    pub(super) fn is_atomic(self, value: &Value) -> bool {
        match value {
            Value::Object(_) => self.schema.is_some_and(|s| s.atomic_map),
            Value::Array(_) => !self.is_keyed(),
            _ => false,
        }
    }

    /// The type values must have here; None where several are possible.
    pub(super) fn type_(self) -> Option<Type> {
        self.schema.filter(|s| !s.int_or_string && !s.preserve_unknown).map(|s| s.type_)
    }

    fn nullable(self) -> bool {
        self.schema.is_some_and(|s| s.nullable)
    }

    fn shape<'v>(self, value: &'v Value) -> Shape<'v> {
        match value {
            Value::Object(map) if !self.schema.is_some_and(|s| s.atomic_map) => Shape::Map(map),
            Value::Array(items) => self.elements(items).map_or(Shape::Leaf, Shape::List),
            _ => Shape::Leaf,
        }
    }

    /// The elements of a keyed list or a set; None when the list is atomic or breaks the rules of its type.
    fn elements(self, items: &[Value]) -> Option<Vec<(String, &Value)>> {
        if matches!(self.schema?.list_type, ListType::Atomic) {
            return None;
        }
        let elements: Vec<_> =
            items.iter().map(|item| Some((self.element(item).ok()?, item))).collect::<Option<_>>()?;
        let mut seen = HashSet::new();
        elements.iter().all(|(element, _)| seen.insert(element.as_str())).then_some(elements)
    }

    /// The path element of one list element, or the key it lacks.
    pub(super) fn element(self, item: &Value) -> Result<String, String> {
        match self.schema.map(|s| &s.list_type) {
            Some(ListType::Map(keys)) => {
                let mut sorted: Vec<&String> = keys.iter().collect();
                sorted.sort();
                let mut id = Map::new();
                for key in sorted {
                    let default = || self.items().child(key).schema.and_then(|s| s.default.clone());
                    let value = item.get(key).cloned().or_else(default).or_else(|| self.items().unset(key));
                    id.insert(key.clone(), value.ok_or_else(|| key.clone())?);
                }
                Ok(format!("k:{}", Value::Object(id)))
            }
            _ if item.is_object() || item.is_array() => Err(String::new()),
            _ => Ok(format!("v:{item}")),
        }
    }

    /// What a shipped type holds in a text or number that is not set.
    fn unset(self, key: &str) -> Option<Value> {
        let schema = self.schema.filter(|schema| !schema.type_name.is_empty())?;
        match schema.properties.get(key)?.type_ {
            Type::String => Some("".into()),
            Type::Integer => Some(0.into()),
            _ => None,
        }
    }

    /// The fields that identify an element of this list.
    fn keys(self) -> &'a [String] {
        match self.schema.map(|s| &s.list_type) {
            Some(ListType::Map(keys)) => keys,
            _ => &[],
        }
    }
}

/// The fields `value` sets, as an applier owns them.
pub fn collect(node: Node<'_>, value: &Value) -> Set {
    let mut set = Set::default();
    match node.shape(value) {
        Shape::Leaf => set.owned = true,
        Shape::Map(map) => {
            for (key, value) in map.iter().filter(|(key, _)| !node.unowned(key)) {
                let mut below = collect(node.child(key), value);
                let empty = matches!(value, Value::Object(map) if map.is_empty());
                // `metadata` itself has no owner even when nothing is in it.
                let skeleton = node.place == Place::Root && key == "metadata";
                below.owned |= (empty || !node.declares(key)) && !skeleton;
                set.put(field(key), below);
            }
        }
        Shape::List(elements) => {
            set.owned = elements.is_empty();
            for (element, value) in elements {
                let mut below = collect(node.items(), value);
                below.owned = true;
                set.put(element, below);
            }
        }
    }
    set
}

/// The fields that are new or different in `after`; `removed` is set when a field of `before` is gone.
pub fn diff(node: Node<'_>, before: Option<&Value>, after: &Value, removed: &mut bool) -> Set {
    let mut set = Set::default();
    match node.shape(after) {
        Shape::Leaf => {
            if before != Some(after) {
                set.owned = true;
                *removed |= before.is_some_and(|b| b.is_object() || b.is_array());
            }
        }
        Shape::Map(map) => {
            let old = before.and_then(Value::as_object);
            *removed |= old.is_some_and(|old| old.keys().any(|key| !map.contains_key(key)));
            // In a custom resource an object that was not there is new itself; shipped types always have it.
            let shipped = |s: &Schema| !s.properties.is_empty() && !s.type_name.is_empty();
            let structure = node.schema.is_some_and(shipped) || node.place != Place::Inner;
            set.owned = old.is_none() && (map.is_empty() || !structure) && node.place == Place::Inner;
            for (key, value) in map.iter().filter(|(key, _)| !node.unowned(key)) {
                // Equal parts, nearly all of an object in most writes, cost a comparison and no paths.
                let old = old.and_then(|old| old.get(key));
                if old != Some(value) {
                    set.put(field(key), diff(node.child(key), old, value, removed));
                }
            }
        }
        Shape::List(elements) => {
            let old = before.and_then(Value::as_array);
            set.owned = old.is_none();
            let mut old: HashMap<String, &Value> = match old.map(|old| node.elements(old)) {
                Some(Some(old)) => old.into_iter().collect(),
                Some(None) => {
                    *removed = true;
                    HashMap::new()
                }
                None => HashMap::new(),
            };
            for (element, value) in elements {
                let before = old.remove(&element);
                if before != Some(value) {
                    let mut below = diff(node.items(), before, value, removed);
                    below.owned |= before.is_none();
                    set.put(element, below);
                }
            }
            *removed |= !old.is_empty();
        }
    }
    set
}

/// Drops the members of `set` that do not exist in `value`.
pub fn retain_present(set: &mut Set, node: Node<'_>, value: &Value) {
    match node.shape(value) {
        Shape::Leaf => set.children.clear(),
        Shape::Map(map) => set.children.retain(|element, below| {
            let key = element.get(2..).unwrap_or_default();
            match map.get(key) {
                Some(value) if element.starts_with("f:") => {
                    retain_present(below, node.child(key), value);
                    !below.is_empty()
                }
                _ => false,
            }
        }),
        Shape::List(elements) => {
            let elements: HashMap<String, &Value> = elements.into_iter().collect();
            set.children.retain(|element, below| match elements.get(element) {
                Some(value) => {
                    retain_present(below, node.items(), value);
                    !below.is_empty()
                }
                None => false,
            });
        }
    }
}

/// The members both sets share whose values differ between `live` and `merged`.
pub fn clashes(node: Node<'_>, live: Option<&Value>, merged: &Value, theirs: &Set, mine: &Set) -> Set {
    let mut set = Set::default();
    let shape = node.shape(merged);
    let leaf = matches!(shape, Shape::Leaf);
    let changed = match shape {
        Shape::Leaf => live != Some(merged),
        Shape::Map(_) => !live.is_some_and(Value::is_object),
        Shape::List(_) => !live.is_some_and(Value::is_array),
    };
    // Where one side saw a map or list and the other a single field, changing its shape changes all of it.
    set.owned = changed && !mine.is_empty() && (theirs.owned || leaf && !theirs.is_empty());
    match shape {
        Shape::Leaf => {}
        Shape::Map(map) => {
            for (element, mine) in &mine.children {
                let key = element.get(2..).unwrap_or_default();
                let before = live.and_then(|live| live.get(key));
                // What is applied as null is taken away.
                let after = map.get(key).or(before.map(|_| &Value::Null));
                if let (Some(theirs), Some(after)) = (theirs.children.get(element), after) {
                    set.put(element.clone(), clashes(node.child(key), before, after, theirs, mine));
                }
            }
        }
        Shape::List(elements) => {
            let old = live.and_then(Value::as_array).and_then(|old| node.elements(old)).unwrap_or_default();
            let old: HashMap<String, &Value> = old.into_iter().collect();
            for (element, value) in elements {
                if let (Some(theirs), Some(mine)) = (theirs.children.get(&element), mine.children.get(&element)) {
                    let below = clashes(node.items(), old.get(&element).copied(), value, theirs, mine);
                    set.put(element, below);
                }
            }
        }
    }
    set
}

/// Lays `applied` over `live`: fields it does not name stay, keyed lists merge, the rest is replaced.
pub fn overlay(node: Node<'_>, live: &mut Value, applied: &Value) {
    match (node.shape(applied), live) {
        (Shape::Map(map), Value::Object(live)) => {
            for (key, value) in map {
                let child = node.child(key);
                if value.is_null() && !child.nullable() {
                    if !node.unowned(key) {
                        live.remove(key);
                    }
                    continue;
                }
                match live.get_mut(key) {
                    Some(slot) => overlay(child, slot, value),
                    None => {
                        live.insert(key.clone(), fresh(child, value));
                    }
                }
            }
        }
        (Shape::List(elements), Value::Array(live)) => overlay_list(node, live, &elements),
        (_, live) => *live = fresh(node, applied),
    }
}

/// Merges a keyed list. Elements only the live list has stay where they are, new ones come after those of them that precede
/// the next shared element, and shared ones come in the applier's order.
fn overlay_list(node: Node<'_>, live: &mut Vec<Value>, applied: &[(String, &Value)]) {
    let places: HashMap<&str, usize> =
        applied.iter().enumerate().map(|(at, (element, _))| (element.as_str(), at)).collect();
    let place = |item: &Value| node.element(item).ok().and_then(|element| places.get(element.as_str()).copied());
    let mut old: Vec<_> = std::mem::take(live).into_iter().map(|item| (place(&item), Some(item))).collect();
    // Where in the live list each applied element is, if it is there.
    let mut partners = vec![None; applied.len()];
    for (at, (place, _)) in old.iter().enumerate() {
        if let Some(partner) = place.and_then(|place| partners.get_mut(place)) {
            partner.get_or_insert(at);
        }
    }
    let mut at = 0;
    let mut shared = (0..applied.len()).filter(|place| partners[*place].is_some()).peekable();
    for (next, (_, value)) in applied.iter().enumerate() {
        while shared.next_if(|place| *place < next).is_some() {}
        while let Some((place, item)) = old.get_mut(at) {
            match *place {
                None => live.extend(item.take()),
                // The next one both have: what is new comes before it.
                Some(place) if Some(&place) == shared.peek() => break,
                // Told already, or told when the applier's order comes to it.
                Some(_) => {}
            }
            at += 1;
        }
        match partners[next].and_then(|partner| old[partner].1.take()) {
            Some(mut item) => {
                overlay(node.items(), &mut item, value);
                live.push(item);
            }
            None => live.push(fresh(node.items(), value)),
        }
    }
    live.extend(old.into_iter().skip(at).filter_map(|(place, item)| item.filter(|_| place.is_none())));
}

/// A copy of an applied value without the nulls that mean "unset".
fn fresh(node: Node<'_>, value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(key, value)| !value.is_null() || node.child(key).nullable())
                .map(|(key, value)| (key.clone(), fresh(node.child(key), value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(|item| fresh(node.items(), item)).collect()),
        _ => value.clone(),
    }
}

/// Takes the members of `gone` out of `value`, except where somebody in `kept` owns them or something below them.
/// Containers emptied by that go too unless they are owned. Returns whether `value` itself is left with nothing.
pub fn remove(node: Node<'_>, value: &mut Value, gone: &Set, kept: &Set) -> bool {
    let nobody = Set::default();
    match value {
        Value::Object(map) => {
            let before = map.len();
            for (element, gone) in &gone.children {
                let key = element.get(2..).unwrap_or_default();
                let kept_below = kept.children.get(element).unwrap_or(&nobody);
                let Some(below) = map.get_mut(key) else { continue };
                let whole = gone.owned && kept_below.is_empty();
                if whole || remove(node.child(key), below, gone, kept_below) && !kept_below.owned {
                    map.remove(key);
                }
            }
            map.is_empty() && before > 0
        }
        Value::Array(items) => {
            let before = items.len();
            let keys = node.keys();
            let mut survivors = Vec::with_capacity(before);
            for mut item in std::mem::take(items) {
                let element = node.element(&item).unwrap_or_default();
                let Some(gone) = gone.children.get(&element) else {
                    survivors.push(item);
                    continue;
                };
                let kept_below = kept.children.get(&element).unwrap_or(&nobody);
                if gone.owned && kept_below.is_empty() {
                    continue;
                }
                let identity: Vec<(String, Value)> =
                    keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone()))).collect();
                remove(node.items(), &mut item, gone, kept_below);
                if let Value::Object(map) = &mut item {
                    map.extend(identity);
                }
                survivors.push(item);
            }
            *items = survivors;
            items.is_empty() && before > 0
        }
        _ => false,
    }
}
