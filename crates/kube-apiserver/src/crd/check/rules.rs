//! `x-kubernetes-validations`: their form, and whether they can be evaluated at all.

use std::collections::HashMap;

use serde_json::Value;

use apimachinery::cel::types::Type;
use apimachinery::cel::{PER_OBJECT, Program, check};
use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;
use apimachinery::schema::{ListType, Schema, parse};

use super::{forbidden, invalid, required, text, unsupported};

const KEY: &str = "x-kubernetes-validations";
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// `kept` says that the schema is as it was: what was not too expensive then is not now.
pub(super) fn check(schema: &Value, at: &str, kept: bool, causes: &mut Vec<Cause>) {
    let found = causes.len();
    forms(schema, at, causes);
    untyped(schema, at, causes);
    if causes.len() > found {
        return;
    }
    let tree = parse::openapi(schema);
    let mut walk = Walk { causes, total: 0, most: Vec::new(), kept };
    walk.node(&tree, &Type::root(&tree), at, &Place { cardinality: 1, uncorrelatable: None });
    if walk.total > PER_SCHEMA && !kept {
        let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let shares = walk.most.iter().filter(|(cost, _)| *cost > PER_RULE / 100);
        walk.causes.extend(shares.map(|(_, field)| forbidden(field, why)));
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        walk.causes.push(forbidden(at, &exceeds(what, walk.total, PER_SCHEMA)));
    }
}

/// What one rule may cost at most, over all the places it is evaluated at in one object.
///
/// Estimates here take every operand at its longest, Kubernetes' take some shorter; the margin of a half keeps rules that
/// are good there good here.
const PER_RULE: u64 = PER_OBJECT + PER_OBJECT / 2;
/// What all rules of a schema may.
const PER_SCHEMA: u64 = 10 * PER_RULE;

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = 1.5 * cost as f64 / limit as f64;
    let factor = if factor > 100.0 { "more than 100x".to_owned() } else { format!("{factor:.1}x") };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Where in a schema a rule stands.
struct Place {
    /// How many values of one object it is evaluated on at most.
    cardinality: u64,
    /// The nearest list around it whose items cannot be told from one another.
    uncorrelatable: Option<String>,
}

struct Walk<'a> {
    causes: &'a mut Vec<Cause>,
    total: u64,
    /// The most expensive rules.
    most: Vec<(u64, String)>,
    kept: bool,
}

impl Walk<'_> {
    fn node(&mut self, schema: &Schema, type_: &Type, at: &str, place: &Place) {
        let rules = schema.rules.get(KEY).and_then(Value::as_array);
        for (index, rule) in rules.into_iter().flatten().enumerate() {
            self.rule(rule, type_, &format!("{at}.{KEY}[{index}]"), place);
        }
        let below = |cardinality: u64, uncorrelatable: Option<String>| Place { cardinality, uncorrelatable };
        for (name, of) in &schema.properties {
            if at.ends_with(".openAPIV3Schema") && matches!(name.as_str(), "apiVersion" | "kind") {
                continue;
            }
            let at = format!("{at}.properties[{name}]");
            let here = below(place.cardinality, place.uncorrelatable.clone());
            self.node(of, &Type::of(of, "selfType"), &at, &here);
        }
        if let Some(of) = &schema.items {
            let list = place
                .uncorrelatable
                .clone()
                .or_else(|| (!matches!(schema.list_type, ListType::Map(_))).then(|| at.to_owned()));
            let here = below(place.cardinality.saturating_mul(type_.size()), list);
            self.node(of, &Type::of(of, "selfType"), &format!("{at}.items"), &here);
        }
        if let Some(of) = &schema.additional {
            let here = below(place.cardinality.saturating_mul(type_.size()), place.uncorrelatable.clone());
            self.node(of, &Type::of(of, "selfType"), &format!("{at}.additionalProperties"), &here);
        }
    }

    fn rule(&mut self, rule: &Value, type_: &Type, at: &str, place: &Place) {
        let field = format!("{at}.rule");
        let program = match Program::compile(text(&rule["rule"]).trim()) {
            Ok(program) => program,
            Err(error) => return self.causes.push(uncompiled(&field, rule, &error)),
        };
        let old = if rule["optionalOldSelf"] == true { Type::Optional(type_.clone().into()) } else { type_.clone() };
        let names = HashMap::from([("self".to_owned(), type_.clone()), ("oldSelf".to_owned(), old)]);
        match check::check(&program, &names) {
            Ok(checked) if !matches!(checked.type_, Type::Bool | Type::Dyn) => {
                let why = "cel expression must evaluate to a bool";
                self.causes.push(shown(&field, rule, why));
            }
            Ok(checked) => self.spent(&field, "estimated rule cost", checked.cost.saturating_mul(place.cardinality)),
            Err(error) => self.causes.push(uncompiled(&field, rule, &error)),
        }
        if program.uses("oldSelf") {
            if let Some(list) = &place.uncorrelatable {
                let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
                self.causes.push(invalid(&field, &rule["rule"], &why));
            }
        } else if rule["optionalOldSelf"].is_boolean() {
            let why = "may not be set if oldSelf is not used in rule";
            self.causes.push(invalid(&format!("{at}.optionalOldSelf"), &rule["optionalOldSelf"], why));
        }
        let source = text(&rule["messageExpression"]).trim();
        if !source.is_empty() {
            self.message(source, rule, &names, &format!("{at}.messageExpression"));
        }
    }

    fn message(&mut self, source: &str, rule: &Value, names: &HashMap<String, Type>, field: &str) {
        let checked = Program::compile(source).and_then(|program| check::check(&program, names));
        match checked {
            Ok(checked) if !matches!(checked.type_, Type::String(_) | Type::Dyn) => {
                self.causes.push(shown(field, rule, "messageExpression must evaluate to a string"));
            }
            Ok(checked) => self.spent(field, "estimated messageExpression cost", checked.cost),
            Err(error) => {
                self.causes.push(shown(field, rule, &format!("messageExpression compilation failed: {error}")));
            }
        }
    }

    fn spent(&mut self, field: &str, what: &str, cost: u64) {
        self.total = self.total.saturating_add(cost);
        self.most.push((cost, field.to_owned()));
        self.most.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.most.truncate(4);
        if cost > PER_RULE && !self.kept {
            self.causes.push(forbidden(field, &exceeds(what, cost, PER_RULE)));
        }
    }
}

fn uncompiled(field: &str, rule: &Value, error: &str) -> Cause {
    shown(field, rule, &format!("compilation failed: {error}"))
}

/// A complaint about a rule, with the rule as Kubernetes shows it.
fn shown(field: &str, rule: &Value, why: &str) -> Cause {
    let quoted = |key: &str| format!("{:?}", text(&rule[key]));
    let message = format!(
        "Invalid value: apiextensions.ValidationRule{{Rule:{}, Message:{}, MessageExpression:{}, FieldPath:{}}}: {why}",
        quoted("rule"),
        quoted("message"),
        quoted("messageExpression"),
        quoted("fieldPath")
    );
    cause("FieldValueInvalid", field, message)
}

/// The schemas directly below one that have values of their own.
fn children(schema: &Value, at: &str, take: &mut dyn FnMut(&Value, &str)) {
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        take(child, &format!("{at}.properties[{name}]"));
    }
    for word in ["items", "additionalProperties"] {
        if schema[word].is_object() {
            take(&schema[word], &format!("{at}.{word}"));
        }
    }
}

fn forms(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, rule) in schema[KEY].as_array().into_iter().flatten().enumerate() {
        form(schema, rule, &format!("{at}.{KEY}[{index}]"), causes);
    }
    children(schema, at, &mut |child, at| forms(child, at, causes));
}

/// Rules need a type for what they see.
fn untyped(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let ruled = schema[KEY].as_array().is_some_and(|rules| !rules.is_empty());
    if ruled && text(&schema["type"]).is_empty() && schema["x-kubernetes-int-or-string"] != true {
        let message = "Internal error: rules cannot be evaluated on a field without a type".to_owned();
        causes.push(cause("InternalError", &format!("{at}.{KEY}"), message));
    }
    children(schema, at, &mut |child, at| untyped(child, at, causes));
}

/// Whether a path of a rule, `.a.b['c']`, leads to a field of the schema.
fn leads_somewhere(schema: &Value, path: &str) -> bool {
    let mut node = schema;
    let mut rest = path;
    while !rest.is_empty() {
        let (name, after) = if let Some(quoted) = rest.strip_prefix("['") {
            let Some((name, after)) = quoted.split_once("']") else { return false };
            (name, after)
        } else if let Some(named) = rest.strip_prefix('.') {
            named.split_at(named.find(['.', '[']).unwrap_or(named.len()))
        } else {
            return false;
        };
        let below = node["properties"].get(name).or_else(|| node.get("additionalProperties"));
        let Some(below) = below.filter(|below| below.is_object()) else { return false };
        (node, rest) = (below, after);
    }
    true
}

fn form(schema: &Value, rule: &Value, at: &str, causes: &mut Vec<Cause>) {
    let breaks = |text: &str| text.contains(['\n', '\r']);
    let (source, message) = (text(&rule["rule"]).trim(), text(&rule["message"]));
    let message_field = format!("{at}.message");
    if source.is_empty() {
        causes.push(required(&format!("{at}.rule"), "rule is not specified"));
    } else if !message.is_empty() && message.trim().is_empty() {
        causes.push(invalid(&message_field, &rule["message"], "message must be non-empty if specified"));
    } else if breaks(message.trim()) {
        causes.push(invalid(&message_field, &rule["message"], "message must not contain line breaks"));
    } else if breaks(source) && message.is_empty() {
        causes.push(required(&message_field, "message must be specified if rule contains line breaks"));
    }
    let expression = text(&rule["messageExpression"]);
    if !expression.is_empty() && expression.trim().is_empty() {
        let why = "messageExpression must be non-empty if specified";
        causes.push(required(&format!("{at}.messageExpression"), why));
    }
    let reason = text(&rule["reason"]);
    if !reason.is_empty() && !REASONS.contains(&reason) {
        causes.push(unsupported(&format!("{at}.reason"), &rule["reason"], &REASONS));
    }
    let path = text(&rule["fieldPath"]);
    let field = format!("{at}.fieldPath");
    if !path.is_empty() && path.trim().is_empty() {
        causes.push(invalid(&field, &rule["fieldPath"], "fieldPath must be non-empty if specified"));
    } else if breaks(path) {
        causes.push(invalid(&field, &rule["fieldPath"], "fieldPath must not contain line breaks"));
    } else if !leads_somewhere(schema, path.trim()) {
        causes.push(invalid(&field, &rule["fieldPath"], "must be a valid path to a field of the schema"));
    }
}
