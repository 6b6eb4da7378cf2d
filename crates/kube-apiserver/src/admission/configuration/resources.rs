//! Which requests webhooks and policies are about: operations, groups, versions and resources, and selectors.

use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::pointer::items;

use crate::crd::check::invalid;
use crate::validation::rules::{self, Must, Rules};

const RULE: Rules = &[
    ("operations", &[Must::Be]),
    ("operations[]", &[Must::OneOf(&["*", "CONNECT", "CREATE", "DELETE", "UPDATE"])]),
    ("apiGroups", &[Must::Be]),
    ("apiVersions", &[Must::Be]),
    ("apiVersions[]", &[Must::Be]),
    ("resources", &[Must::Be]),
    ("resources[]", &[Must::Be]),
    ("scope", &[Must::OneOf(&["*", "Cluster", "Namespaced"])]),
];

const MATCH: Rules = &[
    ("matchPolicy", &[Must::OneOf(&["Equivalent", "Exact"])]),
    ("namespaceSelector", &[Must::Select]),
    ("objectSelector", &[Must::Select]),
];

/// Checks `matchConstraints` of a policy or `matchResources` of a binding.
pub(super) fn check(resources: &Value, at: &str, causes: &mut Vec<Cause>) {
    rules::check_at(at, resources, MATCH, causes);
    for list in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in items(resources, &format!("/{list}")).iter().enumerate() {
            self::rule(rule, &format!("{at}.{list}[{index}]"), causes);
        }
    }
}

/// Checks one rule.
pub(super) fn rule(rule: &Value, at: &str, causes: &mut Vec<Cause>) {
    rules::check_at(at, rule, RULE, causes);
    for (key, what) in [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let entries = items(rule, &format!("/{key}"));
        if entries.len() > 1 && entries.iter().any(|entry| entry == "*") {
            let why = format!("if '*' is present, must not specify other {what}");
            causes.push(invalid(&format!("{at}.{key}"), &rule[key], &why));
        }
    }
    overlapping(rule, &format!("{at}.resources"), causes);
}

/// Resources that another entry of the list means already.
fn overlapping(rule: &Value, at: &str, causes: &mut Vec<Cause>) {
    let list: Vec<&str> = items(rule, "/resources").iter().filter_map(Value::as_str).collect();
    for (index, entry) in list.iter().enumerate() {
        let Some((resource, subresource)) = entry.split_once('/') else { continue };
        for wider in [format!("{resource}/*"), format!("*/{subresource}")] {
            if list[..index].contains(&wider.as_str()) {
                let why = format!("if '{wider}' is present, must not specify {entry}");
                causes.push(invalid(&format!("{at}[{index}]"), &Value::from(*entry), &why));
            }
        }
    }
    if list.len() > 1 && list.contains(&"*/*") {
        causes.push(invalid(at, &rule["resources"], "if '*/*' is present, must not specify other resources"));
    }
    if list.contains(&"*") && list.iter().any(|entry| *entry != "*" && !entry.contains('/')) {
        let why = "if '*' is present, must not specify other resources without subresources";
        causes.push(invalid(at, &rule["resources"], why));
    }
}
