//! CEL expressions of match conditions and validating policies: compiled once, evaluated on JSON.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::{Value, json};

use super::Attributes;
use crate::authz::reviews::user_info;

/// A compiled expression, or why it does not compile.
pub struct Expression {
    /// As written.
    pub source: String,
    program: Result<Program, String>,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expression").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Expression {
    /// Compiles.
    #[must_use]
    pub fn new(source: &str) -> Self {
        let program = Program::compile(source).map_err(|e| format!("compilation failed: {e}"));
        Self { source: source.to_owned(), program }
    }

    /// The value in an environment.
    ///
    /// # Errors
    /// When it does not compile or evaluate.
    pub fn evaluate(&self, environment: &Environment<'_>) -> Result<Cel, String> {
        let program = self.program.as_ref().map_err(Clone::clone)?;
        program
            .execute(&environment.context)
            .map_err(|e| format!("expression '{}' resulted in error: {e}", self.source))
    }

    /// The value, which must be a boolean.
    ///
    /// # Errors
    /// When it does not compile, evaluate or is something else.
    pub fn is_true(&self, environment: &Environment<'_>) -> Result<bool, String> {
        match self.evaluate(environment)? {
            Cel::Bool(value) => Ok(value),
            other => Err(format!("expression '{}' is not boolean: {other:?}", self.source)),
        }
    }
}

/// Variables and functions in scope.
pub struct Environment<'a> {
    context: Context<'a>,
}

impl Environment<'_> {
    /// `object`, `oldObject` and `request` of a write.
    #[must_use]
    pub fn new(attributes: &Attributes) -> Self {
        let mut context = Context::default().with_all();
        let document = |value: &Option<Value>| value.as_ref().map_or(Cel::Null, to_cel);
        context.add_variable_from_value("object", document(&attributes.object));
        context.add_variable_from_value("oldObject", document(&attributes.old));
        context.add_variable_from_value("request", to_cel(&request(attributes)));
        Self { context }
    }

    /// Adds a variable.
    pub fn set(&mut self, name: &str, value: Cel) {
        self.context.add_variable_from_value(name.to_owned(), value);
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

/// A JSON value as a CEL value.
#[must_use]
pub fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => Cel::Int(i),
            (None, Some(f)) => Cel::Float(f),
            (None, None) => Cel::Null,
        },
        Value::String(s) => Cel::String(Arc::new(s.clone())),
        Value::Array(list) => Cel::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let entries: HashMap<Key, Cel> =
                map.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), to_cel(v))).collect();
            Cel::Map(Map { map: Arc::new(entries) })
        }
    }
}

/// The text of a string value.
#[must_use]
pub fn as_text(value: &Cel) -> Option<&str> {
    match value {
        Cel::String(text) => Some(text),
        _ => None,
    }
}
