//! Pure: what pods hold of their node's cpu and memory, and whether one may grow.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use super::record::Record;
use crate::resources::{is_sidecar, milli, value};

/// Thousandths of a cpu, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
}

impl Amounts {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu.saturating_add(other.cpu), memory: self.memory.saturating_add(other.memory) }
    }

    pub(crate) fn less(self, other: Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(other.cpu), memory: self.memory.saturating_sub(other.memory) }
    }

    pub(crate) fn most(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }

    /// By name, as messages tell them.
    fn each(self) -> [(&'static str, i64); 2] {
        [("cpu", self.cpu), ("memory", self.memory)]
    }

    fn of(resources: Option<&ResourceRequirements>) -> Self {
        let requests = resources.and_then(|resources| resources.requests.as_ref());
        let amount = |name: &str| requests.and_then(|requests| requests.get(name));
        Self { cpu: amount("cpu").and_then(milli).unwrap_or(0), memory: amount("memory").and_then(value).unwrap_or(0) }
    }
}

/// What a pod requests as its spec stands.
pub(crate) fn requested(spec: &PodSpec) -> Amounts {
    total(spec, |container| Amounts::of(container.resources.as_ref()))
}

/// What a pod holds: of each container the most of what is set aside for it and what it still has.
pub(crate) fn held(spec: &PodSpec, record: &Record) -> Amounts {
    total(spec, |container| match record.allocated.get(&container.name) {
        Some(allocated) => Amounts::of(Some(allocated)).most(Amounts::of(record.applied.get(&container.name))),
        None => Amounts::of(container.resources.as_ref()),
    })
}

fn total(spec: &PodSpec, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut running = spec.containers.iter().map(&of).fold(Amounts::default(), Amounts::plus);
    let (mut sidecars, mut starting) = (Amounts::default(), Amounts::default());
    for container in spec.init_containers.iter().flatten() {
        let own = sidecars.plus(of(container));
        starting = starting.most(own);
        if is_sidecar(container) {
            sidecars = own;
            running = running.plus(of(container));
        }
    }
    let overhead = spec
        .overhead
        .clone()
        .map(|overhead| ResourceRequirements { requests: Some(overhead), ..ResourceRequirements::default() });
    running.most(starting).plus(Amounts::of(overhead.as_ref()))
}

/// Why a pod cannot have what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `Infeasible`: never on this node; `Deferred`: not yet.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Whether a pod that was given `given` may have `wanted`, where others hold `used`. Only of what grows is asked.
pub(crate) fn refusal(given: Amounts, wanted: Amounts, used: Amounts, node: Amounts) -> Option<Refusal> {
    let of = |wanted: Amounts| wanted.each().into_iter().zip(given.each()).zip(used.each()).zip(node.each());
    let grown = || of(wanted).filter(|(((wanted, given), _), _)| wanted.1 > given.1);
    // Memory is what cannot be shared, and is told of first.
    let never = grown().rfind(|(((wanted, _), _), node)| wanted.1 > node.1);
    if let Some((((wanted, _), _), node)) = never {
        let message =
            format!("Node didn't have enough capacity: {}, requested: {}, capacity: {}", wanted.0, wanted.1, node.1);
        return Some(Refusal { reason: "Infeasible", message });
    }
    let ((((name, wanted), _), (_, used)), (_, node)) =
        grown().find(|(((wanted, _), used), node)| wanted.1 > node.1.saturating_sub(used.1))?;
    let message =
        format!("Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {node}");
    Some(Refusal { reason: "Deferred", message })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn amounts(cpu: i64, memory: i64) -> Amounts {
        Amounts { cpu, memory }
    }

    #[test]
    fn a_pod_grows_into_what_is_left() {
        let check = |wanted: (i64, i64), expect: Option<(&str, &str)>| {
            let (wanted, node) = (amounts(wanted.0, wanted.1), amounts(4000, 1000));
            let found = refusal(amounts(1000, 100), wanted, amounts(2000, 700), node);
            assert_eq!(found.as_ref().map(|found| (found.reason, found.message.as_str())), expect);
        };
        check((2000, 300), None);
        let cpu = "Node didn't have enough resource: cpu, requested: 2001, used: 2000, capacity: 4000";
        check((2001, 301), Some(("Deferred", cpu)));
        let memory = "Node didn't have enough resource: memory, requested: 301, used: 700, capacity: 1000";
        check((2000, 301), Some(("Deferred", memory)));
        let never = "Node didn't have enough capacity: memory, requested: 1001, capacity: 1000";
        check((4001, 1001), Some(("Infeasible", never)));
        let never = "Node didn't have enough capacity: cpu, requested: 4001, capacity: 4000";
        check((4001, 1000), Some(("Infeasible", never)));
    }

    #[test]
    fn a_pod_may_shrink_on_a_full_node() {
        let (given, node) = (amounts(1000, 100), amounts(4000, 1000));
        let ask = |wanted| refusal(given, wanted, amounts(4000, 1000), node);
        assert_eq!(ask(amounts(500, 100)), None);
        assert_eq!(ask(amounts(500, 101)).map(|refusal| refusal.reason), Some("Deferred"));
    }

    #[test]
    fn a_container_holds_what_it_still_has() {
        let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let check = |inits: Value, allocated: &str, applied: &str, expect: i64| {
            let spec = json!({"containers": [{"name": "c", "resources": requests("9")}], "initContainers": inits,
                "overhead": {"cpu": "10m"}});
            let sizes = |cpu: &str| serde_json::from_value(json!({"c": requests(cpu)})).unwrap();
            let record = Record { allocated: sizes(allocated), applied: sizes(applied), ..Record::default() };
            assert_eq!(held(&serde_json::from_value(spec).unwrap(), &record).cpu, expect);
        };
        check(json!([]), "2", "1", 2010);
        check(json!([]), "1", "2", 2010);
        check(json!([{"name": "i", "resources": requests("5")}]), "1", "1", 5010);
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": requests("1")});
        check(json!([sidecar, {"name": "i", "resources": requests("5")}]), "1", "1", 6010);
    }
}
