//! What a claim may ask for, and the templates of claims.

use std::collections::HashSet;

use super::{MANY, TAINTS, at_most, configurations, named_once, selectors, short};
use crate::strategy::field::{Causes, Field, LABEL, QUALIFIED_NAME, Rule, SUBDOMAIN};

/// Alternatives of a request at most.
const ALTERNATIVES: usize = 8;

/// Checks what a claim asks for.
pub(super) fn validate(devices: &Field<'_>, causes: &mut Causes) {
    at_most(&devices.get("requests"), MANY, causes);
    at_most(&devices.get("constraints"), MANY, causes);
    let mut names = HashSet::new();
    for request in devices.each("requests").take(MANY) {
        name(&request.get("name"), causes);
        named_once(&request.get("name"), &mut names, causes);
        self::request(&request, causes);
    }
    let known = references_of(devices);
    for constraint in devices.each("constraints").take(MANY) {
        references(&constraint, &known, causes);
        let attribute = constraint.get("matchAttribute");
        if !attribute.is_set() {
            constraint.required("exactly one of the constraint types must be set: `matchAttribute`", causes);
        } else if !attribute.text().contains('/') {
            attribute.invalid("must include a domain, `domain/name`", causes);
        } else {
            super::slice::property_name(&attribute, attribute.text(), causes);
        }
    }
    configurations(devices, Some(&known), causes);
}

fn name(name: &Field<'_>, causes: &mut Causes) {
    name.check(&Rule::Needed, causes);
    name.check(&LABEL, causes);
}

/// What constraints and configurations may refer to.
fn references_of(devices: &Field<'_>) -> HashSet<String> {
    let mut known = HashSet::new();
    for request in devices.each("requests") {
        let main = request.get("name").text();
        known.insert(main.to_owned());
        known.extend(request.each("firstAvailable").map(|sub| format!("{main}/{}", sub.get("name").text())));
    }
    known
}

/// The requests that something is about.
pub(super) fn references(of: &Field<'_>, known: &HashSet<String>, causes: &mut Causes) {
    at_most(&of.get("requests"), MANY, causes);
    let mut seen = HashSet::new();
    for request in of.each("requests").take(MANY) {
        named_once(&request, &mut seen, causes);
        if !known.contains(request.text()) {
            let why =
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
            request.invalid(why, causes);
        }
    }
}

fn request(request: &Field<'_>, causes: &mut Causes) {
    let (exact, list) = (request.get("exactly"), request.get("firstAvailable"));
    match (exact.is_set(), !list.is_empty()) {
        (true, true) => request
            .invalid("exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set", causes),
        (false, false) => request.required("exactly one of `exactly` or `firstAvailable` is required", causes),
        (true, false) => wish(&exact, causes),
        (false, true) => {
            at_most(&list, ALTERNATIVES, causes);
            let mut names = HashSet::new();
            for alternative in request.each("firstAvailable").take(ALTERNATIVES) {
                name(&alternative.get("name"), causes);
                named_once(&alternative.get("name"), &mut names, causes);
                wish(&alternative, causes);
            }
        }
    }
}

fn wish(wish: &Field<'_>, causes: &mut Causes) {
    let class = wish.get("deviceClassName");
    class.check(&Rule::Needed, causes);
    class.check(&SUBDOMAIN, causes);
    selectors(wish, causes);
    let (mode, count) = (wish.get("allocationMode"), wish.get("count"));
    match mode.text() {
        "ExactCount" if count.number() <= 0 => count.invalid("must be greater than zero", causes),
        "ExactCount" => {}
        "All" if count.number() != 0 => {
            count.invalid("must not be specified when allocationMode is 'All'", causes);
        }
        "All" => {}
        _ => mode.unsupported(&["All", "ExactCount"], causes),
    }
    tolerations(wish, causes);
}

pub(super) fn tolerations(of: &Field<'_>, causes: &mut Causes) {
    at_most(&of.get("tolerations"), TAINTS, causes);
    for toleration in of.each("tolerations").take(TAINTS) {
        let (key, operator, value) = (toleration.get("key"), toleration.get("operator"), toleration.get("value"));
        key.check(&QUALIFIED_NAME, causes);
        short(&key, 316, causes);
        match operator.text() {
            "Exists" if !value.is_empty() => value.invalid("must be empty for operator `Exists`", causes),
            "Exists" => {}
            "Equal" if key.is_empty() => {
                operator.invalid("must be `Exists` when `key` is empty", causes);
            }
            "Equal" => {
                if let Some(why) = apimachinery::names::label_value_problem(value.text()) {
                    value.invalid(&why, causes);
                }
            }
            _ => operator.unsupported(&["Equal", "Exists"], causes),
        }
        let effect = toleration.get("effect");
        if !effect.is_empty() {
            effect.check(&Rule::OneOf(&["NoExecute", "NoSchedule"]), causes);
        }
    }
}

/// Checks what claims are made of: of their metadata it gives labels and annotations only.
pub(super) fn template(spec: &Field<'_>, causes: &mut Causes) {
    let metadata = spec.get("metadata");
    for (field, _) in metadata.value.as_object().into_iter().flatten() {
        let given = metadata.get(field);
        if !matches!(field.as_str(), "labels" | "annotations" | "creationTimestamp") && !given.is_empty() {
            given.forbidden("cannot be set for a claim that is made of a template", causes);
        }
    }
    crate::strategy::field::labels(&metadata.get("labels"), causes);
    validate(&spec.get("spec").get("devices"), causes);
}
