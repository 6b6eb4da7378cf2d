//! Which of the fitting nodes is best: preferences first, then the least used. Pure.

use k8s_openapi::api::core::v1::Node;

use super::cluster::{Place, share};
use super::filter::Wanted;
use crate::placement;

/// The score of a node, to be compared between nodes: the larger the better.
pub(crate) fn score(wanted: &Wanted<'_>, node: &Node, place: &Place) -> f64 {
    let free = ["cpu", "memory", "pods"]
        .map(|resource| 1.0 - share(place, resource, wanted.requests.get(resource).copied().unwrap_or(0)));
    let least_used = 100.0 * free.iter().sum::<f64>() / 3.0;
    let imbalance = 10.0 * (free[0] - free[1]).abs();
    let tolerations = wanted.spec.tolerations.as_deref().unwrap_or_default();
    let avoided = placement::untolerated(tolerations, node, &["PreferNoSchedule"]).map_or(0.0, |_| 300.0);
    let preference = (node_preference(wanted, node) + wanted.rules.preference(node)) as f64;
    least_used - imbalance - avoided + 3.0 * preference
}

fn node_preference(wanted: &Wanted<'_>, node: &Node) -> i64 {
    let affinity = wanted.spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let matching = preferred.into_iter().flatten().filter(|term| placement::term_matches(&term.preference, node));
    matching.map(|term| i64::from(term.weight)).sum()
}
