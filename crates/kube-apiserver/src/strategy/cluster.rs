//! Kinds of which each says little: nodes, namespaces, leases, API services, Service ranges and their addresses.

use std::collections::HashSet;

use ipnet::IpNet;
use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::invalid;
use super::rules::{self, Must, Rules};

const RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

pub(super) const LEASE: Rules = &[
    ("spec.leaseDurationSeconds", &[Must::Within(1, i64::MAX, "must be greater than 0")]),
    ("spec.leaseTransitions", &[rules::NOT_NEGATIVE]),
];

const TAINT: Rules = &[
    ("key", &[Must::Read(rules::qualified)]),
    ("value", &[Must::ReadIfAny(rules::label_value)]),
    ("effect", &[Must::Be]),
];

const API_SERVICE: Rules = &[
    ("spec.version", &[Must::Read(rules::dns_1035)]),
    ("spec.groupPriorityMinimum", &[Must::Lie(1, 20_000, "must be positive and less than 20000")]),
    ("spec.versionPriority", &[Must::Lie(1, 1_000, "must be positive and less than 1000")]),
    ("spec.service?.namespace", &[Must::Be]),
    ("spec.service?.name", &[Must::Be]),
    ("spec.service?.port", &[Must::Within(1, 65535, "port is not valid: must be between 1 and 65535, inclusive")]),
];

pub(super) const ADDRESS: Rules = &[
    ("spec.parentRef", &[Must::Be]),
    ("spec.parentRef?.resource", &[Must::Be]),
    ("spec.parentRef?.name", &[Must::Be]),
];

/// Checks a Node.
pub(super) fn node(object: &Value, causes: &mut Vec<Cause>) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let spec = &object["spec"];
    let mut seen = HashSet::new();
    for (index, taint) in each(&spec["taints"]) {
        let at = format!("metadata.taints[{index}]");
        rules::check_at(&at, taint, TAINT, causes);
        let word = |field: &str| taint[field].as_str().unwrap_or_default();
        if !word("effect").is_empty() {
            super::one_of(&format!("{at}.effect"), &taint["effect"], &EFFECTS, causes);
        }
        if !word("key").is_empty() && !seen.insert((word("key"), word("effect"))) {
            let message = format!("Duplicate value: {taint}: taints must be unique by key and effect pair");
            causes.push(cause("FieldValueDuplicate", &at, message));
        }
    }
    ranges(&spec["podCIDRs"], "spec.podCIDRs", "may specify no more than one CIDR for each IP family", causes);
}

/// A node's range and its list of them say the same.
pub(super) fn settle_node(spec: &mut Value) {
    let single = spec["podCIDR"].as_str().unwrap_or_default().to_owned();
    let first = spec["podCIDRs"][0].as_str().unwrap_or_default().to_owned();
    if !single.is_empty() && first != single {
        spec["podCIDRs"] = json!([single]);
    } else if single.is_empty() && !first.is_empty() {
        spec["podCIDR"] = first.into();
    }
}

fn ranges(list: &Value, at: &str, twice: &str, causes: &mut Vec<Cause>) {
    let mut families = HashSet::new();
    let before = causes.len();
    for (index, text) in each(list) {
        match text.as_str().and_then(|text| text.parse::<IpNet>().ok()) {
            None => invalid(&format!("{at}[{index}]"), text, RANGE, causes),
            Some(net) if !families.insert(net.addr().is_ipv4()) && causes.len() == before => {
                invalid(at, list, twice, causes);
            }
            Some(_) => {}
        }
    }
}

/// Checks a ServiceCIDR.
pub(super) fn service_range(object: &Value, causes: &mut Vec<Cause>) {
    let list = &object["spec"]["cidrs"];
    match list.as_array().map_or(0, Vec::len) {
        0 => {
            let message = "Required value: at least one CIDR required".to_owned();
            causes.push(cause("FieldValueRequired", "spec.cidrs", message));
        }
        1 | 2 => {
            ranges(
                list,
                "spec.cidrs",
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
                causes,
            );
            for (index, text) in each(list) {
                if text.as_str().and_then(|text| text.parse::<IpNet>().ok()).is_some_and(|net| net.trunc() != net) {
                    let why = "must not have bits set beyond the prefix length";
                    invalid(&format!("spec.cidrs[{index}]"), text, why, causes);
                }
            }
        }
        _ => invalid("spec.cidrs", list, "may only hold up to 2 values", causes),
    }
}

/// Checks a Namespace.
pub(super) fn namespace(object: &Value, causes: &mut Vec<Cause>) {
    for (_, finalizer) in each(&object["spec"]["finalizers"]) {
        let name = finalizer.as_str().unwrap_or_default();
        if let Some(why) = rules::qualified(name) {
            invalid("spec.finalizers", finalizer, &why, causes);
        } else if !name.contains('/') && name != "kubernetes" {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            invalid("spec.finalizers", finalizer, why, causes);
        }
    }
}

/// Checks an APIService.
pub(super) fn api_service(object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    let (group, version) = (spec["group"].as_str().unwrap_or_default(), spec["version"].as_str().unwrap_or_default());
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if !name.is_empty() && name != format!("{version}.{group}") {
        let why = format!("must be `spec.version+\".\"+spec.group`: {:?}", format!("{version}.{group}"));
        invalid("metadata.name", &json!(name), &why, causes);
    }
    if group.is_empty() && version != "v1" {
        let message = "Required value: only v1 may have an empty group and it better be legacy kube".to_owned();
        causes.push(cause("FieldValueRequired", "spec.group", message));
    } else if let Some(why) = rules::subdomain(group).filter(|_| !group.is_empty()) {
        invalid("spec.group", &json!(group), &why, causes);
    }
    rules::check(object, API_SERVICE, causes);
    let bundle = spec["caBundle"].as_str().unwrap_or_default();
    if spec["service"].is_null() {
        if !bundle.is_empty() {
            let shown = json!(format!("{} bytes", bundle.len() / 4 * 3));
            invalid("spec.caBundle", &shown, "local APIServices may not have a caBundle", causes);
        }
        if spec["insecureSkipTLSVerify"] == true {
            let why = "local APIServices may not have insecureSkipTLSVerify";
            invalid("spec.insecureSkipTLSVerify", &json!(true), why, causes);
        }
    } else if !bundle.is_empty() && spec["insecureSkipTLSVerify"] == true {
        invalid("spec.insecureSkipTLSVerify", &json!(true), "may not be true if caBundle is present", causes);
    }
}

fn each(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}
