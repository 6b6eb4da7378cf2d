//! Sets of fields, as `managedFields` store them.
//!
//! A set is a tree whose edges are path elements in their wire form: `f:name` a field, `k:{"name":"a"}` a list element by
//! its keys, `v:"x"` an element of a set. Keeping the wire form means that decoding, comparing and encoding never parse
//! an element; only printing a conflict does.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A set of paths below one point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Whether this very path is a member.
    pub owned: bool,
    /// What lies below.
    pub children: BTreeMap<String, Set>,
}

impl Set {
    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        !self.owned && self.children.values().all(Self::is_empty)
    }

    /// Adds a subtree unless it is empty.
    pub fn put(&mut self, element: String, set: Set) {
        if !set.is_empty() {
            self.children.insert(element, set);
        }
    }

    /// Adds the members of `other`.
    pub fn union(&mut self, other: &Self) {
        self.owned |= other.owned;
        for (element, theirs) in &other.children {
            match self.children.get_mut(element) {
                Some(mine) => mine.union(theirs),
                None => {
                    self.children.insert(element.clone(), theirs.clone());
                }
            }
        }
    }

    /// Removes the members of `other`.
    pub fn subtract(&mut self, other: &Self) {
        self.owned &= !other.owned;
        for (element, theirs) in &other.children {
            if let Some(mine) = self.children.get_mut(element) {
                mine.subtract(theirs);
                if mine.is_empty() {
                    self.children.remove(element);
                }
            }
        }
    }

    /// Keeps the members that are in `other` as well.
    pub fn intersect(&mut self, other: &Self) {
        self.owned &= other.owned;
        self.children.retain(|element, mine| {
            let Some(theirs) = other.children.get(element) else { return false };
            mine.intersect(theirs);
            !mine.is_empty()
        });
    }

    /// Whether a `fieldsV1` document shares a member with this set, without decoding it.
    pub fn meets(&self, document: &Value) -> bool {
        let Value::Object(map) = document else { return false };
        if self.owned && (map.is_empty() || map.contains_key(".")) {
            return true;
        }
        self.children.iter().any(|(element, set)| map.get(element).is_some_and(|below| set.meets(below)))
    }

    /// The `fieldsV1` document.
    pub fn encode(&self) -> Value {
        let mut map = Map::new();
        if self.owned && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        map.extend(self.children.iter().map(|(element, set)| (element.clone(), set.encode())));
        Value::Object(map)
    }

    /// Reads a `fieldsV1` document. Elements that are not of a known form are dropped.
    pub fn decode(document: &Value) -> Self {
        let mut set = Self::decode_node(document);
        set.owned = false;
        set
    }

    fn decode_node(node: &Value) -> Self {
        let Value::Object(map) = node else { return Self { owned: true, ..Self::default() } };
        let known = |element: &str| matches!(element.as_bytes(), [b'f' | b'k' | b'v', b':', ..]);
        let children: BTreeMap<_, _> = map
            .iter()
            .filter(|(element, _)| known(element))
            .map(|(element, node)| (element.clone(), Self::decode_node(node)))
            .collect();
        Self { owned: children.is_empty() || map.contains_key("."), children }
    }

    /// Every member's path in the words of conflicts, `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.walk(&mut String::new(), &mut paths);
        paths
    }

    fn walk(&self, path: &mut String, into: &mut Vec<String>) {
        if self.owned {
            into.push(path.clone());
        }
        for (element, set) in &self.children {
            let length = path.len();
            print(element, path);
            set.walk(path, into);
            path.truncate(length);
        }
    }
}

/// The element of a field.
pub fn field(name: &str) -> String {
    format!("f:{name}")
}

/// An element in the words of conflicts: `.name`, `[name="a"]`, `[="x"]`.
pub fn shown(element: &str) -> String {
    let mut text = String::new();
    print(element, &mut text);
    text
}

fn print(element: &str, path: &mut String) {
    match element.split_at_checked(2) {
        Some(("f:", name)) => {
            path.push('.');
            path.push_str(name);
        }
        Some(("k:", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            path.push_str(&format!("[{}]", keys.join(",")));
        }
        Some((_, value)) => path.push_str(&format!("[={value}]")),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_survive_the_codec() {
        for document in [
            json!({}),
            json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {"v:\"x\"": {}}}}),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}}}}),
        ] {
            assert_eq!(Set::decode(&document).encode(), document);
        }
    }

    #[test]
    fn paths_are_printed_as_conflicts_name_them() {
        let set = Set::decode(&json!({"f:spec": {
            "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}}, "f:set": {"v:\"x\"": {}}}}));
        assert_eq!(
            set.paths(),
            [r#".spec.containers[name="a"]"#, r#".spec.containers[name="a"].image"#, r#".spec.set[="x"]"#]
        );
    }

    #[test]
    fn subtraction_leaves_no_empty_branches() {
        let mut set = Set::decode(&json!({"f:a": {"f:b": {}, "f:c": {}}, "f:d": {".": {}, "f:e": {}}}));
        set.subtract(&Set::decode(&json!({"f:a": {"f:b": {}, "f:c": {}}, "f:d": {}})));
        assert_eq!(set.encode(), json!({"f:d": {"f:e": {}}}));
    }
}
