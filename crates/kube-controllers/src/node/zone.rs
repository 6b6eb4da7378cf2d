//! How fast pods are driven off lost nodes. A node that is lost alone has failed; a zone that is lost with all its nodes
//! has more likely lost its connection, and its pods run on: nothing is gained by starting them elsewhere.
//!
//! ```text
//!  every zone lost         nobody is driven off, and who was to be may stay
//!  most of a zone lost     one node in 100 s; in a zone of 50 nodes or fewer none
//!  otherwise               one node in 10 s
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kit::controller::{placement, pod};
use tokio::time::Instant;

use super::condition::state;

/// Whether a node that is not ready gets the taint that drives pods off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evict {
    /// It gets it.
    Yes,
    /// It keeps it if it has it.
    Hold,
    /// It does not have it.
    No,
}

const USUAL: Duration = Duration::from_secs(10);
const CAREFUL: Duration = Duration::from_secs(100);
/// Zones with more nodes go on carefully when most of them are lost.
const LARGE: usize = 50;
/// So many lost nodes are no pattern yet.
const FEW: usize = 2;
/// Most of a zone, in percent.
const MOST: usize = 55;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    ready: usize,
    lost: usize,
}

impl Count {
    fn is_lost(self) -> bool {
        self.ready == 0 && self.lost > 0
    }
    /// How long the zone waits between two nodes; `None` for ever.
    fn pace(self) -> Option<Duration> {
        let all = self.ready + self.lost;
        let mostly = self.ready > 0 && self.lost > FEW && 100 * self.lost >= MOST * all;
        match (mostly, all > LARGE) {
            (false, _) => Some(USUAL),
            (true, true) => Some(CAREFUL),
            (true, false) => None,
        }
    }
}

fn zone_of(node: &Node) -> String {
    let labels = pod::labels(&node.metadata);
    let label = |key: &str| labels.get(key).map_or("", String::as_str);
    format!("{}/{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

/// Whether the node is marked for its pods to leave.
pub(crate) fn evicts(node: &Node) -> bool {
    let keys = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
    placement::taints(node).iter().any(|taint| taint.effect == "NoExecute" && keys.contains(&taint.key.as_str()))
}

/// When each zone last lost a node's pods.
#[derive(Debug, Default)]
pub(crate) struct Paces(HashMap<String, Instant>);

impl Paces {
    /// Whether the node may be marked now, and when to ask again.
    pub(crate) fn evict(&mut self, node: &Node, nodes: &[Arc<Node>], now: Instant) -> (Evict, Option<Duration>) {
        if state(node, "Ready") == "True" {
            return (Evict::No, None);
        }
        let mut zones = HashMap::<String, Count>::new();
        for node in nodes {
            let count = zones.entry(zone_of(node)).or_default();
            if state(node, "Ready") == "True" {
                count.ready += 1;
            } else {
                count.lost += 1;
            }
        }
        if zones.values().all(|count| count.is_lost()) {
            return (Evict::No, None);
        }
        if evicts(node) {
            return (Evict::Hold, None);
        }
        let zone = zone_of(node);
        let Some(pace) = zones.get(&zone).copied().unwrap_or_default().pace() else { return (Evict::Hold, None) };
        let left = self.0.get(&zone).map(|last| pace.saturating_sub(now.duration_since(*last)));
        match left.filter(|left| !left.is_zero()) {
            Some(left) => (Evict::Hold, Some(left)),
            None => {
                self.0.insert(zone, now);
                (Evict::Yes, None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nodes(zone: &str, ready: usize, lost: usize) -> Vec<Arc<Node>> {
        let states = std::iter::repeat_n("True", ready).chain(std::iter::repeat_n("Unknown", lost));
        let node = |(index, state): (usize, &str)| {
            let value = json!({"metadata": {"name": format!("{zone}{index}"), "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"conditions": [{"type": "Ready", "status": state}]}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        states.enumerate().map(node).collect()
    }

    /// What the last two nodes get, a second after one another.
    #[track_caller]
    fn check(nodes: &[Arc<Node>], expect: [(Evict, Option<u64>); 2]) {
        let (mut paces, now) = (Paces::default(), Instant::now());
        let mut last = nodes.iter().rev();
        let found = [0, 1].map(|second| {
            let (evict, again) = paces.evict(last.next().unwrap(), nodes, now + Duration::from_secs(second));
            (evict, again.map(|again| again.as_secs()))
        });
        assert_eq!(found, expect);
    }

    #[tokio::test(start_paused = true)]
    async fn one_lost_node_has_failed_and_all_lost_nodes_have_not() {
        check(&nodes("a", 1, 2), [(Evict::Yes, None), (Evict::Hold, Some(9))]);
        check(&nodes("a", 0, 3), [(Evict::No, None), (Evict::No, None)]);
        // One zone of two: its nodes, one by one.
        check(&[nodes("a", 2, 0), nodes("b", 0, 3)].concat(), [(Evict::Yes, None), (Evict::Hold, Some(9))]);
        // Most of a small and of a large zone.
        check(&nodes("a", 2, 3), [(Evict::Hold, None), (Evict::Hold, None)]);
        check(&nodes("a", 40, 60), [(Evict::Yes, None), (Evict::Hold, Some(99))]);
        // A healthy node is not marked.
        assert_eq!(Paces::default().evict(&nodes("a", 1, 0)[0], &nodes("a", 1, 5), Instant::now()).0, Evict::No);
    }
}
