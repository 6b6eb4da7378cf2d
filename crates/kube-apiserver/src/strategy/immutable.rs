//! Fields that never change once set.

use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::{claim, devices, invalid, job, pod, quota, storage, volume};
use crate::registry::Resource;

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
    if matches!(subresource, "status" | "finalize" | "binding" | "approval") {
        return;
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") if subresource == "ephemeralcontainers" => pod::update_ephemeral(old, new, causes),
        ("", "pods") if subresource == "resize" => pod::resize(old, new, causes),
        ("", "pods") => pod::update(old, new, causes),
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
        ("", "persistentvolumeclaims") => claim::claim_update(old, new, causes),
        ("", "persistentvolumes") => volume::volume_update(old, new, causes),
        ("apps", "deployments" | "daemonsets" | "replicasets") => {
            keep(old, new, &["spec", "selector"], FIELD, causes);
        }
        ("apps", "statefulsets") => stateful_set(old, new, causes),
        ("batch", "jobs") => job::update(old, new, causes),
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            keep(old, new, &["roleRef"], "cannot change roleRef", causes);
        }
        ("scheduling.k8s.io", _) => {
            keep(old, new, &["preemptionPolicy"], FIELD, causes);
            if old["value"] != new["value"] {
                let message = "Forbidden: may not be changed in an update.".to_owned();
                causes.push(cause("FieldValueForbidden", "value", message));
            }
        }
        ("node.k8s.io", "runtimeclasses") => keep(old, new, &["handler"], FIELD, causes),
        ("storage.k8s.io", plural) => storage::update(plural, old, new, causes),
        ("resource.k8s.io", plural) => devices::update(plural, old, new, causes),
        _ => {}
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
