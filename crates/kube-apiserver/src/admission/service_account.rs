//! ServiceAccount admission: every pod runs as an account that exists and gets its token, CA and namespace mounted.

use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};

use super::{Attributes, Operation};
use crate::view::View;

const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const EXPIRY: i64 = 3607;
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";

fn new_pod(attributes: &Attributes) -> bool {
    attributes.resource.group.is_empty()
        && attributes.resource.plural == "pods"
        && attributes.info.subresource.is_empty()
        && attributes.operation == Operation::Create
}

fn refuse(attributes: &Attributes, why: &str) -> ApiError {
    ApiError::forbidden("", "pods", &attributes.name, why)
}

fn account_of(pod: &Value) -> &str {
    let named = ["/spec/serviceAccountName", "/spec/serviceAccount"].into_iter().map(|p| text(pod, p));
    named.into_iter().find(|n| !n.is_empty()).unwrap_or("default")
}

/// Whether a new pod's account is missing: in a namespace that was just made, it may be there in a moment.
#[must_use]
pub fn missing(view: &dyn View, attributes: &Attributes) -> bool {
    let pod = attributes.object.as_ref().filter(|_| new_pod(attributes)).filter(|p| p.pointer(MIRROR).is_none());
    pod.is_some_and(|pod| view.get("", "serviceaccounts", &attributes.namespace, account_of(pod)).is_none())
}

/// Fills in the account, its pull secrets and the token volume. Without `required`, a namespace may lack its default
/// account, which is then not looked at: nobody makes accounts in a cluster without controllers.
///
/// # Errors
/// 403 when the account does not exist.
pub fn mutate(view: &dyn View, attributes: &mut Attributes, required: bool) -> Result<(), ApiError> {
    if !new_pod(attributes) {
        return Ok(());
    }
    let Some(mut pod) = attributes.object.take() else { return Ok(()) };
    let outcome = fill(view, attributes, &mut pod, required);
    attributes.object = Some(pod);
    outcome
}

fn fill(view: &dyn View, attributes: &Attributes, pod: &mut Value, required: bool) -> Result<(), ApiError> {
    if pod.pointer(MIRROR).is_some() {
        return Ok(());
    }
    let name = account_of(pod).to_owned();
    pod["spec"]["serviceAccountName"] = name.clone().into();
    pod["spec"]["serviceAccount"] = name.clone().into();
    let Some(account) = view.get("", "serviceaccounts", &attributes.namespace, &name) else {
        if !required && name == "default" {
            return Ok(());
        }
        let why = format!(
            "error looking up service account {}/{name}: serviceaccount {name:?} not found",
            attributes.namespace
        );
        return Err(refuse(attributes, &why));
    };
    let wanted = pod
        .pointer("/spec/automountServiceAccountToken")
        .and_then(Value::as_bool)
        .or_else(|| account.get("automountServiceAccountToken").and_then(Value::as_bool))
        .unwrap_or(true);
    if wanted {
        mount(pod);
    }
    if items(pod, "/spec/imagePullSecrets").is_empty() && !items(&account, "/imagePullSecrets").is_empty() {
        pod["spec"]["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
    Ok(())
}

fn mount(pod: &mut Value) {
    // A pod that brings its own token volume (a copy of another pod) keeps it.
    let existing =
        items(pod, "/spec/volumes").iter().map(|v| text(v, "/name")).find(|n| n.starts_with("kube-api-access-"));
    let volume = existing.map_or_else(|| format!("kube-api-access-{}", suffix()), ToOwned::to_owned);
    let brought = existing.is_some();
    let mut used = false;
    for list in ["initContainers", "containers"] {
        let Some(Value::Array(containers)) = pod.pointer_mut(&format!("/spec/{list}")) else { continue };
        for container in containers {
            if items(container, "/volumeMounts").iter().any(|m| text(m, "/mountPath") == MOUNT) {
                continue;
            }
            used = true;
            let entry = json!({"name": volume, "readOnly": true, "mountPath": MOUNT});
            match container.get_mut("volumeMounts") {
                Some(Value::Array(mounts)) => mounts.push(entry),
                _ => container["volumeMounts"] = json!([entry]),
            }
        }
    }
    if !used || brought {
        return;
    }
    let entry = json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": EXPIRY, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}});
    match pod.pointer_mut("/spec/volumes") {
        Some(Value::Array(volumes)) => volumes.push(entry),
        _ => pod["spec"]["volumes"] = json!([entry]),
    }
}

fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5).map(|_| char::from(LETTERS[rand::random_range(0..LETTERS.len())])).collect()
}

/// A mirror pod names no account and no secret: it stands for a file on the node.
///
/// # Errors
/// 403.
pub fn validate(_view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    let Some(pod) = attributes.object.as_ref().filter(|_| new_pod(attributes)) else { return Ok(()) };
    if pod.pointer(MIRROR).is_none() {
        return Ok(());
    }
    if !text(pod, "/spec/serviceAccountName").is_empty() {
        return Err(refuse(attributes, "a mirror pod may not reference service accounts"));
    }
    if items(pod, "/spec/volumes").iter().any(|v| v.get("secret").is_some()) {
        return Err(refuse(attributes, "a mirror pod may not reference secrets"));
    }
    let mut sources = items(pod, "/spec/volumes").iter().flat_map(|volume| items(volume, "/projected/sources"));
    if sources.any(|source| source.get("serviceAccountToken").is_some()) {
        return Err(refuse(attributes, "a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}
