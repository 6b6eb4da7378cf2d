//! NodeRestriction: what the object says about itself must agree with the node that writes it.

use serde_json::Value;

use super::{Attributes, Operation};
use crate::authz::node::node_of;
use crate::authz::view::{View, text};
use crate::error::ApiError;

/// Labels under these prefixes are the administrator's, except the kubelet's own well-known ones.
const PROTECTED: &str = "node-restriction.kubernetes.io/";
const KUBELET_LABELS: [&str; 9] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];

/// Checks a write of a node identity; other users pass.
///
/// # Errors
/// 403 saying what the node may not do.
pub fn check(view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    let Some(node) = node_of(&attributes.user) else { return Ok(()) };
    let refuse = |why: String| {
        Err(ApiError::forbidden(&attributes.resource.group, &attributes.resource.plural, &attributes.name, &why))
    };
    let object = attributes.object.as_ref();
    let current = attributes.old.as_deref();
    match (
        attributes.resource.group.as_str(),
        attributes.resource.plural.as_str(),
        attributes.info.subresource.as_str(),
    ) {
        ("", "nodes", _) => {
            let name = object.map_or(attributes.name.as_str(), |o| text(o, "/metadata/name"));
            if name != node {
                return refuse(format!("node {node:?} is not allowed to modify node {name:?}"));
            }
            if attributes.operation == Operation::Delete {
                return refuse(format!("node {node:?} is not allowed to delete nodes"));
            }
            if let Some(label) = object.and_then(|o| changed_label(o, current)) {
                return refuse(format!("is not allowed to modify labels: {label}"));
            }
            let taints = |o: Option<&Value>| o.and_then(|o| o.pointer("/spec/taints")).cloned();
            if attributes.operation == Operation::Update && taints(object) != taints(current) {
                return refuse(format!("node {node:?} is not allowed to modify taints"));
            }
            Ok(())
        }
        ("", "pods", "") => match attributes.operation {
            Operation::Create => {
                let pod = object.unwrap_or(&Value::Null);
                if pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_none() {
                    return refuse(format!(
                        "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
                    ));
                }
                if text(pod, "/spec/nodeName") != node {
                    return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
                }
                Ok(())
            }
            Operation::Delete => on_own_node(current, node, "delete").or_else(refuse),
            _ => refuse(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                attributes.operation.word()
            )),
        },
        ("", "pods", "status") => on_own_node(current, node, "update status for").or_else(refuse),
        ("", "pods", "eviction") => {
            let pod = view.get("", "pods", &attributes.namespace, &attributes.name);
            on_own_node(pod.as_deref(), node, "evict").or_else(refuse)
        }
        ("", "serviceaccounts", "token") => {
            let request = object.unwrap_or(&Value::Null);
            if text(request, "/spec/boundObjectRef/kind") != "Pod" {
                return refuse("node requested token not bound to a pod".into());
            }
            let (name, uid) = (text(request, "/spec/boundObjectRef/name"), text(request, "/spec/boundObjectRef/uid"));
            if uid.is_empty() {
                return refuse("node requested token with a pod binding without a uid".into());
            }
            match view.get("", "pods", &attributes.namespace, name) {
                None => Err(ApiError::not_found("", "pods", name)),
                Some(pod) if text(&pod, "/spec/nodeName") != node => {
                    refuse("node requested token bound to a pod scheduled on a different node".into())
                }
                Some(pod) if text(&pod, "/metadata/uid") != uid => refuse(format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record ({})",
                    text(&pod, "/metadata/uid")
                )),
                Some(_) => Ok(()),
            }
        }
        ("coordination.k8s.io", "leases", _) => {
            let name = object.map_or(attributes.name.as_str(), |o| text(o, "/metadata/name"));
            if attributes.namespace != "kube-node-lease" || name != node {
                return refuse("can only access node lease with the same name as the requesting node".into());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn on_own_node(pod: Option<&Value>, node: &str, what: &str) -> Result<(), String> {
    if pod.is_none_or(|p| text(p, "/spec/nodeName") == node) {
        return Ok(());
    }
    Err(format!("node {node:?} can only {what} pods with spec.nodeName set to itself"))
}

fn changed_label(object: &Value, old: Option<&Value>) -> Option<String> {
    let labels = |o: &Value| o.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let (new, before) = (labels(object), old.map(labels).unwrap_or_default());
    let changed = |key: &String| new.get(key) != before.get(key);
    new.keys().chain(before.keys()).find(|key| changed(key) && forbidden_label(key)).cloned()
}

fn forbidden_label(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    if key.starts_with(PROTECTED) || prefix.ends_with(&format!(".{}", PROTECTED.trim_end_matches('/'))) {
        return true;
    }
    let kubernetes = prefix == "kubernetes.io"
        || prefix.ends_with(".kubernetes.io")
        || prefix == "k8s.io"
        || prefix.ends_with(".k8s.io");
    let kubelet_own = prefix == "kubelet.kubernetes.io"
        || prefix.ends_with(".kubelet.kubernetes.io")
        || prefix == "node.kubernetes.io"
        || prefix.ends_with(".node.kubernetes.io");
    kubernetes && !kubelet_own && !KUBELET_LABELS.contains(&key)
}
