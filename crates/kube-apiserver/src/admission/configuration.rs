//! What webhook configurations, policies and bindings must say.

use serde_json::{Value, json};

use crate::authz::view::{items, text};
use crate::cel::Program;
use crate::crd::check::{forbidden, invalid, required, unsupported};
use crate::error::Cause;

/// Match conditions at most.
const CONDITIONS: usize = 64;

/// Adds a cause for everything that keeps a configuration from being used.
pub(crate) fn validate(plural: &str, object: &Value, causes: &mut Vec<Cause>) {
    match plural {
        "validatingadmissionpolicies" => policy(object, causes),
        "validatingadmissionpolicybindings" => binding(object, causes),
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            let mut seen = Vec::new();
            for (index, hook) in items(object, "/webhooks").iter().enumerate() {
                let at = format!("webhooks[{index}]");
                webhook(hook, &at, causes);
                let name = text(hook, "/name");
                if seen.contains(&name) {
                    let message = format!("Duplicate value: {name:?}");
                    causes.push(crate::schema::validate::cause("FieldValueDuplicate", &format!("{at}.name"), message));
                }
                seen.push(name);
            }
        }
        _ => {}
    }
}

fn one_of(value: &Value, at: &str, known: &[&str], causes: &mut Vec<Cause>) {
    if let Some(said) = value.as_str()
        && !known.contains(&said)
    {
        causes.push(unsupported(at, value, known));
    }
}

fn webhook(hook: &Value, at: &str, causes: &mut Vec<Cause>) {
    let name = text(hook, "/name");
    if name.is_empty() {
        causes.push(required(&format!("{at}.name"), ""));
    } else if name.split('.').filter(|part| !part.is_empty()).count() < 3 {
        let why = "should be a domain with at least three segments separated by dots";
        causes.push(invalid(&format!("{at}.name"), &hook["name"], why));
    }
    let versions = format!("{at}.admissionReviewVersions");
    match items(hook, "/admissionReviewVersions") {
        [] => {
            let why = "must specify one of v1, v1beta1";
            causes.push(required(&versions, why));
        }
        list if !list.iter().any(|version| version == "v1") => {
            causes.push(invalid(&versions, &hook["admissionReviewVersions"], "must include at least one of v1"));
        }
        _ => {}
    }
    match text(hook, "/sideEffects") {
        "" => causes.push(required(&format!("{at}.sideEffects"), "must specify one of None, NoneOnDryRun")),
        _ => one_of(&hook["sideEffects"], &format!("{at}.sideEffects"), &["None", "NoneOnDryRun"], causes),
    }
    one_of(&hook["failurePolicy"], &format!("{at}.failurePolicy"), &["Fail", "Ignore"], causes);
    one_of(&hook["matchPolicy"], &format!("{at}.matchPolicy"), &["Equivalent", "Exact"], causes);
    one_of(&hook["reinvocationPolicy"], &format!("{at}.reinvocationPolicy"), &["IfNeeded", "Never"], causes);
    if let Some(seconds) = hook["timeoutSeconds"].as_i64().filter(|seconds| !(1..=30).contains(seconds)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        causes.push(invalid(&format!("{at}.timeoutSeconds"), &json!(seconds), why));
    }
    let client = &hook["clientConfig"];
    if client["url"].is_string() == client["service"].is_object() {
        causes.push(required(&format!("{at}.clientConfig"), "exactly one of url or service is required"));
    } else if let Some(address) = client["url"].as_str() {
        crate::crd::check::conversion::url(address, &format!("{at}.clientConfig.url"), causes);
    } else {
        crate::crd::check::conversion::service(&client["service"], &format!("{at}.clientConfig.service"), causes);
    }
    rules(items(hook, "/rules"), &format!("{at}.rules"), causes);
    conditions(items(hook, "/matchConditions"), &format!("{at}.matchConditions"), causes);
}

fn rules(list: &[Value], at: &str, causes: &mut Vec<Cause>) {
    for (index, rule) in list.iter().enumerate() {
        let at = format!("{at}[{index}]");
        for key in ["operations", "apiGroups", "apiVersions", "resources"] {
            let entries = items(rule, &format!("/{key}"));
            if entries.is_empty() {
                causes.push(required(&format!("{at}.{key}"), ""));
            } else if key != "resources" && entries.len() > 1 && entries.iter().any(|entry| entry == "*") {
                let what = match key {
                    "operations" => "operation",
                    "apiGroups" => "group",
                    _ => "version",
                };
                let why = format!("if '*' is present, must not specify other {what}s");
                causes.push(invalid(&format!("{at}.{key}"), &rule[key], &why));
            }
        }
        for (position, operation) in items(rule, "/operations").iter().enumerate() {
            let known = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
            one_of(operation, &format!("{at}.operations[{position}]"), &known, causes);
        }
        one_of(&rule["scope"], &format!("{at}.scope"), &["*", "Cluster", "Namespaced"], causes);
    }
}

fn conditions(list: &[Value], at: &str, causes: &mut Vec<Cause>) {
    if list.len() > CONDITIONS {
        let message = format!("Too many: {}: must have at most {CONDITIONS} items", list.len());
        causes.push(crate::schema::validate::cause("FieldValueTooMany", at, message));
    }
    for (index, condition) in list.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if text(condition, "/name").is_empty() {
            causes.push(required(&format!("{at}.name"), ""));
        }
        expression(condition, "expression", &at, causes);
    }
}

/// An expression that must be there and must parse.
fn expression(holder: &Value, key: &str, at: &str, causes: &mut Vec<Cause>) {
    let field = format!("{at}.{key}");
    let source = holder[key].as_str().unwrap_or_default().trim();
    if source.is_empty() {
        causes.push(required(&field, ""));
    } else if let Err(error) = Program::compile(source) {
        causes.push(invalid(&field, &holder[key], &format!("compilation failed: {error}")));
    }
}

fn policy(object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    one_of(&spec["failurePolicy"], "spec.failurePolicy", &["Fail", "Ignore"], causes);
    if items(spec, "/matchConstraints/resourceRules").is_empty() {
        causes.push(required("spec.matchConstraints.resourceRules", ""));
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        rules(items(spec, &format!("/matchConstraints/{key}")), &format!("spec.matchConstraints.{key}"), causes);
    }
    conditions(items(spec, "/matchConditions"), "spec.matchConditions", causes);
    let kind = &spec["paramKind"];
    for key in ["apiVersion", "kind"] {
        if kind.is_object() && text(kind, &format!("/{key}")).is_empty() {
            causes.push(required(&format!("spec.paramKind.{key}"), ""));
        }
    }
    for (index, variable) in items(spec, "/variables").iter().enumerate() {
        let at = format!("spec.variables[{index}]");
        let name = text(variable, "/name");
        let identifier = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() {
            causes.push(required(&format!("{at}.name"), "name is not specified"));
        } else if !identifier {
            causes.push(invalid(&format!("{at}.name"), &variable["name"], "name is not a valid CEL identifier"));
        }
        expression(variable, "expression", &at, causes);
    }
    let (validations, annotations) = (items(spec, "/validations"), items(spec, "/auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must be set";
        causes.push(required("spec.validations", &format!("{why}, validations may not be empty")));
        causes.push(required("spec.auditAnnotations", &format!("{why}, auditAnnotations may not be empty")));
    }
    for (index, validation) in validations.iter().enumerate() {
        validated(validation, &format!("spec.validations[{index}]"), causes);
    }
    for (index, annotation) in annotations.iter().enumerate() {
        let at = format!("spec.auditAnnotations[{index}]");
        if text(annotation, "/key").is_empty() {
            causes.push(required(&format!("{at}.key"), ""));
        }
        expression(annotation, "valueExpression", &at, causes);
    }
}

fn validated(validation: &Value, at: &str, causes: &mut Vec<Cause>) {
    const REASONS: [&str; 4] = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
    if text(validation, "/expression").trim().is_empty() {
        causes.push(required(&format!("{at}.expression"), "expression is not specified"));
    } else {
        expression(validation, "expression", at, causes);
    }
    let message = text(validation, "/message");
    if !message.is_empty() && message.trim().is_empty() {
        let why = "message must be non-empty if specified";
        causes.push(invalid(&format!("{at}.message"), &validation["message"], why));
    } else if message.contains(['\n', '\r']) {
        causes.push(invalid(&format!("{at}.message"), &validation["message"], "message must not contain line breaks"));
    } else if message.is_empty() && text(validation, "/expression").trim().contains(['\n', '\r']) {
        let why = "message must be specified if expression contains line breaks";
        causes.push(required(&format!("{at}.message"), why));
    }
    if validation["messageExpression"].is_string() {
        expression(validation, "messageExpression", at, causes);
    }
    one_of(&validation["reason"], &format!("{at}.reason"), &REASONS, causes);
}

fn binding(object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    if text(spec, "/policyName").is_empty() {
        causes.push(required("spec.policyName", ""));
    }
    let actions = items(spec, "/validationActions");
    if actions.is_empty() {
        causes.push(required("spec.validationActions", "at least one validation action is required"));
    }
    for (index, action) in actions.iter().enumerate() {
        one_of(action, &format!("spec.validationActions[{index}]"), &["Audit", "Deny", "Warn"], causes);
        if actions[..index].contains(action) {
            let message = format!("Duplicate value: {action}");
            let field = format!("spec.validationActions[{index}]");
            causes.push(crate::schema::validate::cause("FieldValueDuplicate", &field, message));
        }
    }
    if ["Deny", "Warn"].iter().all(|word| actions.iter().any(|action| action == word)) {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        causes.push(invalid("spec.validationActions", &spec["validationActions"], why));
    }
    let reference = &spec["paramRef"];
    if reference.is_object() {
        match (text(reference, "/name"), reference["selector"].is_object()) {
            ("", false) => causes.push(required("spec.paramRef", "one of name or selector must be specified")),
            ("", true) | (_, false) => {}
            (_, true) => causes.push(forbidden("spec.paramRef.name", "name and selector are mutually exclusive")),
        }
        match text(reference, "/parameterNotFoundAction") {
            "" => causes.push(required("spec.paramRef.parameterNotFoundAction", "")),
            _ => one_of(
                &reference["parameterNotFoundAction"],
                "spec.paramRef.parameterNotFoundAction",
                &["Allow", "Deny"],
                causes,
            ),
        }
    }
}
