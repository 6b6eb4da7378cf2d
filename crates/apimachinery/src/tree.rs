//! Reading and setting parts of an object.

use serde_json::{Map, Value};

/// The strings in a list; whatever else is in it, or is no list, has none.
pub fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Sets `key` unless it has a value; an empty string is none.
#[inline]
pub fn set(object: &mut Value, key: &str, value: impl Into<Value>) {
    let unset = match object.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if unset && object.is_object() {
        object[key] = value.into();
    }
}

/// The same where an empty string is a value, though a wrong one.
pub fn set_missing(object: &mut Value, key: &str, value: impl Into<Value>) {
    if object.get(key).is_none_or(Value::is_null) && object.is_object() {
        object[key] = value.into();
    }
}

/// A child object, made if missing.
#[inline]
pub fn child<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let child = &mut object[key];
    if !child.is_object() {
        *child = Value::Object(Map::new());
    }
    child
}

/// The items of a list field, none when it is missing.
#[inline]
pub fn each<'a>(object: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}
