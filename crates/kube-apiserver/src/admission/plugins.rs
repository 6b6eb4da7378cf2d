//! The small built-in plugins: NamespaceLifecycle, Priority, DefaultTolerationSeconds.

use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};

use super::{Attributes, Operation};
use crate::view::View;

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
    error.causes.push(apimachinery::error::Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {} is being terminated", attributes.namespace),
        field: "metadata.namespace".into(),
    });
    Err(error)
}

/// Priority of new pods, and the tolerations that every pod has.
///
/// # Errors
/// 403 for a priority class that does not exist.
pub fn mutate(view: &dyn View, attributes: &mut Attributes) -> Result<(), ApiError> {
    let is_pod = attributes.resource.group.is_empty()
        && attributes.resource.plural == "pods"
        && attributes.info.subresource.is_empty();
    if !is_pod || !matches!(attributes.operation, Operation::Create | Operation::Update) {
        return Ok(());
    }
    let Some(mut pod) = attributes.object.take() else { return Ok(()) };
    let new = attributes.operation == Operation::Create;
    let outcome = if new { priority(view, attributes, &mut pod) } else { Ok(()) };
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
    if let Some(given) = pod.pointer("/spec/priority").and_then(Value::as_i64).filter(|given| *given != value) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(refuse(attributes, &why));
    }
    let policy = class.as_ref().map_or("", |class| text(class, "/preemptionPolicy"));
    let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy };
    let given = text(pod, "/spec/preemptionPolicy").to_owned();
    if !given.is_empty() && given != policy {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(refuse(attributes, &why));
    }
    pod["spec"]["priority"] = value.into();
    pod["spec"]["preemptionPolicy"] = policy.into();
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = text(&class, "/metadata/name").into();
    }
    Ok(())
}

/// There is one class for pods that name none, and the system's classes stay.
///
/// # Errors
/// 403 for a second default, and for the end of a class of the system.
pub fn priority_classes(view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    let resource = &attributes.resource;
    if resource.group != "scheduling.k8s.io" || resource.plural != "priorityclasses" {
        return Ok(());
    }
    if attributes.operation == Operation::Delete && attributes.name.starts_with("system-") {
        return Err(refuse(attributes, "this is a system priority class and cannot be deleted"));
    }
    if !matches!(attributes.operation, Operation::Create | Operation::Update) {
        return Ok(());
    }
    let is_default = |class: &Value| class.get("globalDefault").and_then(Value::as_bool) == Some(true);
    let Some(class) = attributes.object.as_ref().filter(|class| is_default(class)) else { return Ok(()) };
    let classes = view.list("scheduling.k8s.io", "priorityclasses", "");
    let own = text(class, "/metadata/name");
    let Some(other) = classes.iter().find(|other| is_default(other) && text(other, "/metadata/name") != own) else {
        return Ok(());
    };
    let other = text(other, "/metadata/name");
    Err(refuse(attributes, &format!("PriorityClass {other} is already marked as default. Only one default can exist")))
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
