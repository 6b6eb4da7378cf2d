//! ValidatingAdmissionPolicies and their bindings, in CEL.
//!
//! Guarantees: a policy acts only through a binding; all that are concerned are evaluated, and the first that denies is
//! answered; an expression that fails refuses the request unless the policy's failure policy is Ignore; a variable is
//! evaluated when it is asked for, and only once for each parameter.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Value, json};

use apimachinery::cel::{Budget, Fault, PER_OBJECT, Value as Cel, value};
use apimachinery::error::{ApiError, Cause};
use apimachinery::pointer::{items, strings, text};

use super::cel::{Conditions, Expression, Scope, named};
use super::{Attributes, rules};
use crate::authz::Authorizer;
use crate::crd::convert::between;
use crate::registry::Registry;
use crate::view::View;

mod parameters;
pub(crate) mod typecheck;

const GROUP: &str = "admissionregistration.k8s.io";

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

#[derive(Debug, Default)]
struct Compiled {
    revisions: [u64; 2],
    bound: Vec<(Arc<Policy>, Arc<Value>)>,
}

/// All policies with their bindings, compiled when one changes.
pub struct Policies {
    view: Arc<dyn View>,
    compiled: ArcSwap<Compiled>,
}

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policies").finish_non_exhaustive()
    }
}

impl Policy {
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
        Self { view, compiled: ArcSwap::from_pointee(Compiled { revisions: [u64::MAX; 2], bound: Vec::new() }) }
    }

    fn current(&self) -> Arc<Compiled> {
        let revisions =
            ["validatingadmissionpolicies", "validatingadmissionpolicybindings"].map(|r| self.view.revision(GROUP, r));
        let compiled = self.compiled.load_full();
        if compiled.revisions == revisions {
            return compiled;
        }
        let policies: HashMap<String, Arc<Policy>> = self
            .view
            .list(GROUP, "validatingadmissionpolicies", "")
            .into_iter()
            .map(|p| (text(&p, "/metadata/name").to_owned(), Arc::new(Policy::compile(p))))
            .collect();
        let bindings = self.view.list(GROUP, "validatingadmissionpolicybindings", "").into_iter();
        let bound = bindings.filter_map(|b| Some((policies.get(text(&b, "/spec/policyName"))?.clone(), b))).collect();
        let fresh = Arc::new(Compiled { revisions, bound });
        self.compiled.store(fresh.clone());
        fresh
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
        for (policy, binding) in &self.current().bound {
            let Some(version) = self.concerns(policy, binding, attributes, registry) else { continue };
            let seen = self.in_version(attributes, registry, &version).await?;
            let seen = seen.as_ref().unwrap_or(attributes);
            for failure in self.evaluate(policy, binding, seen, registry, authorizer) {
                let denied = act(policy, binding, seen, &failure, warnings);
                refused = refused.or_else(|| denied.map(|text| refusal(attributes, &text, &failure.reason)));
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// The version in which a policy wants to see the request through this binding; None when it is not concerned.
    fn concerns(
        &self,
        policy: &Policy,
        binding: &Value,
        attributes: &Attributes,
        registry: &Registry,
    ) -> Option<String> {
        let matched = |holder: &Value| {
            let equivalent = text(holder, "/matchPolicy") != "Exact";
            let listed = items(holder, "/resourceRules");
            let excluded = items(holder, "/excludeResourceRules");
            let own = || Some(attributes.info.version.clone()).filter(|_| listed.is_empty());
            let version = rules::matched_version(listed, attributes, equivalent, registry).or_else(own)?;
            let out = rules::matched_version(excluded, attributes, equivalent, registry).is_some()
                || !rules::selectors_match(&*self.view, holder, attributes);
            (!out).then_some(version)
        };
        let constraints = policy.document.pointer("/spec/matchConstraints").unwrap_or(&Value::Null);
        // A policy says what it is about; only a binding may leave the rules out.
        if items(constraints, "/resourceRules").is_empty() {
            return None;
        }
        let version = matched(constraints)?;
        let narrowed = binding.pointer("/spec/matchResources").filter(|holder| holder.is_object());
        narrowed.is_none_or(|holder| matched(holder).is_some()).then_some(version)
    }

    /// The request with its objects in another version of the resource; None when they are in it already.
    async fn in_version(
        &self,
        attributes: &Attributes,
        registry: &Registry,
        version: &str,
    ) -> Result<Option<Attributes>, ApiError> {
        if version == attributes.info.version || !attributes.info.subresource.is_empty() {
            return Ok(None);
        }
        let mut seen = attributes.clone();
        if let Some(own) = seen.object.take() {
            seen.object = Some(between(&*self.view, registry, &attributes.resource, own, version).await?);
        }
        if let Some(own) = seen.old.take() {
            let own = Arc::unwrap_or_clone(own);
            seen.old = Some(between(&*self.view, registry, &attributes.resource, own, version).await?.into());
        }
        version.clone_into(&mut seen.info.version);
        Ok(Some(seen))
    }

    fn evaluate(
        &self,
        policy: &Policy,
        binding: &Value,
        attributes: &Attributes,
        registry: &Registry,
        authorizer: &Authorizer,
    ) -> Vec<Failed> {
        let found = parameters::find(&*self.view, &policy.document, binding, attributes, registry);
        let parameters = match found {
            Ok(parameters) => parameters,
            Err(_) if policy.ignore_failures => return Vec::new(),
            Err(error) => {
                return vec![Failed { always: true, ..Failed::new(format!("failed to configure binding: {error}")) }];
            }
        };
        let mut failures = Vec::new();
        for parameter in parameters {
            let mut scope = Scope::new(attributes, authorizer);
            scope.set("params", parameter.as_deref().map_or(Cel::Null, value::plain));
            let namespace = match attributes.namespace.as_str() {
                "" => None,
                name => self.view.get("", "namespaces", "", name),
            };
            scope.set("namespaceObject", namespace.as_deref().map_or(Cel::Null, value::plain));
            scope.variables(&policy.variables);
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
