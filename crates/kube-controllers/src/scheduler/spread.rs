//! Topology spread: constraints that must hold, and those that only make a node better. Pure.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, TopologySpreadConstraint};
use kit::controller::{owner, placement, pod};
use kube::core::{Selector, SelectorExt};

use super::cluster::{Cluster, Place, Resident};
use super::terms::compile;
use super::verdict::{Plugin, Refusal};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What of a pod its constraints look at.
#[derive(Clone, Copy, Debug)]
struct Subject<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
}

#[derive(Clone, Debug)]
struct Constraint<'a> {
    of: &'a TopologySpreadConstraint,
    selector: Option<Selector>,
    /// Value of the topology key -> how many pods count there.
    domains: HashMap<String, i64>,
}

fn topology<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    pod::labels(&node.metadata).get(key).map(String::as_str)
}

impl<'a> Constraint<'a> {
    fn new(of: &'a TopologySpreadConstraint, pod: &Pod) -> Self {
        // The pod's own values of `matchLabelKeys` are part of the selector.
        let mut selector = of.label_selector.clone();
        for key in of.match_label_keys.iter().flatten() {
            if let (Some(selector), Some(value)) = (&mut selector, pod::labels(&pod.metadata).get(key)) {
                selector.match_labels.get_or_insert_default().insert(key.clone(), value.clone());
            }
        }
        Self { of, selector: compile(selector.as_ref()), domains: HashMap::new() }
    }

    fn is_hard(&self) -> bool {
        self.of.when_unsatisfiable != "ScheduleAnyway"
    }

    fn includes(&self, spec: &PodSpec, node: &Node) -> bool {
        let selected = self.of.node_affinity_policy.as_deref() == Some("Ignore") || placement::selected(spec, node);
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let honoured = self.of.node_taints_policy.as_deref() == Some("Honor");
        selected && (!honoured || placement::untolerated(tolerations, node, &["NoSchedule", "NoExecute"]).is_none())
    }

    fn counts(&self, subject: Subject<'_>, other: &Pod) -> bool {
        other.metadata.namespace == subject.pod.metadata.namespace
            && !pod::is_terminating(other)
            && self.selector.as_ref().is_some_and(|s| s.matches(pod::labels(&other.metadata)))
    }

    fn here(&self, subject: Subject<'_>, place: &Place) -> i64 {
        let here = place.pods.values().filter(|resident| self.counts(subject, &resident.pod)).count();
        i64::try_from(here).unwrap_or(i64::MAX)
    }
}

/// The constraints that rule nodes out.
#[derive(Clone, Debug)]
pub(crate) struct Spread<'a> {
    subject: Subject<'a>,
    hard: Vec<Constraint<'a>>,
}

impl<'a> Spread<'a> {
    pub(crate) fn new(pod: &'a Pod, spec: &'a PodSpec, cluster: &Cluster) -> Self {
        let subject = Subject { pod, spec };
        let all = spec.topology_spread_constraints.iter().flatten().map(|of| Constraint::new(of, pod));
        let mut spread = Self { subject, hard: all.filter(Constraint::is_hard).collect() };
        if spread.hard.is_empty() {
            return spread;
        }
        for (node, place) in cluster.nodes() {
            if !spread.knows(node) {
                continue;
            }
            for constraint in spread.hard.iter_mut().filter(|constraint| constraint.includes(spec, node)) {
                let Some(value) = topology(node, &constraint.of.topology_key) else { continue };
                let here = constraint.here(subject, place);
                *constraint.domains.entry(value.to_owned()).or_default() += here;
            }
        }
        spread
    }

    /// Nodes that lack one of the labels take part in none of the constraints.
    fn knows(&self, node: &Node) -> bool {
        self.hard.iter().all(|constraint| topology(node, &constraint.of.topology_key).is_some())
    }

    /// Counts one more pod on a node, or one less with `more` -1.
    pub(crate) fn shift(&mut self, node: &Node, resident: &Resident, more: i64) {
        if self.hard.is_empty() || !self.knows(node) {
            return;
        }
        let subject = self.subject;
        for constraint in &mut self.hard {
            if !constraint.includes(subject.spec, node) || !constraint.counts(subject, &resident.pod) {
                continue;
            }
            if let Some(count) =
                topology(node, &constraint.of.topology_key).and_then(|value| constraint.domains.get_mut(value))
            {
                *count += more;
            }
        }
    }

    /// The constraint this node would break.
    pub(crate) fn refusal(&self, node: &Node) -> Option<Refusal> {
        let refuse = |reason: &'static str, curable| Some(Refusal::new(Plugin::PodTopologySpread, reason, curable));
        for constraint in &self.hard {
            let Some(value) = topology(node, &constraint.of.topology_key) else {
                return refuse("node(s) didn't match pod topology spread constraints (missing required label)", false);
            };
            let domains = &constraint.domains;
            let wanted = constraint.of.min_domains.and_then(|min| usize::try_from(min).ok()).unwrap_or(1);
            let least = if domains.len() < wanted { 0 } else { domains.values().copied().min().unwrap_or(0) };
            let itself = constraint.selector.as_ref();
            let itself = itself.is_some_and(|s| s.matches(pod::labels(&self.subject.pod.metadata)));
            let here = domains.get(value).copied().unwrap_or(0) + i64::from(itself);
            if here - least > i64::from(constraint.of.max_skew) {
                return refuse("node(s) didn't match pod topology spread constraints", true);
            }
        }
        None
    }
}

/// Places that fit, to be compared.
type Feasible<'a> = [(&'a Node, &'a Place)];

/// How crowded each fitting node is by the constraints that only prefer, 0 to 100 with 100 for the emptiest; `None` when
/// the pod has none. A pod without constraints of its own is spread from its siblings, the pods of its controller.
pub(crate) fn scores(pod: &Pod, spec: &PodSpec, cluster: &Cluster, feasible: &Feasible<'_>) -> Option<Vec<i64>> {
    let crowds = match spec.topology_spread_constraints.as_deref() {
        None | Some([]) => siblings(pod, cluster, feasible)?,
        Some(given) => soft(pod, spec, given, cluster, feasible)?,
    };
    let known = || crowds.iter().flatten().copied();
    let (least, most) = (known().min().unwrap_or(0), known().max().unwrap_or(0));
    let score = |crowd: &Option<i64>| match crowd {
        None => 0,
        Some(_) if most == 0 => 100,
        Some(crowd) => 100 * (most + least - crowd) / most,
    };
    Some(crowds.iter().map(score).collect())
}

/// Few large domains should weigh as much as many small ones.
fn weight(domains: usize) -> f64 {
    (domains as f64 + 2.0).ln()
}

fn soft(
    pod: &Pod,
    spec: &PodSpec,
    given: &[TopologySpreadConstraint],
    cluster: &Cluster,
    feasible: &Feasible<'_>,
) -> Option<Vec<Option<i64>>> {
    let subject = Subject { pod, spec };
    let constraints = given.iter().map(|of| Constraint::new(of, pod)).filter(|constraint| !constraint.is_hard());
    let mut constraints: Vec<_> = constraints.collect();
    if constraints.is_empty() {
        return None;
    }
    let keys: Vec<&str> = constraints.iter().map(|constraint| constraint.of.topology_key.as_str()).collect();
    let knows = |node: &Node| keys.iter().all(|key| topology(node, key).is_some());
    let taking_part: Vec<&Node> = feasible.iter().map(|(node, _)| *node).filter(|node| knows(node)).collect();
    for constraint in constraints.iter_mut().filter(|constraint| constraint.of.topology_key != HOSTNAME) {
        let key = constraint.of.topology_key.as_str();
        for value in taking_part.iter().filter_map(|node| topology(node, key)) {
            constraint.domains.entry(value.to_owned()).or_default();
        }
        for (node, place) in cluster.nodes().filter(|(node, _)| knows(node)) {
            if constraint.includes(spec, node) {
                let here = constraint.here(subject, place);
                if let Some(count) = topology(node, key).and_then(|value| constraint.domains.get_mut(value)) {
                    *count += here;
                }
            }
        }
    }
    let crowd = |(node, place): &(&Node, &Place)| {
        if !knows(node) {
            return None;
        }
        let sum: f64 = constraints
            .iter()
            .map(|constraint| {
                let (key, skew) = (constraint.of.topology_key.as_str(), f64::from(constraint.of.max_skew - 1));
                if key == HOSTNAME {
                    constraint.here(subject, place) as f64 * weight(taking_part.len()) + skew
                } else {
                    let here = topology(node, key).and_then(|value| constraint.domains.get(value));
                    here.copied().unwrap_or(0) as f64 * weight(constraint.domains.len()) + skew
                }
            })
            .sum();
        Some(sum.round() as i64)
    };
    Some(feasible.iter().map(crowd).collect())
}

/// What is preferred when nothing is said: the nodes may differ by 3 pods of a controller, the zones by 5.
const NODE_SKEW: f64 = 3.0;
const ZONE_SKEW: f64 = 5.0;

fn siblings(pod: &Pod, cluster: &Cluster, feasible: &Feasible<'_>) -> Option<Vec<Option<i64>>> {
    let owner = owner::controller_of(&pod.metadata)?;
    if !matches!(owner.kind.as_str(), "ReplicaSet" | "StatefulSet" | "ReplicationController") {
        return None;
    }
    let counts = cluster.by_controller.get(&owner.uid)?;
    let mut zones = HashMap::<&str, i64>::new();
    for value in feasible.iter().filter_map(|(node, _)| topology(node, ZONE)) {
        zones.entry(value).or_default();
    }
    for (name, count) in counts {
        let node = cluster.places.get(name).and_then(|place| place.node.as_deref());
        if let Some(zone) = node.and_then(|node| topology(node, ZONE)).and_then(|value| zones.get_mut(value)) {
            *zone += count;
        }
    }
    let (by_node, by_zone) = (weight(feasible.len()), weight(zones.len()));
    let crowd = |(node, _): &(&Node, &Place)| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let here = counts.get(name).copied().unwrap_or(0) as f64 * by_node + NODE_SKEW - 1.0;
        let zone = topology(node, ZONE).and_then(|value| zones.get(value));
        let zone = zone.map_or(0.0, |count| *count as f64 * by_zone + ZONE_SKEW - 1.0);
        Some((here + zone).round() as i64)
    };
    Some(feasible.iter().map(crowd).collect())
}
