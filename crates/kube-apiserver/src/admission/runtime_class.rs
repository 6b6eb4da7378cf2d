//! RuntimeClass: a pod that names one gets the class's overhead and the nodes that have it.

use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};

use super::{Attributes, Operation};
use crate::view::View;

/// Completes a new pod by its class.
///
/// # Errors
/// 403 for a class that does not exist, and for a pod that contradicts it.
pub(super) fn mutate(view: &dyn View, attributes: &mut Attributes) -> Result<(), ApiError> {
    let resource = &attributes.resource;
    let new_pod = resource.group.is_empty()
        && resource.plural == "pods"
        && attributes.info.subresource.is_empty()
        && attributes.operation == Operation::Create;
    if !new_pod {
        return Ok(());
    }
    let Some(mut pod) = attributes.object.take() else { return Ok(()) };
    let outcome = complete(view, &mut pod);
    attributes.object = Some(pod);
    outcome.map_err(|why| ApiError::forbidden("", "pods", &attributes.name, &why))
}

fn complete(view: &dyn View, pod: &mut Value) -> Result<(), String> {
    let name = text(pod, "/spec/runtimeClassName").to_owned();
    let given = pod.pointer("/spec/overhead").cloned();
    if name.is_empty() {
        return match given {
            Some(Value::Object(overhead)) if !overhead.is_empty() => {
                Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".into())
            }
            _ => Ok(()),
        };
    }
    let class = view.get("node.k8s.io", "runtimeclasses", "", &name);
    let class = class.ok_or_else(|| format!("pod rejected: RuntimeClass {name:?} not found"))?;
    let overhead = class.pointer("/overhead/podFixed").cloned().unwrap_or(Value::Null);
    match (given.filter(|given| !given.is_null()), overhead) {
        (Some(given), overhead) if given != overhead => {
            return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into());
        }
        (None, overhead) if !overhead.is_null() => pod["spec"]["overhead"] = overhead,
        _ => {}
    }
    for (key, value) in class.pointer("/scheduling/nodeSelector").and_then(Value::as_object).into_iter().flatten() {
        let own = &mut pod["spec"]["nodeSelector"][key.as_str()];
        if !own.is_null() && own != value {
            return Err(format!(
                "pod rejected: conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                value.as_str().unwrap_or_default(),
                own.as_str().unwrap_or_default()
            ));
        }
        *own = value.clone();
    }
    for toleration in items(&class, "/scheduling/tolerations") {
        if items(pod, "/spec/tolerations").contains(toleration) {
            continue;
        }
        match pod.pointer_mut("/spec/tolerations").and_then(Value::as_array_mut) {
            Some(list) => list.push(toleration.clone()),
            None => pod["spec"]["tolerations"] = json!([toleration]),
        }
    }
    Ok(())
}
