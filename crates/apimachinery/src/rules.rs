//! CEL rules of custom resources (`x-kubernetes-validations`), compiled once for each version of a definition.
//!
//! Guarantees: a transition rule sees the value that the new one came from, and is silent where none can be told (items
//! of lists that are no maps); a rule that what did not change breaks already warns and refuses nothing; the rules of one
//! object have one budget.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::cel::{Bindings, Budget, Fault, PER_CALL, PER_OBJECT, Program, Variables, value};
use crate::error::Cause;
use crate::schema::validate::{WHOLE, cause};
use crate::schema::{Schema, correlate};

const KEY: &str = "x-kubernetes-validations";

/// Failures reported at most.
const ENOUGH: usize = 100;

#[derive(Debug)]
struct Rule {
    program: Program,
    message: String,
    message_expression: Option<Program>,
    reason: String,
    field_path: String,
    /// Compares with the value before.
    transition: bool,
    optional_old: bool,
}

/// A place in the schema at or below which there are rules.
#[derive(Debug, Default)]
struct Node {
    schema: Arc<Schema>,
    rules: Vec<Rule>,
    properties: Vec<(String, Node)>,
    items: Option<Box<Node>>,
    additional: Option<Box<Node>>,
}

/// The rules of one schema.
#[derive(Clone, Debug)]
pub struct Rules {
    root: Arc<Node>,
}

impl Rules {
    /// Compiles the rules below `schema`; None when there are none. Those that cannot be compiled were refused when the
    /// definition was written.
    pub fn compile(schema: &Arc<Schema>) -> Option<Self> {
        Some(Self { root: Arc::new(node(schema)?) })
    }

    /// Adds a cause for each rule that `object` (or its change from `old`) breaks, a warning for those it breaks as before.
    pub fn check(&self, object: &Value, old: Option<&Value>, causes: &mut Vec<Cause>, warnings: &mut Vec<String>) {
        let mut walk = Walk { budget: Budget::new(PER_OBJECT), causes, warnings, path: String::new(), done: false };
        walk.node(&self.root, object, old, false);
    }
}

fn node(schema: &Arc<Schema>) -> Option<Node> {
    let listed = schema.rules.get(KEY).and_then(Value::as_array);
    let node = Node {
        rules: listed.into_iter().flatten().filter_map(rule).collect(),
        properties: schema.properties.iter().filter_map(|(name, of)| Some((name.clone(), node(of)?))).collect(),
        items: schema.items.as_ref().and_then(node).map(Box::new),
        additional: schema.additional.as_ref().and_then(node).map(Box::new),
        schema: schema.clone(),
    };
    let empty =
        node.rules.is_empty() && node.properties.is_empty() && node.items.is_none() && node.additional.is_none();
    (!empty).then_some(node)
}

fn rule(document: &Value) -> Option<Rule> {
    let text = |key: &str| document[key].as_str().unwrap_or_default().trim().to_owned();
    let program = Program::compile(&text("rule")).ok()?;
    let message_expression = Some(text("messageExpression")).filter(|source| !source.is_empty());
    Some(Rule {
        message: text("message"),
        message_expression: message_expression.and_then(|source| Program::compile(&source).ok()),
        reason: text("reason"),
        field_path: text("fieldPath"),
        transition: program.uses("oldSelf"),
        optional_old: document["optionalOldSelf"] == true,
        program,
    })
}

struct Walk<'a> {
    budget: Budget,
    causes: &'a mut Vec<Cause>,
    warnings: &'a mut Vec<String>,
    path: String,
    /// The budget is spent, or there is enough to report.
    done: bool,
}

impl Walk<'_> {
    /// `same` says that something above did not change.
    fn node(&mut self, node: &Node, new: &Value, old: Option<&Value>, same: bool) {
        if new.is_null() || self.done {
            return;
        }
        let same = same || old.is_some_and(|old| correlate::same(&node.schema, old, new));
        if !node.rules.is_empty() {
            let bindings = Variables::default().with("self", value::typed(&node.schema, new));
            for rule in &node.rules {
                self.rule(rule, node, &bindings, old, same);
                if self.done {
                    return;
                }
            }
        }
        let length = self.path.len();
        match new {
            Value::Object(map) => self.object(node, map, old, same),
            Value::Array(items) => {
                let Some(of) = &node.items else { return };
                for (index, item) in items.iter().enumerate() {
                    let before = correlate::origin(&node.schema, item, old);
                    self.path.push_str(&format!("[{index}]"));
                    self.node(of, item, before, same);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, node: &Node, map: &Map<String, Value>, old: Option<&Value>, same: bool) {
        let length = self.path.len();
        for (name, of) in &node.properties {
            if let Some(value) = map.get(name) {
                self.path.push_str(if length > 0 { "." } else { "" });
                self.path.push_str(name);
                self.node(of, value, old.and_then(|old| old.get(name)), same);
                self.path.truncate(length);
            }
        }
        if let Some(of) = &node.additional {
            for (name, value) in map.iter().filter(|(name, _)| !node.schema.properties.contains_key(*name)) {
                self.path.push_str(&format!("[{name}]"));
                self.node(of, value, old.and_then(|old| old.get(name)), same);
                self.path.truncate(length);
            }
        }
    }

    fn rule(&mut self, rule: &Rule, node: &Node, bindings: &Variables, old: Option<&Value>, same: bool) {
        let bound;
        let bindings: &dyn Bindings = if rule.transition {
            let before = old.map(|old| value::typed(&node.schema, old));
            let before = match (rule.optional_old, before) {
                (true, before) => value::optional(before),
                (false, Some(before)) => before,
                (false, None) => return,
            };
            bound = bindings.clone().with("oldSelf", before);
            &bound
        } else {
            bindings
        };
        let kind = node.schema.type_.word();
        match self.spend(&rule.program, bindings) {
            Ok(crate::cel::Value::Bool(true)) => {}
            Ok(_) => {
                let message = self.message(rule, bindings);
                let field = join(&self.path, &rule.field_path);
                let cause = broken(&rule.reason, &field, kind, &message);
                if same && !rule.transition {
                    self.warnings.push(format!("{}: {}", cause.field, cause.message));
                } else {
                    self.add(cause);
                }
            }
            Err(Fault::Spent) if self.budget.left() == 0 => self.end(
                kind,
                "validation failed due to running out of cost budget, no further validation rules will be run",
            ),
            Err(Fault::Spent) => {
                let said = said(rule);
                self.end(
                    kind,
                    &format!(
                        "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {said}",
                        Fault::Spent
                    ),
                );
            }
            Err(Fault::Error(error)) if error.starts_with("no such overload") => {
                let message = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                    said(rule)
                );
                self.add(broken("", &self.path, kind, &message));
            }
            Err(Fault::Error(error)) => {
                self.add(broken("", &self.path, kind, &format!("{error} evaluating rule: {}", said(rule))));
            }
        }
    }

    /// Evaluates within what one call may cost and what is left for the object.
    fn spend(&mut self, program: &Program, bindings: &dyn Bindings) -> Result<crate::cel::Value, Fault> {
        let allowed = self.budget.left().min(PER_CALL);
        let mut call = Budget::new(allowed);
        let outcome = program.evaluate(bindings, &mut call);
        self.budget = Budget::new(self.budget.left() - (allowed - call.left()));
        outcome
    }

    fn message(&mut self, rule: &Rule, bindings: &dyn Bindings) -> String {
        if let Some(program) = &rule.message_expression
            && let Ok(crate::cel::Value::String(text)) = self.spend(program, bindings)
        {
            let text = text.trim();
            if !text.is_empty() && !text.contains(['\n', '\r']) && text.len() <= 5 * 1024 {
                return text.to_owned();
            }
        }
        if rule.message.is_empty() { format!("failed rule: {}", said(rule)) } else { rule.message.clone() }
    }

    fn add(&mut self, cause: Cause) {
        self.causes.push(cause);
        self.done |= self.causes.len() >= ENOUGH;
    }

    fn end(&mut self, kind: &str, message: &str) {
        self.add(broken("", &self.path, kind, message));
        self.done = true;
    }
}

fn said(rule: &Rule) -> &str {
    if rule.message.is_empty() { rule.program.source() } else { &rule.message }
}

fn join(path: &str, more: &str) -> String {
    let more = more.trim_start_matches('.');
    match (path.is_empty(), more.is_empty()) {
        (_, true) => path.to_owned(),
        (true, false) => more.to_owned(),
        (false, false) => format!("{path}.{more}"),
    }
}

/// The kind stands for the value, as in the answers of Kubernetes.
fn broken(reason: &str, path: &str, kind: &str, text: &str) -> Cause {
    let field = if path.is_empty() { WHOLE } else { path };
    match reason {
        "FieldValueForbidden" => cause(reason, field, format!("Forbidden: {text}")),
        "FieldValueRequired" => cause(reason, field, format!("Required value: {text}")),
        "FieldValueDuplicate" => cause(reason, field, format!("Duplicate value: {kind:?}")),
        _ => cause("FieldValueInvalid", field, format!("Invalid value: {kind:?}: {text}")),
    }
}

#[cfg(test)]
mod tests;
