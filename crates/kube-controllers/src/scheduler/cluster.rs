//! The scheduler's picture of the cluster: what every node offers and which pods use it, kept up to date change by change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::Milli;
use crate::store::Key;
use crate::{pod, quantity as q};

/// Resource name -> amount.
pub(crate) type Amounts = BTreeMap<String, Milli>;

/// A node and what its pods use.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Absent while only pods of it are known.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) allocatable: Amounts,
    pub(crate) used: Amounts,
    pub(crate) pods: BTreeMap<Key, Arc<Pod>>,
}

/// All nodes by name.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) places: BTreeMap<String, Place>,
    /// Namespaces' labels, for affinity terms that select namespaces.
    pub(crate) namespaces: HashMap<String, BTreeMap<String, String>>,
}

impl Cluster {
    /// Takes in a change of a node.
    pub(crate) fn set_node(&mut self, name: &str, node: Option<Arc<Node>>) {
        let place = self.places.entry(name.to_owned()).or_default();
        let allocatable = node.as_ref().and_then(|n| n.status.as_ref()?.allocatable.as_ref());
        place.allocatable = allocatable.map(amounts).unwrap_or_default();
        place.node = node;
        if place.node.is_none() && place.pods.is_empty() {
            self.places.remove(name);
        }
    }

    /// Takes in a change of a pod; only those that hold a node's resources count.
    pub(crate) fn set_pod(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        if let Some((node, pod)) = old.and_then(holding)
            && let Some(place) = self.places.get_mut(node)
            && place.pods.remove(&Key::of(pod.as_ref())).is_some()
        {
            for (name, amount) in requests(pod) {
                *place.used.entry(name).or_default() -= amount;
            }
            if place.node.is_none() && place.pods.is_empty() {
                self.places.remove(node);
            }
        }
        if let Some((node, pod)) = new.and_then(holding) {
            let place = self.places.entry(node.to_owned()).or_default();
            for (name, amount) in requests(pod) {
                *place.used.entry(name).or_default() += amount;
            }
            place.pods.insert(Key::of(pod.as_ref()), pod.clone());
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

fn amounts(list: &BTreeMap<String, Quantity>) -> Amounts {
    list.iter().map(|(name, quantity)| (name.clone(), q::of(quantity))).collect()
}

fn requested(container: &Container) -> Amounts {
    container.resources.as_ref().and_then(|r| r.requests.as_ref()).map(amounts).unwrap_or_default()
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *total.entry(name.clone()).or_default() += amount;
    }
}

fn raise(total: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = total.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

/// What a pod holds of its node: all containers and sidecars together, or the largest init container beside the sidecars
/// started before it; plus the overhead; and one of `pods`.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    let mut total = pod.spec.as_ref().map(requests_of_spec).unwrap_or_default();
    total.insert("pods".into(), 1000);
    total
}

fn requests_of_spec(spec: &PodSpec) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &requested(container));
    }
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut now = requested(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut running, &now);
            add(&mut sidecars, &now);
            now.clone_from(&sidecars);
        } else {
            add(&mut now, &sidecars);
        }
        raise(&mut starting, &now);
    }
    raise(&mut running, &starting);
    if let Some(overhead) = &spec.overhead {
        add(&mut running, &amounts(overhead));
    }
    running
}

/// Share of a resource in use with `more` added, 0 to 1; nothing offered counts as full.
pub(crate) fn share(place: &Place, resource: &str, more: Milli) -> f64 {
    let offered = place.allocatable.get(resource).copied().unwrap_or(0);
    let used = place.used.get(resource).copied().unwrap_or(0) + more;
    if offered <= 0 || used >= offered { 1.0 } else { to_f64(used) / to_f64(offered) }
}

fn to_f64(amount: Milli) -> f64 {
    amount as f64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: &[(&str, Milli)]) {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let mut requests = requests(&pod);
        assert_eq!(requests.remove("pods"), Some(1000));
        let expect: Amounts = expect.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        assert_eq!(requests, expect);
    }

    fn container(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn requests_of_pods() {
        check(json!({"containers": [container("1"), container("500m")]}), &[("cpu", 1500)]);
        check(
            json!({"containers": [container("1")], "initContainers": [container("3"), container("2")]}),
            &[("cpu", 3000)],
        );
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = json!("Always");
        check(
            json!({"containers": [container("1")], "initContainers": [sidecar.clone(), container("2")]}),
            &[("cpu", 3000)],
        );
        check(json!({"containers": [container("3")], "initContainers": [container("2"), sidecar]}), &[("cpu", 4000)]);
        check(json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}), &[("cpu", 1250)]);
    }

    #[test]
    fn pods_hold_and_give_back() {
        let mut cluster = Cluster::default();
        let pod = |node: &str, phase: &str| {
            let value = json!({"metadata": {"name": "p", "namespace": "d"}, "status": {"phase": phase},
                "spec": {"nodeName": node, "containers": [container("1")]}});
            Arc::new(serde_json::from_value::<Pod>(value).unwrap())
        };
        let (running, done) = (pod("n", "Running"), pod("n", "Succeeded"));
        cluster.set_pod(None, Some(&running));
        assert_eq!(cluster.places["n"].used["cpu"], 1000);
        cluster.set_node("n", Some(Arc::default()));
        cluster.set_pod(Some(&running), Some(&done));
        assert_eq!(cluster.places["n"].used["cpu"], 0);
        cluster.set_node("n", None);
        assert!(cluster.places.is_empty());
    }
}
