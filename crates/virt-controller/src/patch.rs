//! The smallest merge patch between two states. Pure.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// The fields of `new` that differ from `old`, at any depth, and null for those that are gone; none when nothing differs.
/// Lists are sent whole.
pub fn changed<T: Serialize>(old: &T, new: &T) -> Option<Value> {
    match (serde_json::to_value(old), serde_json::to_value(new)) {
        (Ok(Value::Object(old)), Ok(Value::Object(new))) => fields(&old, new),
        _ => None,
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
}
