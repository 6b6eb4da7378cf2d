//! Why a node, or the whole cluster, cannot take a pod, in the words kubectl's users know. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The rule that refused; it says which changes may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Plugin {
    NodeUnschedulable,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    Volumes,
    Devices,
    PodTopologySpread,
    InterPodAffinity,
}

/// A node's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) plugin: Plugin,
    pub(crate) reasons: Vec<Cow<'static, str>>,
    /// Whether the node could take the pod if others left it.
    pub(crate) curable: bool,
}

impl Refusal {
    pub(crate) fn new(plugin: Plugin, reason: impl Into<Cow<'static, str>>, curable: bool) -> Self {
        Self { plugin, reasons: vec![reason.into()], curable }
    }
}

/// What happened that may let a pod be placed which could not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A node came, went or offers something else.
    Node,
    /// A pod gave its place back.
    PodLeft,
    /// A pod was placed, or has other labels.
    PodArrived,
    /// A claim, a volume or a class changed.
    Volume,
    /// A claim of devices, a slice or a class of them changed.
    Device,
}

impl Event {
    /// Each of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] = [Self::Node, Self::PodLeft, Self::PodArrived, Self::Volume, Self::Device];
}

impl Plugin {
    /// Whether the event may change the plugin's mind.
    pub(crate) fn helped_by(self, event: Event) -> bool {
        match event {
            Event::Node => true,
            Event::PodLeft => matches!(
                self,
                Self::NodePorts
                    | Self::NodeResourcesFit
                    | Self::Volumes
                    | Self::PodTopologySpread
                    | Self::InterPodAffinity
            ),
            Event::PodArrived => matches!(self, Self::PodTopologySpread | Self::InterPodAffinity),
            Event::Volume => self == Self::Volumes,
            Event::Device => self == Self::Devices,
        }
    }
}

/// Why a pod fits nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// Of how many nodes.
    pub(crate) nodes: usize,
    /// Why no node was even looked at.
    pub(crate) beforehand: Option<String>,
    /// Each refusing node's reasons.
    pub(crate) refusals: BTreeMap<String, Refusal>,
    /// Reasons of the nodes without a refusal of their own.
    pub(crate) others: Option<&'static str>,
    /// What preemption found.
    pub(crate) preemption: Option<String>,
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        write!(f, "0/{} nodes are available:", self.nodes)?;
        match &self.beforehand {
            Some(why) => write!(f, " {why}.")?,
            None => {
                let mut counts = BTreeMap::<&str, usize>::new();
                for reason in self.refusals.values().flat_map(|refusal| &refusal.reasons) {
                    *counts.entry(reason).or_default() += 1;
                }
                if let Some(reason) = self.others.filter(|_| self.refusals.len() < self.nodes) {
                    *counts.entry(reason).or_default() += self.nodes - self.refusals.len();
                }
                let mut parts: Vec<_> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
                parts.sort();
                if !parts.is_empty() {
                    write!(f, " {}.", parts.join(", "))?;
                }
            }
        }
        match &self.preemption {
            Some(found) => write!(f, " preemption: {found}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences() {
        assert_eq!(Misfit::default().to_string(), "no nodes available to schedule pods");
        let refusal = |text: &'static str| Refusal::new(Plugin::NodeResourcesFit, text, true);
        let refusals = [("a", "Insufficient cpu"), ("b", "node(s) were unschedulable"), ("c", "Insufficient cpu")];
        let refusals = refusals.map(|(node, text)| (node.to_owned(), refusal(text)));
        let found = Misfit {
            nodes: 4,
            refusals: refusals.into(),
            others: Some("node(s) didn't satisfy plugin(s) [NodeAffinity]"),
            preemption: Some("0/4 nodes are available: 4 Preemption is not helpful for scheduling.".into()),
            beforehand: None,
        };
        assert_eq!(
            found.to_string(),
            "0/4 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity], 1 node(s) were unschedulable, \
             2 Insufficient cpu. preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
        );
        let early = Misfit {
            nodes: 2,
            beforehand: Some("pod has unbound immediate PersistentVolumeClaims".into()),
            ..Misfit::default()
        };
        assert_eq!(early.to_string(), "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.");
    }
}
