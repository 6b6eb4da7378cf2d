//! Which pods and claims a quota speaks of. Pure.

use csi_controllers::facts;
use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, Pod, PodAffinityTerm, PodSpec, ResourceQuota};

const ATTRIBUTES: &str = "VolumeAttributesClass";

/// Whether the quota is about some objects only.
pub(super) fn is_scoped(quota: &ResourceQuota) -> bool {
    quota.spec.as_ref().is_some_and(|spec| {
        spec.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty())
            || spec.scope_selector.as_ref().is_some_and(|s| s.match_expressions.iter().flatten().next().is_some())
    })
}

/// Whether a pod is among those the quota counts.
pub(super) fn covers(quota: &ResourceQuota, pod: &Pod) -> bool {
    let (Some(quota), Some(pod)) = (&quota.spec, &pod.spec) else { return true };
    let class = pod.priority_class_name.as_deref().unwrap_or_default();
    let named = quota.scopes.iter().flatten().all(|scope| holds(scope, pod));
    let mut selected = quota.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    named
        && selected.all(|expression| {
            let listed = || expression.values.iter().flatten().any(|value| value == class);
            match (expression.scope_name.as_str(), expression.operator.as_str()) {
                ("PriorityClass", "In") => listed(),
                ("PriorityClass", "NotIn") => !listed(),
                ("PriorityClass", "DoesNotExist") => class.is_empty(),
                (scope, _) => holds(scope, pod),
            }
        })
}

/// Whether a claim is among those the quota counts: claims are told apart by the classes of attributes that they name, have, or
/// are on their way to.
pub(super) fn covers_claim(quota: &ResourceQuota, claim: &PersistentVolumeClaim) -> bool {
    let Some(quota) = &quota.spec else { return true };
    let classes = facts::attributes_classes(claim);
    let named = quota.scopes.iter().flatten().all(|scope| scope == ATTRIBUTES && !classes.is_empty());
    let mut selected = quota.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    named
        && selected.all(|expression| {
            let listed = |class: &&str| expression.values.iter().flatten().any(|value| value == class);
            match (expression.scope_name.as_str(), expression.operator.as_str()) {
                (ATTRIBUTES, "In") => classes.iter().any(listed),
                (ATTRIBUTES, "NotIn") => classes.is_empty() || !classes.iter().all(listed),
                (ATTRIBUTES, "Exists") => !classes.is_empty(),
                (ATTRIBUTES, "DoesNotExist") => classes.is_empty(),
                _ => false,
            }
        })
}

fn holds(scope: &str, pod: &PodSpec) -> bool {
    match scope {
        "Terminating" => pod.active_deadline_seconds.is_some(),
        "NotTerminating" => pod.active_deadline_seconds.is_none(),
        "BestEffort" => best_effort(pod),
        "NotBestEffort" => !best_effort(pod),
        "PriorityClass" => pod.priority_class_name.as_ref().is_some_and(|name| !name.is_empty()),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

/// Nothing asks for processor or memory.
fn best_effort(pod: &PodSpec) -> bool {
    let none = |container: &Container| {
        let resources = container.resources.as_ref();
        let lists = resources.into_iter().flat_map(|r| [r.requests.as_ref(), r.limits.as_ref()]).flatten();
        lists.flatten().all(|(name, amount)| !matches!(name.as_str(), "cpu" | "memory") || amount.0 == "0")
    };
    pod.resources.is_none() && pod.containers.iter().chain(pod.init_containers.iter().flatten()).all(none)
}

fn crosses_namespaces(pod: &PodSpec) -> bool {
    let crosses =
        |term: &PodAffinityTerm| term.namespaces.iter().flatten().next().is_some() || term.namespace_selector.is_some();
    let Some(affinity) = &pod.affinity else { return false };
    let (near, far) = (&affinity.pod_affinity, &affinity.pod_anti_affinity);
    let near = near.iter().any(|a| {
        let preferred = a.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        a.required_during_scheduling_ignored_during_execution.iter().flatten().any(crosses)
            || preferred.into_iter().any(|weighted| crosses(&weighted.pod_affinity_term))
    });
    near || far.iter().any(|a| {
        let preferred = a.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        a.required_during_scheduling_ignored_during_execution.iter().flatten().any(crosses)
            || preferred.into_iter().any(|weighted| crosses(&weighted.pod_affinity_term))
    })
}
