//! The smallest merge patch from one version of a value to another, so that writes say only what changed.

use serde::Serialize;
use serde_json::{Map, Value};

/// The merge patch that turns `old` into `new`; `None` when they are equal. Lists are replaced whole.
pub(crate) fn between(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else { return Some(new.clone()) };
    let mut patch = Map::new();
    for (field, value) in after {
        match before.get(field) {
            None => {
                patch.insert(field.clone(), value.clone());
            }
            Some(previous) => {
                if let Some(change) = between(previous, value) {
                    patch.insert(field.clone(), change);
                }
            }
        }
    }
    for field in before.keys().filter(|field| !after.contains_key(*field)) {
        patch.insert(field.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

/// `{"status": …}` from the status as stored to the status as it should be; `None` when nothing changed.
pub(crate) fn of_status<S: Serialize>(old: Option<&S>, new: &S) -> Result<Option<Value>, serde_json::Error> {
    let old = old.map(serde_json::to_value).transpose()?.unwrap_or_else(|| Value::Object(Map::new()));
    Ok(between(&old, &serde_json::to_value(new)?).map(|change| serde_json::json!({ "status": change })))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(old: Value, new: Value, expect: Option<Value>) {
        let patch = between(&old, &new);
        assert_eq!(patch, expect);
        let mut merged = old;
        if let Some(patch) = patch {
            json_patch_merge(&mut merged, &patch);
        }
        assert_eq!(merged, new);
    }

    fn json_patch_merge(target: &mut Value, patch: &Value) {
        let Value::Object(fields) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (field, value) in fields {
            if value.is_null() {
                target.as_object_mut().unwrap().remove(field);
            } else {
                json_patch_merge(&mut target[field], value);
            }
        }
    }

    #[test]
    fn only_what_changed_is_written() {
        check(json!({"a": 1}), json!({"a": 1}), None);
        check(json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3}), Some(json!({"b": 3})));
        check(json!({"a": 1, "b": 2}), json!({"a": 1}), Some(json!({"b": null})));
        check(json!({"a": {"x": 1}}), json!({"a": {"x": 1, "y": [1]}}), Some(json!({"a": {"y": [1]}})));
        check(json!({"a": [1, 2]}), json!({"a": [2]}), Some(json!({"a": [2]})));
    }
}
