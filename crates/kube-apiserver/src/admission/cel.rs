//! Expressions of match conditions and validating policies, and the names they see.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use apimachinery::cel::{
    Bindings, Budget, Fault, MATCH_CONDITIONS, PER_CALL, Program, Value as Cel, authorizer, value,
};
use apimachinery::pointer::{items, text};

use super::Attributes;
use crate::authz::Authorizer;
use crate::authz::reviews::user_info;

/// A compiled expression, or why it does not compile.
#[derive(Debug)]
pub struct Expression {
    /// As written.
    pub source: String,
    program: Result<Program, String>,
}

impl Expression {
    /// Compiles.
    #[must_use]
    pub fn new(source: &str) -> Self {
        let program = Program::compile(source.trim()).map_err(|error| format!("compilation failed: {error}"));
        Self { source: source.to_owned(), program }
    }

    /// The value, within what one call may cost and what is left of `budget`.
    ///
    /// # Errors
    /// When it does not compile or evaluate, or costs too much.
    pub fn evaluate(&self, scope: &Scope<'_>, budget: &mut Budget) -> Result<Cel, Fault> {
        let program = self.program.as_ref().map_err(|error| Fault::Error(error.clone()))?;
        let allowed = budget.left().min(PER_CALL);
        let mut call = Budget::new(allowed);
        let outcome = program.evaluate(scope, &mut call);
        *budget = Budget::new(budget.left() - (allowed - call.left()));
        outcome
    }

    /// The value, which must be a boolean.
    ///
    /// # Errors
    /// The sentence of Kubernetes when there is none.
    pub fn is_true(&self, scope: &Scope<'_>, budget: &mut Budget) -> Result<bool, String> {
        match self.evaluate(scope, budget) {
            Ok(Cel::Bool(value)) => Ok(value),
            Ok(_) => Err(self.failed("cel expression evaluates to a value that is no bool")),
            Err(fault) => Err(self.failed(&fault.to_string())),
        }
    }

    /// The sentence about a failure.
    #[must_use]
    pub fn failed(&self, why: &str) -> String {
        format!("expression '{}' resulted in error: {why}", self.source)
    }
}

/// Named expressions that all must hold for a webhook or policy to be concerned.
#[derive(Debug, Default)]
pub struct Conditions(Vec<Expression>);

impl Conditions {
    /// The conditions of a list of `matchConditions`.
    #[must_use]
    pub fn compile(list: &[Value]) -> Self {
        Self(list.iter().map(|c| Expression::new(text(c, "/expression"))).collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold. One that does not outweighs others that fail.
    ///
    /// # Errors
    /// The sentences about those that failed.
    pub fn hold(&self, scope: &Scope<'_>) -> Result<bool, String> {
        let mut budget = Budget::new(MATCH_CONDITIONS);
        let mut failures = Vec::new();
        for condition in &self.0 {
            match condition.is_true(scope, &mut budget) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => failures.push(error),
            }
        }
        match failures.len() {
            0 => Ok(true),
            1 => Err(failures.concat()),
            _ => Err(format!("[{}]", failures.join(", "))),
        }
    }
}

/// The names an expression about a write may use.
#[derive(Debug)]
pub struct Scope<'a> {
    values: HashMap<&'static str, Cel>,
    /// Evaluated when they are asked for, each once.
    variables: &'a [(String, Expression)],
    computed: RefCell<HashMap<String, Result<Cel, Fault>>>,
    /// Variables that are being evaluated, each for another one.
    open: Cell<usize>,
    /// Whether expressions may say how the object is changed.
    changes: bool,
}

/// Variables that may be evaluated one for another; each takes a part of the stack.
const CHAIN: usize = 50;

impl<'a> Scope<'a> {
    /// `object`, `oldObject`, `request` and `authorizer` of a write.
    #[must_use]
    pub fn new(attributes: &Attributes, asked: &Authorizer) -> Self {
        let document = |value: Option<&Value>| value.map_or(Cel::Null, value::plain);
        let user = &attributes.user;
        let asked: Arc<dyn authorizer::Authorizer> = Arc::new(asked.clone());
        let values = HashMap::from([
            ("object", document(attributes.object.as_ref())),
            ("oldObject", document(attributes.old.as_deref())),
            ("request", value::plain(&request(attributes))),
            ("authorizer", authorizer::of(&asked, user)),
            ("authorizer.requestResource", authorizer::of_request(&asked, user, &attributes.info, &attributes.name)),
        ]);
        Self { values, variables: &[], computed: RefCell::default(), open: Cell::new(0), changes: false }
    }

    /// Adds a name.
    pub fn set(&mut self, name: &'static str, value: Cel) {
        self.values.insert(name, value);
    }

    /// Lets expressions say how the object is changed.
    pub fn allow_changes(&mut self) {
        self.changes = true;
    }

    /// The same names about a changed object: all variables are evaluated anew.
    pub fn set_object(&mut self, object: &Value) {
        self.set("object", value::plain(object));
        self.computed.borrow_mut().clear();
    }

    /// Adds `variables`.
    pub fn variables(&mut self, list: &'a [(String, Expression)]) {
        self.variables = list;
        self.computed.borrow_mut().clear();
    }
}

impl Bindings for Scope<'_> {
    fn get(&self, name: &str) -> Option<Cel> {
        self.values.get(name).cloned()
    }

    fn field(&self, variable: &str, field: &str, budget: &mut Budget) -> Option<Result<Cel, Fault>> {
        if (variable, field) == ("authorizer", "requestResource") {
            return self.values.get("authorizer.requestResource").cloned().map(Ok);
        }
        if variable != "variables" {
            return None;
        }
        if let Some(known) = self.computed.borrow().get(field) {
            return Some(known.clone());
        }
        let (_, expression) = self.variables.iter().find(|(name, _)| name == field)?;
        // While it is evaluated, a variable does not exist: it may name others, but not itself.
        let unfinished = Err(Fault::Error(format!("no such key: {field}")));
        self.computed.borrow_mut().insert(field.to_owned(), unfinished);
        self.open.set(self.open.get() + 1);
        let outcome = match &expression.program {
            _ if self.open.get() > CHAIN => Err(Fault::Error(format!("more than {CHAIN} variables use one another"))),
            Ok(program) => program.evaluate(self, budget),
            Err(error) => Err(Fault::Error(error.clone())),
        };
        self.open.set(self.open.get() - 1);
        let outcome = outcome.map_err(|fault| match fault {
            Fault::Error(text) => Fault::Error(format!("composited variable {field:?} fails to evaluate: {text}")),
            Fault::Spent => Fault::Spent,
        });
        self.computed.borrow_mut().insert(field.to_owned(), outcome.clone());
        Some(outcome)
    }

    fn messages(&self) -> bool {
        self.changes
    }
}

fn request(attributes: &Attributes) -> Value {
    let resource = &attributes.resource;
    let kind = json!({"group": resource.group, "version": attributes.info.version, "kind": resource.kind});
    let gvr = json!({"group": resource.group, "version": attributes.info.version, "resource": resource.plural});
    let mut user = user_info(&attributes.user);
    for field in ["extra", "uid"] {
        if user.get(field).is_none() {
            user[field] = if field == "extra" { json!({}) } else { json!("") };
        }
    }
    json!({"kind": kind, "resource": gvr, "subResource": attributes.info.subresource, "requestKind": kind,
        "requestResource": gvr, "requestSubResource": attributes.info.subresource, "name": attributes.name,
        "namespace": attributes.namespace, "operation": attributes.operation.word(), "userInfo": user,
        "dryRun": attributes.dry_run, "options": attributes.options})
}

/// Named expressions of a document: `variables` of a policy.
pub(super) fn named(document: &Value, pointer: &str) -> Vec<(String, Expression)> {
    let entries = items(document, pointer).iter();
    entries.map(|v| (text(v, "/name").to_owned(), Expression::new(text(v, "/expression")))).collect()
}
