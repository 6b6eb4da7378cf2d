//! Affinity between pods: of the pod to be placed, and of the pods already there towards it. Pure.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kit::controller::pod;

use super::cluster::{Cluster, Resident};
use super::terms::{Labels, Term, Terms};
use super::verdict::{Plugin, Refusal};

/// Topology key -> value -> how many pods there count.
type Domains = HashMap<String, HashMap<String, i64>>;

fn topology<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    pod::labels(&node.metadata).get(key).map(String::as_str)
}

fn count(domains: &mut Domains, node: &Node, key: &str, more: i64) {
    if let Some(value) = topology(node, key) {
        *domains.entry(key.to_owned()).or_default().entry(value.to_owned()).or_default() += more;
    }
}

fn counted(domains: &Domains, key: &str, value: &str) -> i64 {
    domains.get(key).and_then(|values| values.get(value)).copied().unwrap_or(0)
}

/// The rules for one pod, counted over the whole cluster.
#[derive(Clone, Debug)]
pub(crate) struct Affinity<'a> {
    pod: &'a Pod,
    terms: &'a Terms,
    namespaces: &'a HashMap<String, Labels>,
    /// Pods that satisfy all required terms.
    attract: Domains,
    /// Pods the pod must not be beside.
    repel: Domains,
    /// Pods that do not want it beside them.
    repelled: Domains,
    /// Whether the pod satisfies its own required terms, so that it may be the first of its kind.
    first_of_its_kind: bool,
}

impl<'a> Affinity<'a> {
    pub(crate) fn new(pod: &'a Pod, terms: &'a Terms, cluster: &'a Cluster) -> Self {
        let namespaces = &cluster.namespaces;
        let mut rules = Self {
            pod,
            terms,
            namespaces,
            attract: Domains::new(),
            repel: Domains::new(),
            repelled: Domains::new(),
            first_of_its_kind: terms.attract.iter().all(|term| term.selects(pod, namespaces)),
        };
        if terms.attract.is_empty() && terms.repel.is_empty() {
            // Only the pods that are there may object.
            for place in cluster.with_terms.iter().filter_map(|name| cluster.places.get(name)) {
                let Some(node) = &place.node else { continue };
                place.pods.values().for_each(|resident| rules.objection(node, resident, 1));
            }
        } else {
            for (node, place) in cluster.nodes() {
                place.pods.values().for_each(|resident| rules.shift(node, resident, 1));
            }
        }
        rules
    }

    /// Counts one more pod on a node, or one less with `more` -1.
    pub(crate) fn shift(&mut self, node: &Node, resident: &Resident, more: i64) {
        self.objection(node, resident, more);
        let Terms { attract, repel, .. } = self.terms;
        if !attract.is_empty() && attract.iter().all(|term| term.selects(&resident.pod, self.namespaces)) {
            attract.iter().for_each(|term| count(&mut self.attract, node, &term.key, more));
        }
        for term in repel.iter().filter(|term| term.selects(&resident.pod, self.namespaces)) {
            count(&mut self.repel, node, &term.key, more);
        }
    }

    fn objection(&mut self, node: &Node, resident: &Resident, more: i64) {
        for term in resident.terms.repel.iter().filter(|term| term.selects(self.pod, self.namespaces)) {
            count(&mut self.repelled, node, &term.key, more);
        }
    }

    /// The rule this node would break.
    pub(crate) fn refusal(&self, node: &Node) -> Option<Refusal> {
        let refuse = |reason: &'static str, curable| Some(Refusal::new(Plugin::InterPodAffinity, reason, curable));
        if !self.attracted(node) {
            return refuse("node(s) didn't match pod affinity rules", false);
        }
        let beside = |term: &Term| topology(node, &term.key).is_some_and(|v| counted(&self.repel, &term.key, v) > 0);
        if self.terms.repel.iter().any(beside) {
            return refuse("node(s) didn't match pod anti-affinity rules", true);
        }
        let objects = |(key, values): (&String, &HashMap<String, i64>)| {
            topology(node, key).is_some_and(|value| values.get(value).is_some_and(|count| *count > 0))
        };
        if self.repelled.iter().any(objects) {
            return refuse("node(s) didn't satisfy existing pods anti-affinity rules", true);
        }
        None
    }

    fn attracted(&self, node: &Node) -> bool {
        let mut all_there = true;
        for term in &self.terms.attract {
            let Some(value) = topology(node, &term.key) else { return false };
            all_there &= counted(&self.attract, &term.key, value) > 0;
        }
        let nobody = || self.attract.values().flat_map(HashMap::values).all(|count| *count <= 0);
        all_there || (self.first_of_its_kind && nobody())
    }
}

/// What a pod already there that requires affinity to this one adds, as if it preferred it.
const REQUIRED_BY_OTHERS: i64 = 1;

/// How much each domain is liked: by the pod's own preferences and by those of the pods already there.
pub(crate) struct Preferences(Domains);

impl Preferences {
    pub(crate) fn new(pod: &Pod, terms: &Terms, cluster: &Cluster) -> Self {
        let mut liked = Domains::new();
        let mut take = |node: &Node, resident: &Resident, own: bool| {
            let towards = |term: &&Term| term.selects(pod, &cluster.namespaces);
            for term in resident.terms.prefer.iter().filter(towards) {
                count(&mut liked, node, &term.key, term.weight);
            }
            for term in resident.terms.attract.iter().filter(towards) {
                count(&mut liked, node, &term.key, REQUIRED_BY_OTHERS);
            }
            for term in terms.prefer.iter().filter(|term| own && term.selects(&resident.pod, &cluster.namespaces)) {
                count(&mut liked, node, &term.key, term.weight);
            }
        };
        if terms.prefer.is_empty() {
            for place in cluster.with_terms.iter().filter_map(|name| cluster.places.get(name)) {
                let Some(node) = &place.node else { continue };
                place.pods.values().for_each(|resident| take(node, resident, false));
            }
        } else {
            for (node, place) in cluster.nodes() {
                place.pods.values().for_each(|resident| take(node, resident, true));
            }
        }
        Self(liked)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum for a node, to be compared with others'.
    pub(crate) fn of(&self, node: &Node) -> i64 {
        let here =
            |(key, values): (&String, &HashMap<String, i64>)| topology(node, key).and_then(|v| values.get(v).copied());
        self.0.iter().filter_map(here).sum()
    }
}
