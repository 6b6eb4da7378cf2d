//! Why a node cannot take a pod, in the words kubectl users know. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};

use super::affinity::Rules;
use super::cluster::{Amounts, Cluster, Place};
use crate::{placement, pod};

/// Reasons that rule a node out; none means it fits.
pub(crate) fn reasons(wanted: &Wanted<'_>, node: &Node, place: &Place) -> Vec<String> {
    let spec = wanted.spec;
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
    if unschedulable && !tolerates_cordon(wanted) {
        return vec!["node(s) were unschedulable".into()];
    }
    if let Some(taint) = placement::untolerated(tolerations, node, &["NoSchedule", "NoExecute"]) {
        let value = taint.value.as_deref().unwrap_or_default();
        return vec![format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)];
    }
    if !placement::selected(spec, node) {
        return vec!["node(s) didn't match Pod's node affinity/selector".into()];
    }
    if ports_taken(spec, place) {
        return vec!["node(s) didn't have free ports for the requested pod ports".into()];
    }
    let lacking = insufficient(&wanted.requests, place);
    if !lacking.is_empty() {
        return lacking;
    }
    if let Some(reason) = wanted.volumes.iter().find_map(|volume| volume.conflict(node)) {
        return vec![reason];
    }
    wanted.rules.conflict(node).map(|reason| vec![reason.to_owned()]).unwrap_or_default()
}

/// The pod with everything computed once for all nodes.
pub(crate) struct Wanted<'a> {
    pub(crate) spec: &'a PodSpec,
    pub(crate) requests: Amounts,
    pub(crate) rules: Rules<'a>,
    pub(crate) volumes: Vec<BoundVolume>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(pod: &'a Pod, spec: &'a PodSpec, cluster: &'a Cluster, volumes: Vec<BoundVolume>) -> Self {
        Self { spec, requests: super::cluster::requests(pod), rules: Rules::new(pod, spec, cluster), volumes }
    }
}

/// A volume of the pod that exists on some nodes only.
pub(crate) struct BoundVolume(pub(crate) Arc<k8s_openapi::api::core::v1::PersistentVolume>);

impl BoundVolume {
    fn conflict(&self, node: &Node) -> Option<String> {
        let affinity = self.0.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
        let fits = affinity.node_selector_terms.iter().any(|term| placement::term_matches(term, node));
        (!fits).then(|| "node(s) had volume node affinity conflict".to_owned())
    }
}

fn tolerates_cordon(wanted: &Wanted<'_>) -> bool {
    let taint = k8s_openapi::api::core::v1::Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Default::default()
    };
    wanted.spec.tolerations.iter().flatten().any(|t| placement::tolerates(t, &taint))
}

fn ports_taken(spec: &PodSpec, place: &Place) -> bool {
    let wanted = pod::host_ports(spec);
    if wanted.is_empty() {
        return false;
    }
    let taken: Vec<_> = place.pods.values().filter_map(|p| p.spec.as_ref()).flat_map(pod::host_ports).collect();
    let any = |address: &str| address == "0.0.0.0" || address == "::";
    wanted.iter().any(|(protocol, address, port)| {
        taken.iter().any(|(p, a, n)| p == protocol && n == port && (a == address || any(a) || any(address)))
    })
}

fn insufficient(requests: &Amounts, place: &Place) -> Vec<String> {
    let lacks = |name: &str, amount: i128| {
        let free = place.allocatable.get(name).copied().unwrap_or(0) - place.used.get(name).copied().unwrap_or(0);
        amount > 0 && amount > free
    };
    let lacking = requests.iter().filter(|(name, amount)| lacks(name, **amount));
    lacking
        .map(|(name, _)| if name == "pods" { "Too many pods".to_owned() } else { format!("Insufficient {name}") })
        .collect()
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
pub(crate) fn summary(nodes: usize, reasons: &[Vec<String>]) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".into();
    }
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for reason in reasons.iter().flatten() {
        *counts.entry(reason).or_default() += 1;
    }
    let mut parts: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    format!("0/{nodes} nodes are available: {}.", parts.join(", "))
}
