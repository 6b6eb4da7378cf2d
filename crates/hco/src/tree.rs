//! Fields of JSON by dotted paths, such as `deployment.nodePlacements.infra`. Pure.

use serde_json::{Map, Value};

/// The field at `path`.
pub(crate) fn get<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |at, key| at.get(key))
}

/// Takes the field at `path` out, and the objects around it that have no other field.
pub(crate) fn take(tree: &mut Value, path: &str) -> Option<Value> {
    let fields = tree.as_object_mut()?;
    match path.split_once('.') {
        None => fields.remove(path),
        Some((first, rest)) => {
            let inner = fields.get_mut(first)?;
            let taken = take(inner, rest)?;
            if inner.as_object().is_some_and(Map::is_empty) {
                fields.remove(first);
            }
            Some(taken)
        }
    }
}

/// Puts `value` at `path`; what is in the way and no object is replaced.
pub(crate) fn put(tree: &mut Value, path: &str, value: Value) {
    if !tree.is_object() {
        *tree = Value::Object(Map::new());
    }
    let Some(fields) = tree.as_object_mut() else { return };
    match path.split_once('.') {
        None => drop(fields.insert(path.to_owned(), value)),
        Some((first, rest)) => put(fields.entry(first).or_insert(Value::Null), rest, value),
    }
}

/// [`put`], where there is a value.
pub(crate) fn put_some(tree: &mut Value, path: &str, value: Option<Value>) {
    if let Some(value) = value.filter(|value| !value.is_null()) {
        put(tree, path, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_taken_leaves_no_empty_objects() {
        let mut tree = json!({ "a": { "b": { "c": 1 } }, "d": {}, "e": { "f": 1, "g": 2 } });
        assert_eq!(take(&mut tree, "a.b.c"), Some(json!(1)));
        assert_eq!(take(&mut tree, "e.f"), Some(json!(1)));
        assert_eq!(take(&mut tree, "e.x"), None);
        assert_eq!(tree, json!({ "d": {}, "e": { "g": 2 } }));
    }

    #[test]
    fn what_is_put_is_found() {
        let mut tree = json!({ "a": 1 });
        put(&mut tree, "a.b", json!(2));
        put(&mut tree, "c", json!(3));
        assert_eq!(tree, json!({ "a": { "b": 2 }, "c": 3 }));
        assert_eq!(get(&tree, "a.b"), Some(&json!(2)));
    }
}
