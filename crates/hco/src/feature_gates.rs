//! The feature gates of the HyperConverged object. Pure.

use api::hco::FeatureGate;

/// A gate, and whether it is on where nothing is said.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) default: bool,
    /// It has a field in version v1beta1.
    pub(crate) in_v1beta1: bool,
}

const fn gate(name: &'static str, default: bool, in_v1beta1: bool) -> Known {
    Known { name, default, in_v1beta1 }
}

pub(crate) const ALIGN_CPUS: &str = "alignCPUs";
pub(crate) const CONTAINER_PATH_VOLUMES: &str = "containerPathVolumes";
pub(crate) const DECENTRALIZED_LIVE_MIGRATION: &str = "decentralizedLiveMigration";
pub(crate) const DECLARATIVE_HOTPLUG_VOLUMES: &str = "declarativeHotplugVolumes";
pub(crate) const KUBE_SECONDARY_DNS: &str = "deployKubeSecondaryDNS";
pub(crate) const OBSERVABILITY_CONTROLLER: &str = "deployObservabilityController";
pub(crate) const DOWNWARD_METRICS: &str = "downwardMetrics";
pub(crate) const INCREMENTAL_BACKUP: &str = "incrementalBackup";
pub(crate) const OBJECT_GRAPH: &str = "objectGraph";
pub(crate) const TEMPLATE: &str = "template";

/// Every gate that does something, in order.
pub(crate) const KNOWN: [Known; 10] = [
    gate(ALIGN_CPUS, false, true),
    gate(CONTAINER_PATH_VOLUMES, false, true),
    gate(DECENTRALIZED_LIVE_MIGRATION, true, true),
    gate(DECLARATIVE_HOTPLUG_VOLUMES, true, true),
    gate(KUBE_SECONDARY_DNS, false, true),
    gate(OBSERVABILITY_CONTROLLER, false, false),
    gate(DOWNWARD_METRICS, false, true),
    gate(INCREMENTAL_BACKUP, false, true),
    gate(OBJECT_GRAPH, false, true),
    gate(TEMPLATE, true, false),
];

/// Gates that fields have replaced: the gate, and the field below `spec`.
pub(crate) const REPLACED: [(&str, &str); 3] = [
    ("disableMDevConfiguration", "virtualization.mediatedDevicesConfiguration.enabled"),
    ("enableMultiArchBootImageImport", "workloadSources.enableMultiArchBootImageImport"),
    ("persistentReservation", "storage.persistentReservationConfiguration.enabled"),
];

/// Gates that once did something: nothing acts on them any more.
pub(crate) const DEPRECATED: [&str; 11] = [
    "autoResourceLimits",
    "deployKubevirtIpamController",
    "deployTektonTaskResources",
    "deployVmConsoleProxy",
    "enableApplicationAwareQuota",
    "enableCommonBootImageImport",
    "enableManagedTenantQuota",
    "nonRoot",
    "primaryUserDefinedNetworkBinding",
    "videoConfig",
    "withHostPassthroughCPU",
];

/// Whether the gate `name` is on: as `gates` say, else as it is by default.
pub(crate) fn is_on(gates: &[FeatureGate], name: &str) -> bool {
    let said = gates.iter().find(|gate| gate.name.eq_ignore_ascii_case(name));
    said.map_or_else(|| KNOWN.iter().any(|known| known.name == name && known.default), FeatureGate::is_enabled)
}

/// Has the gate `name` be on or off, with no more words than that takes.
pub(crate) fn set(gates: &mut Vec<FeatureGate>, name: &str, on: bool) {
    if is_on(gates, name) == on {
        return;
    }
    gates.retain(|gate| !gate.name.eq_ignore_ascii_case(name));
    if is_on(gates, name) != on {
        let state = if on { "Enabled" } else { "Disabled" };
        gates.push(FeatureGate { name: name.to_owned(), state: Some(state.to_owned()) });
    }
}

/// What is to be said of gates that nothing acts on.
pub(crate) fn warnings(gates: &[FeatureGate]) -> Vec<String> {
    let known = |name: &str| KNOWN.iter().any(|known| known.name.eq_ignore_ascii_case(name));
    let replaced = |name: &str| REPLACED.iter().any(|(gate, _)| gate.eq_ignore_ascii_case(name));
    let deprecated = |name: &str| DEPRECATED.iter().any(|gate| gate.eq_ignore_ascii_case(name));
    let one = |gate: &FeatureGate| {
        let name = gate.name.as_str();
        if known(name) || replaced(name) {
            // A gate that a field has replaced is moved there before it is looked at.
            None
        } else if deprecated(name) {
            Some(format!("the {name} featureGate is deprecated and will be removed in a future release."))
        } else {
            Some(format!("the {name} featureGate is unknown and ignored."))
        }
    };
    gates.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(name: &str, state: Option<&str>) -> FeatureGate {
        FeatureGate { name: name.to_owned(), state: state.map(str::to_owned) }
    }

    #[track_caller]
    fn check(gates: &[FeatureGate], name: &str, on: bool) {
        assert_eq!(is_on(gates, name), on, "{name} of {gates:?}");
    }

    #[test]
    fn gates_are_as_they_are_said_to_be_and_else_as_they_are_by_default() {
        check(&[], TEMPLATE, true);
        check(&[], ALIGN_CPUS, false);
        check(&[gate("ALIGNCPUS", None)], ALIGN_CPUS, true);
        check(&[gate("template", Some("Disabled"))], TEMPLATE, false);
        check(&[gate("alignCPUs", Some("Disabled"))], ALIGN_CPUS, false);
    }

    #[test]
    fn setting_a_gate_to_its_default_leaves_no_entry() {
        let mut gates = vec![gate("alignCPUs", None), gate("unknown", None)];
        set(&mut gates, ALIGN_CPUS, false);
        assert_eq!(gates, [gate("unknown", None)]);
        set(&mut gates, TEMPLATE, false);
        assert_eq!(gates[1], gate("template", Some("Disabled")));
        set(&mut gates, TEMPLATE, true);
        assert_eq!(gates.len(), 1);
    }

    #[test]
    fn gates_that_nothing_acts_on_are_named() {
        let found = warnings(&[gate("nonRoot", None), gate("warp", None), gate("alignCPUs", None)]);
        assert_eq!(
            found,
            [
                "the nonRoot featureGate is deprecated and will be removed in a future release.",
                "the warp featureGate is unknown and ignored.",
            ]
        );
    }
}
