//! Which objects a quota speaks of. Pure.

use serde_json::Value;

use apimachinery::pointer::{items, strings, text};

use crate::registry::Resource;

/// Whether `object` is among those the quota counts. Pods have scopes; and claims, of the classes of attributes that they name.
pub(crate) fn covers(quota: &Value, resource: &Resource, object: &Value) -> bool {
    let is = |plural: &str| resource.group.is_empty() && resource.plural == plural;
    let named = strings(quota, "/spec/scopes");
    let selected = items(quota, "/spec/scopeSelector/matchExpressions");
    if named.is_empty() && selected.is_empty() {
        return true;
    }
    if is("persistentvolumeclaims") {
        return named.iter().all(|scope| *scope == ATTRIBUTES && !attributes_classes(object).is_empty())
            && selected.iter().all(|expression| selects_claim(expression, object));
    }
    is("pods")
        && named.iter().all(|scope| holds(scope, object))
        && selected.iter().all(|expression| selects(expression, object))
}

const ATTRIBUTES: &str = "VolumeAttributesClass";

/// The classes a claim's volume has, is to have, or is on its way to.
fn attributes_classes(claim: &Value) -> Vec<&str> {
    let of = [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ];
    of.iter().map(|at| text(claim, at)).filter(|name| !name.is_empty()).collect()
}

fn selects_claim(expression: &Value, claim: &Value) -> bool {
    if text(expression, "/scopeName") != ATTRIBUTES {
        return false;
    }
    let classes = attributes_classes(claim);
    let values = strings(expression, "/values");
    let listed = |class: &&str| values.iter().any(|value| value == class);
    match text(expression, "/operator") {
        "In" => classes.iter().any(listed),
        "NotIn" => classes.is_empty() || !classes.iter().all(listed),
        "Exists" => !classes.is_empty(),
        "DoesNotExist" => classes.is_empty(),
        _ => false,
    }
}

fn selects(expression: &Value, pod: &Value) -> bool {
    let scope = text(expression, "/scopeName");
    let operator = text(expression, "/operator");
    if scope != "PriorityClass" {
        return holds(scope, pod);
    }
    let class = text(pod, "/spec/priorityClassName").to_owned();
    let values = strings(expression, "/values");
    match operator {
        "In" => values.contains(&class),
        "NotIn" => !values.contains(&class),
        "Exists" => !class.is_empty(),
        "DoesNotExist" => class.is_empty(),
        _ => false,
    }
}

fn holds(scope: &str, pod: &Value) -> bool {
    match scope {
        "Terminating" => terminating(pod),
        "NotTerminating" => !terminating(pod),
        "BestEffort" => best_effort(pod),
        "NotBestEffort" => !best_effort(pod),
        "PriorityClass" => !text(pod, "/spec/priorityClassName").is_empty(),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn terminating(pod: &Value) -> bool {
    pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0)
}

/// Nothing asks for processor or memory.
fn best_effort(pod: &Value) -> bool {
    let asks = |v: &Value, list: &str| {
        ["cpu", "memory"].iter().any(|name| v.pointer(&format!("/{list}/{name}")).is_some_and(|q| q != "0"))
    };
    let some = |c: &Value| {
        c.get("resources").is_some_and(|resources| asks(resources, "requests") || asks(resources, "limits"))
    };
    let containers = items(pod, "/spec/containers").iter().chain(items(pod, "/spec/initContainers"));
    !containers.chain(pod.get("spec")).any(some)
}

fn crosses_namespaces(pod: &Value) -> bool {
    let mut terms = Vec::new();
    for kind in ["podAffinity", "podAntiAffinity"] {
        let base = format!("/spec/affinity/{kind}");
        terms.extend(items(pod, &format!("{base}/requiredDuringSchedulingIgnoredDuringExecution")));
        let preferred = items(pod, &format!("{base}/preferredDuringSchedulingIgnoredDuringExecution"));
        terms.extend(preferred.iter().filter_map(|weighted| weighted.get("podAffinityTerm")));
    }
    terms.iter().any(|term| !items(term, "/namespaces").is_empty() || term.get("namespaceSelector").is_some())
}
