//! Whether a node can take a pod. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint};
use kit::controller::{placement, pod};
use kit::store::Key;

use super::affinity::Affinity;
use super::amounts::{self, Amounts};
use super::cluster::{Cluster, HostPort, Place, Resident, priority};
use super::devices::PodDevices;
use super::spread::Spread;
use super::terms::Terms;
use super::verdict::{Plugin, Refusal};
use super::volumes::{self, PodVolumes};

/// The pod with everything read off it once for all nodes.
pub(crate) struct Wanted<'a> {
    key: Key,
    pub(crate) pod: &'a Pod,
    pub(crate) spec: &'a PodSpec,
    pub(crate) priority: i32,
    pub(crate) requests: Amounts,
    pub(crate) likely: Amounts,
    pub(crate) terms: Terms,
    pub(crate) volumes: PodVolumes,
    pub(crate) devices: PodDevices,
    ports: Vec<HostPort>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(pod: &'a Pod, spec: &'a PodSpec, volumes: PodVolumes, devices: PodDevices) -> Self {
        Self {
            key: Key::of(pod),
            pod,
            spec,
            priority: priority(pod),
            requests: amounts::requests(pod),
            likely: amounts::likely(pod),
            terms: Terms::of(pod),
            ports: pod::host_ports(spec),
            volumes,
            devices,
        }
    }

    /// The only nodes whose names its affinity admits, if it names any.
    pub(crate) fn named_nodes(&self) -> Option<BTreeSet<&'a str>> {
        placement::named_nodes(self.spec)
    }
}

/// What depends on the other pods of the cluster. Cloned to ask what would be if some of them were elsewhere.
#[derive(Clone)]
pub(crate) struct Peers<'a> {
    affinity: Affinity<'a>,
    spread: Spread<'a>,
}

impl<'a> Peers<'a> {
    pub(crate) fn new(wanted: &'a Wanted<'a>, cluster: &'a Cluster) -> Self {
        Self {
            affinity: Affinity::new(wanted.pod, &wanted.terms, cluster),
            spread: Spread::new(wanted.pod, wanted.spec, cluster),
        }
    }

    /// Counts one more pod on a node, or one less with `more` -1.
    pub(crate) fn shift(&mut self, node: &Node, resident: &Resident, more: i64) {
        self.affinity.shift(node, resident, more);
        self.spread.shift(node, resident, more);
    }
}

/// Why the node cannot take the pod; also not once those at least as important that wait for room there have it.
pub(crate) fn refusal(
    wanted: &Wanted<'_>,
    peers: &Peers<'_>,
    cluster: &Cluster,
    node: &Node,
    place: &Place,
) -> Option<Refusal> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let waiting = cluster.nominated.get(name).into_iter().flatten();
    let ahead = waiting.filter(|(key, other)| **key != wanted.key && other.priority() >= wanted.priority);
    let ahead: Vec<_> = ahead.map(|(_, resident)| resident).collect();
    if !ahead.is_empty() {
        let (mut place, mut peers) = (place.clone(), peers.clone());
        for resident in ahead {
            peers.shift(node, resident, 1);
            place.put(resident.clone());
        }
        if let Some(refusal) = refusal_now(wanted, &peers, node, &place) {
            return Some(refusal);
        }
    }
    refusal_now(wanted, peers, node, place)
}

/// The first rule that the node breaks as it is.
fn refusal_now(wanted: &Wanted<'_>, peers: &Peers<'_>, node: &Node, place: &Place) -> Option<Refusal> {
    of_the_node(wanted, node)
        .or_else(|| ports_taken(wanted, place))
        .or_else(|| insufficient(&wanted.requests, place))
        .or_else(|| volumes::refusal(&wanted.volumes, node))
        .or_else(|| peers.spread.refusal(node))
        .or_else(|| peers.affinity.refusal(node))
        .or_else(|| wanted.devices.refusal(node))
}

/// What no departure of pods changes.
fn of_the_node(wanted: &Wanted<'_>, node: &Node) -> Option<Refusal> {
    let tolerations = wanted.spec.tolerations.as_deref().unwrap_or_default();
    let unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
    if unschedulable && !tolerates_cordon(wanted) {
        return Some(Refusal::new(Plugin::NodeUnschedulable, "node(s) were unschedulable", false));
    }
    if let Some(taint) = placement::untolerated(tolerations, node, &["NoSchedule", "NoExecute"]) {
        let value = taint.value.as_deref().unwrap_or_default();
        let reason = format!("node(s) had untolerated taint {{{}: {value}}}", taint.key);
        return Some(Refusal::new(Plugin::TaintToleration, reason, false));
    }
    if !placement::selected(wanted.spec, node) {
        let reason = "node(s) didn't match Pod's node affinity/selector";
        return Some(Refusal::new(Plugin::NodeAffinity, reason, false));
    }
    None
}

fn tolerates_cordon(wanted: &Wanted<'_>) -> bool {
    let taint =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    wanted.spec.tolerations.iter().flatten().any(|t| placement::tolerates(t, &taint))
}

fn ports_taken(wanted: &Wanted<'_>, place: &Place) -> Option<Refusal> {
    if wanted.ports.is_empty() {
        return None;
    }
    let any = |address: &str| address == "0.0.0.0" || address == "::";
    let taken = wanted.ports.iter().any(|(protocol, address, port)| {
        let mut others = place.pods.values().flat_map(|resident| &resident.ports);
        others.any(|(p, a, n)| p == protocol && n == port && (a == address || any(a) || any(address)))
    });
    let reason = "node(s) didn't have free ports for the requested pod ports";
    taken.then(|| Refusal::new(Plugin::NodePorts, reason, true))
}

fn insufficient(requests: &Amounts, place: &Place) -> Option<Refusal> {
    let lacks =
        |(name, amount): &(&str, i128)| *amount > 0 && *amount > place.allocatable.get(name) - place.used.get(name);
    let lacking: Vec<_> = requests.iter().filter(lacks).collect();
    if lacking.is_empty() {
        return None;
    }
    // What exceeds the whole node is not helped by an empty one.
    let curable = lacking.iter().all(|(name, amount)| *amount <= place.allocatable.get(name));
    let reason = |(name, _): &(&str, i128)| match *name {
        "pods" => "Too many pods".into(),
        "cpu" => "Insufficient cpu".into(),
        "memory" => "Insufficient memory".into(),
        other => format!("Insufficient {other}").into(),
    };
    Some(Refusal { plugin: Plugin::NodeResourcesFit, reasons: lacking.iter().map(reason).collect(), curable })
}
