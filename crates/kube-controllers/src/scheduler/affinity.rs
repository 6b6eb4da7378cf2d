//! Rules between pods: affinity, anti-affinity (also of the pods already there) and topology spread. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::cluster::Cluster;
use crate::owner::selects;
use crate::{placement, pod};

/// Values of one topology key -> how many pods there count.
type Domains = HashMap<String, i64>;

/// The rules of one pod, evaluated against the whole cluster.
pub(crate) struct Rules<'a> {
    /// Required affinity: key, domains with a match, and whether the pod may be the first of its kind.
    attract: Vec<(&'a str, Domains, bool)>,
    /// Required anti-affinity of the pod.
    repel: Vec<(&'a str, Domains)>,
    /// Domains that pods already there keep this one out of.
    repelled: Vec<(String, String)>,
    spread: Vec<Spread<'a>>,
    /// Preferences: key, domains, weight of each match.
    prefer: Vec<(&'a str, Domains, i64)>,
}

struct Spread<'a> {
    constraint: &'a TopologySpreadConstraint,
    domains: Domains,
    least: i64,
    matches_itself: bool,
}

fn topology<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    pod::labels(&node.metadata).get(key).map(String::as_str)
}

impl<'a> Rules<'a> {
    pub(crate) fn new(this: &'a Pod, spec: &'a PodSpec, cluster: &'a Cluster) -> Self {
        let affinity = spec.affinity.as_ref();
        let attract = affinity.and_then(|a| a.pod_affinity.as_ref());
        let repel = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let namespace = this.metadata.namespace.as_deref().unwrap_or_default();
        let count = |term: &'a PodAffinityTerm| {
            domains(cluster, &term.topology_key, |p| term_selects(term, namespace, p, cluster))
        };
        let required = attract.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let required: Vec<_> = required.into_iter().flatten().collect();
        let first_of_its_kind = required.iter().all(|term| term_selects(term, namespace, this, cluster));
        let attract_rules = required.into_iter().map(|term| {
            let found = count(term);
            let alone = found.is_empty() && first_of_its_kind;
            (term.topology_key.as_str(), found, alone)
        });
        let repel_rules = repel.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let weighted = |list: Option<&'a Vec<k8s_openapi::api::core::v1::WeightedPodAffinityTerm>>, sign: i64| {
            list.into_iter()
                .flatten()
                .map(|w| {
                    let term = &w.pod_affinity_term;
                    (term.topology_key.as_str(), count(term), sign * i64::from(w.weight))
                })
                .collect::<Vec<_>>()
        };
        let preferred = attract.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let avoided = repel.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let mut prefer = weighted(preferred, 1);
        prefer.extend(weighted(avoided, -1));
        Self {
            attract: attract_rules.collect(),
            repel: repel_rules.into_iter().flatten().map(|term| (term.topology_key.as_str(), count(term))).collect(),
            repelled: repelled(this, cluster),
            spread: spread(this, spec, cluster),
            prefer,
        }
    }

    /// The rule this node would break.
    pub(crate) fn conflict(&self, node: &Node) -> Option<&'static str> {
        for spread in self.spread.iter().filter(|s| s.constraint.when_unsatisfiable != "ScheduleAnyway") {
            let Some(value) = topology(node, &spread.constraint.topology_key) else {
                return Some("node(s) didn't match pod topology spread constraints (missing required label)");
            };
            let here = spread.domains.get(value).copied().unwrap_or(0) + i64::from(spread.matches_itself);
            if here - spread.least > i64::from(spread.constraint.max_skew) {
                return Some("node(s) didn't match pod topology spread constraints");
            }
        }
        let count = |key: &str, domains: &Domains| topology(node, key).map(|v| domains.get(v).copied().unwrap_or(0));
        if self.attract.iter().any(|(key, domains, alone)| match count(key, domains) {
            None => true,
            Some(found) => found == 0 && !alone,
        }) {
            return Some("node(s) didn't match pod affinity rules");
        }
        if self.repel.iter().any(|(key, domains)| count(key, domains).unwrap_or(0) > 0) {
            return Some("node(s) didn't match pod anti-affinity rules");
        }
        let kept_out = |(key, value): &(String, String)| topology(node, key) == Some(value);
        self.repelled.iter().any(kept_out).then_some("node(s) didn't satisfy existing pods anti-affinity rules")
    }

    /// How much the preferences like this node; higher is better.
    pub(crate) fn preference(&self, node: &Node) -> i64 {
        let likes = self.prefer.iter().map(|(key, domains, weight)| {
            topology(node, key).and_then(|value| domains.get(value)).copied().unwrap_or(0) * weight
        });
        let crowd = self.spread.iter().map(|spread| {
            let here = topology(node, &spread.constraint.topology_key).and_then(|value| spread.domains.get(value));
            here.copied().unwrap_or(0)
        });
        likes.sum::<i64>() - 10 * crowd.sum::<i64>()
    }
}

fn domains(cluster: &Cluster, key: &str, counts: impl Fn(&Pod) -> bool) -> Domains {
    let mut found = Domains::new();
    for (node, place) in cluster.nodes() {
        let Some(value) = topology(node, key) else { continue };
        let here = place.pods.values().filter(|pod| counts(pod)).count();
        if here > 0 {
            *found.entry(value.to_owned()).or_default() += i64::try_from(here).unwrap_or(i64::MAX);
        }
    }
    found
}

/// Whether a term of a pod in namespace `home` selects `other`.
fn term_selects(term: &PodAffinityTerm, home: &str, other: &Pod, cluster: &Cluster) -> bool {
    let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let by_labels = term.namespace_selector.is_some()
        && selects(term.namespace_selector.as_ref(), cluster.namespaces.get(namespace).unwrap_or(&BTreeMap::new()));
    let at_home = listed.is_empty() && term.namespace_selector.is_none() && namespace == home;
    (at_home || by_labels || listed.iter().any(|n| n == namespace))
        && selects(term.label_selector.as_ref(), pod::labels(&other.metadata))
}

fn repelled(this: &Pod, cluster: &Cluster) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (node, place) in cluster.nodes() {
        for other in place.pods.values() {
            let anti = other.spec.as_ref().and_then(|s| s.affinity.as_ref()?.pod_anti_affinity.as_ref());
            let terms = anti.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
            let home = other.metadata.namespace.as_deref().unwrap_or_default();
            for term in terms.into_iter().flatten().filter(|term| term_selects(term, home, this, cluster)) {
                if let Some(value) = topology(node, &term.topology_key) {
                    found.push((term.topology_key.clone(), value.to_owned()));
                }
            }
        }
    }
    found
}

fn spread<'a>(this: &Pod, spec: &'a PodSpec, cluster: &Cluster) -> Vec<Spread<'a>> {
    let constraints = spec.topology_spread_constraints.iter().flatten();
    constraints
        .map(|constraint| {
            let selector = with_label_keys(constraint, this);
            let counted = |pod: &Pod| {
                pod.metadata.namespace == this.metadata.namespace
                    && !pod::is_terminating(pod)
                    && selects(selector.as_ref(), pod::labels(&pod.metadata))
            };
            let mut domains = Domains::new();
            for (node, place) in cluster.nodes() {
                let ignored = constraint.node_affinity_policy.as_deref() == Some("Ignore");
                let honoured = constraint.node_taints_policy.as_deref() == Some("Honor");
                let tolerations = spec.tolerations.as_deref().unwrap_or_default();
                if (!ignored && !placement::selected(spec, node))
                    || (honoured && placement::untolerated(tolerations, node, &["NoSchedule", "NoExecute"]).is_some())
                {
                    continue;
                }
                let Some(value) = topology(node, &constraint.topology_key) else { continue };
                let here = place.pods.values().filter(|pod| counted(pod)).count();
                *domains.entry(value.to_owned()).or_default() += i64::try_from(here).unwrap_or(i64::MAX);
            }
            let enough = constraint.min_domains.is_none_or(|min| domains.len() >= usize::try_from(min).unwrap_or(0));
            let least = if enough { domains.values().copied().min().unwrap_or(0) } else { 0 };
            let matches_itself = selects(selector.as_ref(), pod::labels(&this.metadata));
            Spread { constraint, domains, least, matches_itself }
        })
        .collect()
}

/// The constraint's selector with the pod's own values of `matchLabelKeys`.
fn with_label_keys(constraint: &TopologySpreadConstraint, this: &Pod) -> Option<LabelSelector> {
    let mut selector = constraint.label_selector.clone()?;
    for key in constraint.match_label_keys.iter().flatten() {
        if let Some(value) = pod::labels(&this.metadata).get(key) {
            selector.match_labels.get_or_insert_default().insert(key.clone(), value.clone());
        }
    }
    Some(selector)
}
