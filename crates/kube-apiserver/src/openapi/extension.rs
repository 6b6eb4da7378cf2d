//! The parts of extension servers in our documents. Pure.
//!
//! ```text
//! what a server says ─ its own paths, what they refer to, checked ─> Part ─ names that clash are changed ─> /openapi/v2
//! ```
//! Guarantees: nothing that an extension server says replaces or changes what another says, or what is said here; a client that
//! reads the whole can read it if it could without.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::digest;

const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
const KIND: &str = "x-kubernetes-group-version-kind";

/// What is kept of a server's document; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// As JSON.
    pub text: Arc<str>,
    /// Of the text.
    pub hash: String,
}

impl Part {
    fn of(document: &Value) -> Self {
        let text = document.to_string();
        Self { hash: digest(text.as_bytes()), text: text.into() }
    }
}

/// Bytes of shared parameters that are written where they are used.
const SHARED: usize = 4 << 20;

/// Why a document is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// Something in it is not what it is to be.
    #[error("{0} is not as OpenAPI has it")]
    Shape(String),
    /// It refers to what is not there.
    #[error("{0:?} is referred to and is not there")]
    Dangling(String),
    /// Written out, it is too much.
    #[error("its shared parameters are used too often")]
    Large,
}

/// What a server's Swagger says of `group` and `version`: its paths, and the definitions that they need.
///
/// # Errors
/// When that cannot be read by every client.
pub fn v2(mut document: Value, group: &str, version: &str) -> Result<Part, Unsound> {
    let mut paths = own_paths(&mut document, group, version)?;
    let mut room = SHARED;
    for (path, item) in &mut paths {
        resolve_parameters(item, &document["parameters"], &mut room)?;
        if !is_item(item) {
            return Err(Unsound::Shape(format!("paths[{path:?}]")));
        }
        disown(item, group);
    }
    let mut definitions = Map::new();
    let mut wanted = BTreeSet::new();
    paths.values().for_each(|item| references(item, &mut wanted));
    while let Some(name) = wanted.pop_first() {
        if definitions.contains_key(&name) {
            continue;
        }
        let Some(mut schema) = document["definitions"].get_mut(&name).map(Value::take) else {
            return Err(Unsound::Dangling(name));
        };
        if !is_schema(&schema) {
            return Err(Unsound::Shape(format!("definitions[{name:?}]")));
        }
        disown(&mut schema, group);
        references(&schema, &mut wanted);
        definitions.insert(name, schema);
    }
    Ok(Part::of(&json!({"paths": paths, "definitions": definitions})))
}

/// What a server's OpenAPI 3 document of `group` and `version` says of it.
///
/// # Errors
/// When it is none.
pub fn v3(mut document: Value, group: &str, version: &str) -> Result<Part, Unsound> {
    if !document["openapi"].as_str().is_some_and(|dialect| dialect.starts_with("3.")) {
        return Err(Unsound::Shape("openapi".to_owned()));
    }
    let paths = own_paths(&mut document, group, version)?;
    if let Some(path) = paths.iter().find_map(|(path, item)| (!item.is_object()).then_some(path)) {
        return Err(Unsound::Shape(format!("paths[{path:?}]")));
    }
    let components = document["components"].take();
    if !(components.is_null() || components.is_object()) {
        return Err(Unsound::Shape("components".to_owned()));
    }
    let info = Some(document["info"].take()).filter(Value::is_object).unwrap_or_else(super::info);
    let components = Some(components).filter(Value::is_object).unwrap_or_else(|| json!({}));
    Ok(Part::of(&json!({"openapi": document["openapi"], "info": info, "paths": paths, "components": components})))
}

/// Adds a part that [`v2`] made to our document. A definition whose name means something else here gets another one.
pub(super) fn join(into: &mut Value, part: &Part) {
    let Ok(Value::Object(mut part)) = serde_json::from_str(&part.text) else { return };
    let Some(Value::Object(theirs)) = part.remove("definitions") else { return };
    let Some(Value::Object(mut paths)) = part.remove("paths") else { return };
    let Some(ours) = into["definitions"].as_object_mut() else { return };
    let mut renamed = Map::new();
    for (name, schema) in &theirs {
        if ours.get(name).is_some_and(|known| known != schema) {
            let taken = |name: &String| ours.contains_key(name) || theirs.contains_key(name);
            let free = (2_u32..).map(|number| format!("{name}_v{number}")).find(|name| !taken(name));
            renamed.insert(name.clone(), free.into());
        }
    }
    for (name, mut schema) in theirs {
        rename(&mut schema, &renamed);
        let name = renamed.get(&name).and_then(Value::as_str).map_or(name.clone(), str::to_owned);
        ours.entry(name).or_insert(schema);
    }
    for item in paths.values_mut() {
        rename(item, &renamed);
    }
    if let Some(ours) = into["paths"].as_object_mut() {
        for (path, item) in paths {
            ours.entry(path).or_insert(item);
        }
    }
}

/// Takes the paths below `/apis/GROUP/VERSION` out of a document: those that are delegated to who wrote it.
fn own_paths(document: &mut Value, group: &str, version: &str) -> Result<Map<String, Value>, Unsound> {
    if !document.is_object() {
        return Err(Unsound::Shape("the document".to_owned()));
    }
    let base = format!("/apis/{group}/{version}");
    let own = |path: &str| path.strip_prefix(&base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match document["paths"].take() {
        Value::Object(paths) => Ok(paths.into_iter().filter(|(path, _)| own(path)).collect()),
        Value::Null => Ok(Map::new()),
        _ => Err(Unsound::Shape("paths".to_owned())),
    }
}

/// Writes shared parameters where they are used, while there is `room`.
fn resolve_parameters(item: &mut Value, shared: &Value, room: &mut usize) -> Result<(), Unsound> {
    let Some(item) = item.as_object_mut() else { return Ok(()) };
    let lists = item.iter_mut().filter_map(|(key, value)| match key.as_str() {
        "parameters" => Some(value),
        method if METHODS.contains(&method) => value.get_mut("parameters"),
        _ => None,
    });
    for parameter in lists.filter_map(Value::as_array_mut).flatten() {
        let name = parameter.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(PARAMETERS));
        if let Some(name) = name {
            let found = shared.get(name).ok_or_else(|| Unsound::Dangling(name.to_owned()))?;
            *room = room.checked_sub(found.to_string().len()).ok_or(Unsound::Large)?;
            *parameter = found.clone();
        }
    }
    Ok(())
}

/// Takes back that something is a kind of another group: clients look kinds up in the whole document.
fn disown(node: &mut Value, group: &str) {
    let own = |kind: &Value| kind["group"] == *group;
    match node {
        Value::Object(map) => {
            match map.get_mut(KIND) {
                Some(Value::Array(kinds)) => kinds.retain(own),
                Some(kind) if !(kind.is_object() && own(kind)) => {
                    map.remove(KIND);
                }
                _ => {}
            }
            map.values_mut().for_each(|node| disown(node, group));
        }
        Value::Array(list) => list.iter_mut().for_each(|node| disown(node, group)),
        _ => {}
    }
}

/// The definitions that are referred to below `node`.
fn references(node: &Value, into: &mut BTreeSet<String>) {
    match node {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(DEFINITIONS)) {
                into.insert(name.to_owned());
            }
            map.values().for_each(|node| references(node, into));
        }
        Value::Array(list) => list.iter().for_each(|node| references(node, into)),
        _ => {}
    }
}

fn rename(node: &mut Value, renamed: &Map<String, Value>) {
    match node {
        Value::Object(map) => {
            if let Some(Value::String(to)) = map.get_mut("$ref")
                && let Some(new) = to.strip_prefix(DEFINITIONS).and_then(|name| renamed.get(name)?.as_str())
            {
                *to = format!("{DEFINITIONS}{new}");
            }
            map.values_mut().for_each(|node| rename(node, renamed));
        }
        Value::Array(list) => list.iter_mut().for_each(|node| rename(node, renamed)),
        _ => {}
    }
}

fn is_item(item: &Value) -> bool {
    let Some(item) = item.as_object() else { return false };
    let operations = METHODS.iter().filter_map(|method| item.get(*method));
    item.get("$ref").is_none() && all(item.get("parameters"), is_parameter) && operations.into_iter().all(is_operation)
}

fn is_operation(operation: &Value) -> bool {
    let responses = operation.get("responses").and_then(Value::as_object);
    operation.is_object()
        && ["operationId", "description", "summary"].iter().all(|key| is_text(operation.get(*key)))
        && ["consumes", "produces", "schemes", "tags"].iter().all(|key| all(operation.get(*key), Value::is_string))
        && all(operation.get("parameters"), is_parameter)
        && responses.is_none_or(|all| all.values().all(is_response))
        && (responses.is_some() || operation.get("responses").is_none())
}

fn is_response(response: &Value) -> bool {
    response.is_object() && is_text(response.get("description")) && response.get("schema").is_none_or(is_schema)
}

fn is_parameter(parameter: &Value) -> bool {
    parameter["name"].is_string()
        && parameter["in"].is_string()
        && is_text(parameter.get("type"))
        && is_text(parameter.get("description"))
        && parameter.get("required").is_none_or(Value::is_boolean)
        && parameter.get("schema").is_none_or(is_schema)
}

fn is_schema(schema: &Value) -> bool {
    let properties = schema.get("properties");
    let reference = schema.get("$ref").map(|to| to.as_str().is_some_and(|to| to.starts_with(DEFINITIONS)));
    schema.is_object()
        && reference.unwrap_or(true)
        && ["format", "title", "description", "pattern"].iter().all(|key| is_text(schema.get(*key)))
        && schema.get("type").is_none_or(|type_| type_.is_string() || all(Some(type_), Value::is_string))
        && all(schema.get("required"), Value::is_string)
        && properties.is_none_or(|all| all.as_object().is_some_and(|all| all.values().all(is_schema)))
        && schema.get("items").is_none_or(is_schema)
        && all(schema.get("allOf"), is_schema)
        && schema.get("additionalProperties").is_none_or(|more| more.is_boolean() || is_schema(more))
        && schema.get("enum").is_none_or(Value::is_array)
        && schema.get(KIND).is_none_or(|kinds| all(Some(kinds), Value::is_object))
}

fn is_text(value: Option<&Value>) -> bool {
    value.is_none_or(Value::is_string)
}

/// Nothing, or a list of what `each` accepts.
fn all(value: Option<&Value>, each: impl Fn(&Value) -> bool) -> bool {
    value.is_none_or(|value| value.as_array().is_some_and(|list| list.iter().all(each)))
}

#[cfg(test)]
mod tests;
