//! The smallest merge patch between two states. Pure.

use kit::text::{STATUS, brief};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Fields that quote guests, registries and other objects of tenants; statuses are read on terminals.
const QUOTING: [&str; 3] = ["message", "reason", "failureReason"];

/// The fields of the status `new` that differ from `old`, at any depth, and null for those that are gone; none when nothing
/// differs. Lists are sent whole. What is quoted in `new` is made fit for a terminal first.
pub fn changed<T: Serialize>(old: &T, new: &T) -> Option<Value> {
    let mut new = serde_json::to_value(new).ok()?;
    write_out(&mut new);
    match (serde_json::to_value(old), new) {
        (Ok(Value::Object(old)), Value::Object(new)) => fields(&old, new),
        _ => None,
    }
}

fn write_out(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(write_out),
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if QUOTING.contains(&key.as_str()) => *text = brief(text, STATUS).into_owned(),
                    value => write_out(value),
                }
            }
        }
        _ => {}
    }
}

fn fields(old: &Map<String, Value>, new: Map<String, Value>) -> Option<Value> {
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let mut patch: Map<String, Value> = gone.collect();
    for (key, value) in new {
        match (old.get(&key), value) {
            (Some(before), after) if *before == after => {}
            // Inside of a map the patch merges, so what vanished there must be said, too.
            (Some(Value::Object(before)), Value::Object(after)) => {
                patch.extend(fields(before, after).map(|inner| (key, inner)));
            }
            (_, after) => {
                patch.insert(key, after);
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A merge patch of `status` that fails with a conflict when the object has changed since `version`.
pub fn status(version: Option<&str>, status: &Value) -> Value {
    json!({ "metadata": { "resourceVersion": version }, "status": status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_sent() {
        let old = json!({ "a": 1, "b": { "x": 1, "y": 2 }, "c": [1], "d": true });
        assert_eq!(changed(&old, &old), None);
        let new = json!({ "a": 1, "b": { "x": 3 }, "c": [1, 2] });
        assert_eq!(changed(&old, &new), Some(json!({ "b": { "x": 3, "y": null }, "c": [1, 2], "d": null })));
        let (deep, deeper) = (json!({ "a": { "b": { "c": 1 }, "d": 2 } }), json!({ "a": { "b": {}, "d": 2 } }));
        assert_eq!(changed(&deep, &deeper), Some(json!({ "a": { "b": { "c": null } } })));
    }

    #[test]
    fn what_is_quoted_moves_no_cursor_and_is_not_endless() {
        let evil = "manifest unknown: \x1b[2J\u{202e}";
        let status = |text: &str| {
            json!({
                "conditions": [{ "type": "Ready", "reason": text, "message": text }], "error": { "message": text },
                "migrationState": { "failureReason": text },
            })
        };
        let written = changed(&json!({}), &status(evil)).unwrap();
        assert_eq!(written, status("manifest unknown: \\u001b[2J\\u202e"));
        // As it was written it stays.
        assert_eq!(changed(&written, &status(evil)), None);
        let long = changed(&json!({}), &status(&"x".repeat(1 << 20))).unwrap();
        assert_eq!(long["error"]["message"].as_str().map(str::len), Some(STATUS));
        // Names are what they are.
        assert_eq!(changed(&json!({}), &json!({ "name": evil })), Some(json!({ "name": evil })));
    }
}
