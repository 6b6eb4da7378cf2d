//! Ingresses and their classes.

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::rules::{self, Must, Rules};
use super::service::port_name_problems;
use super::{invalid, required};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

const INGRESS: Rules = &[
    ("spec.ingressClassName", &[Must::ReadIfSet(rules::subdomain)]),
    ("spec.tls[].hosts[]", &[Must::Read(host)]),
    ("spec.tls[].secretName", &[Must::ReadIfAny(rules::subdomain)]),
    ("spec.rules[].host", &[Must::ReadIfAny(host)]),
    ("spec.rules[].http?.paths", &[Must::Be]),
];

const CLASS: Rules = &[
    ("spec.controller", &[Must::Be, Must::BeShort(250), Must::ReadIfAny(controller)]),
    ("spec.parameters?.apiGroup", &[Must::ReadIfSet(rules::subdomain)]),
    ("spec.parameters?.kind", &[Must::Be, Must::ReadIfAny(path_segment)]),
    ("spec.parameters?.name", &[Must::Be, Must::ReadIfAny(path_segment)]),
    ("spec.parameters?.scope", &[Must::OneOf(&["Cluster", "Namespace"])]),
];

fn host(text: &str) -> Option<String> {
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Some("must be a DNS name, not an IP address".to_owned());
    }
    rules::subdomain(text.strip_prefix("*.").unwrap_or(text))
}

fn path_segment(text: &str) -> Option<String> {
    apimachinery::names::path_segment_problem(text).map(str::to_owned)
}

fn controller(text: &str) -> Option<String> {
    let good = text.split_once('/').is_some_and(|(domain, path)| {
        let letter = |c: char| c.is_ascii_alphanumeric() || "/%:@._~!$&'()*+,;=-".contains(c);
        rules::subdomain(domain).is_none() && !path.is_empty() && path.chars().all(letter)
    });
    (!good).then(|| "must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned())
}

/// Checks an IngressClass.
pub(super) fn class(object: &Value, causes: &mut Vec<Cause>) {
    rules::check(object, CLASS, causes);
    let parameters = &object["spec"]["parameters"];
    let at = "spec.parameters.namespace";
    match parameters["scope"].as_str().unwrap_or_default() {
        "Namespace" if rules::empty(&parameters["namespace"]) => {
            let message = "Required value: `parameters.scope` is set to 'Namespace'".to_owned();
            causes.push(cause("FieldValueRequired", at, message));
        }
        "Namespace" => {
            let named: Rules = &[("spec.parameters.namespace", &[Must::Read(rules::label)])];
            rules::check(object, named, causes);
        }
        "Cluster" if !parameters["namespace"].is_null() => {
            let message = "Forbidden: `parameters.scope` is set to 'Cluster'".to_owned();
            causes.push(cause("FieldValueForbidden", at, message));
        }
        _ => {}
    }
}

/// Checks an Ingress.
pub(super) fn ingress(object: &Value, new: bool, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    rules::check(object, INGRESS, causes);
    if rules::empty(&spec["rules"]) && spec["defaultBackend"].is_null() {
        invalid("spec", &Value::Null, "either `defaultBackend` or `rules` must be specified", causes);
    }
    if !spec["defaultBackend"].is_null() {
        backend(&spec["defaultBackend"], "spec.defaultBackend", causes);
    }
    for (index, rule) in each(&spec["rules"]) {
        for (number, entry) in each(&rule["http"]["paths"]) {
            path(entry, &format!("spec.rules[{index}].http.paths[{number}]"), causes);
        }
    }
    let annotation = &object["metadata"]["annotations"][CLASS_ANNOTATION];
    if new && annotation.is_string() && spec["ingressClassName"].is_string() && *annotation != spec["ingressClassName"]
    {
        let why = "must match `ingressClassName` when both are specified";
        invalid(&format!("annotations.{CLASS_ANNOTATION}"), annotation, why, causes);
    }
}

fn path(entry: &Value, at: &str, causes: &mut Vec<Cause>) {
    const TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
    if entry["pathType"].is_null() {
        let message = "Required value: pathType must be specified".to_owned();
        causes.push(cause("FieldValueRequired", &format!("{at}.pathType"), message));
        return;
    }
    let field = format!("{at}.path");
    let text = entry["path"].as_str().unwrap_or_default();
    let kind = entry["pathType"].as_str().unwrap_or_default();
    match kind {
        "Exact" | "Prefix" if !text.starts_with('/') => {
            invalid(&field, &json!(text), "must be an absolute path", causes);
        }
        "Exact" | "Prefix" => {
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.contains(bad) {
                    invalid(&field, &json!(text), &format!("must not contain '{bad}'"), causes);
                }
            }
            for bad in ["/..", "/."] {
                if text.ends_with(bad) {
                    invalid(&field, &json!(text), &format!("cannot end with '{bad}'"), causes);
                }
            }
        }
        "ImplementationSpecific" if !text.is_empty() && !text.starts_with('/') => {
            invalid(&field, &json!(text), "must be an absolute path", causes);
        }
        _ => super::one_of(&format!("{at}.pathType"), &entry["pathType"], &TYPES, causes),
    }
    backend(&entry["backend"], &format!("{at}.backend"), causes);
}

fn backend(backend: &Value, at: &str, causes: &mut Vec<Cause>) {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    match (service.is_object(), resource.is_object()) {
        (false, false) => invalid(at, &json!(""), "resource or service backend is required", causes),
        (true, true) => invalid(at, &json!(""), "cannot set both resource and service backends", causes),
        (false, true) => {
            for part in ["kind", "name"] {
                if rules::empty(&resource[part]) {
                    required(&format!("{at}.resource.{part}"), causes);
                }
            }
        }
        (true, false) => served(service, at, causes),
    }
}

fn served(service: &Value, at: &str, causes: &mut Vec<Cause>) {
    let name = service["name"].as_str().unwrap_or_default();
    let field = format!("{at}.service.name");
    if name.is_empty() {
        required(&field, causes);
    } else if let Some(why) = rules::label(name) {
        invalid(&field, &json!(name), &why, causes);
    }
    let port = &service["port"];
    let (name, number) = (port["name"].as_str().unwrap_or_default(), port["number"].as_i64().unwrap_or(0));
    match (name, number) {
        ("", 0) => {
            let message = "Required value: port name or number is required".to_owned();
            causes.push(cause("FieldValueRequired", at, message));
        }
        ("", 1..=65535) => {}
        ("", _) => invalid(&format!("{at}.service.port.number"), &json!(number), rules::PORT, causes),
        (name, 0) => {
            let field = format!("{at}.service.port.name");
            port_name_problems(name).for_each(|why| invalid(&field, &json!(name), why, causes));
        }
        _ => invalid(at, &json!(""), "cannot set both port name & port number", causes),
    }
}

fn each(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}
