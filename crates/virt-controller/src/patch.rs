//! The smallest merge patch between two states. Pure.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// The top-level fields of `new` that differ from `old`, and null for those that are gone; none when nothing differs.
pub fn changed<T: Serialize>(old: &T, new: &T) -> Option<Value> {
    let (Ok(Value::Object(old)), Ok(Value::Object(new))) = (serde_json::to_value(old), serde_json::to_value(new))
    else {
        return None;
    };
    let mut patch = Map::new();
    for (key, value) in &new {
        match (old.get(key), value) {
            (Some(before), after) if before == after => {}
            // Inside of a map the patch merges, so what vanished must be said.
            (Some(Value::Object(before)), Value::Object(after)) => {
                let mut inner = after.clone();
                for gone in before.keys().filter(|key| !after.contains_key(*key)) {
                    inner.insert(gone.clone(), Value::Null);
                }
                patch.insert(key.clone(), Value::Object(inner));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for gone in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(gone.clone(), Value::Null);
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
    }
}
