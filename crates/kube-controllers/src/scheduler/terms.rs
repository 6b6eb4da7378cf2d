//! The affinity terms of a pod, read once. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kit::controller::pod;
use kube::core::{Selector, SelectorExt};

pub(super) type Labels = BTreeMap<String, String>;

/// One term, read once.
#[derive(Debug)]
pub(crate) struct Term {
    pub(super) key: String,
    pub(super) weight: i64,
    namespaces: BTreeSet<String>,
    namespace_selector: Option<Selector>,
    selector: Option<Selector>,
}

/// A selector that cannot be read selects nothing, like an absent one; an empty one selects everything.
pub(crate) fn compile(selector: Option<&LabelSelector>) -> Option<Selector> {
    selector.and_then(|selector| Selector::try_from(selector.clone()).ok())
}

impl Term {
    fn new(term: &PodAffinityTerm, home: &str, weight: i64) -> Self {
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(home.to_owned());
        }
        Self {
            key: term.topology_key.clone(),
            weight,
            namespaces,
            namespace_selector: compile(term.namespace_selector.as_ref()),
            selector: compile(term.label_selector.as_ref()),
        }
    }

    pub(super) fn selects(&self, other: &Pod, namespaces: &HashMap<String, Labels>) -> bool {
        static NONE: Labels = Labels::new();
        let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
        let of_namespace = || namespaces.get(namespace).unwrap_or(&NONE);
        self.selector.as_ref().is_some_and(|s| s.matches(pod::labels(&other.metadata)))
            && (self.namespaces.contains(namespace)
                || self.namespace_selector.as_ref().is_some_and(|s| s.matches(of_namespace())))
    }
}

/// All terms of a pod.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    pub(super) attract: Vec<Term>,
    pub(super) repel: Vec<Term>,
    /// Preferences; those of anti-affinity weigh less than nothing.
    pub(super) prefer: Vec<Term>,
}

impl Terms {
    pub(crate) fn of(pod: &Pod) -> Self {
        let home = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else { return Self::default() };
        let required = |terms: Option<&Vec<PodAffinityTerm>>| -> Vec<Term> {
            terms.into_iter().flatten().map(|term| Term::new(term, home, 1)).collect()
        };
        let preferred = |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<Term> {
            let terms = terms.into_iter().flatten();
            terms.map(|term| Term::new(&term.pod_affinity_term, home, sign * i64::from(term.weight))).collect()
        };
        let (near, far) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
        let mut prefer =
            preferred(near.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()), 1);
        prefer.extend(preferred(far.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()), -1));
        Self {
            attract: required(near.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            repel: required(far.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            prefer,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.attract.is_empty() && self.repel.is_empty() && self.prefer.is_empty()
    }
}
