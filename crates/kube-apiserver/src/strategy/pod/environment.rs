//! Variables of containers, and references to fields of the pod and to resources of containers, which volumes have too.

use meta::quantity::nanos;
use serde_json::Value;

use apimachinery::names::qualified_name_problem;

use super::super::data::key_problem;
use super::super::field::{Causes, Field, Rule, SUBDOMAIN};

/// Fields of a pod that variables can show, and those that files can.
const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Fields that have a name beside those.
const OTHER_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];
const SUBSCRIPTED: [&str; 2] = ["metadata.annotations", "metadata.labels"];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGES: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];
const CPU_DIVISORS: &[&str] = &["1m", "1"];
const BYTE_DIVISORS: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
const SOURCES: [&str; 4] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"];
const TOO_MANY: &str = "may not have more than one field specified at a time";

/// Checks the variables of a container.
pub(super) fn check(container: &Field<'_>, causes: &mut Causes) {
    for variable in container.each("env") {
        variable.get("name").check(&Rule::Needed, causes);
        variable.get("name").check(&Rule::Name(variable_problem), causes);
        if variable.get("valueFrom").is_set() {
            source(&variable, causes);
        }
    }
    for from in container.each("envFrom") {
        from.get("prefix").check(&Rule::Name(variable_problem), causes);
        let given: Vec<_> = ["configMapRef", "secretRef"].map(|name| from.get(name)).into();
        let given: Vec<_> = given.into_iter().filter(Field::is_set).collect();
        for reference in &given {
            reference.get("name").check(&Rule::Needed, causes);
            reference.get("name").check(&SUBDOMAIN, causes);
        }
        match given.len() {
            0 => {
                container.get("envFrom").invalid_word("", "must specify one of: `configMapRef` or `secretRef`", causes);
            }
            1 => {}
            _ => container.get("envFrom").invalid_word("", TOO_MANY, causes),
        }
    }
}

fn source(variable: &Field<'_>, causes: &mut Causes) {
    let from = variable.get("valueFrom");
    let given = SOURCES.iter().filter(|name| from.get(name).is_set()).count();
    if from.get("fieldRef").is_set() {
        field(&from.get("fieldRef"), FIELDS, causes);
    }
    if from.get("resourceFieldRef").is_set() {
        resource(&from.get("resourceFieldRef"), false, causes);
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        let reference = from.get(name);
        if !reference.is_set() {
            continue;
        }
        let object = reference.get("name");
        if let Some(why) = apimachinery::names::subdomain_problem(object.text()) {
            object.invalid_word(object.text(), why, causes);
        }
        let key = reference.get("key");
        key.check(&Rule::Needed, causes);
        key.check(&Rule::Name(key_problem), causes);
    }
    if given == 0 {
        let why =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        from.invalid_word("", why, causes);
    } else if !variable.get("value").is_empty() {
        from.invalid_word("", "may not be specified when `value` is not empty", causes);
    } else if given > 1 {
        from.invalid_word("", TOO_MANY, causes);
    }
}

/// A reference to a field of the pod, from a file.
pub(super) fn field_in_file(reference: &Field<'_>, causes: &mut Causes) {
    field(reference, FILE_FIELDS, causes);
}

fn field(reference: &Field<'_>, allowed: &[&str], causes: &mut Causes) {
    let path = reference.get("fieldPath");
    let version = reference.get("apiVersion").text();
    if path.is_empty() {
        path.required("", causes);
        return;
    }
    if !matches!(version, "" | "v1") {
        path.invalid(&format!("error converting fieldPath: unsupported pod version: {version}"), causes);
        return;
    }
    let subscript = path.text().split_once("['").and_then(|(base, rest)| Some((base, rest.strip_suffix("']")?)));
    match subscript {
        Some((base, key)) if SUBSCRIPTED.contains(&base) => {
            if let Some(why) = qualified_name_problem(&key.to_lowercase()) {
                path.invalid_word(key, &why, causes);
            }
        }
        None if allowed.contains(&path.text()) => {}
        None if FIELDS.contains(&path.text()) || OTHER_FIELDS.contains(&path.text()) => {
            path.unsupported(allowed, causes);
        }
        _ => {
            let why = format!("error converting fieldPath: field label not supported: {}", path.text());
            path.invalid(&why, causes);
        }
    }
}

/// A reference to what a container asks for or may use; a file must name the container.
pub(super) fn resource(reference: &Field<'_>, in_file: bool, causes: &mut Causes) {
    let (container, resource) = (reference.get("containerName"), reference.get("resource"));
    if in_file && container.is_empty() {
        container.required("", causes);
        return;
    }
    if resource.is_empty() {
        resource.required("", causes);
        return;
    }
    let name = resource.text();
    if !RESOURCES.contains(&name) && !HUGE_PAGES.iter().any(|prefix| name.starts_with(prefix)) {
        resource.unsupported(RESOURCES, causes);
    }
    divisor(&reference.get("divisor"), name, causes);
}

fn divisor(divisor: &Field<'_>, resource: &str, causes: &mut Causes) {
    let amount = match divisor.value {
        Value::String(text) => nanos(text),
        other => nanos(&other.to_string()),
    };
    let cpu = resource.ends_with(".cpu");
    let allowed = if cpu { CPU_DIVISORS } else { BYTE_DIVISORS };
    if amount.is_some_and(|amount| amount != 0 && !allowed.iter().any(|text| nanos(text) == Some(amount))) {
        let kind = if cpu { "cpu" } else { resource.split_once('.').map_or(resource, |(_, name)| name) };
        let why = format!("only divisor's values {} are supported with the {kind} resource", allowed.join(", "));
        divisor.invalid_word(resource, &why, causes);
    }
}

fn variable_problem(name: &str) -> Option<String> {
    let good = name.chars().all(|c| matches!(c, ' '..='~') && c != '=');
    (!good).then(|| {
        "a valid environment variable name must consist only of printable ASCII characters other than '='".into()
    })
}
