//! The smallest merge patch (RFC 7386) between two states of an object. Pure.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// The fields of `after` that differ from `before`, at any depth, and null for those that are gone; none when nothing
/// differs. Lists are whole. Both have fields and no nulls: a merge patch cannot set a field to null.
pub fn difference(before: &Value, after: Value) -> Option<Value> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => fields(before, after),
        _ => None,
    }
}

/// `{"status": …}` from the status as stored to the status as it should be; `None` when nothing changed.
///
/// # Errors
/// When one of them is no JSON.
pub fn of_status<S: Serialize>(old: Option<&S>, new: &S) -> Result<Option<Value>, serde_json::Error> {
    let old = old.map(serde_json::to_value).transpose()?.unwrap_or_else(|| json!({}));
    Ok(difference(&old, serde_json::to_value(new)?).map(|change| json!({ "status": change })))
}

fn fields(before: &Map<String, Value>, after: Map<String, Value>) -> Option<Value> {
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let mut patch: Map<String, Value> = gone.collect();
    for (key, value) in after {
        match (before.get(&key), value) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_differences_are_sent() {
        let check = |before: &Value, after: Value, expect: Value| {
            assert_eq!(difference(before, after).unwrap_or_default(), expect);
        };
        let before = json!({ "a": 1, "b": { "x": 1, "y": 2 }, "c": [1], "d": true });
        check(&before, before.clone(), Value::Null);
        let after = json!({ "a": 1, "b": { "x": 3 }, "c": [1, 2] });
        check(&before, after, json!({ "b": { "x": 3, "y": null }, "c": [1, 2], "d": null }));
        let deep = json!({ "a": { "b": { "c": 1 }, "d": 2 } });
        check(&deep, json!({ "a": { "b": {}, "d": 2 } }), json!({ "a": { "b": { "c": null } } }));
    }

    /// Values without nulls.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..3).prop_map(Value::from)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let list = prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from);
            prop_oneof![list, object(inner)]
        })
    }

    fn object(of: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-c]", of, 0..4).prop_map(|map| map.into_iter().collect::<Map<_, _>>().into())
    }

    proptest! {
        #[test]
        fn the_patch_leads_from_one_state_to_the_other(before in object(value()), after in object(value())) {
            let patch = difference(&before, after.clone());
            prop_assert_eq!(patch.is_none(), before == after);
            let mut merged = before;
            json_patch::merge(&mut merged, &patch.unwrap_or_else(|| json!({})));
            prop_assert_eq!(merged, after);
        }
    }
}
