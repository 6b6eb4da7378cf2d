//! Fields a schema does not know: found, named and dropped.

use serde_json::Value;

use super::{Schema, Type};

/// Paths reported at most.
const NOTED: usize = 100;

/// Drops unknown fields and yields their paths, `spec.containers[0].imge`.
pub fn unknown(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(schema, object, &mut String::new(), &mut found);
    found
}

fn walk(schema: &Schema, value: &mut Value, path: &mut String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if schema.embedded_resource {
                return embedded(schema, map, path, found);
            }
            fields(schema, map, path, found);
        }
        Value::Array(items) => {
            let Some(of) = &schema.items else { return };
            if is_leaf(of) {
                return;
            }
            let length = path.len();
            for (index, item) in items.iter_mut().enumerate() {
                path.push_str(&format!("[{index}]"));
                walk(of, item, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

fn is_leaf(schema: &Schema) -> bool {
    matches!(schema.type_, Type::String | Type::Integer | Type::Number | Type::Boolean)
}

fn fields(schema: &Schema, map: &mut serde_json::Map<String, Value>, path: &mut String, found: &mut Vec<String>) {
    let open = schema.preserve_unknown
        || (schema.type_ == Type::Any
            && schema.properties.is_empty()
            && schema.additional.is_none()
            && !schema.int_or_string);
    let length = path.len();
    let mut dropped = Vec::new();
    for (key, value) in map.iter_mut() {
        let Some(of) = schema.properties.get(key).or(schema.additional.as_ref()) else {
            if !open {
                dropped.push(key.clone());
            }
            continue;
        };
        if is_leaf(of) {
            continue;
        }
        if length > 0 {
            path.push('.');
        }
        path.push_str(key);
        walk(of, value, path, found);
        path.truncate(length);
    }
    for key in dropped {
        map.remove(&key);
        if found.len() < NOTED {
            found.push(if length > 0 { format!("{path}.{key}") } else { key });
        }
    }
}

/// An embedded object always has apiVersion, kind and metadata, whether its schema names them or not.
fn embedded(schema: &Schema, map: &mut serde_json::Map<String, Value>, path: &mut String, found: &mut Vec<String>) {
    let mut kept = Vec::new();
    for key in ["apiVersion", "kind", "metadata"] {
        if !schema.properties.contains_key(key) {
            kept.extend(map.remove_entry(key));
        }
    }
    fields(schema, map, path, found);
    map.extend(kept);
}

/// Drops null fields, as decoding into a typed object does.
pub fn nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(nulls),
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
    fn check(schema: Value, mut object: Value, expect: Value, paths: &[&str]) {
        let schema = parse::openapi(&schema);
        assert_eq!(unknown(&schema, &mut object), paths);
        assert_eq!(object, expect);
    }

    #[test]
    fn unknown_fields_go_unless_preserved() {
        let leaf = json!({"type": "string"});
        check(
            json!({"type": "object", "properties": {"a": leaf, "l": {"type": "array", "items": {"type": "object", "properties": {"x": leaf}}}}}),
            json!({"a": "1", "b": 2, "l": [{"x": "1"}, {"y": 1}]}),
            json!({"a": "1", "l": [{"x": "1"}, {}]}),
            &["l[1].y", "b"],
        );
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"n": {"type": "object", "properties": {}}}}),
            json!({"z": 1, "n": {"q": 1}}),
            json!({"z": 1, "n": {}}),
            &["n.q"],
        );
        check(
            json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"a": leaf}}}),
            json!({"k": {"a": "1", "b": 1}}),
            json!({"k": {"a": "1"}}),
            &["k.b"],
        );
        check(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}),
            json!({"kind": "A", "metadata": {"name": "x"}, "spec": {"a": 1}, "q": 1}),
            json!({"kind": "A", "metadata": {"name": "x"}, "spec": {}}),
            &["spec.a", "q"],
        );
    }
}
