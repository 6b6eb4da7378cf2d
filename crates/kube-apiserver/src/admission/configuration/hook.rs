//! One webhook of a configuration.

use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::pointer::items;

use super::super::expressions::Scope;
use crate::crd::check::conversion;
use crate::crd::check::{invalid, required};
use crate::validation::rules::{self, Must, Rules};

const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

const HOOK: Rules = &[
    ("name", &[Must::Be, Must::ReadIfAny(domain)]),
    ("failurePolicy", &[Must::OneOf(&["Fail", "Ignore"])]),
    ("matchPolicy", &[Must::OneOf(&["Equivalent", "Exact"])]),
    ("reinvocationPolicy", &[Must::OneOf(&["IfNeeded", "Never"])]),
    ("sideEffects", &[Must::OneOf(&["None", "NoneOnDryRun"])]),
    ("timeoutSeconds", &[Must::Within(1, 30, "the timeout value must be between 1 and 30 seconds")]),
    ("namespaceSelector", &[Must::Select]),
    ("objectSelector", &[Must::Select]),
];

fn domain(name: &str) -> Option<String> {
    rules::subdomain(name).or_else(|| {
        let short = name.split('.').count() < 3;
        short.then(|| "should be a domain with at least three segments separated by dots".to_owned())
    })
}

/// Checks a webhook.
pub(super) fn check(hook: &Value, at: &str, causes: &mut Vec<Cause>) {
    rules::check_at(at, hook, HOOK, causes);
    if hook["sideEffects"].is_null() {
        causes.push(required(&format!("{at}.sideEffects"), "must specify one of None, NoneOnDryRun"));
    }
    versions(hook, &format!("{at}.admissionReviewVersions"), causes);
    let client = &hook["clientConfig"];
    let at_client = format!("{at}.clientConfig");
    if client["url"].is_string() == client["service"].is_object() {
        causes.push(required(&at_client, "exactly one of url or service is required"));
    } else if let Some(address) = client["url"].as_str() {
        let field = format!("{at_client}.url");
        // A URL without a host is read as one whose host is its path.
        if address.strip_prefix("https://").is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            let why = "host must be specified; desired format: https://host[:port][/path]";
            causes.push(invalid(&field, &client["url"], why));
        }
        conversion::url(address, &field, causes);
    } else {
        let field = format!("{at_client}.service");
        conversion::service(&client["service"], &field, causes);
        path(&client["service"]["path"], &format!("{field}.path"), causes);
    }
    for (index, rule) in items(hook, "/rules").iter().enumerate() {
        super::resources::rule(rule, &format!("{at}.rules[{index}]"), causes);
    }
    super::conditions(hook, at, &Scope::webhook(), causes);
}

/// Each part of a path is a name; that it begins with a slash is said elsewhere.
fn path(value: &Value, at: &str, causes: &mut Vec<Cause>) {
    let text = value.as_str().unwrap_or_default();
    if matches!(text, "" | "/") {
        return;
    }
    let steps = text.strip_prefix('/').unwrap_or(text);
    let steps = if steps.len() > 1 { steps.strip_suffix('/').unwrap_or(steps) } else { steps };
    for (index, step) in steps.split('/').enumerate() {
        let why = match step {
            "" => Some("may not be empty".to_owned()),
            step => rules::subdomain(step),
        };
        if let Some(why) = why {
            causes.push(invalid(at, value, &format!("segment[{index}] {why}")));
        }
    }
}

fn versions(hook: &Value, at: &str, causes: &mut Vec<Cause>) {
    let list = items(hook, "/admissionReviewVersions");
    if list.is_empty() {
        causes.push(required(at, "must specify one of v1, v1beta1"));
        return;
    }
    for (index, version) in list.iter().enumerate() {
        let field = format!("{at}[{index}]");
        if list[..index].contains(version) {
            causes.push(invalid(&field, version, "duplicate version"));
        } else if let Some(why) = rules::dns_1035(version.as_str().unwrap_or_default()) {
            causes.push(invalid(&field, version, &why));
        }
    }
    if !list.iter().any(|version| VERSIONS.contains(&version.as_str().unwrap_or_default())) {
        let why = "must include at least one of v1, v1beta1";
        causes.push(invalid(at, &hook["admissionReviewVersions"], why));
    }
}
