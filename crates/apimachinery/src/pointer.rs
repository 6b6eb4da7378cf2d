//! What stands at a JSON pointer of an object.

use serde_json::Value;

/// The string at a JSON pointer, empty when absent.
#[inline]
#[must_use]
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a JSON pointer, empty when absent.
#[inline]
#[must_use]
pub fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The strings of a list at a JSON pointer.
pub fn strings(value: &Value, pointer: &str) -> Vec<String> {
    items(value, pointer).iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}
