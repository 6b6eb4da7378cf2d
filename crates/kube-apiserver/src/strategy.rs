//! What is particular to a built-in kind: what a create starts with, what an update may not change, how deletion goes.

mod autoscaling;
mod claim;
mod classes;
mod cluster;
mod cron;
mod data;
mod defaults;
mod devices;
mod disruption;
mod endpoints;
mod event;
mod field;
mod flow_control;
mod immutable;
mod ingress;
mod job;
mod limit_range;
mod network_policy;
mod pod;
mod quota;
mod rbac;
mod revision;
pub(crate) mod service;
mod storage;
mod volume;
mod workload;

use serde_json::{Map, Value, json};

use apimachinery::error::{ApiError, Cause};
use apimachinery::tree::{child, set};

use crate::ApiServer;
use crate::registry::Resource;
use crate::validation::{invalid, label_selector, one_of, required, rules};

/// Sets the defaults of a kind. Idempotent.
pub(crate) fn set_defaults(resource: &Resource, object: &mut Value) {
    if resource.crd.is_some() {
        return;
    }
    if resource.plural == "secrets" && resource.group.is_empty() {
        encode_strings(object);
    }
    defaults::apply(resource, object);
    if resource.plural == "nodes" && resource.group.is_empty() {
        cluster::settle_node(child(object, "spec"));
    }
    apimachinery::schema::stored::decode(&resource.schema, object);
    apimachinery::schema::stored::settle(&resource.schema, object);
}

/// `stringData` is written as text and kept encoded.
fn encode_strings(secret: &mut Value) {
    use base64::Engine as _;
    let Some(Value::Object(strings)) = secret.as_object_mut().and_then(|map| map.remove("stringData")) else { return };
    for (key, text) in strings {
        let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
        child(secret, "data")[key.as_str()] = encoded.into();
    }
}

/// Whether a create may bring its status: a node registers with it.
pub(crate) fn keeps_status(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "nodes"
}

/// Whether an object that is created without a name is given one.
pub(crate) fn names_itself(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "limitranges"
}

/// What is said of every node, though nothing is known.
fn describe_new_node(node: &mut Value) {
    const INFO: [&str; 10] = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let status = child(node, "status");
    let endpoint = child(child(status, "daemonEndpoints"), "kubeletEndpoint");
    set(endpoint, "Port", 0);
    INFO.iter().for_each(|field| set(child(status, "nodeInfo"), field, ""));
}

/// A node that is not ready yet gets no pods, from its first moment; the node controller takes the taint away.
fn taint_new_node(node: &mut Value) {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
    if ready {
        return;
    }
    let spec = child(node, "spec");
    set(spec, "taints", json!([]));
    if let Some(list) = spec["taints"].as_array_mut()
        && !list.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule")
    {
        list.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Sets what a new object starts with.
pub(crate) fn prepare_create(resource: &Resource, object: &mut Value) {
    if resource.crd.is_some() {
        return;
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => {
            let finalizers = child(object, "spec");
            set(finalizers, "finalizers", json!([]));
            if let Some(list) =
                finalizers["finalizers"].as_array_mut().filter(|list| !list.contains(&"kubernetes".into()))
            {
                list.push("kubernetes".into());
            }
            object["status"] = json!({"phase": "Active"});
        }
        ("", "pods") => pod::prepare_create(object),
        ("", "nodes") => {
            describe_new_node(object);
            taint_new_node(object);
        }
        ("", "persistentvolumeclaims") => {
            claim::prepare_claim(object);
            object["status"] = json!({"phase": "Pending"});
        }
        ("", "persistentvolumes") => {
            let now = object["metadata"]["creationTimestamp"].clone();
            object["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": now});
        }
        ("", "services") => object["status"] = json!({"loadBalancer": {}}),
        ("apps", "daemonsets") => {
            child(child(object, "metadata"), "annotations")[workload::TEMPLATE_GENERATION] = "1".into();
            object["status"] = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0});
        }
        ("apps", "statefulsets") => object["status"] = json!({"replicas": 0, "availableReplicas": 0}),
        ("apps", "replicasets") | ("", "replicationcontrollers") => object["status"] = json!({"replicas": 0}),
        ("policy", "poddisruptionbudgets") => {
            object["status"] =
                json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
        }
        ("networking.k8s.io", "ingresses") => object["status"] = json!({"loadBalancer": {}}),
        ("storage.k8s.io", "volumeattachments") => object["status"] = json!({"attached": false}),
        ("apps", "deployments")
        | ("admissionregistration.k8s.io", "validatingadmissionpolicies")
        | ("networking.k8s.io", "servicecidrs")
        | ("batch", "cronjobs")
        | ("certificates.k8s.io" | "flowcontrol.apiserver.k8s.io", _)
        | ("resource.k8s.io", "resourceclaims")
        | ("", "resourcequotas") => object["status"] = json!({}),
        ("apiregistration.k8s.io", _) => {
            object["status"] = json!({});
            if object["spec"]["service"].is_null() {
                let now = object["metadata"]["creationTimestamp"].clone();
                object["status"]["conditions"] = json!([{"type": "Available", "status": "True", "reason": "Local",
                    "message": "Local APIServices are always available", "lastTransitionTime": now}]);
            }
        }
        ("autoscaling", _) if resource.version == "v1" => {
            object["status"] = json!({"currentReplicas": 0, "desiredReplicas": 0});
        }
        ("autoscaling", _) => object["status"] = json!({"desiredReplicas": 0, "currentMetrics": null}),
        ("batch", "jobs") => {
            job::prepare(object);
            object["status"] = json!({});
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => crate::crd::prepare(object),
        _ => {}
    }
}

/// Settles what depends on other objects: the names of definitions.
pub(crate) fn settle(server: &ApiServer, resource: &Resource, object: &mut Value) {
    if resource.group == "apiextensions.k8s.io" && resource.plural == "customresourcedefinitions" {
        crate::crd::settle_names(server.store(), object);
    }
}

/// Adjusts an update, which has the status and the metadata it may have already.
pub(crate) fn prepare_update(resource: &Resource, old: &Value, new: &mut Value, subresource: &str) {
    match (resource.group.as_str(), resource.plural.as_str(), subresource) {
        ("apiextensions.k8s.io", "customresourcedefinitions", "") => crate::crd::prepare(new),
        ("", "namespaces", "") => {
            // Only `finalize` lets a namespace go.
            let finalizers = old["spec"]["finalizers"].clone();
            child(new, "spec")["finalizers"] = finalizers;
            apimachinery::schema::stored::nulls(new);
        }
        ("certificates.k8s.io", _, "") => new["spec"] = old["spec"].clone(),
        ("certificates.k8s.io", _, "approval") => crate::certificates::keep_approval(old, new),
        ("certificates.k8s.io", _, "status") => crate::certificates::keep_others(old, new),
        ("", "services", "") => service::keep_allocated(old, new),
        ("", "pods", "") => pod::prepare_update(old, new),
        ("", "pods", "status") => pod::prepare_status(new),
        ("", "persistentvolumes", "status") => volume::prepare_volume_status(old, new),
        ("apps", "daemonsets", "") if old["spec"]["template"] != new["spec"]["template"] => {
            let before =
                old["metadata"]["annotations"][workload::TEMPLATE_GENERATION].as_str().and_then(|n| n.parse().ok());
            let next: i64 = before.unwrap_or(0) + 1;
            child(child(new, "metadata"), "annotations")[workload::TEMPLATE_GENERATION] = next.to_string().into();
        }
        _ => {}
    }
}

/// Whether [`validate`] says of every field of a kind that it is missing: schemas call those required too that a Go type
/// always writes.
pub(crate) fn says_what_is_required(resource: &Resource) -> bool {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", plural) => {
            matches!(
                plural,
                "configmaps"
                    | "endpoints"
                    | "events"
                    | "limitranges"
                    | "namespaces"
                    | "nodes"
                    | "persistentvolumeclaims"
                    | "persistentvolumes"
                    | "pods"
                    | "podtemplates"
                    | "replicationcontrollers"
                    | "secrets"
                    | "serviceaccounts"
                    | "services"
            )
        }
        ("apps" | "batch" | "autoscaling" | "node.k8s.io" | "scheduling.k8s.io" | "events.k8s.io", _) => true,
        ("policy", "poddisruptionbudgets") => true,
        (
            "admissionregistration.k8s.io"
            | "apiregistration.k8s.io"
            | "certificates.k8s.io"
            | "coordination.k8s.io"
            | "discovery.k8s.io"
            | "flowcontrol.apiserver.k8s.io"
            | "networking.k8s.io"
            | "rbac.authorization.k8s.io"
            | "resource.k8s.io"
            | "storage.k8s.io",
            _,
        ) => true,
        _ => false,
    }
}

/// Checks what schemas cannot say.
pub(crate) fn validate(
    resource: &Resource,
    object: &Value,
    old: Option<&Value>,
    subresource: &str,
    causes: &mut Vec<Cause>,
) {
    if resource.crd.is_some() {
        return;
    }
    // What is stored was valid; only a new spec can make it invalid.
    let changed = old.is_none_or(|old| old["spec"] != object["spec"]);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") if changed => {
            pod::validate(object, old, causes);
        }
        ("", "services") => {
            service::validate(&object["spec"], causes);
            if let Some(old) = old {
                service::validate_update(&old["spec"], &object["spec"], causes);
            }
        }
        ("", "resourcequotas") if changed => {
            quota::validate(object, causes);
        }
        ("", "limitranges") if changed => {
            limit_range::validate(object, causes);
        }
        ("", "nodes") => cluster::node(object, causes),
        ("", "namespaces") => cluster::namespace(object, causes),
        ("", "endpoints") => endpoints::endpoints(object, causes),
        ("discovery.k8s.io", "endpointslices") => endpoints::slice(object, causes),
        ("rbac.authorization.k8s.io", plural) => rbac::validate(plural, object, causes),
        ("flowcontrol.apiserver.k8s.io", _) => flow_control::validate(resource, object, causes),
        ("networking.k8s.io", "ingresses") => ingress::ingress(object, old.is_none(), causes),
        ("networking.k8s.io", "ingressclasses") => ingress::class(object, causes),
        ("networking.k8s.io", "servicecidrs") => cluster::service_range(object, causes),
        ("networking.k8s.io", "ipaddresses") => rules::check(object, cluster::ADDRESS, causes),
        ("coordination.k8s.io", "leases") => rules::check(object, cluster::LEASE, causes),
        ("apiregistration.k8s.io", _) => cluster::api_service(object, causes),
        ("scheduling.k8s.io", "priorityclasses") => classes::priority(object, causes),
        ("node.k8s.io", "runtimeclasses") => classes::runtime(object, causes),
        ("networking.k8s.io", "networkpolicies") => network_policy::validate(&object["spec"], causes),
        ("", "configmaps") => data::config_map(object, causes),
        ("", "secrets") => data::secret(object, causes),
        ("", "persistentvolumeclaims") if subresource == "status" => claim::status(object, causes),
        ("", "persistentvolumeclaims") if changed => {
            claim::claim(&object["spec"], causes);
        }
        ("", "persistentvolumes") if changed => {
            volume::volume(object, causes);
        }
        ("storage.k8s.io", plural) => storage::validate(plural, object, causes),
        ("resource.k8s.io", plural) => devices::validate(plural, object, old, subresource, causes),
        ("apps", "controllerrevisions") => revision::validate(object, causes),
        ("", "podtemplates") => pod::template(&field::Field::new("template", &object["template"]), causes),
        ("apps", _) | ("", "replicationcontrollers") if changed => {
            workload::validate(resource, object, causes);
        }
        ("batch", "jobs") if changed => job::validate(object, causes),
        ("batch", "cronjobs") if changed => cron::validate(object, causes),
        ("policy", "poddisruptionbudgets") if changed => {
            disruption::validate(object, causes);
        }
        ("autoscaling", _) if changed => autoscaling::validate(object, causes),
        ("" | "events.k8s.io", "events") if old.is_none() => event::validate(resource, object, causes),
        ("admissionregistration.k8s.io", plural) => crate::admission::configuration::validate(plural, object, causes),
        ("certificates.k8s.io", _) if old.is_none() => crate::admission::certificates::validate(object, causes),
        ("certificates.k8s.io", _) => crate::admission::certificates::validate_status(object, causes),
        // What is stored in which version, a migration says in the status.
        ("apiextensions.k8s.io", _) if subresource != "status" => crate::crd::check::validate(object, old, causes),
        _ => {}
    }
    match (resource.group.as_str(), resource.plural.as_str(), subresource) {
        ("", "pods", "status") => pod::status(object, causes),
        ("apps", "deployments" | "replicasets", "status") => workload::status(object, causes),
        ("batch", "jobs", "status") => job::status(old.unwrap_or(&Value::Null), object, causes),
        _ => {}
    }
    if changed {
        label_selector::validate(resource, object, causes);
    }
    if let Some(old) = old {
        immutable::check(resource, old, object, subresource, causes);
    }
}

pub(crate) use pod::{aggregated_requests, keep_rest_of_ephemeral, keep_rest_of_resize, of_whole_pods};

/// Something taken for an object that is not stored yet; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    _turn: Option<tokio::sync::OwnedMutexGuard<()>>,
}

/// Takes cluster IPs and node ports. The reservation is held until the object is stored.
pub(crate) async fn allocate(
    server: &ApiServer,
    resource: &Resource,
    old: Option<&Value>,
    object: &mut Value,
    dry_run: bool,
) -> Result<Reservation, ApiError> {
    if !(resource.group.is_empty() && resource.plural == "services") {
        return Ok(Reservation { _turn: None });
    }
    let turn = server.service_turn().await;
    service::allocate(server, old, object, dry_run)?;
    Ok(Reservation { _turn: Some(turn) })
}

/// Whether a deleted object without finalizers may go: a namespace has finalizers of its own.
pub(crate) fn removable(resource: &Resource, object: &Value) -> bool {
    let namespace = resource.group.is_empty() && resource.plural == "namespaces";
    !namespace || object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty)
}

/// Seconds of grace a deletion gives.
pub(crate) fn grace(resource: &Resource, object: &Value, asked: Option<i64>) -> i64 {
    if !(resource.group.is_empty() && resource.plural == "pods") {
        return 0;
    }
    let phase = object["status"]["phase"].as_str().unwrap_or_default();
    let unassigned = object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    if unassigned || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    asked.or(object["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30)
}

/// Sets what the beginning of a deletion changes beside the metadata.
pub(crate) fn deletion_began(resource: &Resource, object: &mut Value) {
    if resource.group.is_empty() && resource.plural == "namespaces" {
        object["status"]["phase"] = "Terminating".into();
    }
}

/// Whether a deletion answers with the object instead of a Status.
pub(crate) fn returns_deleted(resource: &Resource) -> bool {
    resource.group.is_empty()
        && matches!(
            resource.plural.as_str(),
            "pods"
                | "services"
                | "serviceaccounts"
                | "persistentvolumes"
                | "persistentvolumeclaims"
                | "podtemplates"
                | "resourcequotas"
        )
}

/// Notes on a pod that it has a node.
pub(crate) fn scheduled(pod: &mut Value, now: &str) {
    let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    let status = child(pod, "status");
    set(status, "conditions", json!([]));
    if let Some(list) = status["conditions"].as_array_mut() {
        list.retain(|existing| existing["type"] != "PodScheduled");
        list.push(condition);
    }
}

/// A LabelSelector as text, `a=b,c in (d,e)`.
pub(crate) fn selector_text(selector: &Value) -> String {
    let mut terms = Vec::new();
    for (key, value) in match_labels(selector).into_iter().flatten() {
        terms.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        terms.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.join(",")
}

/// The exact terms of a selector; a ReplicationController's selector is the bare map.
fn match_labels(selector: &Value) -> Option<&Map<String, Value>> {
    if selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some() {
        return selector.get("matchLabels").and_then(Value::as_object);
    }
    selector.as_object()
}
