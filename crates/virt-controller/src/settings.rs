//! What the KubeVirt object says to this controller, with every default filled in. Pure.

use std::collections::BTreeMap;

use api::kubevirt::constants::eviction_strategy;
use api::kubevirt::v1::KubeVirt;
use meta::quantity::Amount;

/// Choices of the cluster's administrator.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Image of the launcher container.
    pub launcher_image: String,
    /// Pull policy of that image.
    pub image_pull_policy: String,
    /// Software emulation is wanted even where KVM is usable.
    pub use_emulation: bool,
    /// Virtual CPUs per requested physical one.
    pub cpu_allocation_ratio: i64,
    /// Percent of its request a guest sees as memory.
    pub memory_overcommit: i64,
    /// What the computed overhead is multiplied by, in percent.
    pub overhead_percent: i64,
    /// Labels every node of a virtual machine must have.
    pub node_selectors: BTreeMap<String, String>,
    /// Runtime class of launcher pods.
    pub runtime_class: Option<String>,
    /// What becomes of a guest whose pod is evicted, where the guest does not say.
    pub eviction_strategy: String,
    /// Migrations at once in the cluster.
    pub parallel_migrations: usize,
    /// Migrations at once away from one node.
    pub parallel_outbound_migrations: usize,
    /// A taint of this key, with the effect NoSchedule, empties a node.
    pub drain_taint_key: String,
    /// Storage class of what guests keep beside their disks, if one is named.
    pub vm_state_storage_class: Option<String>,
    /// Percent-encoded feature gates switched on.
    pub feature_gates: Vec<String>,
    /// How the pod network is bound to where a machine does not say.
    pub pod_network_binding: String,
    /// Running guests get what of a changed template needs no restart.
    pub live_update: bool,
    /// Whether machines keep their references to instance types and preferences: reference, expand or expandAll.
    pub reference_policy: String,
}

impl Settings {
    /// The settings of `kubevirt` (none: defaults) for the given launcher image.
    pub fn of(kubevirt: Option<&KubeVirt>, launcher_image: &str) -> Self {
        let configuration = kubevirt.and_then(|kv| kv.spec.configuration.clone()).unwrap_or_default();
        let developer = configuration.developer_configuration.unwrap_or_default();
        let migrations = configuration.migrations.unwrap_or_default();
        let count = |given: Option<i64>, default: usize| given.and_then(|n| usize::try_from(n).ok()).unwrap_or(default);
        let word = |given: Option<String>, default: &str| {
            given.filter(|word| !word.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        let ratio = configuration.additional_guest_memory_overhead_ratio.as_deref().and_then(|r| r.parse::<f64>().ok());
        Settings {
            launcher_image: launcher_image.to_owned(),
            image_pull_policy: kubevirt
                .and_then(|kv| kv.spec.image_pull_policy.clone())
                .filter(|policy| !policy.is_empty())
                .unwrap_or_else(|| "IfNotPresent".to_owned()),
            use_emulation: developer.use_emulation.unwrap_or(false),
            cpu_allocation_ratio: developer.cpu_allocation_ratio.map_or(10, i64::from).max(1),
            memory_overcommit: developer.memory_overcommit.map_or(100, i64::from).max(1),
            overhead_percent: ratio.filter(|r| *r >= 1.0 && *r < 100.0).map_or(100, |r| (r * 100.0).ceil() as i64),
            node_selectors: developer.node_selectors,
            runtime_class: configuration.default_runtime_class.filter(|class| !class.is_empty()),
            eviction_strategy: word(configuration.eviction_strategy, eviction_strategy::NONE),
            parallel_migrations: count(migrations.parallel_migrations_per_cluster, 5),
            parallel_outbound_migrations: count(migrations.parallel_outbound_migrations_per_node, 2),
            drain_taint_key: word(migrations.node_drain_taint_key, "kubevirt.io/drain"),
            vm_state_storage_class: configuration.vm_state_storage_class.filter(|class| !class.is_empty()),
            feature_gates: developer.feature_gates,
            pod_network_binding: word(
                configuration.network.and_then(|network| network.default_network_interface),
                "bridge",
            ),
            live_update: configuration.vm_rollout_strategy.as_deref() != Some("Stage"),
            reference_policy: word(
                configuration.instancetype.and_then(|instancetype| instancetype.reference_policy),
                "reference",
            ),
        }
    }

    /// The smallest CPU request that a share of one physical CPU comes to.
    pub fn cpu_request(&self, vcpus: i64) -> Amount {
        let milli = (vcpus * 1000).div_euclid(self.cpu_allocation_ratio).max(1);
        format!("{milli}m").parse().unwrap_or(Amount::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_without_a_kubevirt_object() {
        let settings = Settings::of(None, "image");
        assert_eq!(settings.cpu_request(1).to_decimal().0, "100m");
        assert_eq!(settings.cpu_request(4).to_decimal().0, "400m");
        assert!(!settings.use_emulation && settings.image_pull_policy == "IfNotPresent");
    }
}
