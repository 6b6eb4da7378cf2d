//! ValidatingAdmissionPolicies and their bindings, in CEL.
//!
//! Guarantees: a policy acts only through a binding; an expression that fails refuses the request unless the policy's
//! failure policy is Ignore; `variables` are evaluated in order and only once for each request and binding.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value;

use super::cel::{Environment, Expression, as_text, to_cel};
use super::{Attributes, rules};
use crate::authz::Authorizer;
use crate::authz::view::{View, items, strings, text};
use crate::error::{ApiError, Cause};
use crate::registry::Registry;

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
    conditions: Vec<Expression>,
    variables: Vec<(String, Expression)>,
    validations: Vec<Validation>,
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
            conditions: items(&document, "/spec/matchConditions")
                .iter()
                .map(|c| Expression::new(text(c, "/expression")))
                .collect(),
            variables: items(&document, "/spec/variables")
                .iter()
                .map(|v| (text(v, "/name").to_owned(), Expression::new(text(v, "/expression"))))
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
    /// A refusal of a binding that denies.
    pub fn check(
        &self,
        attributes: &Attributes,
        registry: &Registry,
        _authorizer: &Authorizer,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        for (policy, binding) in &self.current().bound {
            if !self.concerns(policy, binding, attributes, registry) {
                continue;
            }
            for failure in self.evaluate(policy, binding, attributes, registry) {
                let actions = strings(binding, "/spec/validationActions");
                let has = |action: &str| actions.iter().any(|a| a == action);
                let bound = format!("'{}' with binding '{}'", policy.name, text(binding, "/metadata/name"));
                if has("Audit") {
                    tracing::info!(policy = %policy.name, user = %attributes.user.name, message = %failure.message, "policy violation");
                }
                if has("Warn") {
                    warnings
                        .push(format!("Validation failed for ValidatingAdmissionPolicy {bound}: {}", failure.message));
                }
                if has("Deny") {
                    let message = format!("ValidatingAdmissionPolicy {bound} denied request: {}", failure.message);
                    return Err(refusal(attributes, &message, &failure.reason));
                }
            }
        }
        Ok(())
    }

    fn concerns(&self, policy: &Policy, binding: &Value, attributes: &Attributes, registry: &Registry) -> bool {
        let matches = |holder: &Value| {
            let equivalent = text(holder, "/matchPolicy") != "Exact";
            let listed = items(holder, "/resourceRules");
            let excluded = items(holder, "/excludeResourceRules");
            (listed.is_empty() || rules::matched_version(listed, attributes, equivalent, registry).is_some())
                && rules::matched_version(excluded, attributes, equivalent, registry).is_none()
                && rules::selectors_match(&*self.view, holder, attributes)
        };
        let constraints = policy.document.pointer("/spec/matchConstraints").unwrap_or(&Value::Null);
        // A policy says what it is about; only a binding may leave the rules out.
        !items(constraints, "/resourceRules").is_empty()
            && matches(constraints)
            && binding.pointer("/spec/matchResources").is_none_or(matches)
    }

    /// Documents of the parameter resource; `[None]` when the policy takes none. Err when they are missing and must not be.
    fn parameters(
        &self,
        policy: &Policy,
        binding: &Value,
        attributes: &Attributes,
        registry: &Registry,
    ) -> Result<Vec<Option<Arc<Value>>>, String> {
        let Some(kind) = policy.document.pointer("/spec/paramKind").filter(|k| k.is_object()) else {
            return Ok(vec![None]);
        };
        let Some(reference) = binding.pointer("/spec/paramRef").filter(|r| r.is_object()) else {
            return Ok(vec![None]);
        };
        let (group, version) = text(kind, "/apiVersion").split_once('/').unwrap_or(("", text(kind, "/apiVersion")));
        let resource = registry
            .find_kind(group, version, text(kind, "/kind"))
            .ok_or_else(|| format!("failed to find resource referenced by paramKind: {}", text(kind, "/kind")))?;
        let namespace = match (resource.namespaced, text(reference, "/namespace")) {
            (false, _) => "",
            (true, "") => attributes.namespace.as_str(),
            (true, given) => given,
        };
        let name = text(reference, "/name");
        let found: Vec<Arc<Value>> = if name.is_empty() {
            let all = self.view.list(group, &resource.plural, namespace);
            all.into_iter()
                .filter(|o| rules::selects(reference.get("selector"), o.pointer("/metadata/labels")))
                .collect()
        } else {
            self.view.get(group, &resource.plural, namespace, name).into_iter().collect()
        };
        if found.is_empty() {
            if text(reference, "/parameterNotFoundAction") == "Allow" {
                return Ok(Vec::new());
            }
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(found.into_iter().map(Some).collect())
    }

    fn evaluate(&self, policy: &Policy, binding: &Value, attributes: &Attributes, registry: &Registry) -> Vec<Failed> {
        let failed = |message: String| Failed { message, reason: String::new() };
        let parameters = match self.parameters(policy, binding, attributes, registry) {
            Ok(parameters) => parameters,
            Err(_) if policy.ignore_failures => return Vec::new(),
            Err(error) => return vec![failed(format!("failed to configure binding: {error}"))],
        };
        let mut failures = Vec::new();
        for parameter in parameters {
            let mut environment = Environment::new(attributes);
            environment.set("params", parameter.as_deref().map_or(Cel::Null, to_cel));
            let namespace = self.view.get("", "namespaces", "", &attributes.namespace);
            environment.set("namespaceObject", namespace.as_deref().map_or(Cel::Null, to_cel));
            match self.run(policy, &mut environment) {
                Ok(list) => failures.extend(list),
                Err(_) if policy.ignore_failures => {}
                Err(error) => failures.push(failed(error)),
            }
        }
        failures
    }

    fn run(&self, policy: &Policy, environment: &mut Environment<'_>) -> Result<Vec<Failed>, String> {
        let mut variables: HashMap<Key, Cel> = HashMap::new();
        let mut broken: Option<String> = None;
        for (name, expression) in &policy.variables {
            environment.set("variables", Cel::Map(Map { map: Arc::new(variables.clone()) }));
            match expression.evaluate(environment) {
                Ok(value) => {
                    variables.insert(Key::String(Arc::new(name.clone())), value);
                }
                // An expression that does not use the variable is not disturbed by its failure.
                Err(error) => broken = Some(error),
            }
        }
        environment.set("variables", Cel::Map(Map { map: Arc::new(variables) }));
        for condition in &policy.conditions {
            if !condition.is_true(environment)? {
                return Ok(Vec::new());
            }
        }
        let mut failures = Vec::new();
        for validation in &policy.validations {
            match validation.expression.is_true(environment) {
                Ok(true) => {}
                Ok(false) => failures
                    .push(Failed { message: message_of(validation, environment), reason: validation.reason.clone() }),
                Err(error) => return Err(broken.unwrap_or(error)),
            }
        }
        Ok(failures)
    }
}

struct Failed {
    message: String,
    reason: String,
}

fn message_of(validation: &Validation, environment: &Environment<'_>) -> String {
    let computed = validation.message_expression.as_ref().and_then(|e| e.evaluate(environment).ok());
    if let Some(message) = computed.as_ref().and_then(as_text).filter(|t| !t.trim().is_empty()) {
        return message.trim().to_owned();
    }
    if validation.message.is_empty() {
        format!("failed expression: {}", validation.expression.source)
    } else {
        validation.message.clone()
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
