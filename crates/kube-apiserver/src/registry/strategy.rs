//! What is particular to a built-in kind: defaults no schema can say, what a create starts with, what an update may not
//! change, how deletion goes.

use serde_json::{Value, json};

use super::Resource;
use crate::ApiServer;
use crate::error::{ApiError, Cause};

/// Sets the defaults of a kind. Idempotent.
pub(crate) fn defaults(_resource: &Resource, _object: &mut Value) {}

/// Sets what a new object starts with.
pub(crate) fn prepare_create(_server: &ApiServer, resource: &Resource, object: &mut Value) -> Result<(), ApiError> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({"phase": "Active"});
        }
        ("", "pods") => object["status"] = json!({"phase": "Pending"}),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crate::crd::prepare(object),
        _ => {}
    }
    Ok(())
}

/// Adjusts an update.
pub(crate) fn prepare_update(resource: &Resource, _old: &Value, new: &mut Value, subresource: &str) -> Result<(), ApiError> {
    if resource.group == "apiextensions.k8s.io" && subresource.is_empty() {
        crate::crd::prepare(new);
    }
    Ok(())
}

/// Checks what schemas cannot say.
pub(crate) fn validate(_resource: &Resource, _object: &Value, _old: Option<&Value>, _causes: &mut Vec<Cause>) {}

/// Something taken for an object that is not stored yet; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation;

/// Takes cluster IPs and node ports.
pub(crate) fn allocate(_server: &ApiServer, _resource: &Resource, _old: Option<&Value>, _object: &mut Value) -> Result<Reservation, ApiError> {
    Ok(Reservation)
}

/// Whether a deleted object without finalizers may go: a namespace has finalizers of its own.
pub(crate) fn removable(resource: &Resource, object: &Value) -> bool {
    let namespace = resource.group.is_empty() && resource.plural == "namespaces";
    !namespace || object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty)
}

/// Seconds of grace a deletion gives.
pub(crate) fn grace(resource: &Resource, object: &Value, asked: Option<i64>) -> i64 {
    if !(resource.group.is_empty() && resource.plural == "pods") {
        return 0;
    }
    let phase = object["status"]["phase"].as_str().unwrap_or_default();
    let unassigned = object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    if unassigned || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    asked.or(object["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30)
}

/// Sets what the beginning of a deletion changes beside the metadata.
pub(crate) fn deletion_began(resource: &Resource, object: &mut Value) {
    if resource.group.is_empty() && resource.plural == "namespaces" {
        object["status"]["phase"] = "Terminating".into();
    }
}

/// Whether a deletion answers with the object instead of a Status.
pub(crate) fn returns_deleted(resource: &Resource) -> bool {
    resource.group.is_empty() && matches!(resource.plural.as_str(), "pods" | "services" | "serviceaccounts" | "persistentvolumes" | "persistentvolumeclaims" | "podtemplates" | "resourcequotas")
}

/// Notes on a pod that it has a node.
pub(crate) fn scheduled(pod: &mut Value, now: &str) {
    let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    if let Some(list) = pod["status"]["conditions"].as_array_mut() {
        list.retain(|existing| existing["type"] != "PodScheduled");
        list.push(condition);
    }
}

/// A LabelSelector as text, `a=b,c in (d,e)`.
pub(crate) fn selector_text(selector: &Value) -> String {
    let mut terms = Vec::new();
    // A ReplicationController's selector is the bare map.
    let labels = if selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some() {
        selector.get("matchLabels").and_then(Value::as_object)
    } else {
        selector.as_object()
    };
    for (key, value) in labels.into_iter().flatten() {
        terms.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> = expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        terms.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.join(",")
}
