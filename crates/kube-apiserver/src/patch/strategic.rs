//! Strategic merge patch: a merge patch that knows which lists are maps.
//!
//! Guarantees: directives (`$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`) never reach the
//! result; a null removes a field and is never stored; elements absent from the patch keep their relative order.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::schema::{Schema, Type};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// `current` with `patch` merged into it.
pub fn merge(schema: &Schema, current: &Value, patch: &Value) -> Result<Value, ApiError> {
    let (Value::Object(current), Value::Object(patch)) = (current, patch) else {
        return Err(ApiError::bad_request("a strategic merge patch must be an object"));
    };
    let mut result = current.clone();
    merge_map(Some(schema), &mut result, patch)?;
    Ok(Value::Object(result))
}

fn merge_map(
    schema: Option<&Schema>,
    current: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), ApiError> {
    match patch.get(DIRECTIVE).map(|d| d.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            current.clear();
            current.extend(
                patch.iter().filter(|(k, v)| *k != DIRECTIVE && !v.is_null()).map(|(k, v)| (k.clone(), v.clone())),
            );
            return Ok(());
        }
        Some("delete") => {
            current.clear();
            return Ok(());
        }
        Some(_) => return Err(ApiError::bad_request(format!("unknown patch type found: {}", patch[DIRECTIVE]))),
    }
    if let Some(retain) = patch.get(RETAIN_KEYS) {
        retain_keys(current, patch, retain)?;
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            delete_primitives(current, field, value)?;
        }
    }
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        merge_field(schema.and_then(|s| child(s, key)), current, key, value)?;
    }
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(ORDER) {
            let merge_key = schema.and_then(|s| child(s, field)).map_or("", |s| s.patch_merge_key.as_str());
            let order = list(key, order)?;
            if let Some(Value::Array(items)) = current.get_mut(field) {
                sort(items, order, merge_key);
            }
        }
    }
    Ok(())
}

fn merge_field(
    schema: Option<&Schema>,
    current: &mut Map<String, Value>,
    key: &str,
    patch: &Value,
) -> Result<(), ApiError> {
    let strategy = |word: &str| schema.is_some_and(|s| s.patch_strategy.iter().any(|w| w == word));
    match patch {
        Value::Null => {
            current.remove(key);
        }
        Value::Object(patch) if !strategy("replace") => {
            let slot = current.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            if let Value::Object(current) = slot {
                merge_map(schema, current, patch)?;
            }
        }
        Value::Array(patch) if strategy("merge") => {
            let slot = current.entry(key).or_insert_with(|| Value::Array(Vec::new()));
            if !slot.is_array() {
                *slot = Value::Array(Vec::new());
            }
            if let (Value::Array(current), Some(schema)) = (slot, schema) {
                merge_list(schema, current, patch)?;
            }
        }
        _ => {
            current.insert(key.to_owned(), patch.clone());
        }
    }
    Ok(())
}

fn merge_list(schema: &Schema, current: &mut Vec<Value>, patch: &[Value]) -> Result<(), ApiError> {
    let key = schema.patch_merge_key.as_str();
    if key.is_empty() || patch.iter().all(|p| !p.is_object() && !p.is_null()) && schema_of_scalars(schema) {
        for item in patch {
            if !current.contains(item) {
                current.push(item.clone());
            }
        }
        return Ok(());
    }
    let items = schema.items.as_deref();
    let replaced = patch.iter().any(|p| p[DIRECTIVE] == "replace" && p.get(key).is_none());
    if replaced {
        // Taken as it is: only so can a list hold two items with the same key, such as a node's two internal addresses.
        *current = patch.iter().filter(|item| item.get(DIRECTIVE).is_none()).cloned().collect();
        return Ok(());
    }
    for item in patch {
        let Value::Object(map) = item else {
            return Err(ApiError::bad_request(format!("expected an object with the merge key {key}, got {item}")));
        };
        let Some(id) = map.get(key) else {
            if map.contains_key(DIRECTIVE) && map.len() == 1 {
                continue; // the list's own directive
            }
            return Err(ApiError::bad_request(format!("map: {item} does not contain declared merge key: {key}")));
        };
        let found = current.iter().position(|c| c.get(key).is_some_and(|c| same(c, id)));
        if map.get(DIRECTIVE).is_some_and(|d| d == "delete") {
            current.retain(|c| !c.get(key).is_some_and(|c| same(c, id)));
            continue;
        }
        let mut merged = match found.map(|at| std::mem::take(&mut current[at])) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        merge_map(items, &mut merged, map)?;
        match found {
            Some(at) => current[at] = Value::Object(merged),
            None => current.push(Value::Object(merged)),
        }
    }
    Ok(())
}

fn schema_of_scalars(schema: &Schema) -> bool {
    schema.items.as_deref().is_none_or(|items| !matches!(items.type_, Type::Object))
}

/// Merge keys compare as text too: clients write ports both as `80` and as `"80"`.
fn same(a: &Value, b: &Value) -> bool {
    a == b || scalar(a).is_some_and(|a| scalar(b).is_some_and(|b| a == b))
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

fn retain_keys(current: &mut Map<String, Value>, patch: &Map<String, Value>, retain: &Value) -> Result<(), ApiError> {
    let retain = list(RETAIN_KEYS, retain)?;
    let kept = |key: &str| retain.iter().any(|r| r == key);
    if let Some(stray) = patch.keys().find(|key| !key.starts_with('$') && !kept(key) && !patch[key.as_str()].is_null())
    {
        return Err(ApiError::bad_request(format!("{stray} is set by the patch but missing in its $retainKeys list")));
    }
    current.retain(|key, _| kept(key));
    Ok(())
}

fn delete_primitives(current: &mut Map<String, Value>, field: &str, doomed: &Value) -> Result<(), ApiError> {
    let doomed = list(field, doomed)?;
    if let Some(Value::Array(items)) = current.get_mut(field) {
        items.retain(|item| !doomed.contains(item));
    }
    Ok(())
}

/// Brings `items` into the order the patch asks for. Elements the patch does not know stay before the listed element
/// which they preceded, else go to the end.
fn sort(items: &mut Vec<Value>, order: &[Value], merge_key: &str) {
    let id = |value: &Value| {
        if value.is_object() { value.get(merge_key).cloned().unwrap_or_default() } else { value.clone() }
    };
    let order: Vec<Value> = order.iter().map(id).collect();
    let live: Vec<Value> = items.iter().map(id).collect();
    let mut listed = Vec::new();
    let mut others = Vec::new();
    for (at, item) in std::mem::take(items).into_iter().enumerate() {
        if order.iter().any(|o| same(o, &live[at])) { listed.push((at, item)) } else { others.push((at, item)) }
    }
    listed.sort_by_key(|(at, _)| order.iter().position(|o| same(o, &live[*at])));
    let mut others = others.into_iter().peekable();
    for (at, item) in listed {
        while let Some((_, other)) = others.next_if(|(other, _)| *other < at) {
            items.push(other);
        }
        items.push(item);
    }
    items.extend(others.map(|(_, item)| item));
}

fn child<'a>(schema: &'a Schema, key: &str) -> Option<&'a Schema> {
    schema.properties.get(key).or(schema.additional.as_ref()).map(|schema| &**schema)
}

fn list<'a>(what: &str, value: &'a Value) -> Result<&'a [Value], ApiError> {
    value
        .as_array()
        .map(Vec::as_slice)
        .ok_or_else(|| ApiError::bad_request(format!("{what} must be a list, got {value}")))
}

#[cfg(test)]
#[path = "strategic/tests.rs"]
mod tests;
