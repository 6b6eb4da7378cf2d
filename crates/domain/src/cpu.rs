//! vCPUs: how many, how they are arranged, and which model the guest sees.

use api::kubevirt::size;
use api::kubevirt::v1::{CPU, DomainSpec};
use meta::quantity::Amount;

use crate::xml::Element;
use crate::{Environment, Error, memory};

/// More vCPUs than this need an interrupt remapper that we do not configure.
const VCPU_LIMIT: u64 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    size: size::Topology,
    max_sockets: u64,
    /// Somebody said how many sockets there may come to be.
    changes: bool,
}

impl Topology {
    /// Sockets, cores and threads as the VMI says; without any, one socket for each CPU that is asked for.
    pub(crate) fn of(spec: &DomainSpec) -> Result<Self, Error> {
        if let Some((field, quantity)) = size::asked_cpus(spec) {
            Amount::try_from(quantity).map_err(|_| memory::malformed(field, quantity))?;
        }
        let size = size::Topology::of(spec);
        if size.vcpus() > VCPU_LIMIT {
            return Err(Error::TooManyCpus { vcpus: size.vcpus(), limit: VCPU_LIMIT });
        }
        let wished = spec.cpu.as_ref().and_then(|cpu| cpu.max_sockets).and_then(|most| u64::try_from(most).ok());
        // Room to grow is a wish, not a demand: it ends where the machine does.
        let room = VCPU_LIMIT / (size.cores * size.threads);
        let max_sockets = wished.unwrap_or(0).clamp(size.sockets, room);
        Ok(Self { size, max_sockets, changes: wished.is_some() && max_sockets > 1 })
    }

    pub(crate) fn vcpus(self) -> u64 {
        self.size.vcpus()
    }

    fn maximum(self) -> u64 {
        self.max_sockets * self.size.cores * self.size.threads
    }

    pub(crate) fn vcpu(self) -> Element {
        let current = (self.vcpus() < self.maximum()).then_some(self.vcpus());
        Element::with_text("vcpu", self.maximum()).attr("placement", "static").attr_opt("current", current)
    }

    /// Each of them, where there is room for more: those of the first socket stay, others come and go.
    pub(crate) fn each(self) -> Option<Element> {
        if !self.changes {
            return None;
        }
        let socket = self.size.cores * self.size.threads;
        let word = |yes: bool| if yes { "yes" } else { "no" };
        let vcpu = |id: u64| {
            Element::new("vcpu")
                .attr("id", id)
                .attr("enabled", word(id < self.vcpus()))
                .attr("hotpluggable", word(id >= socket))
        };
        Some((0..self.maximum()).map(vcpu).fold(Element::new("vcpus"), Element::child))
    }
}

pub(crate) fn element(spec: &DomainSpec, topology: &Topology, environment: &Environment) -> Result<Element, Error> {
    let cpu = spec.cpu.clone().unwrap_or_default();
    let mut element = model(&cpu, environment).child(
        Element::new("topology")
            .attr("sockets", topology.max_sockets)
            .attr("cores", topology.size.cores)
            .attr("threads", topology.size.threads),
    );
    for feature in &cpu.features {
        let policy = feature.policy.as_deref().filter(|policy| !policy.is_empty()).unwrap_or("require");
        element = element.child(Element::new("feature").attr("name", &feature.name).attr("policy", policy));
    }
    if let Some(max) = memory::maximum(spec)? {
        // Memory can only be plugged into a NUMA cell.
        debug_assert!(max > 0);
        element = element.child(
            Element::new("numa").child(
                Element::new("cell")
                    .attr("id", 0)
                    .attr("cpus", format!("0-{}", topology.maximum() - 1))
                    .attr("memory", memory::kib(memory::guest(spec)?))
                    .attr("unit", "KiB"),
            ),
        );
    }
    Ok(element)
}

/// Under translation there is no host CPU to pass on: its nearest kin is everything QEMU can translate, without
/// five-level paging, which costs each page walk a step.
fn model(cpu: &CPU, environment: &Environment) -> Element {
    let mode = cpu.model.as_deref().filter(|model| !model.is_empty()).unwrap_or("host-model");
    let unless_named = |element: Element, feature: &str| {
        if cpu.features.iter().any(|named| named.name == feature) {
            element
        } else {
            element.child(Element::new("feature").attr("name", feature).attr("policy", "disable"))
        }
    };
    match (mode, environment.emulation) {
        ("host-model" | "host-passthrough", true) => {
            unless_named(Element::new("cpu").attr("mode", "maximum").attr("check", "none"), "la57")
        }
        ("host-model" | "host-passthrough", false) => Element::new("cpu").attr("mode", mode),
        (named, emulation) => Element::new("cpu")
            .attr("mode", "custom")
            .attr("match", "exact")
            // A translated CPU lacks features of most named models; the guest still runs.
            .attr_opt("check", emulation.then_some("none"))
            .child(Element::with_text("model", named).attr("fallback", "forbid")),
    }
}

#[cfg(test)]
mod tests {
    use api::kubevirt::v1::{CPU, DomainSpec};

    use super::*;

    #[track_caller]
    fn check(sockets: Option<i64>, cores: Option<i64>, max: Option<i64>, expect: (u64, u64)) {
        let cpu = CPU { sockets, cores, max_sockets: max, ..CPU::default() };
        let topology = Topology::of(&DomainSpec { cpu: Some(cpu), ..DomainSpec::default() }).unwrap();
        assert_eq!((topology.vcpus(), topology.maximum()), expect);
    }

    #[test]
    fn room_for_hotplug_is_bounded_by_the_machine() {
        check(None, None, None, (1, 1));
        check(Some(2), Some(3), None, (6, 6));
        check(Some(1), Some(1), Some(4), (1, 4));
        check(Some(4), Some(1), Some(2), (4, 4));
        check(Some(60), Some(4), Some(240), (240, 252));
    }

    #[test]
    fn impossible_counts_are_refused() {
        let cpu = CPU { sockets: Some(i64::MAX), cores: Some(i64::MAX), ..CPU::default() };
        let spec = DomainSpec { cpu: Some(cpu), ..DomainSpec::default() };
        assert_eq!(Topology::of(&spec), Err(Error::TooManyCpus { vcpus: u64::MAX, limit: 255 }));
    }
}
