//! Which nodes lack a daemon pod, which pods go, and the status. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kit::clock::seconds_between;
use kit::controller::{placement, pod};

use crate::deployment::resolve;
use crate::revision::HASH_LABEL;

/// A failed daemon pod stays this long before it is replaced, so that a node that refuses it is not flooded.
const REPLACE_FAILED_AFTER: i64 = 10;

/// What the plan looks at.
pub(crate) struct Observed<'a> {
    pub(crate) set: &'a DaemonSet,
    pub(crate) nodes: &'a [Arc<Node>],
    pub(crate) pods: &'a [Arc<Pod>],
    /// Hash of the present template's revision.
    pub(crate) hash: &'a str,
    pub(crate) now: &'a Time,
}

/// What to do.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Nodes that get a pod.
    pub(crate) create: Vec<String>,
    /// Pods to delete.
    pub(crate) delete: Vec<Arc<Pod>>,
    /// Look again after so many seconds.
    pub(crate) wake: Option<i64>,
}

/// The tolerations every daemon pod has.
pub(crate) fn daemon_tolerations(host_network: bool) -> Vec<Toleration> {
    let keys = [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
        ("network-unavailable", "NoSchedule"),
    ];
    let wanted = keys.iter().filter(|(key, _)| host_network || *key != "network-unavailable");
    wanted
        .map(|(key, effect)| Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".into()),
            effect: Some((*effect).into()),
            ..Toleration::default()
        })
        .collect()
}

/// Whether the set wants a pod on the node, and whether one there may stay.
fn wants(spec: &PodSpec, node: &Node) -> (bool, bool) {
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    tolerations.extend(daemon_tolerations(spec.host_network.unwrap_or(false)));
    let selected = placement::selected(spec, node)
        && spec.node_name.as_ref().is_none_or(|name| name.is_empty() || Some(name) == node.metadata.name.as_ref());
    let starts = placement::untolerated(&tolerations, node, &["NoSchedule", "NoExecute"]).is_none();
    let stays = placement::untolerated(&tolerations, node, &["NoExecute"]).is_none();
    (selected && starts, selected && stays)
}

/// The node a daemon pod is meant for, bound or not.
pub(crate) fn target(pod: &Pod) -> Option<&str> {
    if let Some(node) = pod::node_name(pod) {
        return Some(node);
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let name = fields.into_iter().find(|f| f.key == "metadata.name")?;
    name.values.as_ref()?.first().map(String::as_str)
}

/// Confines a pod to a node, through the scheduler.
pub(crate) fn confine(spec: &mut PodSpec, node: &str) {
    let term = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".into(),
            operator: "In".into(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    let affinity = spec.affinity.get_or_insert_with(Affinity::default);
    let affinity = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
    let tolerations = spec.tolerations.get_or_insert_default();
    for toleration in daemon_tolerations(spec.host_network.unwrap_or(false)) {
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
}

fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<&str, Vec<&Arc<Pod>>> {
    let mut nodes = BTreeMap::<&str, Vec<&Arc<Pod>>>::new();
    for pod in pods {
        if let Some(node) = target(pod) {
            nodes.entry(node).or_default().push(pod);
        }
    }
    nodes
}

struct Rollout {
    surge: i32,
    unavailable: i32,
}

fn rollout(set: &DaemonSet, wanted: usize) -> Option<Rollout> {
    let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
    if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
        return None;
    }
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let total = i32::try_from(wanted).unwrap_or(i32::MAX);
    let surge = rolling.and_then(|r| r.max_surge.as_ref()).map_or(0, |v| resolve(v, total, true));
    let one = IntOrString::Int(1);
    let unavailable = resolve(rolling.and_then(|r| r.max_unavailable.as_ref()).unwrap_or(&one), total, true);
    Some(if surge == 0 && unavailable == 0 {
        Rollout { surge, unavailable: 1 }
    } else {
        Rollout { surge, unavailable }
    })
}

/// The pods to create and delete now.
pub(crate) fn steps(observed: &Observed<'_>) -> Steps {
    let mut steps = Steps::default();
    let Some(spec) = observed.set.spec.as_ref() else { return steps };
    let Some(pod_spec) = spec.template.spec.as_ref() else { return steps };
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let mut pods = by_node(observed.pods);
    let mut running: Vec<(&str, Vec<&Arc<Pod>>)> = Vec::new();
    for node in observed.nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let here = pods.remove(name).unwrap_or_default();
        let (starts, stays) = wants(pod_spec, node);
        if !stays {
            steps.delete.extend(here.into_iter().filter(|p| !pod::is_terminating(p)).cloned());
            continue;
        }
        if here.is_empty() {
            if starts {
                steps.create.push(name.to_owned());
                running.push((name, Vec::new()));
            }
            continue;
        }
        let mut alive = Vec::new();
        for pod in here.into_iter().filter(|p| !pod::is_terminating(p)) {
            if !pod::is_finished(pod) {
                alive.push(pod);
                continue;
            }
            let age = pod.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |t| seconds_between(t, observed.now));
            if age >= REPLACE_FAILED_AFTER {
                steps.delete.push(pod.clone());
            } else {
                let left = REPLACE_FAILED_AFTER - age;
                steps.wake = Some(steps.wake.map_or(left, |wake| wake.min(left)));
            }
        }
        running.push((name, alive));
    }
    // Pods of nodes that are gone are the pod collector's, except those that were never bound.
    let strays = pods.into_values().flatten().filter(|p| pod::node_name(p).is_none() && !pod::is_terminating(p));
    steps.delete.extend(strays.cloned());
    let is_new = |p: &Pod| pod::labels(&p.metadata).get(HASH_LABEL).map(String::as_str) == Some(observed.hash);
    let is_available = |p: &Pod| pod::available_in(p, min_ready, observed.now) == Some(0);
    let rollout = rollout(observed.set, running.len());
    let surging = rollout.as_ref().is_some_and(|r| r.surge > 0);
    let mut unavailable = 0;
    let mut surged = 0;
    let mut candidates = Vec::new();
    for (name, mut alive) in running {
        alive.sort_by_key(|p| (p.metadata.creation_timestamp.clone(), p.metadata.name.clone()));
        let (new, old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = alive.iter().copied().partition(|p| is_new(p));
        if !alive.iter().any(|p| is_available(p)) {
            unavailable += 1;
        }
        let updating = rollout.is_some() && !old.is_empty();
        // One pod a node, except while a new one takes over from an old one.
        let keep_both = surging && new.len() == 1 && old.len() == 1;
        if alive.len() > 1 && !keep_both {
            steps.delete.extend(alive.iter().skip(1).map(|p| Arc::clone(p)));
            continue;
        }
        match (old.first(), new.first()) {
            (Some(old), Some(new)) if keep_both => {
                surged += 1;
                if is_available(new) {
                    steps.delete.push((*old).clone());
                }
            }
            (Some(old), None) if updating => candidates.push((name, (*old).clone())),
            _ => {}
        }
    }
    let Some(rollout) = rollout else { return steps };
    for (name, old) in candidates {
        if surging {
            if surged < rollout.surge || !is_available(&old) {
                steps.create.push(name.to_owned());
                surged += 1;
            }
        } else if !is_available(&old) {
            steps.delete.push(old);
        } else if unavailable < rollout.unavailable {
            steps.delete.push(old);
            unavailable += 1;
        }
    }
    steps
}

/// The status, and in how many seconds a pod becomes available by itself.
pub(crate) fn status(observed: &Observed<'_>) -> (DaemonSetStatus, Option<i64>) {
    let set = observed.set;
    let old = set.status.clone().unwrap_or_default();
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions,
        ..DaemonSetStatus::default()
    };
    let mut wake: Option<i64> = None;
    let Some(spec) = set.spec.as_ref() else { return (status, None) };
    let Some(pod_spec) = spec.template.spec.as_ref() else { return (status, None) };
    let pods = by_node(observed.pods);
    let (mut available, mut updated) = (0, 0);
    for node in observed.nodes {
        let here = pods.get(node.metadata.name.as_deref().unwrap_or_default());
        let alive = here.into_iter().flatten().filter(|p| pod::is_active(p));
        let mut alive: Vec<_> = alive.collect();
        if !wants(pod_spec, node).0 {
            status.number_misscheduled += i32::from(!alive.is_empty());
            continue;
        }
        status.desired_number_scheduled += 1;
        alive.sort_by_key(|p| p.metadata.creation_timestamp.clone());
        let Some(pod) = alive.iter().copied().find(|p| pod::is_ready(p)).or(alive.first().copied()) else { continue };
        status.current_number_scheduled += 1;
        status.number_ready += i32::from(pod::is_ready(pod));
        match pod::available_in(pod, spec.min_ready_seconds.unwrap_or(0), observed.now) {
            Some(0) => available += 1,
            Some(left) => wake = Some(wake.map_or(left, |w| w.min(left))),
            None => {}
        }
        let is_new = |p: &Pod| pod::labels(&p.metadata).get(HASH_LABEL).map(String::as_str) == Some(observed.hash);
        updated += i32::from(is_new(pod));
    }
    let positive = |n: i32| (n > 0).then_some(n);
    status.number_available = positive(available);
    status.number_unavailable = positive(status.desired_number_scheduled - available);
    status.updated_number_scheduled = positive(updated);
    (status, wake)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn set(strategy: &str) -> DaemonSet {
        let strategy = match strategy {
            "ondelete" => json!({"type": "OnDelete"}),
            bounds => {
                let (surge, unavailable) = bounds.split_once('/').unwrap();
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge.parse::<i32>().unwrap(),
                    "maxUnavailable": unavailable.parse::<i32>().unwrap()}})
            }
        };
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": {"selector": {}, "updateStrategy": strategy,
            "template": {"spec": {"containers": [], "nodeSelector": {"os": "linux"}}}}}))
        .unwrap()
    }

    /// Nodes by name: `n1` fits, `x…` has other labels, `t…` is tainted NoSchedule, `e…` NoExecute, `c…` cordoned.
    fn nodes(names: &str) -> Vec<Arc<Node>> {
        let node = |name: &str| {
            let taint = match &name[..1] {
                "t" => json!([{"key": "own", "effect": "NoSchedule"}]),
                "e" => json!([{"key": "own", "effect": "NoExecute"}]),
                "c" => json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
                _ => json!([]),
            };
            let os = if name.starts_with('x') { "other" } else { "linux" };
            let value = json!({"metadata": {"name": name, "labels": {"os": os}}, "spec": {"taints": taint}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        names.split_whitespace().map(node).collect()
    }

    /// `node:hash:state`, named a, b, c…
    fn pods(description: &str) -> Vec<Arc<Pod>> {
        let pod = |(index, word): (usize, &str)| {
            let parts: Vec<_> = word.split(':').collect();
            let name = String::from(char::from(b'a' + u8::try_from(index).unwrap()));
            let mut value = json!({"metadata": {"name": name, "labels": {HASH_LABEL: parts[1]},
                    "creationTimestamp": format!("2026-01-01T00:00:0{index}Z")},
                "spec": {"containers": [], "nodeName": parts[0]}, "status": {"phase": "Running"}});
            match parts[2] {
                "ready" => {
                    value["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
                }
                "failed" => value["status"]["phase"] = json!("Failed"),
                "justfailed" => {
                    value["status"]["phase"] = json!("Failed");
                    value["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:57Z");
                }
                "leaving" => value["metadata"]["deletionTimestamp"] = json!(NOW),
                _ => {}
            }
            Arc::new(serde_json::from_value(value).unwrap())
        };
        description.split_whitespace().enumerate().map(pod).collect()
    }

    #[track_caller]
    fn check(strategy: &str, on: &str, description: &str, expect: &str) {
        let (set, nodes, pods) = (set(strategy), nodes(on), pods(description));
        let now = serde_json::from_value(json!(NOW)).unwrap();
        let steps = steps(&Observed { set: &set, nodes: &nodes, pods: &pods, hash: "new", now: &now });
        let mut text = String::new();
        if !steps.create.is_empty() {
            text += &format!("+{} ", steps.create.join(","));
        }
        if !steps.delete.is_empty() {
            let names: Vec<_> = steps.delete.iter().map(|p| p.metadata.name.clone().unwrap()).collect();
            text += &format!("-{} ", names.join(","));
        }
        if let Some(wake) = steps.wake {
            text += &format!("in {wake}");
        }
        assert_eq!(text.trim_end(), expect);
    }

    #[test]
    fn one_pod_on_every_fitting_node() {
        check("0/1", "n1 n2 x1 t1 c1", "", "+n1,n2,c1");
        check("0/1", "n1", "n1:new:ready", "");
        check("0/1", "n1 x1 t1 e1", "n1:new:ready x1:new:ready t1:new:ready e1:new:ready", "-b,d");
        check("0/1", "n1", "n1:new:ready n1:new:ready", "-b");
        check("0/1", "n1", "n1:new:leaving", "");
        check("0/1", "n1", "n1:new:failed", "-a");
        check("0/1", "n1", "n1:new:justfailed", "in 7");
    }

    #[test]
    fn updates_keep_to_the_bounds() {
        check("0/1", "n1 n2", "n1:old:ready n2:old:ready", "-a");
        check("0/1", "n1 n2", "n1:new:starting n2:old:ready", "");
        check("0/1", "n1 n2", "n1:new:ready n2:old:starting", "-b");
        check("0/2", "n1 n2", "n1:old:ready n2:old:ready", "-a,b");
        check("ondelete", "n1", "n1:old:ready", "");
        check("1/0", "n1 n2", "n1:old:ready n2:old:ready", "+n1");
        check("1/0", "n1 n2", "n1:old:ready n1:new:starting n2:old:ready", "");
        check("1/0", "n1 n2", "n1:old:ready n1:new:ready n2:old:ready", "-a");
    }

    #[test]
    fn status_counts_nodes() {
        let (set, nodes) = (set("0/1"), nodes("n1 n2 x1"));
        let pods = pods("n1:new:ready x1:new:ready n2:old:starting");
        let now = serde_json::from_value(json!(NOW)).unwrap();
        let (status, _) = status(&Observed { set: &set, nodes: &nodes, pods: &pods, hash: "new", now: &now });
        assert_eq!((status.desired_number_scheduled, status.current_number_scheduled), (2, 2));
        assert_eq!((status.number_ready, status.number_misscheduled), (1, 1));
        assert_eq!((status.number_available, status.number_unavailable), (Some(1), Some(1)));
        assert_eq!(status.updated_number_scheduled, Some(1));
    }
}
