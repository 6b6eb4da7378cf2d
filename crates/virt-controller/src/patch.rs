//! The merge patches that statuses are written with. Pure.

use kit::merge_patch;
use meta::text::{STATUS, brief};
use serde::Serialize;
use serde_json::{Value, json};

/// Fields that quote guests, registries and other objects of tenants; statuses are read on terminals.
const QUOTING: [&str; 3] = ["message", "reason", "failureReason"];

/// The fields of the status `new` that differ from `old`, at any depth, and null for those that are gone; none when nothing
/// differs. Lists are sent whole. What is quoted in `new` is made fit for a terminal first.
pub fn changed<T: Serialize>(old: &T, new: &T) -> Option<Value> {
    let mut new = serde_json::to_value(new).ok()?;
    write_out(&mut new);
    merge_patch::difference(&serde_json::to_value(old).ok()?, new)
}

fn write_out(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(write_out),
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if QUOTING.contains(&key.as_str()) => *text = brief(text, STATUS).into_owned(),
                    value => write_out(value),
                }
            }
        }
        _ => {}
    }
}

/// A merge patch of `status` that fails with a conflict when the object has changed since `version`.
pub fn status(version: Option<&str>, status: &Value) -> Value {
    json!({ "metadata": { "resourceVersion": version }, "status": status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_escaped_and_bounded() {
        let evil = "manifest unknown: \x1b[2J\u{202e}";
        let status = |text: &str| {
            json!({
                "conditions": [{ "type": "Ready", "reason": text, "message": text }], "error": { "message": text },
                "migrationState": { "failureReason": text },
            })
        };
        let written = changed(&json!({}), &status(evil)).unwrap();
        assert_eq!(written, status("manifest unknown: \\u001b[2J\\u202e"));
        // As it was written it stays.
        assert_eq!(changed(&written, &status(evil)), None);
        let long = changed(&json!({}), &status(&"x".repeat(1 << 20))).unwrap();
        assert_eq!(long["error"]["message"].as_str().map(str::len), Some(STATUS));
        // Names are what they are.
        assert_eq!(changed(&json!({}), &json!({ "name": evil })), Some(json!({ "name": evil })));
    }
}
