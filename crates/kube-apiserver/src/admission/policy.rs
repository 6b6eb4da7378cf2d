//! ValidatingAdmissionPolicies and their bindings, in CEL.
//!
//! Guarantees: a policy acts only through a binding; all that are concerned are evaluated, and the first that denies is
//! answered; an expression that fails refuses the request unless the policy's failure policy is Ignore; a variable is
//! evaluated when it is asked for, and only once for each parameter.

use std::sync::Arc;

use serde_json::{Value, json};

use apimachinery::cel::{Budget, Fault, PER_OBJECT, Value as Cel};
use apimachinery::error::{ApiError, Cause};
use apimachinery::pointer::{items, strings, text};

use super::Attributes;
use super::cel::{Conditions, Expression, Scope, named};
use crate::authz::Authorizer;
use crate::registry::Registry;
use crate::view::View;

mod bound;
pub(crate) mod mutating;
mod parameters;
pub(crate) mod typecheck;

use bound::Bound;

#[derive(Debug)]
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

#[derive(Debug)]
struct Policy {
    name: String,
    document: Arc<Value>,
    conditions: Conditions,
    variables: Vec<(String, Expression)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
    ignore_failures: bool,
}

/// All policies with their bindings.
pub struct Policies(Bound<Policy>);

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policies").finish_non_exhaustive()
    }
}

impl bound::Policy for Policy {
    const RESOURCES: [&'static str; 2] = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];

    fn compile(document: Arc<Value>) -> Self {
        let validation = |v: &Value| Validation {
            expression: Expression::new(text(v, "/expression")),
            message: text(v, "/message").to_owned(),
            message_expression: Some(text(v, "/messageExpression")).filter(|t| !t.is_empty()).map(Expression::new),
            reason: text(v, "/reason").to_owned(),
        };
        Self {
            name: text(&document, "/metadata/name").to_owned(),
            conditions: Conditions::compile(items(&document, "/spec/matchConditions")),
            variables: named(&document, "/spec/variables"),
            annotations: items(&document, "/spec/auditAnnotations")
                .iter()
                .map(|a| (text(a, "/key").to_owned(), Expression::new(text(a, "/valueExpression"))))
                .collect(),
            validations: items(&document, "/spec/validations").iter().map(validation).collect(),
            ignore_failures: text(&document, "/spec/failurePolicy") == "Ignore",
            document,
        }
    }
}

impl Policies {
    /// Policies found in `view`.
    #[must_use]
    pub fn new(view: Arc<dyn View>) -> Self {
        Self(Bound::new(view))
    }

    /// Evaluates all policies that concern the request.
    ///
    /// # Errors
    /// The first refusal of a binding that denies.
    pub async fn check(
        &self,
        attributes: &Attributes,
        registry: &Registry,
        authorizer: &Authorizer,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let mut refused = None;
        let view = &*self.0.view;
        for (policy, binding) in &self.0.current().bound {
            let concerned = bound::concerns(view, &policy.document, binding, attributes, registry);
            let Some(version) = concerned else { continue };
            let seen = bound::in_version(view, attributes, registry, &version).await?;
            let seen = seen.as_ref().unwrap_or(attributes);
            for failure in self.evaluate(policy, binding, seen, registry, authorizer) {
                let denied = act(policy, binding, seen, &failure, warnings);
                refused = refused.or_else(|| denied.map(|text| refusal(attributes, &text, &failure.reason)));
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn evaluate(
        &self,
        policy: &Policy,
        binding: &Value,
        attributes: &Attributes,
        registry: &Registry,
        authorizer: &Authorizer,
    ) -> Vec<Failed> {
        let found = parameters::find(&*self.0.view, &policy.document, binding, attributes, registry);
        let parameters = match found {
            Ok(parameters) => parameters,
            Err(_) if policy.ignore_failures => return Vec::new(),
            Err(error) => {
                return vec![Failed { always: true, ..Failed::new(format!("failed to configure binding: {error}")) }];
            }
        };
        let mut failures = Vec::new();
        for parameter in parameters {
            let scope = bound::scope(&*self.0.view, attributes, authorizer, parameter.as_deref(), &policy.variables);
            match policy.conditions.hold(&scope) {
                Ok(true) => run(policy, &scope, &mut failures),
                Ok(false) => {}
                Err(error) if policy.ignore_failures => {
                    tracing::debug!(policy = %policy.name, %error, "match condition failed, ignored by the failure policy");
                }
                Err(error) => failures.push(Failed::new(error)),
            }
        }
        failures
    }
}

fn run(policy: &Policy, scope: &Scope<'_>, failures: &mut Vec<Failed>) {
    let mut budget = Budget::new(PER_OBJECT);
    for (index, validation) in policy.validations.iter().enumerate() {
        let outcome = match validation.expression.evaluate(scope, &mut budget) {
            Ok(Cel::Bool(true)) => continue,
            Ok(Cel::Bool(false)) => {
                let message = message_of(validation, scope, &mut budget);
                failures.push(Failed { index, reason: validation.reason.clone(), ..Failed::new(message) });
                continue;
            }
            Ok(_) => validation.expression.failed("cel expression evaluates to a value that is no bool"),
            Err(Fault::Spent) if budget.left() == 0 => {
                "validation failed due to running out of cost budget, no further validation rules will be run"
                    .to_owned()
            }
            Err(fault) => validation.expression.failed(&fault.to_string()),
        };
        if !policy.ignore_failures {
            failures.push(Failed { index, ..Failed::new(outcome) });
        }
        if budget.left() == 0 {
            return;
        }
    }
    for (key, expression) in &policy.annotations {
        match expression.evaluate(scope, &mut budget) {
            Ok(Cel::String(text)) if !text.is_empty() => {
                let text: String = text.chars().take(10 * 1024).collect();
                tracing::info!(target: "audit", annotation = %format!("{}/{key}", policy.name), value = %text, "audit annotation of a policy");
            }
            Ok(Cel::String(_) | Cel::Null) => {}
            Ok(_) if policy.ignore_failures => {}
            Ok(_) => failures.push(Failed::new(format!(
                "valueExpression '{}' resulted in unsupported return type. Return type must be either string or null.",
                expression.source
            ))),
            Err(_) if policy.ignore_failures => {}
            Err(fault) => {
                failures
                    .push(Failed::new(format!("valueExpression '{}' resulted in error: {fault}", expression.source)));
            }
        }
    }
}

struct Failed {
    message: String,
    reason: String,
    /// Of the validation.
    index: usize,
    /// The binding itself is broken: refused whatever its actions are.
    always: bool,
}

impl Failed {
    fn new(message: String) -> Self {
        Self { message, reason: String::new(), index: 0, always: false }
    }
}

/// Does what the binding says about a failure; yields the refusal's text if it denies.
fn act(
    policy: &Policy,
    binding: &Value,
    attributes: &Attributes,
    failure: &Failed,
    warnings: &mut Vec<String>,
) -> Option<String> {
    let actions = strings(binding, "/spec/validationActions");
    let has = |action: &str| actions.iter().any(|a| a == action);
    let name = text(binding, "/metadata/name");
    let bound = format!("'{}' with binding '{name}'", policy.name);
    if has("Audit") {
        let entry = json!([{"message": failure.message, "policy": policy.name, "binding": name,
            "expressionIndex": failure.index, "validationActions": actions}]);
        tracing::info!(target: "audit", user = %attributes.user.name, resource = %attributes.resource.group_resource(),
            name = %attributes.name, "validation.policy.admission.k8s.io/validation_failure" = %entry, "policy violation");
    }
    if has("Warn") {
        warnings.push(format!("Validation failed for ValidatingAdmissionPolicy {bound}: {}", failure.message));
    }
    (has("Deny") || failure.always)
        .then(|| format!("ValidatingAdmissionPolicy {bound} denied request: {}", failure.message))
}

fn message_of(validation: &Validation, scope: &Scope<'_>, budget: &mut Budget) -> String {
    if let Some(Ok(Cel::String(message))) = validation.message_expression.as_ref().map(|e| e.evaluate(scope, budget)) {
        let message = message.trim();
        if !message.is_empty() && message.len() <= 5 * 1024 && !message.contains(['\n', '\r']) {
            return message.to_owned();
        }
    }
    if validation.message.trim().is_empty() {
        format!("failed expression: {}", validation.expression.source.trim())
    } else {
        validation.message.trim().to_owned()
    }
}

fn refusal(attributes: &Attributes, message: &str, reason: &str) -> ApiError {
    let mut error =
        ApiError::forbidden(&attributes.resource.group, &attributes.resource.plural, &attributes.name, message);
    (error.code, error.reason) = match reason {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    error.causes.push(Cause { reason: String::new(), message: message.to_owned(), field: String::new() });
    error
}

#[cfg(test)]
mod tests;
