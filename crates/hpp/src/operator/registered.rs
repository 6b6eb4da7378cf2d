//! On which nodes the kubelet knows the driver, as the cluster's CSINode objects say. A driver that runs and is not
//! registered makes and mounts no volume. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;

use crate::csi;

/// A kubelet that looks for new drivers finds one in less than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node where the driver runs and the kubelet does not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lacking {
    pub(crate) node: String,
    pub(crate) pod: String,
    /// How long it will still be waited for; nothing when it should be there.
    pub(crate) left: Duration,
}

/// What was found on the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) lacking: Vec<Lacking>,
    /// On how many nodes the kubelet knows it.
    pub(crate) nodes: usize,
}

/// Whether the kubelet of this node knows the driver.
pub(crate) fn has_driver(node: &CSINode) -> bool {
    node.spec.drivers.iter().any(|driver| driver.name == csi::NAME)
}

/// `pods` are the driver's, `known` the nodes whose kubelet knows it.
pub(crate) fn look(pods: &[Pod], known: &[String], now: Timestamp) -> Registered {
    let mut found = Registered::default();
    for pod in pods {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else { continue };
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
        let Some(since) = ready.filter_map(|condition| condition.last_transition_time.as_ref()).next() else {
            continue;
        };
        if known.contains(&node) {
            found.nodes += 1;
            continue;
        }
        let waited = now.duration_since(since.0).try_into().unwrap_or_default();
        found.lacking.push(Lacking { node, pod: pod.name_any(), left: PATIENCE.saturating_sub(waited) });
    }
    found.lacking.sort_by(|one, other| one.node.cmp(&other.node));
    found
}

impl Registered {
    /// Nodes where it should have been registered.
    pub(crate) fn late(&self) -> impl Iterator<Item = &Lacking> {
        self.lacking.iter().filter(|lacking| lacking.left.is_zero())
    }

    /// When one of them will have been waited for long enough.
    pub(crate) fn again(&self) -> Option<Duration> {
        self.lacking.iter().map(|lacking| lacking.left).filter(|left| !left.is_zero()).min()
    }

    /// What is wrong, and where to look, when something is.
    pub(crate) fn complaint(&self) -> Option<String> {
        let late: Vec<&Lacking> = self.late().collect();
        let first = late.first()?;
        let nodes: Vec<&str> = late.iter().map(|lacking| lacking.node.as_str()).collect();
        Some(format!(
            "the driver runs on {} but the kubelet there has not registered it, so no volume is made or mounted there: its \
             CSINode object does not list {}. See the log of pod {} (container hostpath-provisioner), and the kubelet's log on \
             the node for /var/lib/kubelet/plugins_registry/csi-hostpath-reg.sock",
            nodes.join(", "),
            csi::NAME,
            first.pod
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(node: &str, ready: &str) -> Pod {
        let pod = json!({"metadata": {"name": format!("driver-{node}")}, "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_node_that_does_not_know_its_driver_is_named_after_a_minute() {
        let pods = [pod("n3", "False"), pod("n2", "True"), pod("n1", "True")];
        let known = ["n1".to_owned()];
        let at = |text: &str| text.parse().unwrap();
        let early = look(&pods, &known, at("2026-01-01T00:00:20Z"));
        assert_eq!((early.nodes, early.again(), early.complaint()), (1, Some(Duration::from_secs(40)), None));
        let late = look(&pods, &known, at("2026-01-01T00:01:00Z"));
        assert_eq!(late.again(), None);
        let complaint = late.complaint().unwrap();
        assert!(complaint.contains("runs on n2 but") && complaint.contains("pod driver-n2"), "{complaint}");
    }
}
