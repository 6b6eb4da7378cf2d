//! What cannot be applied, in the words of server-side apply: paths are those of conflicts.

use std::collections::HashSet;

use serde_json::Value;

use super::typed::Node;
use crate::schema::Type;

/// Errors told at most.
const TOLD: usize = 20;

/// Why `value` cannot be applied: values of the wrong type, keyed lists with an element that lacks its key or with
/// duplicates, fields the schema does not have. None when it can.
pub(super) fn refusal(root: Node<'_>, value: &Value) -> Option<String> {
    let mut check = Check { path: String::new(), errors: Vec::new() };
    check.node(root, value);
    match check.errors.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => {
            let lines: String = several.iter().map(|error| format!("  {error}\n")).collect();
            Some(format!("errors:\n{lines}"))
        }
    }
}

struct Check {
    path: String,
    errors: Vec<String>,
}

impl Check {
    fn error(&mut self, why: &str) {
        if self.errors.len() < TOLD {
            self.errors.push(format!("{}: {why}", self.path));
        }
    }

    fn node(&mut self, node: Node<'_>, value: &Value) {
        if let Some(why) = mismatch(node, value) {
            return self.error(&why);
        }
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let length = self.path.len();
                    self.path.push('.');
                    self.path.push_str(key);
                    if node.lacks(key) {
                        self.error("field not declared in schema");
                    } else {
                        self.node(node.child(key), value);
                    }
                    self.path.truncate(length);
                }
            }
            Value::Array(items) => self.list(node, items),
            _ => {}
        }
    }

    fn list(&mut self, node: Node<'_>, items: &[Value]) {
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let length = self.path.len();
            if node.is_keyed() {
                match node.element(item) {
                    Ok(element) if seen.contains(&element) => {
                        let shown = super::fieldset::shown(&element);
                        self.error(&format!("duplicate entries for key {shown}"));
                    }
                    Ok(element) => {
                        self.path.push_str(&super::fieldset::shown(&element));
                        seen.insert(element);
                    }
                    Err(key) => {
                        self.error(&format!(
                            "element {index}: associative list with keys has an element that omits key field {key:?}"
                        ));
                        continue;
                    }
                }
            } else {
                self.path.push_str(&format!("[{index}]"));
            }
            self.node(node.items(), item);
            self.path.truncate(length);
        }
    }
}

/// How a value differs from the type of its field.
fn mismatch(node: Node<'_>, value: &Value) -> Option<String> {
    let expected = match (node.type_()?, value) {
        (_, Value::Null)
        | (Type::Any, _)
        | (Type::Object, Value::Object(_))
        | (Type::Array, Value::Array(_))
        | (Type::String, Value::String(_))
        | (Type::Integer | Type::Number, Value::Number(_))
        | (Type::Boolean, Value::Bool(_)) => return None,
        (Type::Object, _) => "map",
        (Type::Array, _) => "list",
        (Type::String, _) => "string",
        (Type::Integer | Type::Number, _) => {
            return Some(format!("expected numeric (int or float), got {}", crate::schema::validate::kind_of(value)));
        }
        (Type::Boolean, _) => "boolean",
    };
    Some(format!("expected {expected}, got {value}"))
}
