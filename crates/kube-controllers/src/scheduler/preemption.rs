//! Which pods must make room for a more important one. Pure.
//!
//! On each node that refused for lack of room: take every less important pod away; if the pod then fits, give back as many
//! as possible, most important first, those whose budget would be broken before the others. Of the nodes, the one that
//! breaks the fewest budgets and loses the least important pods.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::controller::owner::selects;
use kit::controller::pod;
use kit::store::Key;

use super::cluster::{Cluster, Place, Resident, nominated_node};
use super::filter::{Peers, Wanted, refusal};
use super::verdict::{Misfit, Plugin, Refusal};

/// What preemption can do for a pod.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Nothing now; the pod keeps the node it was promised.
    Waits(String),
    /// Nothing at all.
    Hopeless(String),
    /// These have to go from this node.
    Chosen { node: String, victims: Vec<Arc<Pod>> },
}

/// At most so many nodes are thought through.
const CANDIDATES: usize = 100;

pub(crate) const HOPELESS: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// Plans for a pod that fits nowhere.
pub(crate) fn plan(
    wanted: &Wanted<'_>,
    peers: &Peers<'_>,
    cluster: &Cluster,
    refusals: &BTreeMap<String, Refusal>,
    budgets: &[Arc<PodDisruptionBudget>],
) -> Outcome {
    if let Some(why) = ineligible(wanted, cluster, refusals) {
        return Outcome::Waits(why.into());
    }
    let mut candidates = Vec::new();
    let mut left = BTreeMap::new();
    for (name, _) in refusals.iter().filter(|(_, refusal)| refusal.curable) {
        let Some(place) = cluster.places.get(name) else { continue };
        let Some(node) = &place.node else { continue };
        match victims(wanted, peers, cluster, node, place, budgets) {
            Ok(candidate) => {
                candidates.push((name, candidate));
                if candidates.len() >= CANDIDATES {
                    break;
                }
            }
            Err(refusal) => {
                left.insert(name.clone(), refusal);
            }
        }
    }
    match candidates.into_iter().min_by_key(|(_, candidate)| candidate.cost()) {
        Some((name, candidate)) => Outcome::Chosen {
            node: name.clone(),
            victims: candidate.victims.iter().map(|victim| victim.pod.clone()).collect(),
        },
        None => {
            let nodes = cluster.nodes().count();
            let found = Misfit { nodes, refusals: left, others: Some(HOPELESS), ..Misfit::default() };
            Outcome::Hopeless(found.to_string())
        }
    }
}

fn ineligible(wanted: &Wanted<'_>, cluster: &Cluster, refusals: &BTreeMap<String, Refusal>) -> Option<&'static str> {
    if wanted.spec.preemption_policy.as_deref() == Some("Never") {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let nominated = nominated_node(wanted.pod)?;
    // A promise that no departure fulfils is void.
    if refusals.get(nominated).is_some_and(|refusal| !refusal.curable) {
        return None;
    }
    let leaving = |resident: &Arc<Resident>| {
        let preempted = pod::condition(&resident.pod, "DisruptionTarget")
            .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler"));
        resident.priority() < wanted.priority && pod::is_terminating(&resident.pod) && preempted
    };
    let waits = cluster.places.get(nominated)?.pods.values().any(leaving);
    waits.then_some("not eligible due to a terminating pod on the nominated node.")
}

struct Candidate {
    victims: Vec<Arc<Resident>>,
    broken_budgets: usize,
}

impl Candidate {
    /// The smaller the better.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Option<Time>>) {
        let highest = self.victims.iter().map(|victim| victim.priority()).max().unwrap_or(i32::MIN);
        // Each victim counts, also one of negative priority.
        let sum = self.victims.iter().map(|victim| i64::from(victim.priority()) + (1 << 31)).sum();
        let important = self.victims.iter().filter(|victim| victim.priority() == highest);
        let since = important.filter_map(|victim| started(victim)).min().cloned();
        (self.broken_budgets, highest, sum, self.victims.len(), Reverse(since))
    }
}

fn started(resident: &Resident) -> Option<&Time> {
    resident.pod.status.as_ref().and_then(|status| status.start_time.as_ref())
}

/// The least that must leave the node, or why that would not help.
fn victims(
    wanted: &Wanted<'_>,
    peers: &Peers<'_>,
    cluster: &Cluster,
    node: &Node,
    place: &Place,
    budgets: &[Arc<PodDisruptionBudget>],
) -> Result<Candidate, Refusal> {
    let (mut place, mut peers) = (place.clone(), peers.clone());
    let mut lesser: Vec<Arc<Resident>> =
        place.pods.values().filter(|resident| resident.priority() < wanted.priority).cloned().collect();
    if lesser.is_empty() {
        return Err(Refusal::new(Plugin::NodeResourcesFit, NO_VICTIMS, false));
    }
    for resident in &lesser {
        place.take(&Key::of(resident.pod.as_ref()));
        peers.shift(node, resident, -1);
    }
    if let Some(refusal) = refusal(wanted, &peers, cluster, node, &place) {
        return Err(refusal);
    }
    lesser.sort_by(|a, b| b.priority().cmp(&a.priority()).then_with(|| started(a).cmp(&started(b))));
    let (breaking, free) = by_budget(lesser, budgets);
    let mut candidate = Candidate { victims: Vec::new(), broken_budgets: 0 };
    for (resident, breaks) in breaking.into_iter().map(|r| (r, true)).chain(free.into_iter().map(|r| (r, false))) {
        place.put(resident.clone());
        peers.shift(node, &resident, 1);
        if refusal(wanted, &peers, cluster, node, &place).is_some() {
            place.take(&Key::of(resident.pod.as_ref()));
            peers.shift(node, &resident, -1);
            candidate.broken_budgets += usize::from(breaks);
            candidate.victims.push(resident);
        }
    }
    candidate.victims.sort_by_key(|victim| Reverse(victim.priority()));
    Ok(candidate)
}

/// Splits pods into those whose departure breaks a budget and the others, in the order given.
fn by_budget(
    pods: Vec<Arc<Resident>>,
    budgets: &[Arc<PodDisruptionBudget>],
) -> (Vec<Arc<Resident>>, Vec<Arc<Resident>>) {
    let status = |budget: &Arc<PodDisruptionBudget>| budget.status.as_ref().map_or(0, |s| s.disruptions_allowed);
    let mut allowed: Vec<i32> = budgets.iter().map(status).collect();
    pods.into_iter().partition(|resident| {
        let mut breaks = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let name = resident.pod.metadata.name.as_deref().unwrap_or_default();
            let gone =
                budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref()).is_some_and(|d| d.contains_key(name));
            let labels = pod::labels(&resident.pod.metadata);
            if budget.metadata.namespace != resident.pod.metadata.namespace
                || labels.is_empty()
                || gone
                || !selects(selector, labels)
            {
                continue;
            }
            *allowed -= 1;
            breaks |= *allowed < 0;
        }
        breaks
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::devices::PodDevices;
    use super::super::volumes::PodVolumes;
    use super::*;

    fn pod(name: &str, node: &str, priority: i32, cpu: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "d", "labels": {"app": name}},
            "spec": {"nodeName": node, "priority": priority,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    fn cluster(pods: &[Value]) -> Cluster {
        let mut cluster = Cluster::default();
        for name in ["a", "b"] {
            let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}});
            cluster.set_node(name, Some(Arc::new(serde_json::from_value(node).unwrap())));
        }
        for pod in pods {
            cluster.set_pod(None, Some(&Arc::new(serde_json::from_value(pod.clone()).unwrap())));
        }
        cluster
    }

    #[track_caller]
    fn check(pods: &[Value], budgets: &[Value], wanted: Value, expect: &str) {
        let cluster = cluster(pods);
        let pod: Pod = serde_json::from_value(wanted).unwrap();
        let spec = pod.spec.clone().unwrap();
        let wanted = Wanted::new(&pod, &spec, PodVolumes::default(), PodDevices::default());
        let peers = Peers::new(&wanted, &cluster);
        let refusals = cluster.nodes().filter_map(|(node, place)| {
            let name = node.metadata.name.clone().unwrap();
            refusal(&wanted, &peers, &cluster, node, place).map(|refusal| (name, refusal))
        });
        let refusals: BTreeMap<_, _> = refusals.collect();
        assert_eq!(refusals.len(), 2, "the pod fits somewhere");
        let budgets: Vec<_> = budgets.iter().map(|b| Arc::new(serde_json::from_value(b.clone()).unwrap())).collect();
        let text = match plan(&wanted, &peers, &cluster, &refusals, &budgets) {
            Outcome::Waits(why) | Outcome::Hopeless(why) => why,
            Outcome::Chosen { node, victims } => {
                let names: Vec<_> = victims.iter().map(|v| v.metadata.name.clone().unwrap()).collect();
                format!("{node}: {}", names.join(" "))
            }
        };
        assert_eq!(text, expect);
    }

    #[test]
    fn the_least_has_to_go() {
        let new = |cpu: &str| pod("new", "", 10, cpu);
        // As few as possible, and the less important.
        let pods = [pod("p1", "a", 1, "2"), pod("p2", "a", 2, "2"), pod("q", "b", 5, "4")];
        check(&pods, &[], new("2"), "a: p1");
        check(&pods, &[], new("4"), "a: p2 p1");
        // Nobody less important is there.
        let equals = [pod("p", "a", 10, "3"), pod("q", "b", 11, "3")];
        let none = "0/2 nodes are available: 2 No preemption victims found for incoming pod.";
        check(&equals, &[], new("2"), none);
        // It would not fit an empty node.
        check(&pods, &[], new("5"), "0/2 nodes are available: 2 Preemption is not helpful for scheduling.");
        // Removing the lesser is not enough.
        let mixed = [pod("p", "a", 11, "3"), pod("p0", "a", 1, "1"), pod("q", "b", 11, "3"), pod("q0", "b", 1, "1")];
        check(&mixed, &[], new("2"), "0/2 nodes are available: 2 Insufficient cpu.");
    }

    #[test]
    fn budgets_are_kept_if_possible() {
        let budget = |app: &str| {
            json!({"metadata": {"name": app, "namespace": "d"}, "spec": {"selector": {"matchLabels": {"app": app}}},
                "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}})
        };
        let pods = [pod("p", "a", 1, "4"), pod("q", "b", 5, "4")];
        check(&pods, &[budget("p")], pod("new", "", 10, "1"), "b: q");
        check(&pods, &[budget("p"), budget("q")], pod("new", "", 10, "1"), "a: p");
    }

    #[test]
    fn ineligible_preemptors_are_told_why() {
        let pods = [pod("p", "a", 1, "4"), pod("q", "b", 1, "4")];
        let mut never = pod("new", "", 10, "1");
        never["spec"]["preemptionPolicy"] = json!("Never");
        check(&pods, &[], never, "not eligible due to preemptionPolicy=Never.");
        let mut waiting = pod("new", "", 10, "1");
        waiting["status"] = json!({"nominatedNodeName": "a"});
        check(&pods, &[], waiting.clone(), "a: p");
        let mut leaving = pod("p", "a", 1, "4");
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        leaving["status"] =
            json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]});
        let pods = [leaving, pod("q", "b", 1, "4")];
        check(&pods, &[], waiting, "not eligible due to a terminating pod on the nominated node.");
    }
}
