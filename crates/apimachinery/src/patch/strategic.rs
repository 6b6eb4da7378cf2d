//! Strategic merge patch: a merge patch that knows which lists are maps.
//!
//! Guarantees: directives (`$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`) never reach the
//! result; a null removes a field and is never stored; elements absent from the patch keep their relative order, and what is
//! new comes before those of them which nothing else places.

use std::collections::HashMap;

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
        Some(_) => return Err(unmergeable(format!("unknown patch type found: {}", patch[DIRECTIVE]))),
    }
    if let Some(retain) = patch.get(RETAIN_KEYS) {
        retain_keys(current, patch, retain)?;
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            delete_primitives(current, field, value)?;
        }
    }
    let orders = orders(schema, current, patch)?;
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        merge_field(schema.and_then(|s| child(s, key)), current, key, value)?;
    }
    for (field, order) in orders {
        if let Some(Value::Array(items)) = current.get_mut(field) {
            order.arrange(items);
        }
    }
    Ok(())
}

/// A patch that does not fit its list or map, with the code that Kubernetes answers with.
fn unmergeable(text: impl Into<String>) -> ApiError {
    ApiError::new(500, "", text)
}

/// The orders a patch asks for, by field.
fn orders<'p>(
    schema: Option<&Schema>,
    current: &Map<String, Value>,
    patch: &'p Map<String, Value>,
) -> Result<Vec<(&'p str, Order)>, ApiError> {
    let asked = patch.iter().filter_map(|(key, order)| Some((key, key.strip_prefix(ORDER)?, order)));
    let order = |(key, field, order): (&'p String, &'p str, &Value)| {
        let merge_key = schema.and_then(|s| child(s, field)).map_or("", |s| s.patch_merge_key.as_str());
        let before = current.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let order = list(key, order)?;
        if let Some(Value::Array(listed)) = patch.get(field) {
            check_order(listed, order, merge_key)?;
        }
        Ok((field, Order::new(before, order, merge_key)))
    };
    asked.map(order).collect()
}

/// What a patch puts into a list must come in the order which it asks for.
fn check_order(listed: &[Value], order: &[Value], merge_key: &str) -> Result<(), ApiError> {
    let mut rest = order.iter().map(|item| identity(item, merge_key));
    let mut put = listed.iter().filter(|item| item.get(DIRECTIVE).is_none_or(|directive| directive == "merge"));
    if put.all(|item| rest.any(|id| id == identity(item, merge_key))) {
        return Ok(());
    }
    let (listed, order) = (Value::from(listed), Value::from(order));
    Err(unmergeable(format!("The order in patch list:\n{listed}\n doesn't match $setElementOrder list:\n{order}\n")))
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
    let order = Order::new(current, patch, key);
    if key.is_empty() || patch.iter().all(|p| !p.is_object() && !p.is_null()) && schema_of_scalars(schema) {
        for item in patch {
            if !current.contains(item) {
                current.push(item.clone());
            }
        }
        order.arrange(current);
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
            return Err(unmergeable(format!("expected an object with the merge key {key}, got {item}")));
        };
        let Some(id) = map.get(key) else {
            if map.contains_key(DIRECTIVE) && map.len() == 1 {
                continue; // the list's own directive
            }
            return Err(unmergeable(format!("map: {item} does not contain declared merge key: {key}")));
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
    order.arrange(current);
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
    let retain = retain.as_array().ok_or_else(|| ApiError::bad_request("invalid patch format of retainKeys"))?;
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

/// Where the elements of a merged list belong.
struct Order {
    merge_key: String,
    /// Place before the patch, by identity.
    before: HashMap<String, usize>,
    /// Place in the patch, by identity.
    listed: HashMap<String, usize>,
}

impl Order {
    fn new(before: &[Value], listed: &[Value], merge_key: &str) -> Self {
        let places = |items: &[Value]| {
            let mut places = HashMap::new();
            for (at, item) in items.iter().enumerate() {
                places.entry(identity(item, merge_key)).or_insert(at);
            }
            places
        };
        Self { merge_key: merge_key.to_owned(), before: places(before), listed: places(listed) }
    }

    /// Elements the patch lists come in its order. The others, in theirs, come before a listed element only if they came
    /// before it already: what is new goes to the front of those which nothing else places.
    fn arrange(&self, items: &mut Vec<Value>) {
        let (mut listed, mut others) = (Vec::new(), Vec::new());
        for item in std::mem::take(items) {
            let id = identity(&item, &self.merge_key);
            let before = self.before.get(&id).copied();
            match self.listed.get(&id) {
                Some(at) => listed.push((*at, before, item)),
                None => others.push((before, item)),
            }
        }
        listed.sort_by_key(|(at, _, _)| *at);
        others.sort_by_key(|(before, _)| before.unwrap_or(usize::MAX));
        let mut others = others.into_iter().peekable();
        for (_, before, item) in listed {
            if let Some(place) = before {
                let preceded = |(before, _): &(Option<usize>, Value)| before.is_some_and(|other| other < place);
                items.extend(std::iter::from_fn(|| others.next_if(preceded)).map(|(_, other)| other));
            }
            items.push(item);
        }
        items.extend(others.map(|(_, item)| item));
    }
}

/// The text by which an element is told apart from others of its list.
fn identity(item: &Value, merge_key: &str) -> String {
    let id = if item.is_object() { item.get(merge_key).unwrap_or(&Value::Null) } else { item };
    scalar(id).unwrap_or_else(|| id.to_string())
}

fn child<'a>(schema: &'a Schema, key: &str) -> Option<&'a Schema> {
    schema.properties.get(key).or(schema.additional.as_ref()).map(|schema| &**schema)
}

fn list<'a>(what: &str, value: &'a Value) -> Result<&'a [Value], ApiError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| unmergeable(format!("{what} must be a list, got {value}")))
}

#[cfg(test)]
#[path = "strategic/tests.rs"]
mod tests;
