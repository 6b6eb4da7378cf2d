//! FlowSchemas and PriorityLevelConfigurations: their defaults and what they may say. The sentences are those clients of
//! Kubernetes know.

use serde_json::{Value, json};

use apimachinery::names::{label_problem, subdomain_problem};
use apimachinery::tree::{child, each, set_missing};

use super::field::{Causes, Field, Rule};
use crate::flow::level::entropy;
use crate::flow::{EXEMPT, shipped};
use crate::registry::Resource;

/// Queues at most.
const QUEUES: i64 = 10_000_000;
/// Bits of a hash of which a hand is dealt.
const BITS: u32 = 60;
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const PERCENT: Rule = Rule::Within(0, 100);

/// Sets what was left out.
pub(super) fn defaults(plural: &str, spec: &mut Value) {
    if plural == "flowschemas" {
        fill(spec, "matchingPrecedence", 1000);
        for rule in each(spec, "rules") {
            for rule in each(rule, "resourceRules").filter(|rule| rule["clusterScope"] == false) {
                if let Some(rule) = rule.as_object_mut() {
                    rule.remove("clusterScope");
                }
            }
        }
        return;
    }
    for (part, shares) in [("limited", 30), ("exempt", 0)] {
        let wanted = part == "exempt" && spec["type"] == "Exempt" && spec["exempt"].is_null();
        if wanted || spec[part].is_object() {
            let part = child(spec, part);
            set_missing(part, "nominalConcurrencyShares", shares);
            set_missing(part, "lendablePercent", 0);
        }
    }
    if let Some(queuing) = spec.pointer_mut("/limited/limitResponse/queuing").filter(|queuing| queuing.is_object()) {
        fill(queuing, "queues", 64);
        fill(queuing, "handSize", 8);
        fill(queuing, "queueLengthLimit", 50);
    }
}

/// Sets a number, for which zero is none.
fn fill(object: &mut Value, key: &str, number: i64) {
    if object[key].is_null() || object[key] == 0 {
        object[key] = number.into();
    }
}

/// Checks an object of either kind.
pub(super) fn validate(resource: &Resource, object: &Value, causes: &mut Causes) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let spec = Field::new("spec", &object["spec"]);
    let shipped = if resource.plural == "flowschemas" {
        schema(name, &spec, causes);
        shipped::schemas()
    } else {
        level(name, &spec, causes);
        shipped::levels()
    };
    if shipped::is_mandatory(name)
        && let Some(mut wanted) = shipped.into_iter().find(|object| object["metadata"]["name"] == name)
    {
        super::set_defaults(resource, &mut wanted);
        // How many seats are lent by those who never wait is for the administrator to say.
        if name == EXEMPT && !object["spec"]["exempt"].is_null() {
            wanted["spec"]["exempt"] = object["spec"]["exempt"].clone();
        }
        if wanted["spec"] != object["spec"] {
            spec.invalid(&format!("spec of '{name}' must equal the fixed value"), causes);
        }
    }
    let status = Field::new("status", &object["status"]);
    let mut seen: Vec<&str> = Vec::new();
    for condition in status.each("conditions") {
        let of_type = condition.get("type");
        if of_type.is_empty() {
            of_type.required("must not be empty", causes);
        }
        if seen.contains(&of_type.text()) {
            of_type.duplicate(causes);
        }
        seen.push(of_type.text());
    }
}

fn schema(name: &str, spec: &Field<'_>, causes: &mut Causes) {
    let precedence = spec.get("matchingPrecedence");
    match precedence.number() {
        ..=0 => precedence.invalid("must be a positive value", causes),
        10_001.. => precedence.invalid("must not be greater than 10000", causes),
        1 if name != EXEMPT => {
            precedence.invalid("only the schema named 'exempt' may have matchingPrecedence 1", causes);
        }
        _ => {}
    }
    let method = spec.get("distinguisherMethod");
    if method.is_set() {
        method.get("type").check(&Rule::Exactly(&["ByNamespace", "ByUser"]), causes);
    }
    let level = spec.get("priorityLevelConfiguration").get("name");
    if level.is_empty() {
        level.required("must reference a priority level", causes);
    } else if let Some(why) = subdomain_problem(level.text()) {
        level.invalid(why, causes);
    }
    for rule in spec.each("rules") {
        let subjects = rule.get("subjects");
        if subjects.is_empty() {
            subjects.required("subjects must contain at least one value", causes);
        }
        rule.each("subjects").for_each(|one| subject(&one, causes));
        if rule.get("resourceRules").is_empty() && rule.get("nonResourceRules").is_empty() {
            rule.required("at least one of resourceRules and nonResourceRules has to be non-empty", causes);
        }
        rule.each("resourceRules").for_each(|rule| resources(&rule, causes));
        rule.each("nonResourceRules").for_each(|rule| paths(&rule, causes));
    }
}

fn subject(subject: &Field<'_>, causes: &mut Causes) {
    const KINDS: [(&str, &str); 3] = [("Group", "group"), ("ServiceAccount", "serviceAccount"), ("User", "user")];
    let kind = subject.get("kind");
    if !KINDS.iter().any(|(known, _)| *known == kind.text()) {
        kind.unsupported(&KINDS.map(|(known, _)| known), causes);
        return;
    }
    for (of, field) in KINDS {
        let part = subject.get(field);
        match (of == kind.text(), part.is_set()) {
            (true, true) => named(of, &part, causes),
            (true, false) => part.required(&format!("{field} is required when subject kind is '{of}'"), causes),
            (false, true) => part.forbidden(&format!("{field} is forbidden when subject kind is not '{of}'"), causes),
            (false, false) => {}
        }
    }
}

fn named(kind: &str, part: &Field<'_>, causes: &mut Causes) {
    let name = part.get("name");
    if name.is_empty() {
        name.required("", causes);
    }
    if kind != "ServiceAccount" {
        return;
    }
    if !name.is_empty()
        && name.text() != "*"
        && let Some(why) = subdomain_problem(name.text())
    {
        name.invalid(why, causes);
    }
    let namespace = part.get("namespace");
    if namespace.is_empty() {
        namespace.required("must specify namespace for service account", causes);
    } else if let Some(why) = label_problem(namespace.text()) {
        namespace.invalid(why, causes);
    }
}

/// A list that is not empty, and in which `*` is alone. Whether each of its words counts.
fn check_list(rule: &Field<'_>, list: &str, missing: &str, others: &str, causes: &mut Causes) -> bool {
    let field = rule.get(list);
    let words = field.value.as_array().map(Vec::as_slice).unwrap_or_default();
    if words.is_empty() {
        field.required(missing, causes);
    }
    let all = words.iter().any(|word| word == "*");
    if all && words.len() > 1 {
        field.invalid(&format!("if '*' is present, must not specify other {others}"), causes);
    }
    !all
}

fn verbs(rule: &Field<'_>, causes: &mut Causes) {
    let verbs = rule.get("verbs");
    let unknown = |verb: &Value| verb.as_str().is_none_or(|verb| !VERBS.contains(&verb));
    if check_list(rule, "verbs", "verbs must contain at least one value", "verbs", causes)
        && verbs.value.as_array().is_some_and(|list| list.iter().any(unknown))
    {
        verbs.unsupported(&VERBS, causes);
    }
}

fn resources(rule: &Field<'_>, causes: &mut Causes) {
    verbs(rule, causes);
    check_list(rule, "apiGroups", "resource rules must supply at least one api group", "api groups", causes);
    check_list(rule, "resources", "resource rules must supply at least one resource", "resources", causes);
    if rule.get("namespaces").is_empty() && rule.get("clusterScope").value == true {
        return;
    }
    let missing = "resource rules that are not cluster scoped must supply at least one namespace";
    if check_list(rule, "namespaces", missing, "namespaces", causes) {
        for namespace in rule.each("namespaces") {
            if let Some(why) = label_problem(namespace.text()) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {why}");
                namespace.invalid(&why, causes);
            }
        }
    }
}

fn paths(rule: &Field<'_>, causes: &mut Causes) {
    verbs(rule, causes);
    let missing = "nonResourceURLs must contain at least one value";
    if check_list(rule, "nonResourceURLs", missing, "non-resource URLs", causes) {
        for path in rule.each("nonResourceURLs") {
            if let Some(why) = path_problem(path.text()) {
                path.invalid(why, causes);
            }
        }
    }
}

fn path_problem(path: &str) -> Option<&'static str> {
    let stars = path.matches('*').count();
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !path.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}

fn level(name: &str, spec: &Field<'_>, causes: &mut Causes) {
    let (of_type, limited, exempt) = (spec.get("type"), spec.get("limited"), spec.get("exempt"));
    if (name == EXEMPT) != (of_type.text() == "Exempt") {
        let value = json!(of_type.text());
        Field::new(of_type.path.clone(), &value)
            .invalid("type must be 'Exempt' if and only if name is 'exempt'", causes);
    }
    match of_type.text() {
        "Exempt" => {
            if limited.is_set() {
                limited.forbidden("must be nil if the type is not Limited", causes);
            }
            if exempt.is_set() {
                shares(&exempt, causes);
            }
        }
        "Limited" => {
            if exempt.is_set() {
                exempt.forbidden("must be nil if the type is Limited", causes);
            }
            if !limited.is_set() {
                limited.required("must not be empty when type is Limited", causes);
                return;
            }
            shares(&limited, causes);
            let borrowed = limited.get("borrowingLimitPercent");
            if borrowed.number() < 0 {
                borrowed.invalid("if specified, must be a non-negative integer", causes);
            }
            response(&limited.get("limitResponse"), causes);
        }
        _ => of_type.unsupported(&["Exempt", "Limited"], causes),
    }
}

fn shares(part: &Field<'_>, causes: &mut Causes) {
    let shares = part.get("nominalConcurrencyShares");
    if shares.number() < 0 {
        shares.invalid("must be a non-negative integer", causes);
    }
    part.get("lendablePercent").check(&PERCENT, causes);
}

fn response(response: &Field<'_>, causes: &mut Causes) {
    let (of_type, queuing) = (response.get("type"), response.get("queuing"));
    match (of_type.text(), queuing.is_set()) {
        ("Reject", true) => {
            queuing.forbidden("must be nil if limited.limitResponse.type is not Limited", causes);
        }
        ("Reject", false) => {}
        ("Queue", true) => queues(&queuing, causes),
        ("Queue", false) => {
            queuing.required("must not be empty if limited.limitResponse.type is Limited", causes);
        }
        _ => of_type.unsupported(&["Queue", "Reject"], causes),
    }
}

fn queues(queuing: &Field<'_>, causes: &mut Causes) {
    const POSITIVE: &str = "must be positive";
    let (length, queues, hand) = (queuing.get("queueLengthLimit"), queuing.get("queues"), queuing.get("handSize"));
    if length.number() <= 0 {
        length.invalid(POSITIVE, causes);
    }
    if queues.number() <= 0 {
        queues.invalid(POSITIVE, causes);
    } else if queues.number() > QUEUES {
        queues.invalid(&format!("must not be greater than {QUEUES}"), causes);
    }
    let (deck, size) = (queues.number(), hand.number());
    if size <= 0 {
        hand.invalid(POSITIVE, causes);
    } else if size > deck {
        hand.invalid(&format!("should not be greater than queues ({deck})"), causes);
    } else if entropy(deck.unsigned_abs(), size.unsigned_abs()) > BITS {
        let why =
            format!("required entropy bits of deckSize {deck} and handSize {size} should not be greater than {BITS}");
        hand.invalid(&why, causes);
    }
}

#[cfg(test)]
mod tests;
