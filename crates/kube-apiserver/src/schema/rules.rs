//! CEL rules of custom resources (`x-kubernetes-validations`), compiled once for each version of a definition.

use std::sync::Arc;

use kube_cel::{CompiledSchema, RootContext, Validator, compile_schema};
use serde_json::{Map, Value};

use super::validate::cause;
use crate::error::Cause;

const KEY: &str = "x-kubernetes-validations";

/// The whole object, as Kubernetes calls it where a field is named.
const ROOT: &str = "<nil>";

/// The rules of one schema.
#[derive(Clone)]
pub struct Rules {
    compiled: Arc<CompiledSchema>,
    root: RootContext,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules").field("kind", &self.root.kind).finish_non_exhaustive()
    }
}

impl Rules {
    /// Compiles the rules below `schema`; None when there are none.
    pub fn compile(schema: &Value, group: &str, version: &str, kind: &str) -> Option<Self> {
        let reduced = reduce(schema)?;
        let root = RootContext {
            api_version: format!("{group}/{version}"),
            api_group: group.to_owned(),
            kind: kind.to_owned(),
        };
        Some(Self { compiled: Arc::new(compile_schema(&reduced)), root })
    }

    /// What is wrong with the rules themselves, for the author of the definition: where, and what.
    pub fn errors(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        broken(&self.compiled, "", &mut found);
        found
    }

    /// Adds a cause for each rule that `object` (or its change from `old`) breaks.
    pub fn check(&self, object: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
        let outcome = Validator::new().validate_compiled_with_context(&self.compiled, object, old, Some(&self.root));
        for error in outcome.err().into_iter().flat_map(kube_cel::ValidationErrors::into_vec) {
            let reason = error.reason.as_deref().unwrap_or("FieldValueInvalid");
            let text = &error.message;
            let message = match reason {
                "FieldValueForbidden" => format!("Forbidden: {text}"),
                "FieldValueRequired" => format!("Required value: {text}"),
                "FieldValueDuplicate" => format!("Duplicate value: {text}"),
                // The kind stands for the value, as in the answers of Kubernetes.
                _ => {
                    let kind = value_at(object, &error.field_path).map_or("object", super::validate::kind_of);
                    format!("Invalid value: {kind:?}: {text}")
                }
            };
            let field = if error.field_path.is_empty() { ROOT } else { &error.field_path };
            causes.push(cause(reason, field, message));
        }
    }
}

/// Adds the rules at and below a node that cannot be compiled.
fn broken(node: &CompiledSchema, at: &str, found: &mut Vec<(String, String)>) {
    for (index, rule) in node.validations.iter().enumerate() {
        if let Err(error) = rule {
            found.push((format!("{at}.{KEY}[{index}].rule"), error.to_string()));
        }
    }
    let mut names: Vec<_> = node.properties.keys().collect();
    names.sort();
    for name in names {
        broken(&node.properties[name], &format!("{at}.properties[{name}]"), found);
    }
    for (word, child) in [("items", &node.items), ("additionalProperties", &node.additional_properties)] {
        if let Some(child) = child {
            broken(child, &format!("{at}.{word}"), found);
        }
    }
}

/// The schema without what no rule can see: branches that hold no rules, descriptions. None when nothing is left.
fn reduce(schema: &Value) -> Option<Value> {
    let map = schema.as_object()?;
    if map.get(KEY).and_then(Value::as_array).is_some_and(|rules| !rules.is_empty()) {
        return Some(without_words(schema));
    }
    let mut left = Map::new();
    for (key, value) in map {
        match key.as_str() {
            "properties" => {
                let children: Map<String, Value> = value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter_map(|(name, child)| Some((name.clone(), reduce(child)?)))
                    .collect();
                if !children.is_empty() {
                    left.insert(key.clone(), Value::Object(children));
                }
            }
            "items" | "additionalProperties" => {
                if let Some(child) = reduce(value) {
                    left.insert(key.clone(), child);
                }
            }
            _ => {}
        }
    }
    if left.is_empty() {
        return None;
    }
    for key in ["type", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"] {
        if let Some(value) = map.get(key) {
            left.insert(key.into(), value.clone());
        }
    }
    Some(Value::Object(left))
}

fn without_words(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, value)| !(*key == "description" && value.is_string()));
            kept.map(|(key, value)| (key.clone(), without_words(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_words).collect(),
        other => other.clone(),
    }
}

/// The value at `spec.list[0].field`.
fn value_at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut node = object;
    for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
        let part = part.trim_end_matches(']');
        node = match node {
            Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
            other => other.get(part)?,
        };
    }
    Some(node)
}

/// Whether what a field error speaks of is the same in both objects; for a field missing in both, what it is missing in.
pub(crate) fn unchanged(old: &Value, new: &Value, path: &str) -> bool {
    match (value_at(old, path), value_at(new, path)) {
        (Some(before), Some(after)) => before == after,
        (None, None) => {
            let parent = path.rfind(['.', '[']).map_or("", |at| &path[..at]);
            !parent.is_empty() && value_at(old, parent).is_some() && value_at(old, parent) == value_at(new, parent)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(schema: Value, object: Value, old: Option<Value>, expect: &[&str]) {
        let rules = Rules::compile(&schema, "example.com", "v1", "Thing").unwrap();
        assert_eq!(rules.errors(), []);
        let mut causes = Vec::new();
        rules.check(&object, old.as_ref(), &mut causes);
        let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn rules_and_transition_rules() {
        let field = json!({"type": "string", KEY: [{"rule": "self == oldSelf", "message": "is fixed"}]});
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "spec": {"type": "object", "properties": {"f": field}}}});
        let of = |text: &str| json!({"spec": {"f": text}});
        check(schema.clone(), of("x"), None, &[]);
        check(schema.clone(), of("x"), Some(of("x")), &[]);
        check(schema, of("y"), Some(of("x")), &["spec.f: Invalid value: \"string\": is fixed"]);
    }

    #[test]
    fn the_whole_object_has_a_name() {
        let schema = json!({"type": "object", KEY: [{"rule": "self.n > 1", "message": "is small"}],
            "properties": {"n": {"type": "integer"}}});
        check(schema, json!({"n": 1}), None, &["<nil>: Invalid value: \"object\": is small"]);
    }

    #[test]
    fn broken_rules_are_found_wherever_they_are() {
        let field =
            json!({"type": "array", "items": {"type": "string", KEY: [{"rule": "true"}, {"rule": "self.a ="}]}});
        let schema = json!({"type": "object", "properties": {"f": field}});
        let rules = Rules::compile(&schema, "example.com", "v1", "Thing").unwrap();
        let places: Vec<String> = rules.errors().into_iter().map(|(at, _)| at).collect();
        assert_eq!(places, [format!(".properties[f].items.{KEY}[1].rule")]);
    }

    #[test]
    fn schemas_without_rules_cost_nothing() {
        assert!(
            Rules::compile(&json!({"type": "object", "properties": {"a": {"type": "string"}}}), "g", "v", "K")
                .is_none()
        );
    }
}
