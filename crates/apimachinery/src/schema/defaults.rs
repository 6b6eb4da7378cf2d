//! Defaults a schema states.

use serde_json::Value;

use super::{Schema, Type};

/// Sets missing fields that have a default, at every level that exists. A null that may not be null counts as missing.
pub fn apply(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, of) in &schema.properties {
                if let Some(default) = &of.default {
                    let missing = match map.get(name) {
                        None => true,
                        Some(Value::Null) => !of.nullable,
                        Some(_) => false,
                    };
                    if missing {
                        map.insert(name.clone(), default.clone());
                    }
                }
            }
            for (name, child) in map.iter_mut() {
                if let Some(of) = schema.properties.get(name).or(schema.additional.as_ref())
                    && matches!(of.type_, Type::Object | Type::Array | Type::Any)
                {
                    apply(of, child);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) =
                schema.items.as_ref().filter(|of| matches!(of.type_, Type::Object | Type::Array | Type::Any))
            {
                items.iter_mut().for_each(|item| apply(of, item));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::parse;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(schema: Value, mut object: Value, expect: Value) {
        apply(&parse::openapi(&schema), &mut object);
        assert_eq!(object, expect);
    }

    #[test]
    fn defaults_fill_what_is_missing() {
        let n = json!({"type": "integer", "default": 1});
        let inner = json!({"type": "object", "properties": {"n": n}});
        check(json!({"properties": {"n": n}}), json!({}), json!({"n": 1}));
        check(json!({"properties": {"n": n}}), json!({"n": null}), json!({"n": 1}));
        check(json!({"properties": {"o": inner}}), json!({}), json!({}));
        check(
            json!({"properties": {"o": {"type": "object", "default": {}, "properties": {"n": n}}}}),
            json!({}),
            json!({"o": {"n": 1}}),
        );
        check(
            json!({"properties": {"l": {"type": "array", "items": inner}}}),
            json!({"l": [{}]}),
            json!({"l": [{"n": 1}]}),
        );
        check(json!({"additionalProperties": inner}), json!({"k": {}}), json!({"k": {"n": 1}}));
    }
}
