//! Validation against a structural schema, with Kubernetes' words and one cause for each bad field.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use regex::Regex;
use serde_json::{Map, Value};

use super::{ListType, Schema, Type, correlate, formats, parse};
use crate::error::Cause;

/// Causes reported at most; a hostile object may have millions of bad fields.
const REPORTED: usize = 100;

/// Adds a cause for everything in `object` the schema forbids.
pub fn check(schema: &Schema, object: &Value, causes: &mut Vec<Cause>) {
    check_update(schema, None, object, causes);
}

/// The same of what became of `before`: what is the same as it was is not looked at again.
pub fn check_update(schema: &Schema, before: Option<&Value>, object: &Value, causes: &mut Vec<Cause>) {
    Walk { causes, path: String::new(), custom: schema.type_name.is_empty(), met: 0 }.node(schema, object, before);
}

/// The same for the fields of `object` that differ from those of `before`. For shipped types, whose root has fields and no
/// rules of its own.
pub fn check_changes(schema: &Schema, before: &Value, object: &Value, causes: &mut Vec<Cause>) {
    let Value::Object(map) = object else { return check(schema, object, causes) };
    for (field, value) in map.iter().filter(|(field, value)| before.get(field.as_str()) != Some(*value)) {
        if let Some(of) = schema.properties.get(field).or(schema.additional.as_ref()) {
            Walk { causes: &mut *causes, path: field.clone(), custom: false, met: 0 }.node(of, value, None);
        }
    }
}

/// The whole object, or none of its fields in particular, as Kubernetes calls it where a field is named.
pub const WHOLE: &str = "<nil>";

struct Walk<'a> {
    causes: &'a mut Vec<Cause>,
    path: String,
    /// The object is a custom resource.
    custom: bool,
    /// How many values have been looked at.
    met: usize,
}

/// A cause with the word for its kind.
pub fn cause(reason: &str, field: &str, message: String) -> Cause {
    Cause { reason: reason.into(), message, field: field.into() }
}

/// The word for a value's type.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn fits(type_: Type, value: &Value) -> bool {
    match type_ {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
    }
}

impl Walk<'_> {
    fn full(&self) -> bool {
        self.causes.len() >= REPORTED
    }

    fn invalid(&mut self, value: &Value, why: &str) {
        let shown = match value {
            Value::Array(_) | Value::Object(_) => Value::from(kind_of(value)),
            other => other.clone(),
        };
        let message = format!("Invalid value: {shown}: {} in body {why}", self.path);
        self.causes.push(cause("FieldValueInvalid", &self.path, message));
    }

    fn wrong_type(&mut self, value: &Value, expected: &str) {
        let kind = kind_of(value);
        let message =
            format!("Invalid value: \"{kind}\": {} in body must be of type {expected}: \"{kind}\"", self.path);
        self.causes.push(cause("FieldValueTypeInvalid", &self.path, message));
    }

    /// What is wrong with the object for a reason that is no single field's.
    fn whole(&mut self, why: &str) {
        self.causes.push(cause("FieldValueInvalid", WHOLE, format!("Invalid value: \"\": {why}")));
    }

    fn node(&mut self, schema: &Schema, value: &Value, before: Option<&Value>) {
        if self.full() {
            return;
        }
        self.met += 1;
        let found = self.causes.len();
        self.value(schema, value, before);
        if self.causes.len() > found && before.is_some_and(|before| correlate::same(schema, before, value)) {
            self.causes.truncate(found);
        }
    }

    fn value(&mut self, schema: &Schema, value: &Value, before: Option<&Value>) {
        if value.is_null() {
            if !schema.nullable && schema.type_ != Type::Any {
                self.wrong_type(value, schema.type_.word());
            }
            return;
        }
        if schema.int_or_string {
            if !value.is_string() && !fits(Type::Integer, value) {
                self.wrong_type(value, "integer,string");
                return;
            }
        } else if !fits(schema.type_, value) {
            self.wrong_type(value, schema.type_.word());
            if schema.type_ == Type::Integer && value.is_number() {
                self.range(&schema.format);
            }
            return;
        }
        if !schema.enum_.is_empty() && !schema.enum_.contains(value) {
            let listed: Vec<String> = schema.enum_.iter().map(Value::to_string).collect();
            let message = format!("Unsupported value: {value}: supported values: {}", listed.join(", "));
            self.causes.push(cause("FieldValueNotSupported", &self.path, message));
        }
        match value {
            Value::Object(map) => self.object(schema, map, before),
            Value::Array(items) => self.array(schema, items, before),
            _ => {}
        }
        if !schema.format.is_empty() {
            self.format(schema, value);
        }
        if !schema.rules.is_empty() {
            self.rules(schema, value);
        }
    }

    fn object(&mut self, schema: &Schema, map: &Map<String, Value>, before: Option<&Value>) {
        let length = self.path.len();
        for name in schema.required.iter().filter(|name| !map.contains_key(*name)) {
            if self.optional_after_all(schema, name) {
                continue;
            }
            let field = if length > 0 { format!("{}.{name}", self.path) } else { name.clone() };
            self.causes.push(cause("FieldValueRequired", &field, "Required value".into()));
        }
        if schema.embedded_resource {
            self.embedded(map);
        }
        for (name, value) in map {
            let Some(of) = schema.properties.get(name).or(schema.additional.as_ref()) else { continue };
            // A field of a shipped type that is null is not set.
            if value.is_null() && !schema.type_name.is_empty() {
                continue;
            }
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
            self.node(of, value, before.and_then(|before| before.get(name)));
            self.path.truncate(length);
        }
    }

    /// An object within an object says what it is.
    fn embedded(&mut self, map: &Map<String, Value>) {
        let length = self.path.len();
        let mut bad = |field: &str, reason: &str, message: &str| {
            let field = if length > 0 { format!("{}.{field}", self.path) } else { field.to_owned() };
            self.causes.push(cause(reason, &field, message.to_owned()));
        };
        for field in ["apiVersion", "kind"] {
            match map.get(field) {
                Some(Value::String(text)) if !text.is_empty() => {}
                None | Some(Value::Null | Value::String(_)) => {
                    bad(field, "FieldValueRequired", "Required value: must not be empty");
                }
                Some(_) => bad(field, "FieldValueTypeInvalid", "Invalid value: \"object\": must be a string"),
            }
        }
        if map.get("metadata").is_some_and(|metadata| !metadata.is_object()) {
            bad("metadata", "FieldValueTypeInvalid", "Invalid value: \"object\": must be an object");
        }
    }

    /// Built-in types say `required` of every field that is always written; reading them, a missing list is an empty
    /// one, and a status may be partial.
    /// What the metadata of a custom resource must hold is said elsewhere.
    fn optional_after_all(&self, schema: &Schema, name: &str) -> bool {
        !schema.type_name.is_empty()
            && (self.custom
                || self.path.starts_with("status")
                || self.path.is_empty()
                || schema.properties.get(name).is_some_and(|of| matches!(of.type_, Type::Array | Type::Boolean)))
    }

    fn array(&mut self, schema: &Schema, items: &[Value], before: Option<&Value>) {
        let length = self.path.len();
        if let Some(of) = &schema.items {
            for (index, item) in items.iter().enumerate() {
                let _ = write!(self.path, "[{index}]");
                self.node(of, item, correlate::origin(schema, item, before));
                self.path.truncate(length);
                if self.full() {
                    return;
                }
            }
        }
        match &schema.list_type {
            ListType::Atomic => {}
            ListType::Set => self.duplicates(items, Clone::clone),
            ListType::Map(keys) => {
                // A built-in's list map is enforced by its own validation, where it is.
                if schema.type_name.is_empty() && schema.items.as_ref().is_some_and(|of| of.type_name.is_empty()) {
                    let defaults = |key: &String| {
                        schema.items.as_ref().and_then(|of| of.properties.get(key)?.default.clone()).unwrap_or_default()
                    };
                    self.duplicates(items, |item| {
                        keys.iter()
                            .map(|key| (key.clone(), item.get(key).cloned().unwrap_or_else(|| defaults(key))))
                            .collect()
                    });
                }
            }
        }
    }

    fn duplicates(&mut self, items: &[Value], key: impl Fn(&Value) -> Value) {
        let mut seen = std::collections::HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let key = key(item);
            if !seen.insert(key.to_string()) {
                let field = format!("{}[{index}]", self.path);
                self.causes.push(cause("FieldValueDuplicate", &field, format!("Duplicate value: {key}")));
            }
        }
    }

    fn format(&mut self, schema: &Schema, value: &Value) {
        let beyond = |n: &serde_json::Number, most: f64| n.as_f64().is_none_or(|n| n < -most - 1.0 || n > most);
        match (schema.format.as_str(), value) {
            (format @ "int32", Value::Number(n)) if beyond(n, f64::from(i32::MAX)) => self.range(format),
            (format @ "int64", Value::Number(n)) if n.as_i64().is_none() && beyond(n, 9.2e18) => self.range(format),
            (format, Value::String(text)) if !formats::fits(format, text) => {
                let message =
                    format!("Invalid value: {value}: {} in body must be of type {format}: {value}", self.path);
                self.causes.push(cause("FieldValueTypeInvalid", &self.path, message));
            }
            _ => {}
        }
    }

    fn range(&mut self, format: &str) {
        let why = format!("Checked value must be of type integer with format {format} in {}", self.path);
        self.whole(&why);
    }

    fn rules(&mut self, schema: &Schema, value: &Value) {
        for (rule, argument) in &schema.rules {
            match rule.as_str() {
                "minimum" | "maximum" | "multipleOf" => self.number(schema, rule, argument, value),
                "minLength" | "maxLength" | "pattern" => self.string(rule, argument, value),
                "minItems" | "maxItems" | "minProperties" | "maxProperties" | "uniqueItems" => {
                    self.size(rule, argument, value);
                }
                "anyOf" if schema.int_or_string => {}
                "allOf" | "anyOf" | "oneOf" | "not" => self.combined(rule, argument, value),
                _ => {}
            }
        }
    }

    fn number(&mut self, schema: &Schema, rule: &str, argument: &Value, value: &Value) {
        let (Some(bound), Some(number)) = (argument.as_f64(), value.as_f64()) else { return };
        let exclusive = |key: &str| schema.rules.get(key).and_then(Value::as_bool).unwrap_or(false);
        let shown = plain(bound);
        let (bad, why) = match rule {
            "minimum" if exclusive("exclusiveMinimum") => (number <= bound, format!("should be greater than {shown}")),
            "minimum" => (number < bound, format!("should be greater than or equal to {shown}")),
            "maximum" if exclusive("exclusiveMaximum") => (number >= bound, format!("should be less than {shown}")),
            "maximum" => (number > bound, format!("should be less than or equal to {shown}")),
            _ => (bound != 0.0 && (number / bound).fract() != 0.0, format!("should be a multiple of {shown}")),
        };
        if bad {
            self.invalid(value, &why);
        }
    }

    fn string(&mut self, rule: &str, argument: &Value, value: &Value) {
        let Some(text) = value.as_str() else { return };
        let limit = argument.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        match rule {
            "minLength" if text.chars().count() < limit => {
                self.invalid(value, &format!("should be at least {limit} chars long"));
            }
            "maxLength" if text.chars().count() > limit => {
                let message = format!("Too long: may not be more than {limit} bytes");
                self.causes.push(cause("FieldValueTooLong", &self.path, message));
            }
            "pattern" => {
                let pattern = argument.as_str().unwrap_or_default();
                // A pattern our engine does not know (look-around, which CRDs may not use either) refuses nothing.
                if self::pattern(pattern).is_some_and(|regex| !regex.is_match(text)) {
                    self.invalid(value, &format!("should match '{pattern}'"));
                }
            }
            _ => {}
        }
    }

    fn size(&mut self, rule: &str, argument: &Value, value: &Value) {
        let limit = argument.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        match (rule, value) {
            ("minItems", Value::Array(items)) if items.len() < limit => {
                let message =
                    format!("Invalid value: {}: {} in body should have at least {limit} items", items.len(), self.path);
                self.causes.push(cause("FieldValueInvalid", &self.path, message));
            }
            ("maxItems", Value::Array(items)) if items.len() > limit => {
                let message = format!("Too many: {}: must have at most {limit} items", items.len());
                self.causes.push(cause("FieldValueTooMany", &self.path, message));
            }
            ("minProperties", Value::Object(map)) if map.len() < limit => {
                let message = format!(
                    "Invalid value: {}: {} in body should have at least {limit} properties",
                    map.len(),
                    self.path
                );
                self.causes.push(cause("FieldValueInvalid", &self.path, message));
            }
            ("maxProperties", Value::Object(map)) if map.len() > limit => {
                let message = format!("Too many: {}: must have at most {limit} items", map.len());
                self.causes.push(cause("FieldValueTooMany", &self.path, message));
            }
            ("uniqueItems", Value::Array(items)) if argument == &Value::Bool(true) => {
                self.duplicates(items, Clone::clone);
            }
            _ => {}
        }
    }

    /// That no branch fits is said with what the nearest of them lacks.
    fn combined(&mut self, rule: &str, argument: &Value, value: &Value) {
        let branches: Vec<(Vec<Cause>, usize)> =
            argument.as_array().into_iter().flatten().map(|branch| self.branch(branch, value)).collect();
        let valid = branches.iter().filter(|(causes, _)| causes.is_empty()).count();
        let why = match rule {
            "allOf" if valid < branches.len() => "must validate all the schemas (allOf)".to_owned(),
            "anyOf" if valid == 0 => "must validate at least one schema (anyOf)".to_owned(),
            "oneOf" => match valid {
                1 => return,
                0 => "must validate one and only one schema (oneOf). Found none valid".to_owned(),
                n => format!("must validate one and only one schema (oneOf). Found {n} valid alternatives"),
            },
            "not" if self.branch(argument, value).0.is_empty() => "must not validate the schema (not)".to_owned(),
            _ => return,
        };
        self.whole(&format!("{:?} {why}", self.path));
        if rule == "allOf" {
            self.causes.extend(branches.into_iter().flat_map(|(causes, _)| causes));
        } else if valid == 0 {
            // The first of those that were followed furthest.
            let nearest = branches.into_iter().rev().max_by_key(|(_, met)| *met);
            self.causes.extend(nearest.into_iter().flat_map(|(causes, _)| causes));
        }
        self.causes.truncate(REPORTED);
    }

    /// What is wrong with a value by a branch of anyOf, oneOf, allOf or not, and how many values were looked at to know it.
    fn branch(&self, branch: &Value, value: &Value) -> (Vec<Cause>, usize) {
        let mut causes = Vec::new();
        let mut walk = Walk { causes: &mut causes, path: self.path.clone(), custom: self.custom, met: 0 };
        walk.node(&parse::openapi(branch), value, None);
        let met = walk.met;
        (causes, met)
    }
}

/// A bound as it is said: whole numbers without a fraction.
fn plain(number: f64) -> String {
    format!("{number}")
}

/// Patterns compiled so far; there are as many as schemas name.
pub fn pattern(pattern: &str) -> Option<Arc<Regex>> {
    static CACHE: LazyLock<RwLock<HashMap<String, Option<Arc<Regex>>>>> = LazyLock::new(RwLock::default);
    if let Some(found) = CACHE.read().unwrap_or_else(PoisonError::into_inner).get(pattern) {
        return found.clone();
    }
    let regex = regex::RegexBuilder::new(pattern).size_limit(1 << 20).build().ok().map(Arc::new);
    let mut cache = CACHE.write().unwrap_or_else(PoisonError::into_inner);
    if cache.len() > 10_000 {
        cache.clear();
    }
    cache.insert(pattern.to_owned(), regex.clone());
    regex
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check_words(schema: Value, object: Value, expect: &[&str]) {
        let mut causes = Vec::new();
        check(&parse::openapi(&schema), &object, &mut causes);
        let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn words_are_those_of_kubernetes() {
        let spec = |of: Value| json!({"type": "object", "properties": {"s": of}});
        check_words(
            spec(json!({"type": "integer"})),
            json!({"s": "x"}),
            &["s: Invalid value: \"string\": s in body must be of type integer: \"string\""],
        );
        check_words(
            spec(json!({"type": "integer", "minimum": 1})),
            json!({"s": 0}),
            &["s: Invalid value: 0: s in body should be greater than or equal to 1"],
        );
        check_words(
            spec(json!({"type": "string", "enum": ["a", "b"]})),
            json!({"s": "c"}),
            &["s: Unsupported value: \"c\": supported values: \"a\", \"b\""],
        );
        check_words(
            spec(json!({"type": "string", "pattern": "^a+$"})),
            json!({"s": "b"}),
            &["s: Invalid value: \"b\": s in body should match '^a+$'"],
        );
        check_words(spec(json!({"type": "object", "required": ["x"]})), json!({"s": {}}), &["s.x: Required value"]);
        check_words(
            spec(json!({"type": "array", "maxItems": 1, "items": {"type": "string"}})),
            json!({"s": ["a", "b"]}),
            &["s: Too many: 2: must have at most 1 items"],
        );
        let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}}}});
        check_words(spec(list), json!({"s": [{"k": "a"}, {"k": "a"}]}), &["s[1]: Duplicate value: {\"k\":\"a\"}"]);
        check_words(
            spec(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})),
            json!({"s": true}),
            &["s: Invalid value: \"boolean\": s in body must be of type integer,string: \"boolean\""],
        );
        check_words(
            spec(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]})),
            json!({"s": {}}),
            &[
                "<nil>: Invalid value: \"\": \"s\" must validate one and only one schema (oneOf). Found none valid",
                "s.a: Required value",
            ],
        );
        check_words(
            spec(json!({"type": "string", "format": "ipv4"})),
            json!({"s": "x"}),
            &["s: Invalid value: \"x\": s in body must be of type ipv4: \"x\""],
        );
        check_words(
            spec(json!({"type": "integer", "format": "int32"})),
            json!({"s": 3_000_000_000_i64}),
            &["<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in s"],
        );
    }

    #[test]
    fn unchanged_invalid_values_are_ratcheted() {
        let item =
            json!({"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 0}}});
        let schema = parse::openapi(&json!({"type": "object", "properties": {
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item},
            "atomic": {"type": "array", "items": item},
            "o": {"type": "object", "required": ["b"], "properties": {"a": {"type": "string", "enum": ["y"]}}},
            "one": {"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}}));
        let old = json!({"map": [{"k": "a", "v": 1}, {"k": "b", "v": 2}], "atomic": [{"k": "a", "v": 1}], "o": {"a": "x"}, "one": {}});
        let new = json!({"map": [{"k": "b", "v": 2}, {"k": "a", "v": 5}], "atomic": [{"k": "a", "v": 1}, {"k": "c"}], "o": {"a": "x"}, "one": {}});
        let mut causes = Vec::new();
        check_update(&schema, Some(&old), &new, &mut causes);
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, ["atomic[0].v", "map[1].v"]);
    }

    #[test]
    fn embedded_objects_say_what_they_are() {
        let schema = json!({"type": "object", "properties": {"o": {"type": "object",
            "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}});
        check_words(schema.clone(), json!({"o": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}}), &[]);
        check_words(
            schema,
            json!({"o": {"kind": "", "metadata": []}}),
            &[
                "o.apiVersion: Required value: must not be empty",
                "o.kind: Required value: must not be empty",
                "o.metadata: Invalid value: \"object\": must be an object",
            ],
        );
    }

    #[test]
    fn valid_values_pass() {
        let spec = |of: Value| json!({"type": "object", "properties": {"s": of}});
        check_words(spec(json!({"type": "string", "nullable": true})), json!({"s": null}), &[]);
        check_words(spec(json!({"type": "integer", "format": "int64"})), json!({"s": 3.0}), &[]);
        check_words(spec(json!({"type": "string", "format": "date-time"})), json!({"s": "2026-01-01T00:00:00Z"}), &[]);
    }
}
