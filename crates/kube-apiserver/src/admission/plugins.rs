//! The small built-in plugins: NamespaceLifecycle, Priority, DefaultTolerationSeconds.

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::authz::view::{View, items, text};
use crate::error::ApiError;

fn refuse(attributes: &Attributes, why: &str) -> ApiError {
    ApiError::forbidden(&attributes.resource.group, &attributes.resource.plural, &attributes.name, why)
}

/// Nothing is created in a namespace that is missing or going away; the namespaces the cluster needs cannot be deleted.
///
/// # Errors
/// 404 or 403.
pub fn lifecycle(view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    let resource = &attributes.resource;
    if resource.group.is_empty() && resource.plural == "namespaces" {
        let immortal = matches!(attributes.name.as_str(), "default" | "kube-system" | "kube-public");
        if attributes.operation == Operation::Delete && immortal {
            return Err(refuse(attributes, "this namespace may not be deleted"));
        }
        return Ok(());
    }
    if !resource.namespaced || attributes.operation != Operation::Create || attributes.namespace.is_empty() {
        return Ok(());
    }
    // Reviews change nothing, so they may speak of any namespace.
    if resource.group == "authorization.k8s.io" {
        return Ok(());
    }
    let Some(namespace) = view.get("", "namespaces", "", &attributes.namespace) else {
        return Err(ApiError::not_found("", "namespaces", &attributes.namespace));
    };
    if namespace.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null)
        || !attributes.info.subresource.is_empty()
    {
        return Ok(());
    }
    let why =
        format!("unable to create new content in namespace {} because it is being terminated", attributes.namespace);
    let mut error = refuse(attributes, &why);
    error.causes.push(crate::error::Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {} is being terminated", attributes.namespace),
        field: "metadata.namespace".into(),
    });
    Err(error)
}

/// Priority and default tolerations of new pods.
///
/// # Errors
/// 403 for a priority class that does not exist.
pub fn mutate(view: &dyn View, attributes: &mut Attributes) -> Result<(), ApiError> {
    let is_pod = attributes.resource.group.is_empty()
        && attributes.resource.plural == "pods"
        && attributes.info.subresource.is_empty();
    if !is_pod || attributes.operation != Operation::Create {
        return Ok(());
    }
    let Some(mut pod) = attributes.object.take() else { return Ok(()) };
    let outcome = priority(view, attributes, &mut pod);
    tolerations(&mut pod);
    attributes.object = Some(pod);
    outcome
}

fn priority(view: &dyn View, attributes: &Attributes, pod: &mut Value) -> Result<(), ApiError> {
    let name = text(pod, "/spec/priorityClassName").to_owned();
    let class = if name.is_empty() {
        let mut classes = view.list("scheduling.k8s.io", "priorityclasses", "");
        classes.retain(|c| c.get("globalDefault").and_then(Value::as_bool) == Some(true));
        classes.into_iter().min_by_key(|c| c.get("value").and_then(Value::as_i64))
    } else {
        let found = view.get("scheduling.k8s.io", "priorityclasses", "", &name);
        if found.is_none() {
            return Err(refuse(attributes, &format!("no PriorityClass with name {name} was found")));
        }
        found
    };
    let value = class.as_ref().and_then(|c| c.get("value").and_then(Value::as_i64)).unwrap_or(0);
    if pod.pointer("/spec/priority").and_then(Value::as_i64).is_some_and(|given| given != value) {
        let given = &pod["spec"]["priority"];
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(refuse(attributes, &why));
    }
    pod["spec"]["priority"] = value.into();
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = text(&class, "/metadata/name").into();
    }
    if pod.pointer("/spec/preemptionPolicy").is_none() {
        pod["spec"]["preemptionPolicy"] = "PreemptLowerPriority".into();
    }
    Ok(())
}

fn tolerations(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = items(pod, "/spec/tolerations").iter().any(|t| {
            let effect = text(t, "/effect");
            let named = text(t, "/key");
            (named == key || named.is_empty()) && (effect.is_empty() || effect == "NoExecute")
        });
        if !tolerated {
            let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
            match pod.pointer_mut("/spec/tolerations") {
                Some(Value::Array(list)) => list.push(toleration),
                _ => pod["spec"]["tolerations"] = json!([toleration]),
            }
        }
    }
}
