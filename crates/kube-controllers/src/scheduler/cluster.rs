//! The scheduler's picture of the cluster: what every node offers and which pods use it, kept up to date change by change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kit::controller::{owner, pod};
use kit::store::Key;

use super::amounts::{self, Amounts};
use super::image;
use super::terms::Terms;

/// Protocol, address and number of a port of the node.
pub(crate) type HostPort = (String, String, i32);

/// A pod that holds resources of a node, with what is asked of it again and again read off once.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) pod: Arc<Pod>,
    pub(crate) requests: Amounts,
    pub(crate) likely: Amounts,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) terms: Terms,
}

impl Resident {
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        Self {
            requests: amounts::requests(&pod),
            likely: amounts::likely(&pod),
            ports: pod.spec.as_ref().map(pod::host_ports).unwrap_or_default(),
            terms: Terms::of(&pod),
            pod,
        }
    }

    pub(crate) fn priority(&self) -> i32 {
        priority(&self.pod)
    }
}

/// The priority admission gave the pod.
pub(crate) fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// A node and what its pods use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Absent while only pods of it are known.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) allocatable: Amounts,
    pub(crate) used: Amounts,
    pub(crate) likely: Amounts,
    pub(crate) pods: BTreeMap<Key, Arc<Resident>>,
}

impl Place {
    /// Puts a pod on the node.
    pub(crate) fn put(&mut self, resident: Arc<Resident>) {
        self.used.add(&resident.requests, 1);
        self.likely.add(&resident.likely, 1);
        self.pods.insert(Key::of(resident.pod.as_ref()), resident);
    }

    /// Takes a pod off the node.
    pub(crate) fn take(&mut self, key: &Key) -> Option<Arc<Resident>> {
        let resident = self.pods.remove(key)?;
        self.used.add(&resident.requests, -1);
        self.likely.add(&resident.likely, -1);
        Some(resident)
    }
}

/// All nodes by name, and what is looked up across them.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) places: BTreeMap<String, Place>,
    /// Namespaces' labels, for affinity terms that select namespaces.
    pub(crate) namespaces: HashMap<String, BTreeMap<String, String>>,
    /// Nodes with pods that have affinity terms, which concern other pods as well.
    pub(crate) with_terms: BTreeSet<String>,
    /// Uid of a controller -> node -> how many of its pods are there and stay.
    pub(crate) by_controller: HashMap<String, HashMap<String, i64>>,
    /// Node -> pods that wait for their victims there to be gone.
    pub(crate) nominated: BTreeMap<String, BTreeMap<Key, Arc<Resident>>>,
    pub(crate) images: image::Census,
}

impl Cluster {
    /// Takes in a change of a node.
    pub(crate) fn set_node(&mut self, name: &str, node: Option<Arc<Node>>) {
        let place = self.places.entry(name.to_owned()).or_default();
        self.images.replace(place.node.as_deref(), node.as_deref());
        let allocatable = node.as_ref().and_then(|n| n.status.as_ref()?.allocatable.as_ref());
        place.allocatable = allocatable.map(Amounts::of).unwrap_or_default();
        place.node = node;
        if place.node.is_none() && place.pods.is_empty() {
            self.places.remove(name);
        }
    }

    /// Takes in a change of a pod; only those that hold a node's resources count.
    pub(crate) fn set_pod(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        if let Some((node, pod)) = old.and_then(holding) {
            self.leave(node, pod);
        }
        if let Some((node, pod)) = new.and_then(holding) {
            let resident = Arc::new(Resident::new(pod.clone()));
            if !resident.terms.is_empty() {
                self.with_terms.insert(node.to_owned());
            }
            if let Some(uid) = counted(pod) {
                *self.by_controller.entry(uid.to_owned()).or_default().entry(node.to_owned()).or_default() += 1;
            }
            self.places.entry(node.to_owned()).or_default().put(resident);
        }
        self.set_nomination(old, new);
    }

    fn leave(&mut self, node: &str, pod: &Arc<Pod>) {
        let Some(place) = self.places.get_mut(node) else { return };
        let Some(resident) = place.take(&Key::of(pod.as_ref())) else { return };
        if !resident.terms.is_empty() && place.pods.values().all(|other| other.terms.is_empty()) {
            self.with_terms.remove(node);
        }
        if place.node.is_none() && place.pods.is_empty() {
            self.places.remove(node);
        }
        if let Some(uid) = counted(&resident.pod)
            && let Some(nodes) = self.by_controller.get_mut(uid)
            && let Some(count) = nodes.get_mut(node)
        {
            *count -= 1;
            if *count <= 0 {
                nodes.remove(node);
            }
            if nodes.is_empty() {
                self.by_controller.remove(uid);
            }
        }
    }

    fn set_nomination(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        if let Some((node, pod)) = old.and_then(nomination)
            && let Some(waiting) = self.nominated.get_mut(node)
        {
            waiting.remove(&Key::of(pod.as_ref()));
            if waiting.is_empty() {
                self.nominated.remove(node);
            }
        }
        if let Some((node, pod)) = new.and_then(nomination) {
            let resident = Arc::new(Resident::new(pod.clone()));
            self.nominated.entry(node.to_owned()).or_default().insert(Key::of(pod.as_ref()), resident);
        }
    }

    /// The places that have a node.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&Arc<Node>, &Place)> {
        self.places.values().filter_map(|place| place.node.as_ref().map(|node| (node, place)))
    }
}

fn holding(pod: &Arc<Pod>) -> Option<(&str, &Arc<Pod>)> {
    pod::node_name(pod).filter(|_| !pod::is_finished(pod)).map(|node| (node, pod))
}

/// The controller of a pod that counts when its siblings are spread.
fn counted(pod: &Pod) -> Option<&str> {
    owner::controller_of(&pod.metadata).map(|owner| owner.uid.as_str()).filter(|_| !pod::is_terminating(pod))
}

fn nomination(pod: &Arc<Pod>) -> Option<(&str, &Arc<Pod>)> {
    let waits = pod::node_name(pod).is_none() && pod::is_active(pod);
    nominated_node(pod).filter(|_| waits).map(|node| (node, pod))
}

/// The node on which a pod waits for its victims to be gone.
pub(crate) fn nominated_node(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_hold_and_give_back() {
        let mut cluster = Cluster::default();
        let pod = |node: &str, phase: &str| {
            let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
            let owner =
                json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true});
            let value = json!({"metadata": {"name": "p", "namespace": "d", "ownerReferences": [owner]},
                "status": {"phase": phase}, "spec": {"nodeName": node, "containers": [container]}});
            Arc::new(serde_json::from_value::<Pod>(value).unwrap())
        };
        let (running, done) = (pod("n", "Running"), pod("n", "Succeeded"));
        cluster.set_pod(None, Some(&running));
        assert_eq!((cluster.places["n"].used.cpu, cluster.by_controller["u"]["n"]), (1000, 1));
        cluster.set_node("n", Some(Arc::default()));
        cluster.set_pod(Some(&running), Some(&done));
        assert_eq!(cluster.places["n"].used.cpu, 0);
        cluster.set_node("n", None);
        assert!(cluster.places.is_empty() && cluster.by_controller.is_empty());
    }

    #[test]
    fn nominated_pods_are_known() {
        let mut cluster = Cluster::default();
        let pod = |node: &str| {
            let value = json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": [], "nodeName": node},
                "status": {"nominatedNodeName": "n"}});
            Arc::new(serde_json::from_value::<Pod>(value).unwrap())
        };
        let (waiting, bound) = (pod(""), pod("n"));
        cluster.set_pod(None, Some(&waiting));
        assert_eq!(cluster.nominated["n"].len(), 1);
        cluster.set_pod(Some(&waiting), Some(&bound));
        assert!(cluster.nominated.is_empty());
    }
}
