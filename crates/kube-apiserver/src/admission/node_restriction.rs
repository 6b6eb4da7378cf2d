//! NodeRestriction: what the object says about itself must agree with the node that writes it.

use std::collections::BTreeSet;

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};

use super::{Attributes, Operation, node_audience};
use crate::admission::certificates::common_name;
use crate::authz::Authorizer;
use crate::authz::node::{claim_names, config_map_names, node_of, secret_names};
use crate::view::View;

/// Labels under these prefixes are the administrator's, except the kubelet's own well-known ones.
const PROTECTED: &str = "node-restriction.kubernetes.io/";
/// Where nodes have their leases.
const LEASES: &str = "kube-node-lease";
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];

/// Checks a write of a node identity; other users pass.
///
/// # Errors
/// 403 saying what the node may not do.
pub fn check(view: &dyn View, authorizer: &Authorizer, attributes: &Attributes) -> Result<(), ApiError> {
    let Some(node) = node_of(&attributes.user) else { return Ok(()) };
    let resource = &attributes.resource;
    let subresource = attributes.info.subresource.as_str();
    let verdict = match (resource.group.as_str(), resource.plural.as_str(), subresource) {
        ("", "nodes", _) => own_node(attributes, node),
        ("", "pods", "") => match attributes.operation {
            Operation::Create => mirror_pod(view, attributes.object.as_ref().unwrap_or(&Value::Null), node),
            Operation::Delete => on_own_node(attributes.old.as_deref(), node, "delete"),
            _ => Err(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                attributes.operation.word()
            )),
        },
        ("", "pods", "status") => pod_status(attributes, node),
        ("", "pods", "eviction") => {
            let pod = view.get("", "pods", &attributes.namespace, &attributes.name);
            on_own_node(pod.as_deref(), node, "evict")
        }
        ("", "persistentvolumeclaims", "status") => claim_status(attributes, node),
        ("", "serviceaccounts", "token") => return token(view, authorizer, attributes, node),
        ("coordination.k8s.io", "leases", _) => {
            if attributes.namespace == LEASES && name(attributes) == node {
                Ok(())
            } else {
                Err("can only access node lease with the same name as the requesting node".to_owned())
            }
        }
        ("storage.k8s.io", "csinodes", _) if name(attributes) != node => {
            Err("can only access CSINode with the same name as the requesting node".to_owned())
        }
        ("resource.k8s.io", "resourceslices", _) => own_slice(attributes, node),
        ("certificates.k8s.io", "certificatesigningrequests", "") => signing(attributes),
        _ => Ok(()),
    };
    verdict.map_err(|why| ApiError::forbidden(&resource.group, &resource.plural, &attributes.name, &why))
}

/// The name of the object, also of one that is being made.
fn name(attributes: &Attributes) -> &str {
    attributes.object.as_ref().map_or(attributes.name.as_str(), |object| text(object, "/metadata/name"))
}

fn own_node(attributes: &Attributes, node: &str) -> Result<(), String> {
    let (object, current) = (attributes.object.as_ref(), attributes.old.as_deref());
    let name = name(attributes);
    if name != node {
        return Err(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    if attributes.operation == Operation::Delete {
        return Err(format!("node {node:?} is not allowed to delete nodes"));
    }
    let labels = object.map(|object| changed_labels(object, current)).unwrap_or_default();
    if attributes.operation == Operation::Create {
        if !labels.is_empty() {
            return Err(format!("node {node:?} is not allowed to set the following labels: {}", labels.join(", ")));
        }
        return Ok(());
    }
    if !labels.is_empty() {
        return Err(format!("is not allowed to modify labels: {}", labels.join(", ")));
    }
    let changed = |pointer: &str| object.and_then(|o| o.pointer(pointer)) != current.and_then(|o| o.pointer(pointer));
    if changed("/spec/taints") {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    if changed("/metadata/ownerReferences") {
        return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    Ok(())
}

/// A node shows the pods it runs by itself, which use nothing of the API and belong to nobody but the node.
fn mirror_pod(view: &dyn View, pod: &Value, node: &str) -> Result<(), String> {
    if pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_none() {
        return Err(format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        ));
    }
    if text(pod, "/spec/nodeName") != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let own = view.get("", "nodes", "", node);
    own_pod(items(pod, "/metadata/ownerReferences"), own.as_deref(), node)?;
    let references = [
        ("service account", !text(pod, "/spec/serviceAccountName").is_empty()),
        ("secrets", !secret_names(pod).iter().all(|name| name.is_empty())),
        ("configmaps", !config_map_names(pod).iter().all(|name| name.is_empty())),
        ("persistentvolumeclaims", !claim_names(pod).iter().all(|name| name.is_empty())),
        ("resourceclaims", !items(pod, "/spec/resourceClaims").is_empty()),
    ];
    match references.into_iter().find(|(_, refers)| *refers) {
        Some(("service account", _)) => {
            Err(format!("node {node:?} can not create pods that reference a service account"))
        }
        Some((what, _)) => Err(format!("node {node:?} can not create pods that reference {what}")),
        None => Ok(()),
    }
}

fn own_pod(owners: &[Value], own: Option<&Value>, node: &str) -> Result<(), String> {
    let [owner] = owners else {
        let none = owners.is_empty();
        let why = format!("node {node:?} can only create pods with a single owner reference set to itself");
        return if none { Ok(()) } else { Err(why) };
    };
    if (text(owner, "/apiVersion"), text(owner, "/kind"), text(owner, "/name")) != ("v1", "Node", node) {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner.get("controller") != Some(&Value::Bool(true)) {
        return Err(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)) {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let uid = own.map_or("", |own| text(own, "/metadata/uid"));
    if uid != text(owner, "/uid") {
        let given = text(owner, "/uid");
        return Err(format!("node {node} UID mismatch: expected {uid} got {given}"));
    }
    Ok(())
}

fn pod_status(attributes: &Attributes, node: &str) -> Result<(), String> {
    on_own_node(attributes.old.as_deref(), node, "update status for")?;
    let at = |pointer: &str| {
        let of = |object: Option<&Value>| object.and_then(|object| object.pointer(pointer).cloned());
        (of(attributes.old.as_deref()), of(attributes.object.as_ref()))
    };
    let changed = |pointer: &str| {
        let (before, after) = at(pointer);
        before != after
    };
    if changed("/metadata/labels") {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    if changed("/status/resourceClaimStatuses") {
        return Err(format!("node {node:?} cannot update resource claim statuses"));
    }
    Ok(())
}

/// Of a claim a node says how large its volume is and what is being done to it, and nothing else.
fn claim_status(attributes: &Attributes, node: &str) -> Result<(), String> {
    let rest = |object: Option<&Value>| {
        let mut rest = object.cloned().unwrap_or_default();
        for (part, fields) in [
            ("status", ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"].as_slice()),
            ("metadata", &["managedFields", "resourceVersion"]),
        ] {
            let part = rest.get_mut(part).and_then(Value::as_object_mut);
            part.into_iter().for_each(|part| part.retain(|field, _| !fields.contains(&field.as_str())));
        }
        rest
    };
    if rest(attributes.old.as_deref()) == rest(attributes.object.as_ref()) {
        return Ok(());
    }
    Err(format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions"))
}

/// A node publishes and withdraws what is on it, and nothing else.
fn own_slice(attributes: &Attributes, node: &str) -> Result<(), String> {
    let objects = attributes.object.as_ref().into_iter().chain(attributes.old.as_deref());
    match objects.map(|slice| text(slice, "/spec/nodeName")).find(|of| *of != node) {
        Some(other) => {
            Err(format!("node {node:?} can only write ResourceSlices with spec.nodeName set to itself, not {other:?}"))
        }
        None => Ok(()),
    }
}

/// A node asks for certificates of nodes in its own name only.
fn signing(attributes: &Attributes) -> Result<(), String> {
    let Some(csr) = attributes.object.as_ref().filter(|_| attributes.operation == Operation::Create) else {
        return Ok(());
    };
    let of_nodes = matches!(
        text(csr, "/spec/signerName"),
        "kubernetes.io/kubelet-serving" | "kubernetes.io/kube-apiserver-client-kubelet"
    );
    let user = &attributes.user.name;
    if of_nodes && common_name(csr).as_ref() != Some(user) {
        return Err(format!("can only create a node CSR with CN={user}"));
    }
    Ok(())
}

/// A node gets tokens for the pods it runs, each bound to its pod and for those it is to be shown to.
fn token(view: &dyn View, authorizer: &Authorizer, attributes: &Attributes, node: &str) -> Result<(), ApiError> {
    let resource = &attributes.resource;
    let refuse = |why: &str| Err(ApiError::forbidden(&resource.group, &resource.plural, &attributes.name, why));
    let request = attributes.object.as_ref().unwrap_or(&Value::Null);
    if text(request, "/spec/boundObjectRef/kind") != "Pod" {
        return refuse("node requested token not bound to a pod");
    }
    let (name, uid) = (text(request, "/spec/boundObjectRef/name"), text(request, "/spec/boundObjectRef/uid"));
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    match view.get("", "pods", &attributes.namespace, name) {
        None => Err(ApiError::not_found("", "pods", name)),
        Some(pod) if text(&pod, "/spec/nodeName") != node => {
            refuse("node requested token bound to a pod scheduled on a different node")
        }
        Some(pod) if text(&pod, "/metadata/uid") != uid => refuse(&format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record ({})",
            text(&pod, "/metadata/uid")
        )),
        Some(pod) => node_audience::check(view, authorizer, attributes, &pod).or_else(|why| refuse(&why)),
    }
}

fn on_own_node(pod: Option<&Value>, node: &str, what: &str) -> Result<(), String> {
    if pod.is_none_or(|p| text(p, "/spec/nodeName") == node) {
        return Ok(());
    }
    Err(format!("node {node:?} can only {what} pods with spec.nodeName set to itself"))
}

/// The administrator's labels that a write changes, by name.
fn changed_labels(object: &Value, old: Option<&Value>) -> Vec<String> {
    let labels = |o: &Value| o.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let (new, before) = (labels(object), old.map(labels).unwrap_or_default());
    let keys: BTreeSet<&String> = new.keys().chain(before.keys()).collect();
    keys.into_iter().filter(|key| new.get(*key) != before.get(*key) && forbidden_label(key)).cloned().collect()
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
