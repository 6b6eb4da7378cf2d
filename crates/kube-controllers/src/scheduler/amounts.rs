//! What pods ask for and nodes offer, resource by resource. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kit::controller::quantity::{self as q, Milli};

use crate::held;

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

/// Whether a pod holds less of something than it did: its containers have been made smaller.
pub(crate) fn shrank(old: &Pod, new: &Pod) -> bool {
    let now = requests(new);
    requests(old).iter().any(|(name, amount)| amount > now.get(name))
}

fn total(pod: &Pod, assume: bool) -> Amounts {
    let mut total = pod.spec.as_ref().map(|spec| of_spec(pod, spec, assume)).unwrap_or_default();
    total.pods = 1000;
    total
}

fn requested(pod: &Pod, container: &Container, assume: bool) -> Amounts {
    let mut amounts = Amounts::default();
    held::requests(pod, container).for_each(|list| amounts.raise(&Amounts::of(list)));
    if assume {
        let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
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

fn of_spec(pod: &Pod, spec: &PodSpec, assume: bool) -> Amounts {
    let mut running = Amounts::default();
    for container in &spec.containers {
        running.add(&requested(pod, container, assume), 1);
    }
    let (mut sidecars, mut starting) = (Amounts::default(), Amounts::default());
    for container in spec.init_containers.iter().flatten() {
        let mut now = requested(pod, container, assume);
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
    fn a_pod_between_two_sizes_holds_the_larger() {
        let status = |allocated: &str, actual: &str| {
            json!([{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual}}}])
        };
        let check = |wanted: &str, statuses: &Value, reason: &str, expect: Milli| {
            let pending = json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
            let pod = |spec: Value, list: &str| {
                let mut pod = json!({"spec": spec, "status": {"conditions": pending}});
                pod["status"][list] = statuses.clone();
                requests(&serde_json::from_value(pod).unwrap()).cpu
            };
            assert_eq!(pod(json!({"containers": [container(wanted)]}), "containerStatuses"), expect);
            let mut sidecar = container(wanted);
            sidecar["restartPolicy"] = "Always".into();
            let spec = json!({"containers": [{"name": "main"}], "initContainers": [sidecar]});
            assert_eq!(pod(spec, "initContainerStatuses"), expect);
        };
        check("1", &json!([]), "", 1000);
        check("1", &status("2", "1"), "", 2000);
        check("1", &status("1", "2"), "", 2000);
        check("3", &status("1", "1"), "Deferred", 3000);
        check("3", &status("1", "1"), "Infeasible", 1000);
        check("3", &status("1", "2"), "Infeasible", 2000);
        // Of whom nothing is known, nobody said what he has.
        check("3", &json!([]), "Infeasible", 3000);
    }

    #[test]
    fn silent_containers_are_assumed_to_need_something() {
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}, container("1")]}})).unwrap();
        let likely = likely(&pod);
        assert_eq!((likely.cpu, likely.memory), (1100, 2 * UNSAID_MEMORY));
    }
}
