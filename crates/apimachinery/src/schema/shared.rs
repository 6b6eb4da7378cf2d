//! Subtrees that several custom resources have: the definitions of virtual machines hold 13,000 nodes, of which 700 differ.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use serde_json::Value;

use super::Schema;

/// Words of a node that say what is below it.
const BELOW: [&str; 3] = ["properties", "additionalProperties", "items"];
/// Those that nobody has any more are forgotten when there are so many, and twice as many as were left the last time.
const MANY: usize = 4096;

/// Nodes that some schema has, by what they say and which nodes are below them.
#[derive(Default)]
struct Known {
    nodes: HashMap<String, Weak<Schema>>,
    forget_at: usize,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// The node that is held already, if one says the same as `schema`, which was parsed from `node`; else `schema`, which is held
/// from now on. What is below `schema` has to have come from here as well.
pub(super) fn keep(node: &Value, schema: Schema) -> Arc<Schema> {
    let key = key(node, &schema);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // Addresses in a key are those of what is below a node that lives, so that nothing else can have them.
    if let Some(held) = known.nodes.get(&key).and_then(Weak::upgrade) {
        return held;
    }
    let held = Arc::new(schema);
    known.nodes.insert(key, Arc::downgrade(&held));
    if known.nodes.len() > known.forget_at.max(MANY) {
        known.nodes.retain(|_, node| node.strong_count() > 0);
        known.forget_at = known.nodes.len() * 2;
    }
    held
}

fn key(node: &Value, schema: &Schema) -> String {
    let mut key = String::new();
    let mut add = |name: &str, what: std::fmt::Arguments<'_>| {
        // Names are quoted, so that no name looks like what follows one. Writing to a string does not fail.
        let _ = write!(key, "{name:?}:{what},");
    };
    for (name, value) in node.as_object().into_iter().flatten().filter(|(name, _)| !BELOW.contains(&name.as_str())) {
        add(name, format_args!("{value}"));
    }
    for (name, of) in &schema.properties {
        add(name, format_args!("{:p}", Arc::as_ptr(of)));
    }
    for (name, of) in [("*", &schema.additional), ("[]", &schema.items)] {
        if let Some(of) = of {
            add(name, format_args!("={:p}", Arc::as_ptr(of)));
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::parse::custom_resource;
    use super::*;

    fn parsed(more: &Value) -> Schema {
        let spec = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": more}});
        custom_resource(Some(&json!({"type": "object", "properties": {"spec": spec}})), false)
    }

    #[test]
    fn equal_subtrees_are_held_once() {
        let list = json!({"type": "array", "items": {"type": "integer"}});
        let (one, same) = (parsed(&list), parsed(&list));
        assert!(Arc::ptr_eq(&one.properties["spec"], &same.properties["spec"]));
        let check = |more: &Value| {
            let other = parsed(more);
            assert!(!Arc::ptr_eq(&one.properties["spec"], &other.properties["spec"]), "{more}");
            let (a, b) = (&one.properties["spec"].properties["a"], &other.properties["spec"].properties["a"]);
            assert!(Arc::ptr_eq(a, b), "{more}");
        };
        check(&json!({"type": "array", "items": {"type": "string"}}));
        check(&json!({"type": "array", "items": {"type": "integer"}, "maxItems": 3}));
        check(&json!({"type": "object", "additionalProperties": {"type": "integer"}}));
        check(&json!({"type": "object", "properties": {"items": {"type": "integer"}}}));
        check(&json!({"type": "object", "additionalProperties": true}));
        check(&json!({"type": "object"}));
    }

    #[test]
    fn unused_subtrees_are_dropped() {
        for n in 0..3 * MANY {
            keep(&json!({ "maxLength": n }), Schema::default());
        }
        assert!(KNOWN.lock().unwrap().nodes.len() <= 2 * MANY);
    }
}
