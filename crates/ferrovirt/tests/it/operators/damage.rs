//! What somebody with too many rights might do to each kind of object.

use serde_json::{Value, json};

use crate::cluster::text;

/// A merge patch that spoils `object`. A kind that is not known here is to be added: nothing that is deployed is left out.
pub(super) fn of(object: &Value) -> Value {
    match text(object, "/kind") {
        "ServiceAccount" => match object["automountServiceAccountToken"].as_bool() {
            Some(said) => json!({ "automountServiceAccountToken": !said }),
            None => json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": "nobody" } } }),
        },
        "Service" => json!({ "spec": { "selector": { "app": "nobody" } } }),
        "Secret" | "ConfigMap" => emptied(object),
        "Deployment" => json!({ "spec": { "replicas": 0 } }),
        "DaemonSet" => json!({ "spec": { "template": { "spec": { "nodeSelector": { "nowhere": "true" } } } } }),
        "Role" | "ClusterRole" => json!({ "rules": [] }),
        "RoleBinding" | "ClusterRoleBinding" => json!({ "subjects": [] }),
        "PriorityClass" => json!({ "description": "spoilt" }),
        "PodDisruptionBudget" => match object["spec"]["maxUnavailable"].is_null() {
            true => json!({ "spec": { "minAvailable": 7 } }),
            false => json!({ "spec": { "maxUnavailable": 7 } }),
        },
        "NetworkPolicy" => json!({ "spec": { "podSelector": { "matchLabels": { "app": "nobody" } } } }),
        "APIService" => json!({ "spec": { "groupPriorityMinimum": 1 } }),
        "CSIDriver" => json!({ "metadata": { "annotations": { "ferrovirt.io/csi-controller": "all" } } }),
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => json!({ "webhooks": [] }),
        "ValidatingAdmissionPolicy" => {
            json!({ "spec": { "failurePolicy": "Ignore", "validations": [{ "expression": "true" }] } })
        }
        "ValidatingAdmissionPolicyBinding" => json!({ "spec": { "validationActions": ["Audit"] } }),
        "CustomResourceDefinition" => without_schema(object),
        "VolumeSnapshotClass" => {
            json!({ "metadata": { "annotations": { "snapshot.storage.kubernetes.io/is-default-class": "false" } } })
        }
        other => panic!("say here how a {other} is spoilt"),
    }
}

/// Anything is taken for an object of the kind.
fn without_schema(object: &Value) -> Value {
    let mut versions = object["spec"]["versions"].clone();
    for version in versions.as_array_mut().into_iter().flatten() {
        version["schema"]["openAPIV3Schema"] =
            json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    }
    json!({ "spec": { "versions": versions } })
}

/// Every key holds something else. Certificates are then made anew, so the object does not become what it was.
fn emptied(object: &Value) -> Value {
    let keys = object["data"].as_object().into_iter().flatten().map(|(key, _)| key.clone());
    json!({ "data": keys.map(|key| (key, json!(""))).collect::<serde_json::Map<_, _>>() })
}

/// Whether `object` is as it was: its contents, or of what is made anew that it is not spoilt any more.
pub(super) fn is_repaired(was: &Value, now: &Value) -> bool {
    match text(was, "/kind") {
        "Secret" | "ConfigMap" => {
            now["data"].as_object().is_none_or(|data| data.values().all(|value| value != ""))
                && now["metadata"]["labels"] == was["metadata"]["labels"]
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" | "APIService" | "Service" => {
            without_what_is_assigned(super::content(now)) == without_what_is_assigned(super::content(was))
        }
        _ => super::content(now) == super::content(was),
    }
}

/// The bundle is another one when the authority was made anew meanwhile, and addresses are when the Service was.
fn without_what_is_assigned(mut object: Value) -> Value {
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.retain(|field, _| !matches!(field.as_str(), "caBundle" | "clusterIP" | "clusterIPs"));
    }
    for hook in object["webhooks"].as_array_mut().into_iter().flatten() {
        hook["clientConfig"]["caBundle"] = Value::Null;
    }
    object
}
