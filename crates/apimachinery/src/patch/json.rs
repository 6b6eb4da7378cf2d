//! JSON patch (RFC 6902) within bounds.
//!
//! Guarantees: all operations apply or none; the result nests at most [`DEPTH`] levels; operations that copy within the
//! object add at most [`COPIED`] bytes to it, so that a short patch cannot double an object over and over.

use json_patch::{Patch, PatchErrorKind, PatchOperation};
use serde_json::Value;

use crate::error::ApiError;

/// Levels of lists and maps in an object at most.
pub const DEPTH: usize = 100;
/// Operations of one patch at most.
pub const OPERATIONS: usize = 10_000;
/// Bytes of JSON which `copy` operations of one patch may add.
pub const COPIED: usize = 3 << 20;

/// Reads a patch; the error names the operation that is not one.
pub fn decode(document: Value) -> Result<Patch, ApiError> {
    let Value::Array(operations) = document else {
        return Err(ApiError::bad_request("error decoding patch: a JSON patch must be a list of operations"));
    };
    if operations.len() > OPERATIONS {
        return Err(ApiError::new(
            413,
            "RequestEntityTooLarge",
            format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {OPERATIONS}, got {}",
                operations.len()
            ),
        ));
    }
    let operation = |(index, mut operation): (usize, Value)| {
        // What says no value sets none.
        if matches!(operation["op"].as_str(), Some("add" | "replace" | "test")) && operation.get("value").is_none() {
            operation["value"] = Value::Null;
        }
        for field in ["path", "from"] {
            if let Some(path) = operation.get_mut(field) {
                rooted(path);
            }
        }
        serde_json::from_value(operation).map_err(|error| {
            let text = format!(
                "the server rejected our request due to an error in our request: operation {index} of the JSON patch: {error}"
            );
            ApiError::new(422, "Invalid", text)
        })
    };
    operations.into_iter().enumerate().map(operation).collect::<Result<_, _>>().map(Patch)
}

/// As in Kubernetes, what precedes the first slash of a path counts for nothing.
fn rooted(path: &mut Value) {
    if let Some((_, rest)) = path.as_str().and_then(|path| path.split_once('/')) {
        *path = format!("/{rest}").into();
    }
}

/// `current` with `patch` applied to it.
pub fn apply(current: &Value, patch: &Patch) -> Result<Value, ApiError> {
    attempt(current, patch).map_err(|stop| match stop {
        Stop::Refuted(error) | Stop::Failed(error) => error,
    })
}

/// The same, but nothing where a `test` does not hold.
pub fn apply_if_tests_hold(current: &Value, patch: &Patch) -> Result<Option<Value>, ApiError> {
    match attempt(current, patch) {
        Ok(new) => Ok(Some(new)),
        Err(Stop::Refuted(_)) => Ok(None),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// Why a patch was not applied.
enum Stop {
    /// A `test` does not hold.
    Refuted(ApiError),
    Failed(ApiError),
}

fn attempt(current: &Value, patch: &Patch) -> Result<Value, Stop> {
    let mut new = current.clone();
    let mut copied = 0;
    for (index, operation) in patch.iter().enumerate() {
        if is_test_of_nothing(&new, operation) {
            continue;
        }
        bound(&new, operation, &mut copied).map_err(Stop::Failed)?;
        if replace_nothing(&mut new, operation) {
            continue;
        }
        json_patch::patch_unsafe(&mut new, std::slice::from_ref(operation)).map_err(|error| {
            let text = format!(
                "the server rejected our request due to an error in our request: operation {index} of the JSON patch, {}: {}",
                name(operation),
                error.kind
            );
            let refuted = matches!(error.kind, PatchErrorKind::TestFailed) || tests_a_member(&new, operation);
            let error = ApiError::new(422, "Invalid", text);
            if refuted { Stop::Refuted(error) } else { Stop::Failed(error) }
        })?;
    }
    Ok(new)
}

/// As in Kubernetes, a test for null holds where nothing is.
fn is_test_of_nothing(document: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    test.value.is_null() && document.pointer(test.path.as_str()).is_none_or(Value::is_null)
}

/// As in Kubernetes, a test for something does not hold where a member is missing.
fn tests_a_member(document: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let parent = test.path.as_str().rsplit_once('/').map(|(parent, _)| parent);
    parent.is_some_and(|parent| document.pointer(parent).is_some())
}

/// As in Kubernetes, replacing a member that an object does not have sets it.
fn replace_nothing(document: &mut Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Replace(replace) = operation else { return false };
    let Some((parent, member)) = replace.path.as_str().rsplit_once('/') else { return false };
    let Some(Value::Object(map)) = document.pointer_mut(parent) else { return false };
    let member = member.replace("~1", "/").replace("~0", "~");
    if map.contains_key(&member) {
        return false;
    }
    map.insert(member, replace.value.clone());
    true
}

fn name(operation: &PatchOperation) -> String {
    let word = match operation {
        PatchOperation::Add(_) => "add",
        PatchOperation::Remove(_) => "remove",
        PatchOperation::Replace(_) => "replace",
        PatchOperation::Move(_) => "move",
        PatchOperation::Copy(_) => "copy",
        PatchOperation::Test(_) => "test",
    };
    format!("{word} {:?}", operation.path().as_str())
}

/// Refuses an operation whose outcome would nest too deeply or copy too much.
fn bound(document: &Value, operation: &PatchOperation, copied: &mut usize) -> Result<(), ApiError> {
    let nothing = Value::Null;
    let put = match operation {
        PatchOperation::Add(add) => &add.value,
        PatchOperation::Replace(replace) => &replace.value,
        PatchOperation::Move(from) => document.pointer(from.from.as_str()).unwrap_or(&nothing),
        PatchOperation::Copy(copy) => {
            let source = document.pointer(copy.from.as_str()).unwrap_or(&nothing);
            *copied = copied.saturating_add(source.to_string().len());
            if *copied > COPIED {
                let text = format!(
                    "Request entity too large: the copy operations of a JSON patch may add {COPIED} bytes at most"
                );
                return Err(ApiError::new(413, "RequestEntityTooLarge", text));
            }
            source
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    if operation.path().as_str().matches('/').count() + depth(put) > DEPTH {
        let text = format!(
            "the JSON patch nests the object too deeply with {}: at most {DEPTH} levels are accepted",
            name(operation)
        );
        return Err(ApiError::bad_request(text));
    }
    Ok(())
}

/// Levels of lists and maps in a value.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replacing_a_member_that_is_not_there_sets_it() {
        let replace = |path: &str| json!([{"op": "replace", "path": path, "value": 1}]);
        assert_eq!(patched(json!({"a": {}}), replace("/a/b~1c")).unwrap(), json!({"a": {"b/c": 1}}));
        assert_eq!(patched(json!({"a": {}}), replace("/x/b")).unwrap_err().code, 422);
        assert_eq!(patched(json!({"a": [0]}), replace("/a/1")).unwrap_err().code, 422);
        assert_eq!(patched(json!({}), json!([{"op": "remove", "path": "/a"}])).unwrap_err().code, 422);
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn patched(current: Value, patch: Value) -> Result<Value, ApiError> {
        apply(&current, &decode(patch)?)
    }

    #[track_caller]
    fn check_refused(current: Value, patch: Value, code: u16, words: &str) {
        let error = patched(current, patch).unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(words), "{error}");
    }

    #[test]
    fn operations_apply_in_order() {
        let patch = json!([
            {"op": "test", "path": "/a", "value": 1},
            {"op": "move", "from": "/a", "path": "/b"},
            {"op": "copy", "from": "/b", "path": "/l/-"},
            {"op": "remove", "path": "/b"},
        ]);
        assert_eq!(patched(json!({"a": 1, "l": []}), patch).unwrap(), json!({"l": [1]}));
    }

    #[test]
    fn a_path_begins_with_its_first_slash() {
        assert_eq!(patched(json!({}), json!([{"op": "add", "path": "data/q", "value": 1}])).unwrap(), json!({"q": 1}));
        check_refused(json!({}), json!([{"op": "add", "path": "q", "value": 1}]), 422, "operation 0");
    }

    #[test]
    fn a_refusal_names_the_operation() {
        let test = json!([{"op": "add", "path": "/b", "value": 1}, {"op": "test", "path": "/a", "value": 2}]);
        check_refused(json!({"a": 1}), test, 422, r#"operation 1 of the JSON patch, test "/a": "#);
        check_refused(json!({}), json!([{"op": "remove", "path": "/x/y"}]), 422, r#"remove "/x/y""#);
        check_refused(json!({}), json!([{"op": "explode", "path": "/x"}]), 422, "operation 0");
        check_refused(json!({}), json!({"op": "add"}), 400, "must be a list");
    }

    #[test]
    fn operations_are_counted() {
        let patch = |count: usize| Value::Array(vec![json!({"op": "test", "path": "/a", "value": 1}); count]);
        assert!(patched(json!({"a": 1}), patch(OPERATIONS)).is_ok());
        check_refused(json!({"a": 1}), patch(OPERATIONS + 1), 413, "10000, got 10001");
    }

    #[test]
    fn copies_of_copies_end() {
        let mut patch = vec![json!({"op": "add", "path": "/0", "value": ["x".repeat(100)]})];
        patch.extend((0..60).map(|n| json!({"op": "copy", "from": format!("/{n}"), "path": format!("/{n}/-")})));
        check_refused(json!({}), Value::Array(patch), 422, "copy");
        let doubling = vec![json!({"op": "copy", "from": "", "path": "/a/-"}); 60];
        check_refused(json!({"a": ["x".repeat(100)]}), Value::Array(doubling), 413, "3145728 bytes");
    }

    #[test]
    fn nesting_ends() {
        let deeper = |path: String| json!({"op": "add", "path": path, "value": {}});
        let patch: Vec<Value> = (1..=DEPTH).map(|n| deeper("/a".repeat(n))).collect();
        check_refused(json!({}), Value::Array(patch), 400, "at most 100 levels");
        let patch: Vec<Value> = (1..DEPTH).map(|n| deeper("/a".repeat(n))).collect();
        assert_eq!(depth(&patched(json!({}), Value::Array(patch)).unwrap()), DEPTH);
    }
}
