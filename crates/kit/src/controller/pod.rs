//! Facts read off a pod, and the making of pods from templates.
//!
//! What is `inline` is compiled with the crate of the scheduler, for speed: it asks for each pod.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use crate::clock::seconds_between;

/// `status.phase`, empty before the first status.
#[inline]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// A pod that will run no more.
#[inline]
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Not finished and not being deleted.
#[inline]
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_terminating(pod)
}

/// Being deleted.
#[inline]
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// A condition by type.
#[inline]
pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == type_)
}

/// Condition Ready is True.
#[inline]
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// When a pod becomes available: at once (`Some(0)`), in so many seconds, or not before something changes (`None`).
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: &Time) -> Option<i64> {
    let ready = condition(pod, "Ready").filter(|c| c.status == "True")?;
    if min_ready_seconds == 0 {
        return Some(0);
    }
    let since = ready.last_transition_time.as_ref()?;
    Some((i64::from(min_ready_seconds) - seconds_between(since, now)).max(0))
}

/// The node a pod is bound to.
#[inline]
pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// The labels of any object's metadata.
#[inline]
pub fn labels(meta: &ObjectMeta) -> &std::collections::BTreeMap<String, String> {
    static NONE: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    meta.labels.as_ref().unwrap_or(&NONE)
}

/// Sum of the containers' restarts.
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|c| c.restart_count).sum()
}

/// A pod made from a template for an owner; the API server completes the name.
pub fn from_template(template: &PodTemplateSpec, namespace: &str, prefix: &str, owner: OwnerReference) -> Pod {
    let given = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", cut(prefix, 57))),
            namespace: Some(namespace.to_owned()),
            labels: given.labels,
            annotations: given.annotations,
            finalizers: given.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

fn cut(text: &str, length: usize) -> &str {
    text.get(..length).unwrap_or(text)
}

/// Host ports as (protocol, address, port).
#[inline]
pub fn host_ports(spec: &PodSpec) -> Vec<(String, String, i32)> {
    let init = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(init).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|p| *p > 0)?;
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            let address = port.host_ip.clone().filter(|a| !a.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
            Some((protocol, address, number))
        })
        .collect()
}

/// In which order pods are given up: those that matter least first.
pub fn by_deletion_preference(a: &Pod, b: &Pod) -> std::cmp::Ordering {
    let rank = |pod: &Pod| {
        let assigned = node_name(pod).is_some();
        let phase = match phase(pod) {
            "Pending" | "" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let annotations = pod.metadata.annotations.as_ref();
        let cost = annotations.and_then(|a| a.get("controller.kubernetes.io/pod-deletion-cost"));
        let cost: i32 = cost.and_then(|c| c.parse().ok()).unwrap_or(0);
        (assigned, phase, is_ready(pod), cost)
    };
    let ready_since =
        |pod: &Pod| condition(pod, "Ready").filter(|c| c.status == "True").and_then(|c| c.last_transition_time.clone());
    rank(a)
        .cmp(&rank(b))
        .then_with(|| ready_since(b).cmp(&ready_since(a)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| b.metadata.creation_timestamp.cmp(&a.metadata.creation_timestamp))
        .then_with(|| a.metadata.name.cmp(&b.metadata.name))
}
