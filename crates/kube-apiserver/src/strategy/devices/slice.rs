//! What a driver may publish.

use std::collections::HashSet;

use apimachinery::cel::device::{PROPERTIES, TEXT};
use apimachinery::names::subdomain_problem;
use apimachinery::schema::validate::cause;
use meta::quantity::nanos;

use super::{TAINTS, at_most, driver, named_once, pool, short};
use crate::strategy::field::{Causes, Field, LABEL, QUALIFIED_NAME, Rule, SUBDOMAIN};

/// Devices of a slice at most, and where one of them has taints.
const DEVICES: usize = 128;
const TAINTED_DEVICES: usize = 64;
/// The parts of a property's name in bytes at most.
const DOMAIN: usize = 63;
const IDENTIFIER: usize = 32;
const COUNTERS: &str = "devices that share counters are not served: publish each partition as a device of its own";

/// Checks a slice.
pub(super) fn validate(spec: &Field<'_>, causes: &mut Causes) {
    driver(&spec.get("driver"), causes);
    let pool_field = spec.get("pool");
    pool(&pool_field.get("name"), causes);
    let count = pool_field.get("resourceSliceCount");
    if count.number() <= 0 {
        count.invalid("must be greater than zero", causes);
    }
    pool_field.get("generation").check(&Rule::AtLeast(0), causes);
    let per_device = spec.get("perDeviceNodeSelection").value == true;
    place(spec, &["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"], causes);
    if !spec.get("sharedCounters").is_empty() {
        spec.get("sharedCounters").forbidden(COUNTERS, causes);
    }
    let tainted = spec.each("devices").any(|device| !device.get("taints").is_empty());
    at_most(&spec.get("devices"), if tainted { TAINTED_DEVICES } else { DEVICES }, causes);
    let mut names = HashSet::new();
    for device in spec.each("devices").take(DEVICES) {
        let name = device.get("name");
        name.check(&Rule::Needed, causes);
        name.check(&LABEL, causes);
        named_once(&name, &mut names, causes);
        if per_device {
            place(&device, &["nodeName", "nodeSelector", "allNodes"], causes);
        } else {
            for field in ["nodeName", "nodeSelector", "allNodes"].map(|field| device.get(field)) {
                if field.is_set() {
                    field.forbidden("must only be set if `perDeviceNodeSelection` is set", causes);
                }
            }
        }
        self::device(&device, causes);
    }
}

/// Exactly one of the fields says where devices are.
fn place(of: &Field<'_>, fields: &[&str], causes: &mut Causes) {
    let set: Vec<_> = fields.iter().map(|name| of.get(name)).filter(Field::is_set).collect();
    let words = fields.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match set.as_slice() {
        [] => of.required(&format!("exactly one of {words} is required"), causes),
        [one] => one_place(one, causes),
        _ => of.invalid(&format!("exactly one of {words} is required, but multiple fields are set"), causes),
    }
}

fn one_place(field: &Field<'_>, causes: &mut Causes) {
    if field.path.ends_with("nodeName") {
        field.check(&Rule::Needed, causes);
        field.check(&SUBDOMAIN, causes);
    } else if field.path.ends_with("nodeSelector") {
        let terms = field.get("nodeSelectorTerms");
        if terms.value.as_array().map_or(0, Vec::len) != 1 {
            terms.invalid("must have exactly one node selector term", causes);
        }
        for term in field.each("nodeSelectorTerms") {
            crate::strategy::pod::node_term(&term, causes);
        }
    } else if field.value != true {
        field.invalid("must be either unset or set to true", causes);
    }
}

fn device(device: &Field<'_>, causes: &mut Causes) {
    let counters = device.get("consumesCounters");
    if !counters.is_empty() {
        counters.forbidden(COUNTERS, causes);
    }
    let count = device.entries("attributes").count() + device.entries("capacity").count();
    if count as u64 > PROPERTIES {
        let why = format!("the total number of attributes and capacities must not exceed {PROPERTIES}");
        causes.push(cause("FieldValueInvalid", &device.path, format!("Invalid value: {count}: {why}")));
        return;
    }
    for (name, attribute) in device.entries("attributes") {
        property_name(&attribute, name, causes);
        self::attribute(&attribute, causes);
    }
    for (name, capacity) in device.entries("capacity") {
        property_name(&capacity, name, causes);
        let value = capacity.get("value");
        if nanos(value.text()).is_none() && !value.value.is_number() {
            value.invalid("must be a quantity", causes);
        }
    }
    at_most(&device.get("taints"), TAINTS, causes);
    for taint in device.each("taints").take(TAINTS) {
        let (key, value, effect) = (taint.get("key"), taint.get("value"), taint.get("effect"));
        key.check(&Rule::Needed, causes);
        key.check(&QUALIFIED_NAME, causes);
        if let Some(why) = apimachinery::names::label_value_problem(value.text()) {
            value.invalid(&why, causes);
        }
        match effect.text() {
            "NoSchedule" | "None" => {}
            "" => effect.required("", causes),
            "NoExecute" => effect
                .invalid("no pod is evicted for a device's taint here: use NoSchedule, and delete the pods", causes),
            _ => effect.unsupported(&["NoSchedule", "None"], causes),
        }
    }
}

fn attribute(attribute: &Field<'_>, causes: &mut Causes) {
    let set: Vec<_> = ["bool", "int", "string", "version"]
        .map(|name| attribute.get(name))
        .into_iter()
        .filter(Field::is_set)
        .collect();
    let [value] = set.as_slice() else {
        attribute.invalid("exactly one value must be specified: bool, int, string or version", causes);
        return;
    };
    short(value, TEXT, causes);
    if value.path.ends_with(".version") && !is_semantic(value.text()) {
        value.invalid("must be a string compatible with semver.org spec 2.0.0", causes);
    }
}

/// `major.minor.patch`, with what may follow.
fn is_semantic(version: &str) -> bool {
    let (core, rest) = version.split_at(version.find(['-', '+']).unwrap_or(version.len()));
    let number = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let parts: Vec<&str> = core.split('.').collect();
    let tail = rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'+'));
    parts.len() == 3 && parts.into_iter().all(number) && tail && rest.len() != 1
}

/// The name of an attribute or a capacity, `name` or `domain/name`.
pub(super) fn property_name(field: &Field<'_>, name: &str, causes: &mut Causes) {
    let (domain, identifier) = match name.split_once('/') {
        Some((domain, identifier)) => (Some(domain), identifier),
        None => (None, name),
    };
    if let Some(domain) = domain {
        let problem = subdomain_problem(domain).map(str::to_owned);
        let long = (domain.len() > DOMAIN).then(|| format!("must be no more than {DOMAIN} bytes"));
        if let Some(why) = problem.or(long) {
            field.invalid_word(domain, &why, causes);
        }
    }
    let starts = identifier.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let good = starts && identifier.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !good || identifier.len() > IDENTIFIER {
        let why = format!("the name must be a C identifier of at most {IDENTIFIER} bytes");
        field.invalid_word(identifier, &why, causes);
    }
}
