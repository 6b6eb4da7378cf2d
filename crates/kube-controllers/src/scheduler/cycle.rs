//! One decision: where a pod goes, or why nowhere and what can be done about it. It writes nothing but assumptions.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kit::store::Key;

use super::cluster::{Cluster, Place, nominated_node, priority};
use super::devices::{PodDevices, Share};
use super::filter::{Peers, Wanted, refusal};
use super::preemption::{self, Outcome};
use super::verdict::{Misfit, Plugin, Refusal};
use super::volumes::{Choice, PodVolumes};
use super::{Scheduler, is_waiting, score};

/// What was decided about a pod.
pub(super) enum Decided {
    /// It goes there, and so do the volumes its claims waited for; its claims of devices get these.
    Bind { pod: Arc<Pod>, node: String, volumes: Choice, devices: Vec<Share> },
    /// It waits; `keeps` says whether it keeps the node it was nominated for.
    Wait { pod: Arc<Pod>, why: String, keeps: bool },
    /// It waits for the victims to be gone from the node; the lesser pods nominated there have to look elsewhere.
    Preempt { pod: Arc<Pod>, why: String, node: String, victims: Vec<Arc<Pod>>, displaced: Vec<Arc<Pod>> },
}

impl Decided {
    /// Whether the pod's volumes have to come first.
    pub(super) fn waits_for_volumes(&self) -> bool {
        matches!(self, Self::Bind { volumes, .. } if !volumes.is_empty())
    }
}

/// With so many nodes or fewer all that fit are compared.
const ALL: usize = 100;
/// In larger clusters a share of them, in percent, that shrinks from this one by 1 for each so many nodes, to the least.
const SHARE: usize = 50;
const SHRINK: usize = 125;
const LEAST_SHARE: usize = 5;

/// How many fitting nodes are enough to choose from.
fn enough(nodes: usize) -> usize {
    if nodes <= ALL {
        return nodes;
    }
    let share = SHARE.saturating_sub(nodes / SHRINK).max(LEAST_SHARE);
    (nodes * share / 100).max(ALL)
}

const BY_NAME: &str = "node(s) didn't satisfy plugin(s) [NodeAffinity]";

/// The search through the nodes.
#[derive(Default)]
struct Search<'a> {
    feasible: Vec<(&'a Node, &'a Place)>,
    refusals: BTreeMap<String, Refusal>,
}

impl<'a> Search<'a> {
    fn look(&mut self, wanted: &Wanted<'_>, peers: &Peers<'_>, cluster: &Cluster, node: &'a Node, place: &'a Place) {
        match refusal(wanted, peers, cluster, node, place) {
            None => self.feasible.push((node, place)),
            Some(refusal) => {
                self.refusals.insert(node.metadata.name.clone().unwrap_or_default(), refusal);
            }
        }
    }
}

impl Scheduler {
    /// Decides about a pod, or finds that nothing is to be decided.
    pub(super) fn decide(&self, key: &Key) -> Option<Decided> {
        let pods = self.ctx.store::<Pod>();
        let Some(pod) = pods.get(key).filter(|pod| is_waiting(pod)) else {
            self.backlog.remove(key);
            return None;
        };
        let decided = self.place(key, &pod)?;
        match &decided {
            Decided::Bind { pod, node, volumes, devices } => {
                super::volumes::reserve(&self.ctx, volumes);
                self.shelf.give(devices, pod);
                let mut assumed = Pod::clone(pod);
                if let Some(spec) = &mut assumed.spec {
                    spec.node_name = Some(node.clone());
                }
                pods.assume(assumed);
            }
            Decided::Preempt { pod, node, .. } => {
                // From now on nobody less important takes the room.
                let mut assumed = Pod::clone(pod);
                assumed.status.get_or_insert_default().nominated_node_name = Some(node.clone());
                pods.assume(assumed);
            }
            Decided::Wait { .. } => {}
        }
        Some(decided)
    }

    fn place(&self, key: &Key, pod: &Arc<Pod>) -> Option<Decided> {
        let spec = pod.spec.as_ref()?;
        let needs = PodVolumes::read(&self.ctx, pod).map_err(|why| (why, Plugin::Volumes)).and_then(|volumes| {
            let devices = PodDevices::read(&self.ctx, &self.shelf, pod).map_err(|why| (why, Plugin::Devices))?;
            Ok((volumes, devices))
        });
        let budgets = self.ctx.store::<PodDisruptionBudget>();
        // Held until the pod is known to be stuck: no event may slip in between.
        let cluster = self.picture();
        let mut misfit = Misfit { nodes: cluster.nodes().count(), ..Misfit::default() };
        let (outcome, plugins) = match needs {
            Err((why, plugin)) => {
                misfit.beforehand = Some(why);
                let hopeless = Misfit { nodes: misfit.nodes, others: Some(preemption::HOPELESS), ..Misfit::default() };
                (Outcome::Hopeless(hopeless.to_string()), HashSet::from([plugin]))
            }
            Ok((volumes, devices)) => {
                let wanted = Wanted::new(pod, spec, volumes, devices);
                let named = wanted.named_nodes();
                let peers = Peers::new(&wanted, &cluster);
                let search = self.search(&wanted, &peers, &cluster);
                if let Some(best) = score::best(&wanted, &cluster, &search.feasible) {
                    let (node, _) = search.feasible.get(best)?;
                    let volumes = wanted.volumes.choose(node).ok()?;
                    let devices = wanted.devices.choose(node).ok()?;
                    let node = node.metadata.name.clone()?;
                    return Some(Decided::Bind { pod: pod.clone(), node, volumes, devices });
                }
                misfit.refusals = search.refusals;
                if named.as_ref().is_some_and(|names| names.is_empty()) {
                    misfit.beforehand = Some("pod affinity terms conflict".into());
                }
                let mut plugins: HashSet<Plugin> = misfit.refusals.values().map(|refusal| refusal.plugin).collect();
                if named.is_some() {
                    misfit.others = Some(BY_NAME);
                    plugins.insert(Plugin::NodeAffinity);
                }
                (preemption::plan(&wanted, &peers, &cluster, &misfit.refusals, &budgets.all()), plugins)
            }
        };
        self.backlog.stuck(key, plugins);
        Some(match outcome {
            Outcome::Waits(found) => {
                misfit.preemption = Some(found);
                Decided::Wait { pod: pod.clone(), why: misfit.to_string(), keeps: true }
            }
            Outcome::Hopeless(found) => {
                misfit.preemption = Some(found);
                Decided::Wait { pod: pod.clone(), why: misfit.to_string(), keeps: false }
            }
            Outcome::Chosen { node, victims } => {
                let nominated = cluster.nominated.get(&node).into_iter().flatten();
                let lesser = nominated.filter(|(other, r)| *other != key && r.priority() < priority(pod));
                let displaced = lesser.map(|(_, resident)| resident.pod.clone()).collect();
                Decided::Preempt { pod: pod.clone(), why: misfit.to_string(), node, victims, displaced }
            }
        })
    }

    /// Looks at the node the pod was promised, and if that does not do, at the others until enough fit.
    fn search<'a>(&self, wanted: &Wanted<'_>, peers: &Peers<'_>, cluster: &'a Cluster) -> Search<'a> {
        let mut search = Search::default();
        let promised = nominated_node(wanted.pod).and_then(|name| cluster.places.get(name));
        if let Some((node, place)) = promised.and_then(|place| Some((place.node.as_ref()?, place))) {
            search.look(wanted, peers, cluster, node, place);
            if !search.feasible.is_empty() {
                return search;
            }
        }
        if let Some(names) = wanted.named_nodes() {
            for place in names.into_iter().filter_map(|name| cluster.places.get(name)) {
                if let Some(node) = &place.node {
                    search.look(wanted, peers, cluster, node, place);
                }
            }
            return search;
        }
        let nodes: Vec<_> = cluster.nodes().collect();
        let begin = self.turn.load(Ordering::Relaxed) % nodes.len().max(1);
        let wanted_count = enough(nodes.len());
        let (before, after) = nodes.split_at(begin);
        let mut looked = 0;
        for (node, place) in after.iter().chain(before) {
            search.look(wanted, peers, cluster, node, place);
            looked += 1;
            if search.feasible.len() >= wanted_count {
                break;
            }
        }
        self.turn.store(begin + looked, Ordering::Relaxed);
        search
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_large_cluster_is_enough() {
        assert_eq!([3, 100, 101, 500, 1000, 6000].map(enough), [3, 100, 100, 230, 420, 300]);
    }
}
