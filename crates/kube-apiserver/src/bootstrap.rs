//! What a new cluster starts with: keys, roles, bindings, priority classes, FlowSchemas and their levels, the APIServices of its own versions and the
//! published authentication facts.

use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};

use crate::ApiServer;
use crate::bootstrap::objects::ensure;

mod definitions;
pub(crate) mod flow;
mod local;
pub(crate) mod objects;
mod reconcile;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Creates what is missing. Of what is there, roles and bindings get back what they lack; the rest stays as it was left.
pub(crate) async fn run(server: &ApiServer) -> Result<(), ApiError> {
    let mut wanted: Vec<(&str, String, String, Value)> = Vec::new();
    for object in policy()? {
        let plural = match text(&object, "/kind") {
            "ClusterRole" => "clusterroles",
            "ClusterRoleBinding" => "clusterrolebindings",
            "Role" => "roles",
            _ => "rolebindings",
        };
        let namespace = text(&object, "/metadata/namespace").to_owned();
        wanted.push((RBAC, plural.to_owned(), namespace, object));
    }
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)] {
        let object = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "globalDefault": false, "preemptionPolicy": "PreemptLowerPriority",
            "description": "Used for system critical pods that must not be moved from their current node or cluster."});
        wanted.push(("scheduling.k8s.io", "priorityclasses".to_owned(), String::new(), object));
    }
    for object in local::services() {
        wanted.push(("apiregistration.k8s.io", "apiservices".to_owned(), String::new(), object));
    }
    let map = authentication_facts(server);
    wanted.push(("", "configmaps".to_owned(), "kube-system".to_owned(), map.clone()));
    let all = wanted.into_iter().map(|(group, plural, namespace, object)| async move {
        if group == RBAC {
            reconcile::run(server, &format!("{plural}.{RBAC}"), &namespace, &object).await?;
        }
        ensure(server, group, &plural, &namespace, object).await
    });
    futures::future::try_join_all(all).await?;
    flow::settle(server).await?;
    definitions::run(server).await?;
    refresh_facts(server, &map).await
}

/// The shipped roles and bindings as API objects, aggregated roles filled in.
fn policy() -> Result<Vec<Value>, ApiError> {
    let list: Vec<Value> = serde_json::from_str(include_str!("../data/rbac.json"))
        .map_err(|_| ApiError::internal("the shipped roles cannot be read"))?;
    let roles = list.clone();
    let objects = list.into_iter().map(|mut entry| {
        let mut metadata = json!({"name": entry["name"].take(),
            "annotations": {reconcile::AUTOUPDATE: "true"},
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}});
        for (key, value) in entry["labels"].as_object().into_iter().flatten() {
            metadata["labels"][key] = value.clone();
        }
        if let Some(namespace) = entry.get("namespace").cloned() {
            metadata["namespace"] = namespace;
        }
        let mut object = json!({"apiVersion": format!("{RBAC}/v1"), "kind": entry["kind"], "metadata": metadata});
        for part in ["rules", "aggregationRule", "roleRef", "subjects"] {
            if let Some(value) = entry.get(part).filter(|v| !v.is_null()) {
                object[part] = value.clone();
            }
        }
        if object.get("aggregationRule").is_some() {
            object["rules"] = Value::Array(aggregated(&object, &roles));
        }
        object
    });
    Ok(objects.collect())
}

/// Rules of the roles that an aggregated role selects, one level of aggregation below it included.
fn aggregated(role: &Value, roles: &[Value]) -> Vec<Value> {
    let mut rules = Vec::new();
    for selector in items(role, "/aggregationRule/clusterRoleSelectors") {
        for other in roles {
            if crate::admission::rules::selects(Some(selector), other.get("labels")) {
                rules.extend(items(other, "/rules").iter().cloned());
                if other.get("aggregationRule").is_some() {
                    rules.extend(aggregated(other, roles));
                }
            }
        }
    }
    rules
}

/// `kube-system/extension-apiserver-authentication`: what an extension server must trust to believe our headers.
fn authentication_facts(server: &ApiServer) -> Value {
    let pki = &server.edges().pki;
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {
            "client-ca-file": pki.ca_pem(),
            "requestheader-client-ca-file": pki.front_proxy_ca_pem(),
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]"}})
}

/// The authorities may be new (an in-memory PKI over kept objects): then the published facts follow.
async fn refresh_facts(server: &ApiServer, wanted: &Value) -> Result<(), ApiError> {
    use kube_store::Key;
    let name = "extension-apiserver-authentication";
    let Some(stored) = server.store().get("configmaps", "kube-system", name) else { return Ok(()) };
    let mut object = stored.value();
    if object.get("data") == wanted.get("data") {
        return Ok(());
    }
    object["data"] = wanted["data"].clone();
    let written = server.store().update(Key::new("configmaps", "kube-system", name), object, stored.revision).await;
    written.map(|_| ()).map_err(|error| ApiError::internal(format!("configmaps {name}: {error}")))
}
