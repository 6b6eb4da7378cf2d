//! The form in which shipped kinds are stored: what reading a value into the kind's type and writing it again makes of it.

mod empty;

use serde_json::{Map, Value};

use super::{Schema, Type};

/// Where a type contains itself, the schema ends; what is below is of that type still. Of anything else that is not known, nulls
/// stay.
fn of_its_own_type(schema: &Schema, map: &mut Map<String, Value>) {
    if super::types::short(&schema.type_name).starts_with("JSONSchemaProps") {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(nulls);
    }
}

/// Reads nulls as a typed decoder does: of a field it means that the field is not set, in a map or a list it is the value
/// that is empty.
pub fn decode(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) if schema.preserve_unknown => of_its_own_type(schema, map),
        Value::Object(map) => {
            map.retain(|key, value| !value.is_null() || !schema.properties.contains_key(key) && zero(schema).is_some());
            for (key, value) in map {
                let Some(of) = schema.properties.get(key).or(schema.additional.as_ref()) else { continue };
                entry(of, value);
            }
        }
        Value::Array(items) => {
            let Some(of) = &schema.items else { return };
            items.iter_mut().for_each(|item| entry(of, item));
        }
        _ => {}
    }
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

fn entry(of: &Schema, value: &mut Value) {
    match value {
        Value::Null => *value = empty_of(of).unwrap_or_default(),
        _ => decode(of, value),
    }
}

/// What a null entry of a map stands for.
fn zero(schema: &Schema) -> Option<Value> {
    empty_of(schema.additional.as_deref()?)
}

fn empty_of(schema: &Schema) -> Option<Value> {
    match schema.type_ {
        _ if is(schema, "Quantity") => Some("0".into()),
        Type::String => Some("".into()),
        Type::Object if !schema.properties.is_empty() => Some(Map::new().into()),
        Type::Integer => Some(0.into()),
        Type::Boolean => Some(false.into()),
        _ => None,
    }
}

fn is(schema: &Schema, name: &str) -> bool {
    super::types::short(&schema.type_name) == name
}

/// Writes quantities and times in their one form, and leaves out what is optional and empty.
pub fn settle(schema: &Schema, value: &mut Value) {
    match value {
        Value::String(_) | Value::Number(_) => {
            if let Some(text) = scalar(schema, value) {
                *value = text.into();
            }
        }
        Value::Object(_) if schema.preserve_unknown => {}
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match (schema.properties.get(key), &schema.additional) {
                    (Some(of), _) => settle(of, value),
                    (None, Some(of)) => {
                        // Amounts of resources are in thousandths at the finest.
                        if is(of, "Quantity") {
                            thousandths(value);
                        }
                        settle(of, value);
                    }
                    (None, None) => {}
                }
            }
            if !schema.properties.is_empty() {
                let type_name = schema.type_name.as_str();
                map.retain(|key, value| {
                    let optional = !schema.required.contains(key);
                    let of = schema.properties.get(key).filter(|_| optional);
                    of.is_none_or(|of| !empty::goes(type_name, key, of, value))
                });
                for field in empty::written_as_null(type_name) {
                    let value = map.entry(*field).or_insert(Value::Null);
                    if value.as_array().is_some_and(Vec::is_empty) {
                        *value = Value::Null;
                    }
                }
                for field in empty::written_as_text(type_name) {
                    map.entry(*field).or_insert_with(|| "".into());
                }
                for field in empty::written_as_object(type_name) {
                    map.entry(*field).or_insert_with(|| Map::new().into());
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = &schema.items {
                items.iter_mut().for_each(|item| settle(of, item));
            }
        }
        _ => {}
    }
}

/// Rounds a quantity up to thousandths, where it is finer.
fn thousandths(quantity: &mut Value) {
    const MILLI: i128 = 1_000_000;
    let nanos = quantity.as_str().and_then(meta::quantity::nanos);
    if let Some(nanos) = nanos.filter(|nanos| nanos % MILLI != 0) {
        *quantity = format!("{}m", nanos.div_euclid(MILLI) + 1).into();
    }
}

/// The one form of a quantity, a time or bytes; None where the value has it already.
fn scalar(schema: &Schema, value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let written = match super::types::short(&schema.type_name) {
        "Quantity" => meta::quantity::canonical(&text)?,
        "Time" => time(&text, "%Y-%m-%dT%H:%M:%SZ")?,
        "MicroTime" => time(&text, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        _ if schema.format == "byte" && text.contains(['\r', '\n']) => text.replace(['\r', '\n'], ""),
        _ => return None,
    };
    (value.as_str() != Some(&written)).then_some(written)
}

fn time(text: &str, format: &str) -> Option<String> {
    Some(text.parse::<jiff::Timestamp>().ok()?.strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(kind: &str, mut object: Value, expect: Value) {
        let schema = builtin::schema("", "v1", kind).unwrap();
        decode(&schema, &mut object);
        settle(&schema, &mut object);
        assert_eq!(object, expect);
    }

    #[test]
    fn null_is_no_value_of_a_field_and_an_empty_one_of_a_map() {
        check("ConfigMap", json!({"data": {"a": null}, "binaryData": null}), json!({"data": {"a": ""}}));
        check(
            "Service",
            json!({"spec": {"externalIPs": ["1.2.3.4", null], "type": null}}),
            json!({"spec": {"externalIPs": ["1.2.3.4", ""]}}),
        );
    }

    #[test]
    fn empty_optional_fields_are_not_stored() {
        check("ConfigMap", json!({"data": {}, "immutable": false}), json!({"immutable": false}));
        check(
            "Service",
            json!({"spec": {"publishNotReadyAddresses": false, "ports": [], "clusterIP": "", "loadBalancerClass": ""}}),
            json!({"spec": {"loadBalancerClass": ""}}),
        );
        check(
            "PersistentVolumeClaim",
            json!({"spec": {"storageClassName": "", "volumeName": "", "resources": {}}}),
            json!({"spec": {"storageClassName": "", "resources": {}}}),
        );
    }

    #[test]
    fn quantities_and_times_have_one_form() {
        let size = |size: Value| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        check("PersistentVolumeClaim", size(json!("0.5Gi")), size(json!("512Mi")));
        check("PersistentVolumeClaim", size(json!(1000)), size(json!("1k")));
        check("PersistentVolumeClaim", size(json!("1u")), size(json!("1m")));
        check("PersistentVolumeClaim", size(json!("1000001u")), size(json!("1001m")));
        check(
            "Event",
            json!({"firstTimestamp": "2020-01-01T01:00:00+01:00", "eventTime": "2020-01-01T00:00:00.5Z"}),
            json!({"firstTimestamp": "2020-01-01T00:00:00Z", "eventTime": "2020-01-01T00:00:00.500000Z",
                "lastTimestamp": null, "reportingComponent": "", "reportingInstance": "", "source": {}}),
        );
    }
}
