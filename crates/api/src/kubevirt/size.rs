//! How many CPUs and how much memory a machine asks for.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meta::quantity::Amount;

use super::v1::DomainSpec;

/// What says how many CPUs the guest gets where no topology does, and its field below `spec.domain`: it gets as many as it may
/// use, and so the limit counts before the request.
pub fn asked_cpus(domain: &DomainSpec) -> Option<(&'static str, &Quantity)> {
    let resources = domain.resources.as_ref()?;
    let limit = resources.limits.get("cpu").map(|quantity| ("resources.limits.cpu", quantity));
    limit.or_else(|| resources.requests.get("cpu").map(|quantity| ("resources.requests.cpu", quantity)))
}

/// What says how much memory the guest sees, and its field below `spec.domain`.
pub fn asked_memory(domain: &DomainSpec) -> Option<(&'static str, &Quantity)> {
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let resources = domain.resources.as_ref();
    [
        ("memory.guest", guest),
        ("resources.requests.memory", resources.and_then(|list| list.requests.get("memory"))),
        ("resources.limits.memory", resources.and_then(|list| list.limits.get("memory"))),
    ]
    .into_iter()
    .find_map(|(field, quantity)| Some((field, quantity?)))
}

/// The memory the guest sees; none where nothing says so in a quantity.
pub fn guest_memory(domain: &DomainSpec) -> Amount {
    asked_memory(domain).and_then(|(_, quantity)| Amount::try_from(quantity).ok()).unwrap_or(Amount::ZERO)
}

/// What a running guest takes and gives back of its memory at a time, in bytes: all sizes of a guest whose memory changes are whole blocks.
pub const MEMORY_BLOCK: u64 = 2 << 20;
/// The same as users write it.
pub const MEMORY_BLOCK_TEXT: &str = "2Mi";
/// With less than this, a guest's memory does not change while it runs.
pub const LEAST_GUEST: u64 = 1 << 30;

/// Sockets, cores and threads, each at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets when the guest starts.
    pub sockets: u64,
    /// Cores of a socket.
    pub cores: u64,
    /// Threads of a core.
    pub threads: u64,
}

impl Topology {
    /// As the machine says; without any of the three, one socket for each CPU that [`asked_cpus`] finds.
    pub fn of(domain: &DomainSpec) -> Self {
        let cpu = domain.cpu.as_ref();
        let positive =
            |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
        let [sockets, cores, threads] =
            [cpu.and_then(|cpu| cpu.sockets), cpu.and_then(|cpu| cpu.cores), cpu.and_then(|cpu| cpu.threads)]
                .map(positive);
        let asked = || asked_cpus(domain).and_then(|(_, quantity)| Amount::try_from(quantity).ok()).map(Amount::bytes);
        let unsaid = sockets.or(cores).or(threads).is_none();
        let asked = unsaid.then(asked).flatten().filter(|cpus| *cpus > 0);
        Self { sockets: sockets.or(asked).unwrap_or(1), cores: cores.unwrap_or(1), threads: threads.unwrap_or(1) }
    }

    /// All of them together, saturating.
    pub fn vcpus(self) -> u64 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(domain: Value, vcpus: u64, memory: u64) {
        let domain: DomainSpec = serde_json::from_value(domain).unwrap();
        assert_eq!((Topology::of(&domain).vcpus(), guest_memory(&domain).bytes()), (vcpus, memory), "{domain:?}");
    }

    #[test]
    fn cpus_and_memory_of_a_machine() {
        check(json!({ "devices": {} }), 1, 0);
        let resources =
            json!({ "limits": { "cpu": "2500m", "memory": "2Ki" }, "requests": { "cpu": "1", "memory": "1Ki" } });
        check(json!({ "devices": {}, "resources": resources }), 3, 1024);
        let cpu = json!({ "cores": 2 });
        check(json!({ "devices": {}, "resources": resources, "cpu": cpu, "memory": { "guest": "3Ki" } }), 2, 3072);
        check(
            json!({ "devices": {}, "resources": { "limits": { "memory": "2Ki" }, "requests": { "cpu": "0" } } }),
            1,
            2048,
        );
        check(json!({ "devices": {}, "cpu": { "sockets": 2, "cores": 3, "threads": 4 } }), 24, 0);
        check(json!({ "devices": {}, "cpu": { "sockets": -1 } }), 1, 0);
    }
}
