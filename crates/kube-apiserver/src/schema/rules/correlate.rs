//! Which old value a new one came from.

use serde_json::Value;

use crate::schema::{ListType, Schema};

/// The item of a map list that has the keys of `item`, in the list as it was.
pub(super) fn item<'a>(of: &Schema, keys: &[String], item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let wanted = key(of, keys, item);
    old?.as_array()?.iter().find(|candidate| key(of, keys, candidate) == wanted)
}

fn key<'a>(of: &'a Schema, keys: &[String], item: &'a Value) -> Vec<Option<&'a Value>> {
    let default = |name: &String| of.properties.get(name).and_then(|of| of.default.as_ref());
    keys.iter().map(|name| item.get(name).or_else(|| default(name))).collect()
}

/// Whether what a field error speaks of, or something around it, is the same in both objects: what was stored already
/// may stay, though the definition has become stricter since.
pub(crate) fn unchanged(schema: &Schema, old: &Value, new: &Value, path: &str) -> bool {
    let (mut schema, mut old, mut new) = (Some(schema), Some(old), Some(new));
    for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
        let part = part.trim_end_matches(']');
        let (before, after) = match (old, new) {
            (Some(before), Some(after)) if before == after => return true,
            (Some(before), Some(after)) => (before, after),
            _ => return false,
        };
        (schema, old, new) = match after {
            Value::Array(items) => {
                let Some(item) = part.parse().ok().and_then(|index: usize| items.get(index)) else { return false };
                let of = schema.and_then(|schema| schema.items.as_deref());
                let before = match (schema.map(|schema| &schema.list_type), of) {
                    (Some(ListType::Map(keys)), Some(of)) => self::item(of, keys, item, Some(before)),
                    _ => None,
                };
                (of, before, Some(item))
            }
            after => {
                let of = schema.and_then(|schema| schema.properties.get(part).or(schema.additional.as_ref()));
                (of.map(|of| &**of), before.get(part), after.get(part))
            }
        };
    }
    old.is_some() && old == new
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::parse;

    #[test]
    fn what_did_not_change_is_found_again() {
        let item = json!({"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}});
        let schema = parse::openapi(&json!({"type": "object", "properties": {
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item},
            "atomic": {"type": "array", "items": item}, "o": {"type": "object", "properties": {"a": {"type": "string"}}}}}));
        let old =
            json!({"map": [{"k": "a", "v": 1}, {"k": "b", "v": 2}], "atomic": [{"k": "a", "v": 1}], "o": {"a": "x"}});
        let new = json!({"map": [{"k": "b", "v": 2}, {"k": "a", "v": 5}], "atomic": [{"k": "a", "v": 1}, {"k": "c"}], "o": {"a": "x"}});
        for (path, expect) in [
            ("map[0].v", true),
            ("map[1].v", false),
            ("atomic[0].v", false),
            ("o.a", true),
            ("o.b", true),
            ("z", false),
        ] {
            assert_eq!(unchanged(&schema, &old, &new, path), expect, "{path}");
        }
    }
}
