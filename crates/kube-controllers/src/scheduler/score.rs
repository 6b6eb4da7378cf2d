//! Which of the fitting nodes is best: each point of view gives 0 to 100, and they are weighed as Kubernetes does. Pure.

use k8s_openapi::api::core::v1::Node;
use kit::controller::placement;

use super::affinity::Preferences;
use super::cluster::{Cluster, Place};
use super::filter::Wanted;
use super::{image, spread};

/// Places that fit, to be compared.
type Feasible<'a> = [(&'a Node, &'a Place)];

const TAINTS: i64 = 3;
const NODE_AFFINITY: i64 = 2;
const SPREAD: i64 = 2;
const POD_AFFINITY: i64 = 2;

/// The position of the best; of equals, the first.
pub(crate) fn best(wanted: &Wanted<'_>, cluster: &Cluster, feasible: &Feasible<'_>) -> Option<usize> {
    if feasible.len() < 2 {
        return feasible.first().map(|_| 0);
    }
    let scores = scores(wanted, cluster, feasible);
    let best = scores.iter().enumerate().max_by_key(|(index, score)| (**score, std::cmp::Reverse(*index)));
    best.map(|(index, _)| index)
}

fn scores(wanted: &Wanted<'_>, cluster: &Cluster, feasible: &Feasible<'_>) -> Vec<i64> {
    let worth = cluster.images.worth(wanted.spec, cluster.places.len());
    let containers = wanted.spec.containers.len() + wanted.spec.init_containers.as_ref().map_or(0, Vec::len);
    let mut total: Vec<i64> = feasible
        .iter()
        .map(|(node, place)| {
            least_used(wanted, place) + balanced(wanted, place) + image::score(&worth, node, containers)
        })
        .collect();
    let mut weigh = |scores: Vec<i64>, weight: i64| {
        total.iter_mut().zip(scores).for_each(|(total, score)| *total += weight * score);
    };
    weigh(few(feasible.iter().map(|(node, _)| avoided(wanted, node)).collect()), TAINTS);
    weigh(many(feasible.iter().map(|(node, _)| preferred(wanted, node)).collect()), NODE_AFFINITY);
    let likes = Preferences::new(wanted.pod, &wanted.terms, cluster);
    if !likes.is_empty() {
        weigh(between(feasible.iter().map(|(node, _)| likes.of(node)).collect()), POD_AFFINITY);
    }
    if let Some(scores) = spread::scores(wanted.pod, wanted.spec, cluster, feasible) {
        weigh(scores, SPREAD);
    }
    total
}

/// The most becomes 100.
fn many(counts: Vec<i64>) -> Vec<i64> {
    let most = counts.iter().copied().max().unwrap_or(0);
    if most <= 0 { counts } else { counts.into_iter().map(|count| 100 * count / most).collect() }
}

/// The fewest become 100.
fn few(counts: Vec<i64>) -> Vec<i64> {
    many(counts).into_iter().map(|count| 100 - count).collect()
}

/// From 0 for the least to 100 for the most.
fn between(counts: Vec<i64>) -> Vec<i64> {
    let (least, most) = (counts.iter().copied().min().unwrap_or(0), counts.iter().copied().max().unwrap_or(0));
    let score = |count: i64| if most > least { 100 * (count - least) / (most - least) } else { 0 };
    counts.into_iter().map(score).collect()
}

/// Taints that would rather have the pod elsewhere.
fn avoided(wanted: &Wanted<'_>, node: &Node) -> i64 {
    let tolerations = wanted.spec.tolerations.as_deref().unwrap_or_default();
    let soft = placement::taints(node).iter().filter(|taint| taint.effect == "PreferNoSchedule");
    let count = soft.filter(|taint| !tolerations.iter().any(|t| placement::tolerates(t, taint))).count();
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn preferred(wanted: &Wanted<'_>, node: &Node) -> i64 {
    let affinity = wanted.spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let matching = preferred.into_iter().flatten().filter(|term| placement::term_matches(&term.preference, node));
    matching.map(|term| i64::from(term.weight)).sum()
}

/// The mean of what is free of CPU and memory with the pod on it.
fn least_used(wanted: &Wanted<'_>, place: &Place) -> i64 {
    let free = ["cpu", "memory"].map(|resource| {
        let offered = place.allocatable.get(resource);
        let used = place.likely.get(resource) + wanted.likely.get(resource);
        if offered == 0 { None } else { Some(if used > offered { 0 } else { (offered - used) * 100 / offered }) }
    });
    let known = free.iter().flatten().count();
    let sum: i128 = free.iter().flatten().sum();
    i64::try_from(sum / i128::try_from(known.max(1)).unwrap_or(1)).unwrap_or(0)
}

/// How equally CPU and memory would be used.
fn balanced(wanted: &Wanted<'_>, place: &Place) -> i64 {
    if wanted.requests.cpu == 0 && wanted.requests.memory == 0 {
        return 0;
    }
    let share = |resource: &str| {
        let offered = place.allocatable.get(resource);
        let used = place.used.get(resource) + wanted.requests.get(resource);
        (offered != 0).then(|| (used as f64 / offered as f64).min(1.0))
    };
    let imbalance = match (share("cpu"), share("memory")) {
        (Some(cpu), Some(memory)) => (cpu - memory).abs() / 2.0,
        _ => 0.0,
    };
    ((1.0 - imbalance) * 100.0) as i64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::super::devices::PodDevices;
    use super::super::volumes::PodVolumes;
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn node(name: &str, labels: Value, taint: Option<&str>) -> Arc<Node> {
        let taints = taint.map(|key| json!([{"key": key, "effect": "PreferNoSchedule"}]));
        let value = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn on(node: &str, name: &str, spec: Value) -> Arc<Pod> {
        let mut pod = json!({"metadata": {"name": name, "namespace": "d", "labels": {"app": name},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}]}});
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        pod["spec"]["nodeName"] = node.into();
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    /// Where a pod with `spec` goes when a pod `there` is on node a and nodes a, b and c fit.
    #[track_caller]
    fn check(there: Value, spec: Value, expect: &str) {
        let mut cluster = Cluster::default();
        cluster.set_node("a", Some(node("a", json!({"name": "a", "disk": "fast"}), None)));
        cluster.set_node("b", Some(node("b", json!({"name": "b"}), Some("avoid"))));
        cluster.set_node("c", Some(node("c", json!({"name": "c"}), None)));
        cluster.set_pod(None, Some(&on("a", "there", there)));
        let mut pod = Pod::clone(&on("", "new", spec));
        pod.metadata.owner_references = None;
        let spec = pod.spec.clone().unwrap();
        let wanted = Wanted::new(&pod, &spec, PodVolumes::default(), PodDevices::default());
        let feasible: Vec<_> = cluster.nodes().map(|(node, place)| (node.as_ref(), place)).collect();
        let index = best(&wanted, &cluster, &feasible).unwrap();
        assert_eq!(
            feasible[index].0.metadata.name.as_deref(),
            Some(expect),
            "{:?}",
            scores(&wanted, &cluster, &feasible)
        );
    }

    fn towards(app: &str, weight: i32) -> Value {
        json!([{"weight": weight, "podAffinityTerm": {"topologyKey": "name", "labelSelector": {"matchLabels": {"app": app}}}}])
    }

    #[test]
    fn the_best_node() {
        check(json!({}), json!({}), "c");
        let prefers = |key: &str| json!([{"weight": 100, "preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}}]);
        let by = |key: &str| json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers(key)}}});
        check(json!({}), by("disk"), "a");
        check(json!({}), by("nothing"), "c");
        let near = |app: &str| json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": towards(app, 100)}}});
        let far = |app: &str| json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": towards(app, 100)}}});
        check(json!({}), near("there"), "a");
        check(json!({}), far("there"), "c");
        // What the pod that is there prefers counts as well.
        check(near("new"), json!({}), "a");
        check(far("new"), json!({}), "c");
        // An empty node is not good enough for a taint that would rather not.
        check(json!({}), json!({"tolerations": [{"operator": "Exists"}], "nodeSelector": {}}), "b");
        let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "name",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "there"}}}]});
        check(json!({}), spread, "c");
    }

    #[test]
    fn siblings_are_spread() {
        let mut cluster = Cluster::default();
        for name in ["a", "b"] {
            cluster.set_node(name, Some(node(name, json!({}), None)));
        }
        cluster.set_pod(None, Some(&on("a", "one", json!({}))));
        let other = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}]});
        let mut stranger = Pod::clone(&on("b", "two", other));
        stranger.metadata.owner_references = None;
        cluster.set_pod(None, Some(&Arc::new(stranger)));
        let pod = on("", "new", json!({}));
        let spec = pod.spec.clone().unwrap();
        let wanted = Wanted::new(&pod, &spec, PodVolumes::default(), PodDevices::default());
        let feasible: Vec<_> = cluster.nodes().map(|(node, place)| (node.as_ref(), place)).collect();
        assert_eq!(best(&wanted, &cluster, &feasible), Some(1));
    }
}
