//! Fields of JSON objects by their paths, with dots between the names.

use serde_json::{Map, Value};

/// What is at `path`, unless it is null.
pub(crate) fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let found = path.split('.').try_fold(object, |object, name| object.get(name))?;
    Some(found).filter(|value| !value.is_null())
}

/// What is at `path`, unless it is what clients send for a field that nobody set.
pub(crate) fn written<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    at(object, path).filter(|value| match value {
        Value::Object(_) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        other => api::unserved::is_set(other),
    })
}

/// The object at `path`, made where there is none.
pub(crate) fn object<'a>(object: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(object, |object, name| {
        if !object.is_object() {
            *object = Value::Object(Map::new());
        }
        &mut object[name]
    })
}

/// Writes `value` at `path`.
pub(crate) fn put(of: &mut Value, path: &str, value: Value) {
    *object(of, path) = value;
}

/// Writes `value` at `path` where nobody wrote anything. What is written may be false or an empty object: both are answers.
pub(crate) fn put_if_open(of: &mut Value, path: &str, value: &Value) {
    let open = at(of, path).is_none_or(|held| held.as_str() == Some(""));
    if open {
        put(of, path, value.clone());
    }
}

/// The entries of the list at `path`.
pub(crate) fn list<'a>(of: &'a mut Value, path: &str) -> impl Iterator<Item = &'a mut Value> {
    let found = path.split('.').try_fold(of, |of, name| of.get_mut(name));
    found.and_then(Value::as_array_mut).into_iter().flatten().filter(|entry| entry.is_object())
}
