//! The kinds of group `resource.k8s.io`: devices that drivers publish, classes of them, and claims on them.

mod claim;
mod slice;
mod status;

use std::collections::HashSet;

use apimachinery::cel::device::Selector;
use apimachinery::names::subdomain_problem;
use apimachinery::schema::validate::cause;
use apimachinery::tree::{child, each, set};
use serde_json::Value;

use super::field::{Causes, Field, Rule};

/// Items of most lists at most.
const MANY: usize = 32;
/// Taints of a device and tolerations of a request at most.
const TAINTS: usize = 16;
/// What one driver is told, in bytes at most.
const PARAMETERS: usize = 10 * 1024;
/// The name of a driver in bytes at most.
const DRIVER: usize = 63;
/// The name of a pool in bytes at most.
const POOL: usize = 253;
const FIXED: &str = "field is immutable";
/// The finalizer of a claim that has devices.
const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// Checks an object of the group.
pub(super) fn validate(plural: &str, object: &Value, old: Option<&Value>, subresource: &str, causes: &mut Causes) {
    let whole = Field::new("", object);
    let spec = whole.get("spec");
    match (plural, subresource) {
        ("resourceclaims", "status") => status::validate(&whole, old.unwrap_or(&Value::Null), causes),
        // What is stored was valid: a claim whose spec stays only loses finalizers.
        ("resourceclaims", _) if old.is_some_and(|old| old["spec"] == object["spec"]) => {}
        ("resourceclaims", _) => claim::validate(&spec.get("devices"), causes),
        ("resourceclaimtemplates", _) => claim::template(&spec, causes),
        ("resourceslices", _) => slice::validate(&spec, causes),
        ("deviceclasses", _) => {
            selectors(&spec, causes);
            configurations(&spec, None, causes);
        }
        _ => {}
    }
}

/// Checks what of it changed.
pub(super) fn update(plural: &str, old: &Value, new: &Value, causes: &mut Causes) {
    let fields: &[&str] = match plural {
        "resourceclaims" | "resourceclaimtemplates" => &["/spec"],
        "resourceslices" => &["/spec/driver", "/spec/nodeName", "/spec/pool/name"],
        _ => &[],
    };
    for field in fields {
        let (before, after) = (old.pointer(field).unwrap_or(&Value::Null), new.pointer(field).unwrap_or(&Value::Null));
        if before != after {
            Field::new(field[1..].replace('/', "."), after).invalid(FIXED, causes);
        }
    }
    let protected = |claim: &Value| {
        let finalizers = claim["metadata"]["finalizers"].as_array();
        finalizers.into_iter().flatten().any(|finalizer| finalizer == PROTECTION)
    };
    // Whoever may write a claim could otherwise have its devices given to others while they are used.
    let held = plural == "resourceclaims" && !old["status"]["allocation"].is_null();
    if held && protected(old) && !protected(new) {
        let why = format!("{PROTECTION} goes when the devices are given back: delete the pods that use the claim");
        Field::new("metadata.finalizers", &new["metadata"]["finalizers"]).forbidden(&why, causes);
    }
}

/// One device is asked for where nothing else is said.
pub(super) fn defaults(plural: &str, object: &mut Value) {
    let spec = match plural {
        "resourceclaims" if object["spec"]["devices"].is_object() => child(child(object, "spec"), "devices"),
        "resourceclaimtemplates" if object["spec"]["spec"]["devices"].is_object() => {
            child(child(child(object, "spec"), "spec"), "devices")
        }
        _ => return,
    };
    let amount = |wish: &mut Value| {
        set(wish, "allocationMode", "ExactCount");
        if wish["allocationMode"] == "ExactCount" {
            set(wish, "count", 1);
        }
    };
    for request in each(spec, "requests") {
        if request["exactly"].is_object() {
            amount(child(request, "exactly"));
        }
        each(request, "firstAvailable").for_each(amount);
    }
}

/// A list has at most so many items.
fn at_most(list: &Field<'_>, most: usize, causes: &mut Causes) {
    let found = list.value.as_array().map_or(0, Vec::len);
    if found > most {
        let message = format!("Too many: {found}: must have at most {most} items");
        causes.push(cause("FieldValueTooMany", &list.path, message));
    }
}

fn short(text: &Field<'_>, most: usize, causes: &mut Causes) {
    if text.text().len() > most {
        let message = format!("Too long: may not be more than {most} bytes");
        causes.push(cause("FieldValueTooLong", &text.path, message));
    }
}

fn named_once<'a>(name: &Field<'a>, seen: &mut HashSet<&'a str>, causes: &mut Causes) {
    if !seen.insert(name.text()) {
        name.duplicate(causes);
    }
}

/// The name of a driver.
fn driver(name: &Field<'_>, causes: &mut Causes) {
    name.check(&Rule::Needed, causes);
    short(name, DRIVER, causes);
    if let Some(why) = subdomain_problem(&name.text().to_lowercase()).filter(|_| !name.is_empty()) {
        name.invalid(why, causes);
    }
}

/// The name of a pool: one or more subdomains with slashes between.
fn pool(name: &Field<'_>, causes: &mut Causes) {
    name.check(&Rule::Needed, causes);
    short(name, POOL, causes);
    let problem = name.text().split('/').find_map(subdomain_problem);
    if let Some(why) = problem.filter(|_| !name.is_empty()) {
        name.invalid(why, causes);
    }
}

/// The expressions that select devices.
fn selectors(wish: &Field<'_>, causes: &mut Causes) {
    let list = wish.get("selectors");
    at_most(&list, MANY, causes);
    for selector in wish.each("selectors").take(MANY) {
        let cel = selector.get("cel");
        if !cel.is_set() {
            cel.required("", causes);
            continue;
        }
        let expression = cel.get("expression");
        expression.check(&Rule::Needed, causes);
        short(&expression, apimachinery::cel::device::LONGEST, causes);
        if expression.is_empty() || expression.text().len() > apimachinery::cel::device::LONGEST {
            continue;
        }
        if let Err(why) = Selector::compile(expression.text()) {
            match why.strip_prefix("too complex") {
                Some(rest) => expression.forbidden(&format!("too complex{rest}"), causes),
                None => expression.invalid(&format!("compilation failed: {why}"), causes),
            }
        }
    }
}

/// What drivers are told; of a claim for some of its requests, whose names these are.
fn configurations(of: &Field<'_>, requests: Option<&HashSet<String>>, causes: &mut Causes) {
    at_most(&of.get("config"), MANY, causes);
    for config in of.each("config").take(MANY) {
        if let Some(known) = requests {
            claim::references(&config, known, causes);
        }
        let opaque = config.get("opaque");
        if !opaque.is_set() {
            opaque.required("", causes);
            continue;
        }
        driver(&opaque.get("driver"), causes);
        let parameters = opaque.get("parameters");
        if !parameters.is_set() {
            parameters.required("", causes);
        } else if !parameters.value.is_object() {
            parameters.invalid("error parsing data as JSON: must be a JSON object", causes);
        } else if parameters.value.to_string().len() > PARAMETERS {
            let message = format!("Too long: may not be more than {PARAMETERS} bytes");
            causes.push(cause("FieldValueTooLong", &parameters.path, message));
        }
    }
}

#[cfg(test)]
mod tests;
