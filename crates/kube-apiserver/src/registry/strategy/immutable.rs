//! Fields that never change once set.

use serde_json::Value;

use super::{invalid, quota, storage, volume};
use crate::error::Cause;
use crate::registry::Resource;
use crate::schema::validate::cause;

const FIELD: &str = "field is immutable";

fn same(old: &Value, new: &Value, path: &[&str]) -> Option<Value> {
    let at = |object: &Value| {
        let mut node = object.clone();
        for part in path {
            node = node.get(part).cloned().unwrap_or_default();
        }
        node
    };
    let (before, after) = (at(old), at(new));
    (before != after).then_some(after)
}

fn keep(old: &Value, new: &Value, path: &[&str], why: &str, causes: &mut Vec<Cause>) {
    if let Some(value) = same(old, new, path) {
        invalid(&path.join("."), &value, why, causes);
    }
}

/// Adds a cause for every immutable field that changed.
pub(super) fn check(resource: &Resource, old: &Value, new: &Value, subresource: &str, causes: &mut Vec<Cause>) {
    if matches!(subresource, "status" | "finalize" | "binding" | "ephemeralcontainers" | "resize" | "approval") {
        return;
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod(old, new, causes),
        ("", "secrets" | "configmaps") => {
            if resource.plural == "secrets" {
                keep(old, new, &["type"], FIELD, causes);
            }
            if old["immutable"] == true {
                for field in ["data", "binaryData", "immutable"] {
                    if old[field] != new[field] {
                        let message = "Forbidden: field is immutable when `immutable` is set".to_owned();
                        causes.push(cause("FieldValueForbidden", field, message));
                    }
                }
            }
        }
        ("", "resourcequotas") => quota::update(old, new, causes),
        ("", "persistentvolumeclaims") => volume::claim_update(old, new, causes),
        ("", "persistentvolumes") => volume::volume_update(old, new, causes),
        ("apps", "deployments" | "daemonsets" | "replicasets") => {
            keep(old, new, &["spec", "selector"], FIELD, causes);
        }
        ("apps", "statefulsets") => stateful_set(old, new, causes),
        ("batch", "jobs") => {
            for field in ["selector", "completionMode"] {
                keep(old, new, &["spec", field], FIELD, causes);
            }
            // An indexed job may grow and shrink while its parallelism follows.
            let elastic =
                new["spec"]["completionMode"] == "Indexed" && new["spec"]["completions"] == new["spec"]["parallelism"];
            if !elastic {
                keep(old, new, &["spec", "completions"], FIELD, causes);
            }
            if old["spec"]["suspend"] != true {
                keep(old, new, &["spec", "template"], FIELD, causes);
            }
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            keep(old, new, &["roleRef"], "cannot change roleRef", causes);
        }
        ("scheduling.k8s.io", _) => {
            for field in ["value", "preemptionPolicy"] {
                keep(old, new, &[field], FIELD, causes);
            }
        }
        ("storage.k8s.io", plural) => storage::update(plural, old, new, causes),
        _ => {}
    }
}

/// Only images, the deadline, tolerations (more of them), labels and the removal of scheduling gates.
fn pod(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let mut allowed = new["spec"].clone();
    for list in ["containers", "initContainers"] {
        let images: Vec<Value> =
            old["spec"][list].as_array().into_iter().flatten().map(|c| c["image"].clone()).collect();
        let containers = allowed.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, image) in containers.zip(images) {
            container["image"] = image;
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"] {
        let carried = match (field, &old["spec"][field], &new["spec"][field]) {
            ("tolerations", before, after) => {
                let kept = |item: &Value| after.as_array().is_some_and(|list| list.contains(item));
                before.as_array().into_iter().flatten().all(kept)
            }
            ("schedulingGates", before, after) => {
                let known = |item: &Value| before.as_array().is_some_and(|list| list.contains(item));
                after.as_array().into_iter().flatten().all(known)
            }
            _ => true,
        };
        if carried {
            match old["spec"].get(field) {
                Some(value) => allowed[field] = value.clone(),
                None => {
                    if let Some(map) = allowed.as_object_mut() {
                        map.remove(field);
                    }
                }
            }
        }
    }
    if allowed != old["spec"] {
        let message = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        causes.push(cause("FieldValueForbidden", "spec", message.to_owned()));
    }
}

fn stateful_set(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let mut allowed = new["spec"].clone();
    let fields = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    for field in fields {
        match old["spec"].get(field) {
            Some(value) => allowed[field] = value.clone(),
            None => {
                if let Some(map) = allowed.as_object_mut() {
                    map.remove(field);
                }
            }
        }
    }
    if allowed != old["spec"] {
        let message = "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        causes.push(cause("FieldValueForbidden", "spec", message.to_owned()));
    }
}
