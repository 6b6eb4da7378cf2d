//! What pods ask for and nodes offer, resource by resource. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kit::controller::quantity::{self as q, Milli};

/// An amount of each resource, in thousandths. Those every pod has are fields: they are compared for every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) cpu: Milli,
    pub(crate) memory: Milli,
    pub(crate) pods: Milli,
    pub(crate) other: BTreeMap<String, Milli>,
}

impl Amounts {
    /// Reads a list of quantities.
    pub(crate) fn of(list: &BTreeMap<String, Quantity>) -> Self {
        let mut amounts = Self::default();
        for (name, quantity) in list {
            *amounts.entry(name) = q::of(quantity);
        }
        amounts
    }

    fn entry(&mut self, name: &str) -> &mut Milli {
        match name {
            "cpu" => &mut self.cpu,
            "memory" => &mut self.memory,
            "pods" => &mut self.pods,
            _ => self.other.entry(name.to_owned()).or_default(),
        }
    }

    /// The amount of one resource.
    pub(crate) fn get(&self, name: &str) -> Milli {
        match name {
            "cpu" => self.cpu,
            "memory" => self.memory,
            "pods" => self.pods,
            _ => self.other.get(name).copied().unwrap_or(0),
        }
    }

    /// Every resource by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Milli)> {
        let fixed = [("cpu", self.cpu), ("memory", self.memory), ("pods", self.pods)];
        fixed.into_iter().chain(self.other.iter().map(|(name, amount)| (name.as_str(), *amount)))
    }

    /// Adds `more`, or takes it away with `sign` -1.
    pub(crate) fn add(&mut self, more: &Self, sign: Milli) {
        self.cpu += sign * more.cpu;
        self.memory += sign * more.memory;
        self.pods += sign * more.pods;
        for (name, amount) in &more.other {
            *self.entry(name) += sign * amount;
        }
    }

    fn raise(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            let entry = self.entry(name);
            *entry = (*entry).max(amount);
        }
    }
}

/// What a container that says nothing is thought to need when nodes are compared, so that such containers spread out.
const UNSAID_CPU: Milli = 100;
const UNSAID_MEMORY: Milli = 1000 * 200 * 1024 * 1024;

/// What a pod holds of its node: all containers and sidecars together, or the largest init container beside the sidecars
/// started before it; plus the overhead; and one of `pods`.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    total(pod, false)
}

/// The same for comparing nodes: containers that request no CPU or memory count with a usual amount.
pub(crate) fn likely(pod: &Pod) -> Amounts {
    total(pod, true)
}

fn total(pod: &Pod, assume: bool) -> Amounts {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    let mut total = pod.spec.as_ref().map(|spec| of_spec(spec, statuses, assume)).unwrap_or_default();
    total.pods = 1000;
    total
}

fn requested(container: &Container, assume: bool) -> Amounts {
    let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let mut amounts = list.map(Amounts::of).unwrap_or_default();
    if assume {
        let says = |name: &str| list.is_some_and(|list| list.contains_key(name));
        if !says("cpu") {
            amounts.cpu = UNSAID_CPU;
        }
        if !says("memory") {
            amounts.memory = UNSAID_MEMORY;
        }
    }
    amounts
}

/// While a running container shrinks, its node still holds what it had.
fn held(status: &ContainerStatus) -> impl Iterator<Item = Amounts> {
    let actual = status.resources.as_ref().and_then(|r| r.requests.as_ref());
    [status.allocated_resources.as_ref(), actual].into_iter().flatten().map(Amounts::of)
}

fn of_spec(spec: &PodSpec, statuses: &[ContainerStatus], assume: bool) -> Amounts {
    let mut running = Amounts::default();
    for container in &spec.containers {
        let mut now = requested(container, assume);
        for status in statuses.iter().filter(|status| status.name == container.name) {
            held(status).for_each(|amounts| now.raise(&amounts));
        }
        running.add(&now, 1);
    }
    let (mut sidecars, mut starting) = (Amounts::default(), Amounts::default());
    for container in spec.init_containers.iter().flatten() {
        let mut now = requested(container, assume);
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&now, 1);
            sidecars.add(&now, 1);
            now.clone_from(&sidecars);
        } else {
            now.add(&sidecars, 1);
        }
        starting.raise(&now);
    }
    running.raise(&starting);
    if let Some(overhead) = &spec.overhead {
        running.add(&Amounts::of(overhead), 1);
    }
    running
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, cpu: Milli) {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        assert_eq!(requests(&pod), Amounts { cpu, pods: 1000, ..Amounts::default() });
    }

    fn container(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn requests_of_pods() {
        check(json!({"containers": [container("1"), container("500m")]}), 1500);
        check(json!({"containers": [container("1")], "initContainers": [container("3"), container("2")]}), 3000);
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = json!("Always");
        check(json!({"containers": [container("1")], "initContainers": [sidecar.clone(), container("2")]}), 3000);
        check(json!({"containers": [container("3")], "initContainers": [container("2"), sidecar]}), 4000);
        check(json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}), 1250);
    }

    #[test]
    fn a_shrinking_container_holds_what_it_had() {
        let pod = json!({"spec": {"containers": [container("1")]},
            "status": {"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": "2"}}]}});
        assert_eq!(requests(&serde_json::from_value(pod).unwrap()).cpu, 2000);
    }

    #[test]
    fn silent_containers_are_assumed_to_need_something() {
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}, container("1")]}})).unwrap();
        let likely = likely(&pod);
        assert_eq!((likely.cpu, likely.memory), (1100, 2 * UNSAID_MEMORY));
    }
}
