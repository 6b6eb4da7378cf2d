//! Values of the wrong JSON type, in the words in which Kubernetes' own decoder refuses them.
//!
//! Built-in objects are refused at decoding, before anything looks at what they mean: such a refusal is a 400 which names
//! the field, not a 422.

use serde_json::Value;

use super::{Schema, Type, builtin};

/// The first value of `object` that does not fit its field: `json: cannot unmarshal …`.
pub fn mismatch(schema: &Schema, object: &Value) -> Option<String> {
    Walk { path: Vec::new(), structure: "" }.node(schema, object)
}

/// The same for the metadata of a custom resource and of the objects within it.
pub fn metadata_mismatch(schema: &Schema, object: &Value) -> Option<String> {
    let own = Walk { path: vec!["metadata"], structure: "" }.node(builtin::object_meta(), &object["metadata"]);
    own.or_else(|| embedded_mismatch(schema, object, &mut String::new()))
}

fn embedded_mismatch(schema: &Schema, value: &Value, path: &mut String) -> Option<String> {
    let length = path.len();
    match value {
        Value::Object(map) => map.iter().find_map(|(key, value)| {
            path.push_str(if length > 0 { "." } else { "" });
            path.push_str(key);
            let found = if key == "metadata" && schema.embedded_resource {
                mismatch(builtin::object_meta(), value).map(|why| format!("{path}: Invalid value: {value}: {why}"))
            } else {
                let of = schema.properties.get(key).or(schema.additional.as_ref());
                of.and_then(|of| embedded_mismatch(of, value, path))
            };
            path.truncate(length);
            found
        }),
        Value::Array(items) => schema.items.as_ref().and_then(|of| {
            items.iter().enumerate().find_map(|(index, item)| {
                path.push_str(&format!("[{index}]"));
                let found = embedded_mismatch(of, item, path);
                path.truncate(length);
                found
            })
        }),
        _ => None,
    }
}

#[derive(Clone)]
struct Walk<'a> {
    path: Vec<&'a str>,
    /// The innermost type with fields.
    structure: &'a str,
}

impl<'a> Walk<'a> {
    fn node(&mut self, schema: &'a Schema, value: &'a Value) -> Option<String> {
        if value.is_null() {
            return None;
        }
        if let Some(found) = unreadable(schema, value) {
            return Some(found);
        }
        if schema.int_or_string || decodes_itself(schema) {
            return None;
        }
        let fits = match schema.type_ {
            Type::Any => return None,
            Type::Object => value.is_object(),
            Type::Array => value.is_array(),
            Type::String => value.is_string(),
            Type::Integer if schema.format == "int32" => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Type::Integer => value.is_i64() || value.is_u64(),
            Type::Number => value.is_number(),
            Type::Boolean => value.is_boolean(),
        };
        if !fits {
            let found = match value {
                Value::Number(number) if schema.type_ == Type::Integer => format!("number {number}"),
                other => word(other).to_owned(),
            };
            return Some(format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {}",
                self.structure,
                self.path.join("."),
                go_type(schema)
            ));
        }
        match value {
            Value::Object(map) => {
                let outer = self.structure;
                if !schema.properties.is_empty() {
                    self.structure = short(&schema.type_name);
                }
                for (key, value) in map {
                    let (of, named) = match (schema.properties.get(key), &schema.additional) {
                        (Some(of), _) => (of, true),
                        (None, Some(of)) => (of, false),
                        (None, None) => continue,
                    };
                    // A map's keys are no fields: its own field is what is named.
                    if named {
                        self.path.push(key);
                    }
                    let found = self.node(of, value);
                    if named {
                        self.path.pop();
                    }
                    if found.is_some() {
                        return found;
                    }
                }
                self.structure = outer;
                None
            }
            Value::Array(items) => {
                let of = schema.items.as_deref()?;
                items.iter().find_map(|item| self.node(of, item))
            }
            _ => None,
        }
    }
}

/// Types with a decoder of their own, which has its own words.
fn decodes_itself(schema: &Schema) -> bool {
    schema.preserve_unknown
        || matches!(
            short(&schema.type_name),
            "Quantity" | "IntOrString" | "Time" | "MicroTime" | "RawExtension" | "FieldsV1" | "Duration" | "JSON"
        )
        || schema.type_name.ends_with(".JSONSchemaPropsOrBool")
        || schema.type_name.ends_with(".JSONSchemaPropsOrArray")
        || schema.type_name.ends_with(".JSONSchemaPropsOrStringArray")
}

/// What a type with a decoder of its own says of a value that it cannot read.
fn unreadable(schema: &Schema, value: &Value) -> Option<String> {
    let name = short(&schema.type_name);
    match (name, value) {
        ("Quantity", Value::Number(_)) | ("IntOrString", Value::String(_)) => None,
        ("IntOrString", Value::Number(number)) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => None,
        ("Quantity", Value::String(text)) => meta::quantity::nanos(text).is_none().then(|| {
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".to_owned()
        }),
        ("Quantity", _) => Some("unable to parse quantity's suffix".to_owned()),
        ("IntOrString", other) => Some(format!("json: cannot unmarshal {} into Go value of type int32", word(other))),
        ("Time" | "MicroTime", Value::String(text)) => {
            let micros = if name == "MicroTime" { ".000000" } else { "" };
            let layout = format!("2006-01-02T15:04:05{micros}Z07:00");
            let exact = micros.is_empty() || text.split_once('.').is_some_and(|(_, rest)| sixth(rest));
            let read = exact && text.contains('T') && text.parse::<jiff::Timestamp>().is_ok();
            (!read).then(|| format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\""))
        }
        ("Time" | "MicroTime", other) => {
            Some(format!("json: cannot unmarshal {} into Go value of type string", word(other)))
        }
        (_, Value::String(text)) if schema.format == "byte" => {
            let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            let decoded = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, &text);
            decoded.is_err().then(|| {
                let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
                let at = text.find(|c| !valid(c)).unwrap_or(text.len());
                format!("illegal base64 data at input byte {at}")
            })
        }
        _ => None,
    }
}

/// Whether a text begins with exactly six digits.
fn sixth(text: &str) -> bool {
    text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()) == 6
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_type(schema: &Schema) -> String {
    let below = |of: &Option<std::sync::Arc<Schema>>| of.as_deref().map_or("interface {}".to_owned(), go_type);
    match schema.type_ {
        Type::Any => "interface {}".to_owned(),
        Type::String if schema.format == "byte" => "[]uint8".to_owned(),
        Type::String => "string".to_owned(),
        Type::Boolean => "bool".to_owned(),
        Type::Integer if schema.format.is_empty() => "int".to_owned(),
        Type::Integer => schema.format.clone(),
        Type::Number => "float64".to_owned(),
        Type::Array => format!("[]{}", below(&schema.items)),
        Type::Object if schema.properties.is_empty() => format!("map[string]{}", below(&schema.additional)),
        Type::Object => {
            let mut words = schema.type_name.rsplit('.');
            let (kind, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            format!("{version}.{kind}")
        }
    }
}

pub(super) fn short(type_name: &str) -> &str {
    type_name.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(object: Value, expect: Option<&str>) {
        let schema = builtin::schema("apps", "v1", "Deployment").unwrap();
        let found = mismatch(&schema, &object);
        assert_eq!(found.as_deref(), expect.map(|e| format!("json: cannot unmarshal {e}")).as_deref());
    }

    #[test]
    fn the_field_is_named_as_the_decoder_names_it() {
        let container = |container: Value| json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        check(
            json!({"spec": {"replicas": "1"}}),
            Some("string into Go struct field DeploymentSpec.spec.replicas of type int32"),
        );
        check(
            container(json!({"env": [{"name": "a", "value": 1}]})),
            Some("number into Go struct field EnvVar.spec.template.spec.containers.env.value of type string"),
        );
        check(
            json!({"metadata": {"labels": {"a": true}}}),
            Some("bool into Go struct field ObjectMeta.metadata.labels of type string"),
        );
        check(
            json!({"spec": {"template": {"spec": {"containers": {}}}}}),
            Some("object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container"),
        );
        check(
            json!({"spec": {"replicas": 1.5}}),
            Some("number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32"),
        );
    }

    #[test]
    fn values_of_the_declared_types_pass() {
        check(json!({"spec": {"replicas": 1, "strategy": {"rollingUpdate": {"maxSurge": "25%"}}}}), None);
        check(json!({"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": 1}}}]}}}}), None);
    }

    #[test]
    fn metadata_is_read_wherever_an_object_has_it() {
        let schema = crate::schema::parse::openapi(&json!({"type": "object", "properties": {"l": {"type": "array",
            "items": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}}));
        let (good, bad) = (json!({"labels": {"a": "b"}}), json!({"labels": {"a": 1}}));
        assert_eq!(metadata_mismatch(&schema, &json!({"metadata": good, "l": [{"metadata": good}]})), None);
        assert!(metadata_mismatch(&schema, &json!({"metadata": bad})).is_some());
        assert_eq!(
            metadata_mismatch(&schema, &json!({"l": [{}, {"metadata": bad}]})).unwrap(),
            "l[1].metadata: Invalid value: {\"labels\":{\"a\":1}}: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"
        );
    }
}
