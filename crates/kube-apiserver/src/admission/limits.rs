//! LimitRanger: what containers that say nothing get, and the bounds of containers, pods and claims.

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};

use super::amount::{Amounts, amounts, of_container, of_pod};
use super::{Attributes, Operation};
use crate::view::View;
use apimachinery::tree::child;

/// What was filled in, as upstream tells it.
const NOTE: &str = "kubernetes.io/limit-ranger";

fn is(attributes: &Attributes, plural: &str) -> bool {
    attributes.resource.group.is_empty() && attributes.resource.plural == plural
}

/// Gives containers of a new pod the default requests and limits of the namespace.
pub fn defaults(view: &dyn View, attributes: &mut Attributes) {
    let new_pod =
        is(attributes, "pods") && attributes.info.subresource.is_empty() && attributes.operation == Operation::Create;
    if !new_pod {
        return;
    }
    let ranges = view.list("", "limitranges", &attributes.namespace);
    let Some(pod) = attributes.object.as_mut().filter(|_| !ranges.is_empty()) else { return };
    let mut notes = Vec::new();
    for limit in ranges.iter().flat_map(|r| items(r, "/spec/limits")).filter(|l| text(l, "/type") == "Container") {
        for (list, word) in [("/spec/containers", "container"), ("/spec/initContainers", "init container")] {
            let Some(Value::Array(containers)) = pod.pointer_mut(list) else { continue };
            for container in containers {
                fill(container, limit, word, &mut notes);
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        child(child(pod, "metadata"), "annotations")[NOTE] = note.into();
    }
}

fn fill(container: &mut Value, limit: &Value, word: &str, notes: &mut Vec<String>) {
    for (from, to) in [("defaultRequest", "requests"), ("default", "limits")] {
        let mut set = Vec::new();
        for (name, quantity) in limit.get(from).and_then(Value::as_object).into_iter().flatten() {
            if container.pointer(&format!("/resources/{to}/{}", name.replace('/', "~1"))).is_none() {
                container["resources"][to][name] = quantity.clone();
                set.push(name.as_str());
            }
        }
        if !set.is_empty() {
            let what = to.trim_end_matches('s');
            notes.push(format!("{} {what} for {word} {}", set.join(", "), text(container, "/name")));
        }
    }
}

/// Checks a pod or claim against the ranges of its namespace.
///
/// # Errors
/// 403 naming every bound that is passed.
pub fn check(view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    let subresource = attributes.info.subresource.as_str();
    let concerned = match attributes.operation {
        Operation::Create => {
            subresource.is_empty() && (is(attributes, "pods") || is(attributes, "persistentvolumeclaims"))
        }
        Operation::Update => {
            (subresource == "resize" && is(attributes, "pods"))
                || (subresource.is_empty() && is(attributes, "persistentvolumeclaims"))
        }
        _ => false,
    };
    let Some(object) = attributes.object.as_ref().filter(|_| concerned) else { return Ok(()) };
    // A claim that is not asked to be larger may stay as it was.
    let size = "/spec/resources/requests";
    if attributes
        .old
        .as_ref()
        .is_some_and(|old| old.pointer(size) == object.pointer(size) && is(attributes, "persistentvolumeclaims"))
    {
        return Ok(());
    }
    for range in view.list("", "limitranges", &attributes.namespace) {
        let wrong = violations(&attributes.resource.plural, object, items(&range, "/spec/limits"));
        let why = match wrong.as_slice() {
            [] => continue,
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        return Err(ApiError::forbidden("", &attributes.resource.plural, &attributes.name, &why));
    }
    Ok(())
}

/// What is wrong with an object by the items of one range.
fn violations(plural: &str, object: &Value, limits: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    for limit in limits {
        match (plural, text(limit, "/type")) {
            ("pods", "Container") => {
                for container in items(object, "/spec/containers").iter().chain(items(object, "/spec/initContainers")) {
                    let (requests, limits) = (of_container(container, "requests"), of_container(container, "limits"));
                    bounds(limit, "Container", &requests, Some(&limits), &mut wrong);
                }
            }
            ("pods", "Pod") => {
                bounds(limit, "Pod", &of_pod(object, "requests"), Some(&of_pod(object, "limits")), &mut wrong);
            }
            ("persistentvolumeclaims", "PersistentVolumeClaim") => {
                let requests = amounts(object.pointer("/spec/resources/requests"));
                bounds(limit, "PersistentVolumeClaim", &requests, None, &mut wrong);
            }
            _ => {}
        }
    }
    // One container after the other says the same of each: once is enough.
    wrong.dedup();
    wrong
}

/// Requests and limits within what one item allows. A claim has no limits, so its requests are bounded above as well.
fn bounds(limit: &Value, kind: &str, requests: &Amounts, limits: Option<&Amounts>, wrong: &mut Vec<String>) {
    let none = Amounts::new();
    let tops = limits.unwrap_or(&none);
    for (name, bound) in amounts(limit.get("min")) {
        let usage = format!("minimum {name} usage per {kind} is {bound}");
        match (requests.get(&name), tops.get(&name)) {
            (None, _) => wrong.push(format!("{usage}.  No request is specified")),
            (Some(given), _) if *given < bound => wrong.push(format!("{usage}, but request is {given}")),
            (_, Some(top)) if *top < bound => wrong.push(format!("{usage}, but limit is {top}")),
            _ => {}
        }
    }
    for (name, bound) in amounts(limit.get("max")) {
        let usage = format!("maximum {name} usage per {kind} is {bound}");
        match (requests.get(&name), tops.get(&name)) {
            (None, _) if limits.is_none() => wrong.push(format!("{usage}.  No request is specified")),
            (_, None) if limits.is_some() => wrong.push(format!("{usage}.  No limit is specified")),
            (_, Some(top)) if *top > bound => wrong.push(format!("{usage}, but limit is {top}")),
            (Some(given), _) if *given > bound => wrong.push(format!("{usage}, but request is {given}")),
            _ => {}
        }
    }
    for (name, bound) in amounts(limit.get("maxLimitRequestRatio")) {
        let usage = format!("{name} max limit to request ratio per {kind} is {bound}");
        let positive = |list: &Amounts| list.get(&name).copied().filter(|amount| amount.is_positive());
        match (positive(requests), positive(tops)) {
            (None, _) => wrong.push(format!("{usage}, but no request is specified or request is 0")),
            (_, None) => wrong.push(format!("{usage}, but no limit is specified or limit is 0")),
            (Some(given), Some(top)) if top.exceeds(given, bound) => {
                wrong.push(format!("{usage}, but provided ratio is {:.6}", top.ratio(given)));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bounds_are_told_as_users_search_for_them() {
        let check = |limit: Value, resources: Value, expect: &[&str]| {
            let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
            assert_eq!(violations("pods", &pod, &[limit]), expect, "{resources}");
        };
        let container = |bounds: Value| {
            let mut limit = bounds;
            limit["type"] = "Container".into();
            limit
        };
        let min = container(json!({"min": {"cpu": "50m"}}));
        check(min.clone(), json!({}), &["minimum cpu usage per Container is 50m.  No request is specified"]);
        check(
            min.clone(),
            json!({"requests": {"cpu": "10m"}}),
            &["minimum cpu usage per Container is 50m, but request is 10m"],
        );
        check(min, json!({"requests": {"cpu": "0.05"}}), &[]);
        let max = container(json!({"max": {"memory": "1Gi"}}));
        check(max.clone(), json!({}), &["maximum memory usage per Container is 1Gi.  No limit is specified"]);
        check(
            max,
            json!({"limits": {"memory": "1.5Gi"}}),
            &["maximum memory usage per Container is 1Gi, but limit is 1536Mi"],
        );
        let ratio = container(json!({"maxLimitRequestRatio": {"cpu": "1500m"}}));
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
        check(
            ratio,
            resources,
            &["cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000"],
        );
        let claim = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
        let limit = json!({"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}});
        let said = violations("persistentvolumeclaims", &claim, &[limit]);
        assert_eq!(said, ["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"]);
    }
}
