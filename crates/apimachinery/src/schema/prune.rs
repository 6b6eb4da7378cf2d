//! Fields a schema does not know: found, named and dropped.

use std::fmt::{self, Write as _};

use serde_json::Value;

use super::{Schema, Type, builtin, stored};

/// Paths reported at most.
const NOTED: usize = 100;

/// A field that the schema does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Where, `spec.containers[0].imge`.
    pub path: String,
    /// The field of that place that was probably meant.
    pub meant: Option<String>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown field {:?}", self.path)?;
        match &self.meant {
            Some(meant) => write!(f, ": did you mean {meant}?"),
            None => Ok(()),
        }
    }
}

/// Drops unknown fields and yields them.
pub fn unknown(schema: &Schema, object: &mut Value) -> Vec<Unknown> {
    let mut found = Vec::new();
    walk(schema, object, &mut String::new(), &mut found);
    found
}

fn walk(schema: &Schema, value: &mut Value, path: &mut String, found: &mut Vec<Unknown>) {
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
                let _ = write!(path, "[{index}]");
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

fn fields(schema: &Schema, map: &mut serde_json::Map<String, Value>, path: &mut String, found: &mut Vec<Unknown>) {
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
            let meant = nearest(&key, schema.properties.keys().map(String::as_str)).map(str::to_owned);
            found.push(Unknown { path: if length > 0 { format!("{path}.{key}") } else { key }, meant });
        }
    }
}

/// An embedded object always has apiVersion, kind and metadata, whether its schema names them or not, and its metadata has
/// the fields of every object's.
fn embedded(schema: &Schema, map: &mut serde_json::Map<String, Value>, path: &mut String, found: &mut Vec<Unknown>) {
    let mut kept = Vec::new();
    for key in ["apiVersion", "kind"] {
        if !schema.properties.contains_key(key) {
            kept.extend(map.remove_entry(key));
        }
    }
    let metadata = map.remove_entry("metadata");
    fields(schema, map, path, found);
    map.extend(kept);
    if let Some((key, mut metadata)) = metadata {
        let length = path.len();
        path.push_str(if length > 0 { ".metadata" } else { "metadata" });
        let of = builtin::object_meta();
        stored::decode(of, &mut metadata);
        walk(of, &mut metadata, path, found);
        path.truncate(length);
        map.insert(key, metadata);
    }
}

/// A name that differs only in case or by one letter.
fn nearest<'a>(key: &str, mut known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let same = known.clone().find(|other| other.eq_ignore_ascii_case(key));
    same.or_else(|| known.find(|other| key.len() > 2 && one_apart(other.as_bytes(), key.as_bytes())))
}

fn one_apart(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    match b.len() - a.len() {
        0 => a.iter().skip(same + 1).eq(b.iter().skip(same + 1)),
        1 => a.iter().skip(same).eq(b.iter().skip(same + 1)),
        _ => false,
    }
}

/// Drops from the metadata of embedded objects what no metadata has.
pub fn embedded_metadata(schema: &Schema, object: &mut Value) {
    match object {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if key == "metadata" && schema.embedded_resource {
                    unknown(builtin::object_meta(), value);
                } else if let Some(of) = schema.properties.get(key).or(schema.additional.as_ref()) {
                    embedded_metadata(of, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = &schema.items {
                items.iter_mut().for_each(|item| embedded_metadata(of, item));
            }
        }
        _ => {}
    }
}

/// Drops nulls where the schema has a field that may not be null and has no default: writers in languages where every
/// field has a value send null for "not set". Items of lists stay, because their places mean something.
pub fn unset(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            let of = |key: &str| schema.properties.get(key).or(schema.additional.as_ref());
            map.retain(|key, value| {
                !(value.is_null() && of(key).is_some_and(|of| !of.nullable && of.default.is_none()))
            });
            for (key, value) in map.iter_mut() {
                if let Some(of) = of(key).filter(|of| !is_leaf(of)) {
                    unset(of, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = schema.items.as_ref().filter(|of| !is_leaf(of)) {
                items.iter_mut().for_each(|item| unset(of, item));
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

    #[test]
    fn nulls_that_mean_nothing_go() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(schema: Value, mut object: Value, expect: Value) {
            unset(&parse::openapi(&schema), &mut object);
            assert_eq!(object, expect);
        }
        let text = json!({"type": "string"});
        let maybe = json!({"type": "string", "nullable": true});
        let filled = json!({"type": "string", "default": "x"});
        let of = json!({"type": "object", "properties": {"a": text, "b": maybe, "c": filled}});
        check(
            of.clone(),
            json!({"a": null, "b": null, "c": null, "z": null}),
            json!({"b": null, "c": null, "z": null}),
        );
        check(json!({"type": "array", "items": of}), json!([{"a": null}, null]), json!([{}, null]));
        check(json!({"type": "object", "additionalProperties": text}), json!({"k": null, "l": "1"}), json!({"l": "1"}));
        check(json!({"type": "object", "additionalProperties": maybe}), json!({"k": null}), json!({"k": null}));
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"k": null}),
            json!({"k": null}),
        );
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(schema: Value, mut object: Value, expect: Value, paths: &[&str]) {
        let schema = parse::openapi(&schema);
        let found: Vec<String> = unknown(&schema, &mut object).into_iter().map(|field| field.path).collect();
        assert_eq!(found, paths);
        assert_eq!(object, expect);
    }

    #[test]
    fn a_slip_is_told_from_a_stranger() {
        #[track_caller]
        fn check(field: &str, expect: &str) {
            let schema =
                json!({"type": "object", "properties": {"memory": {"type": "string"}, "cpu": {"type": "string"}}});
            let mut object = json!({ field: "x" });
            let found = unknown(&parse::openapi(&schema), &mut object);
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [expect]);
        }
        check("memmory", r#"unknown field "memmory": did you mean memory?"#);
        check("memry", r#"unknown field "memry": did you mean memory?"#);
        check("CPU", r#"unknown field "CPU": did you mean cpu?"#);
        check("disk", r#"unknown field "disk""#);
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
            json!({"kind": "A", "metadata": {"name": "x", "labels": {"a": null}, "z": 1}, "spec": {"a": 1}, "q": 1}),
            json!({"kind": "A", "metadata": {"name": "x", "labels": {"a": ""}}, "spec": {}}),
            &["spec.a", "q", "metadata.z"],
        );
    }
}
