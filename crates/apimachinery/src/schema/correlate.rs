//! Which old value a new one came from, and whether it is the same: what was stored already may stay, though the
//! definition has become stricter since.

use serde_json::Value;

use super::{ListType, Schema};

/// The item of a list from which an item of the new list came: only those of a map list can be told from one another.
pub(crate) fn origin<'a>(list: &Schema, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let (ListType::Map(keys), Some(of)) = (&list.list_type, &list.items) else { return None };
    let wanted = key(of, keys, item);
    old?.as_array()?.iter().find(|candidate| key(of, keys, candidate) == wanted)
}

fn key<'a>(of: &'a Schema, keys: &[String], item: &'a Value) -> Vec<Option<&'a Value>> {
    let default = |name: &String| of.properties.get(name).and_then(|of| of.default.as_ref());
    keys.iter().map(|name| item.get(name).or_else(|| default(name))).collect()
}

/// Whether a value is known to be what it was. Values are compared through their schema, as Kubernetes compares them: of
/// what the schema does not describe, it cannot be told from what it came, and so it counts as changed.
pub(crate) fn same(schema: &Schema, old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => {
            let described = |key: &str| schema.properties.get(key).or(schema.additional.as_ref());
            before.len() == after.len()
                && after.iter().all(|(key, value)| match (described(key), before.get(key)) {
                    (Some(of), Some(before)) => same(of, before, value),
                    _ => false,
                })
        }
        (Value::Array(before), Value::Array(after)) => match (&schema.list_type, &schema.items) {
            (ListType::Map(_), Some(of)) => {
                before.len() == after.len()
                    && after.iter().all(|item| origin(schema, item, Some(old)).is_some_and(|old| same(of, old, item)))
            }
            _ => before == after,
        },
        _ => old == new,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::parse;

    #[test]
    fn values_without_a_schema_count_as_changed() {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let schema = parse::openapi(&json!({"type": "object", "properties": {"open": open, "a": {"type": "string"}}}));
        for (object, expect) in [
            (json!({"a": "x"}), true),
            (json!({"a": "x", "open": {}}), true),
            (json!({"a": "x", "open": {"b": 1}}), false),
        ] {
            assert_eq!(same(&schema, &object, &object), expect, "{object}");
        }
    }

    #[test]
    fn items_of_map_lists_are_found_by_their_keys() {
        let item = json!({"type": "object", "properties": {"k": {"type": "string", "default": "a"}, "v": {"type": "integer"}}});
        let list = |kind: &str| {
            parse::openapi(&json!({"type": "array", "x-kubernetes-list-type": kind,
                "x-kubernetes-list-map-keys": ["k"], "items": item}))
        };
        let (old, new) = (json!([{"k": "a", "v": 1}, {"k": "b", "v": 2}]), json!([{"k": "b", "v": 2}, {"v": 5}]));
        assert_eq!(origin(&list("map"), &new[0], Some(&old)), Some(&old[1]));
        assert_eq!(origin(&list("map"), &new[1], Some(&old)), Some(&old[0]));
        assert_eq!(origin(&list("atomic"), &new[0], Some(&old)), None);
        let turned = json!([{"k": "b", "v": 2}, {"k": "a", "v": 1}]);
        assert!(same(&list("map"), &old, &turned));
        assert!(!same(&list("atomic"), &old, &turned));
        assert!(!same(&list("map"), &old, &new));
    }
}
