//! What a patch of a status has to say.

use serde_json::{Map, Value};

/// Fields that changed, with null for those that went away.
pub(super) fn difference(before: &Value, after: &Value) -> Map<String, Value> {
    let empty = Map::new();
    let (before, after) = (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
    let mut out: Map<String, Value> = after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    out.extend(before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_changed_is_written() {
        let before = json!({"phase": "Scheduled", "nodeName": "n", "reason": "x"});
        let after = json!({"phase": "Running", "nodeName": "n", "machine": {"type": "q35"}});
        let expect = json!({"phase": "Running", "machine": {"type": "q35"}, "reason": null});
        assert_eq!(Value::Object(difference(&before, &after)), expect);
    }
}
