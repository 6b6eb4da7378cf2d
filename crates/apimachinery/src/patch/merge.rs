//! Merging by the rules of server-side apply, without owners: how admission policies change objects.

use serde_json::Value;

use super::check;
use super::typed::{Node, overlay};
use crate::schema::Schema;

/// `live` with the fields of `patch` laid over it. What a list or map that is one field as a whole would lose by that
/// nobody meant to lose: such fields cannot be merged.
///
/// # Errors
/// A sentence that names the fields which are not declared, have another type or are atomic.
pub fn merge(schema: &Schema, live: &Value, patch: &Value) -> Result<Value, String> {
    let root = Node::root(schema);
    if let Some(why) = check::refusal(root, patch) {
        return Err(format!("failed to convert patch object to typed object: {why}"));
    }
    let mut found = Vec::new();
    atomics(root, patch, &mut String::new(), &mut found);
    if !found.is_empty() {
        let listed = found.join(", ");
        return Err(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {listed}"));
    }
    let mut merged = live.clone();
    overlay(root, &mut merged, patch);
    Ok(merged)
}

/// Notes the paths of all that is atomic in a patch.
fn atomics(node: Node<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    if node.is_atomic(value) {
        found.push(path.clone());
        return;
    }
    let length = path.len();
    match value {
        Value::Object(map) => {
            // The values of a map are replaced one by one, which is what is meant.
            for (key, value) in map.iter().filter(|(key, _)| node.declares(key) || *key == "metadata") {
                path.push('.');
                path.push_str(key);
                atomics(node.child(key), value, path, found);
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                atomics(node.items(), item, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(live: Value, patch: Value, expect: Result<Value, &str>) {
        let pods = builtin::schema("", "v1", "Pod").unwrap();
        assert_eq!(merge(&pods, &live, &patch), expect.map_err(str::to_owned), "{patch}");
    }

    #[test]
    fn keyed_lists_merge_and_atomic_ones_are_refused() {
        check(
            json!({"metadata": {"name": "p", "labels": {"a": "1"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
            json!({"metadata": {"labels": {"b": "2"}}, "spec": {"containers": [{"name": "c", "tty": true}, {"name": "d"}]}}),
            Ok(json!({"metadata": {"name": "p", "labels": {"a": "1", "b": "2"}},
                "spec": {"containers": [{"name": "c", "image": "i", "tty": true}, {"name": "d"}]}})),
        );
        check(
            json!({}),
            json!({"spec": {"containers": [{"name": "c", "args": ["x"]}], "nodeSelector": {"a": "b"}}}),
            Err(
                "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.containers[0].args, .spec.nodeSelector",
            ),
        );
    }

    #[test]
    fn unknown_fields_of_a_patch_are_refused_by_name() {
        check(
            json!({}),
            json!({"spec": {"nope": 1}}),
            Err("failed to convert patch object to typed object: .spec.nope: field not declared in schema"),
        );
        check(
            json!({}),
            json!({"spec": {"hostNetwork": "yes"}}),
            Err("failed to convert patch object to typed object: .spec.hostNetwork: expected boolean, got \"yes\""),
        );
    }
}
