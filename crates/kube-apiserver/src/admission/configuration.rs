//! What webhook configurations, policies and bindings must say.

mod hook;
mod resources;

use serde_json::{Value, json};

use apimachinery::cel::types::Type;
use apimachinery::error::Cause;
use apimachinery::pointer::{items, text};

use super::expressions::Scope;
use crate::crd::check::{forbidden, invalid, required, unsupported};
use crate::validation::rules::{self, Must, Rules};

const CONDITIONS: Rules = &[
    ("matchConditions", &[Must::HoldAtMost(64), Must::Differ("name")]),
    ("matchConditions[].name", &[Must::Be, Must::ReadIfAny(rules::qualified)]),
];

/// Of both kinds of policies, which have only some of the fields each.
const POLICY: Rules = &[
    ("spec.failurePolicy", &[Must::OneOf(&["Fail", "Ignore"])]),
    ("spec.paramKind?.apiVersion", &[Must::Be, Must::ReadIfAny(api_version)]),
    ("spec.paramKind?.kind", &[Must::Be, Must::ReadIfAny(kind)]),
    ("spec.matchConstraints", &[Must::Be]),
    ("spec.matchConstraints?.resourceRules", &[Must::Be]),
    ("spec.auditAnnotations", &[Must::HoldAtMost(20), Must::Differ("key")]),
    ("spec.auditAnnotations[].valueExpression", &[Must::BeFor("valueExpression is not specified")]),
    ("spec.variables[].name", &[Must::BeFor("name is not specified"), Must::ReadIfAny(identifier)]),
    ("spec.variables[].expression", &[Must::BeFor("expression is not specified")]),
    ("spec.validations[].expression", &[Must::BeFor("expression is not specified")]),
    ("spec.validations[].reason", &[Must::OneOf(&["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"])]),
];

const MUTATIONS: Rules = &[
    ("spec.mutations", &[Must::BeFor("mutations must contain at least one item")]),
    ("spec.reinvocationPolicy", &[Must::Be, Must::OneOf(&["IfNeeded", "Never"])]),
];

/// What can be changed; of a deletion there is nothing.
const MUTABLE: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// The types of patches: the field each has its expression in, and what that must come to.
const PATCHES: [(&str, &str, &str); 2] =
    [("ApplyConfiguration", "applyConfiguration", "Object"), ("JSONPatch", "jsonPatch", "list(JSONPatch)")];

const BINDING: Rules = &[("spec.policyName", &[Must::Be, Must::ReadIfAny(rules::subdomain)])];

const ACTIONS: Rules = &[
    ("spec.validationActions", &[Must::BeFor("at least one validation action is required"), Must::Differ("")]),
    ("spec.validationActions[]", &[Must::OneOf(&["Audit", "Deny", "Warn"])]),
];

const PARAMETER: Rules = &[("spec.paramRef?.selector", &[Must::Select])];

fn api_version(text: &str) -> Option<String> {
    let (group, version) = text.split_once('/').map_or((None, text), |(group, version)| (Some(group), version));
    rules::dns_1035(version).or_else(|| group.and_then(rules::subdomain))
}

fn kind(text: &str) -> Option<String> {
    let why = rules::dns_1035(&text.to_lowercase())?;
    Some(format!("may have mixed case, but should otherwise match: {why}"))
}

fn identifier(text: &str) -> Option<String> {
    let good = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (!good).then(|| "must be a valid CEL identifier".to_owned())
}

/// Adds a cause for everything that keeps a configuration from being used.
pub(crate) fn validate(plural: &str, object: &Value, causes: &mut Vec<Cause>) {
    match plural {
        "validatingadmissionpolicies" => validating(object, causes),
        "validatingadmissionpolicybindings" => binding(object, ACTIONS, causes),
        "mutatingadmissionpolicies" => mutating(object, causes),
        "mutatingadmissionpolicybindings" => {
            binding(object, &[], causes);
            operations(&object["spec"]["matchResources"], "spec.matchResources", causes);
        }
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            rules::check(object, &[("webhooks", &[Must::Differ("name")])], causes);
            for (index, hook) in items(object, "/webhooks").iter().enumerate() {
                hook::check(hook, &format!("webhooks[{index}]"), causes);
            }
        }
        _ => {}
    }
}

/// Conditions on requests, each with a name and an expression that says yes or no.
fn conditions(holder: &Value, at: &str, scope: &Scope, causes: &mut Vec<Cause>) {
    rules::check_at(at, holder, CONDITIONS, causes);
    for (index, condition) in items(holder, "/matchConditions").iter().enumerate() {
        let field = format!("{at}.matchConditions[{index}].expression");
        if text(condition, "/expression").trim().is_empty() {
            causes.push(required(&field, ""));
        } else {
            expression(&condition["expression"], &field, scope, &["bool"], causes);
        }
    }
}

/// An expression that must come to one of these types; an empty one is somebody else's to refuse.
fn expression(value: &Value, field: &str, scope: &Scope, wanted: &[&str], causes: &mut Vec<Cause>) {
    let source = value.as_str().unwrap_or_default().trim();
    if let Some(why) = scope.problem(source, wanted).filter(|_| !source.is_empty()) {
        causes.push(invalid(field, value, &why));
    }
}

/// Checks what policies of both kinds have; yields the names that their expressions use.
fn policy(object: &Value, causes: &mut Vec<Cause>) -> Scope {
    let spec = &object["spec"];
    rules::check(object, POLICY, causes);
    if spec["matchConstraints"] == json!({}) {
        causes.retain(|cause| cause.field != "spec.matchConstraints");
    }
    if spec["matchConstraints"].is_object() {
        resources::check(&spec["matchConstraints"], "spec.matchConstraints", causes);
    }
    let mut scope = Scope::policy(spec["paramKind"].is_object());
    conditions(spec, "spec", &scope, causes);
    scope.open_variables();
    for (index, variable) in items(spec, "/variables").iter().enumerate() {
        let (name, source) = (text(variable, "/name"), text(variable, "/expression").trim());
        let found = scope.type_of(source);
        if let Some(error) = found.as_ref().err().filter(|_| !source.is_empty()) {
            let field = format!("spec.variables[{index}].expression");
            causes.push(invalid(&field, &variable["expression"], &format!("compilation failed: {error}")));
        }
        if !source.is_empty() && !name.is_empty() && identifier(name).is_none() {
            scope.declare(name, found.unwrap_or(Type::Dyn));
        }
    }
    scope
}

fn mutating(object: &Value, causes: &mut Vec<Cause>) {
    let mut scope = policy(object, causes);
    operations(&object["spec"]["matchConstraints"], "spec.matchConstraints", causes);
    rules::check(object, MUTATIONS, causes);
    scope.allow_changes();
    for (index, mutation) in items(object, "/spec/mutations").iter().enumerate() {
        mutates(mutation, &format!("spec.mutations[{index}]"), &scope, causes);
    }
}

/// Refuses operations of which policies cannot change the object.
fn operations(resources: &Value, at: &str, causes: &mut Vec<Cause>) {
    let field = format!("{at}.resourceRules.operations");
    for operation in items(resources, "/resourceRules").iter().flat_map(|rule| items(rule, "/operations")) {
        if !MUTABLE.iter().any(|known| operation == known) {
            causes.push(unsupported(&field, operation, &MUTABLE));
        }
    }
}

fn mutates(mutation: &Value, at: &str, scope: &Scope, causes: &mut Vec<Cause>) {
    let given = text(mutation, "/patchType");
    let field = format!("{at}.patchType");
    if given.is_empty() {
        causes.push(required(&field, ""));
        return;
    }
    if !PATCHES.iter().any(|(name, ..)| *name == given) {
        causes.push(unsupported(&field, &mutation["patchType"], &PATCHES.map(|(name, ..)| name)));
        return;
    }
    for (name, holder, wanted) in PATCHES {
        let (value, field) = (&mutation[holder], format!("{at}.{holder}"));
        match (name == given, value.is_object()) {
            (true, true) if text(value, "/expression").trim().is_empty() => {
                causes.push(required(&format!("{field}.expression"), ""));
            }
            (true, true) => expression(&value["expression"], &format!("{field}.expression"), scope, &[wanted], causes),
            (true, false) => causes.push(required(&field, &format!("must be specified when patchType is {given}"))),
            (false, true) => {
                let why = format!("must not be specified when patchType is {given}");
                causes.push(invalid(&field, &json!(format!("{{{holder}}}")), &why));
            }
            (false, false) => {}
        }
    }
}

fn validating(object: &Value, causes: &mut Vec<Cause>) {
    let scope = policy(object, causes);
    let spec = &object["spec"];
    let (validations, annotations) = (items(spec, "/validations"), items(spec, "/auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for list in ["validations", "auditAnnotations"] {
            let why = "validations or auditAnnotations must contain at least one item";
            causes.push(required(&format!("spec.{list}"), why));
        }
    }
    for (index, validation) in validations.iter().enumerate() {
        validated(validation, &format!("spec.validations[{index}]"), &scope, causes);
    }
    let owner = text(object, "/metadata/name");
    for (index, annotation) in annotations.iter().enumerate() {
        let at = format!("spec.auditAnnotations[{index}]");
        let key = format!("{owner}/{}", text(annotation, "/key"));
        if let Some(why) = rules::qualified(&key) {
            causes.push(invalid(&format!("{at}.key"), &json!(key), &why));
        }
        let field = format!("{at}.valueExpression");
        expression(&annotation["valueExpression"], &field, &scope, &["string", "null_type"], causes);
    }
}

fn validated(validation: &Value, at: &str, scope: &Scope, causes: &mut Vec<Cause>) {
    expression(&validation["expression"], &format!("{at}.expression"), scope, &["bool"], causes);
    let message = text(validation, "/message");
    let field = format!("{at}.message");
    if !message.is_empty() && message.trim().is_empty() {
        causes.push(invalid(&field, &validation["message"], "message must be non-empty if specified"));
    } else if message.trim().contains(['\n', '\r']) {
        causes.push(invalid(&field, &validation["message"], "must not contain line breaks"));
    } else if message.is_empty() && text(validation, "/expression").trim().contains(['\n', '\r']) {
        causes.push(required(&field, "must be set if expression contains line breaks"));
    }
    let field = format!("{at}.messageExpression");
    let source = text(validation, "/messageExpression");
    if !source.is_empty() && source.trim().is_empty() {
        causes.push(invalid(&field, &validation["messageExpression"], "must be non-empty if specified"));
    }
    expression(&validation["messageExpression"], &field, scope, &["string"], causes);
}

fn binding(object: &Value, actions: Rules, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    for table in [BINDING, actions, PARAMETER] {
        rules::check(object, table, causes);
    }
    let actions = items(spec, "/validationActions");
    if ["Deny", "Warn"].iter().all(|word| actions.iter().any(|action| action == word)) {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        causes.push(invalid("spec.validationActions", &spec["validationActions"], why));
    }
    if spec["matchResources"].is_object() {
        resources::check(&spec["matchResources"], "spec.matchResources", causes);
    }
    let reference = &spec["paramRef"];
    if !reference.is_object() {
        return;
    }
    match (text(reference, "/name"), reference["selector"].is_object()) {
        ("", false) => causes.push(required("spec.paramRef", "one of name or selector must be specified")),
        ("", true) => {}
        (name, selects) => {
            if let Some(why) = apimachinery::names::path_segment_problem(name) {
                causes.push(invalid("spec.paramRef.name", &json!(name), why));
            }
            for field in ["name", "selector"].into_iter().filter(|_| selects) {
                let why = "name and selector are mutually exclusive";
                causes.push(forbidden(&format!("spec.paramRef.{field}"), why));
            }
        }
    }
    let action = &reference["parameterNotFoundAction"];
    let field = "spec.paramRef.parameterNotFoundAction";
    match action.as_str().unwrap_or_default() {
        "" => causes.push(required(field, "")),
        "Allow" | "Deny" => {}
        _ => causes.push(unsupported(field, action, &["Deny", "Allow"])),
    }
}
