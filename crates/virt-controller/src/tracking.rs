//! Whether what changes on a machine's disks is tracked, so that its backups can be incremental. Pure.
//!
//! ```text
//!  (not selected)                selected, does not run        started            guest runs
//!    Undefined ------------------------> Initializing ------> Initializing --------> Enabled
//!        `-- selected while it runs --> PendingRestart --restart--^
//!  Enabled --no longer selected--> PendingRestart --restart or stop--> Disabled
//! ```

use std::collections::BTreeMap;

use api::kubevirt::constants::tracking::{DISABLED, ENABLED, GATE, GATE_DISABLED, INITIALIZING, PENDING_RESTART};
use api::kubevirt::v1::{
    ChangedBlockTrackingSelectors, ChangedBlockTrackingStatus, KubeVirt, VirtualMachine, VirtualMachineInstance,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};

type Labels = BTreeMap<String, String>;

/// What the administrator wants of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The machine, or its namespace, is selected.
    pub selected: bool,
    /// The gate of incremental backups is on.
    pub gate: bool,
}

impl Wanted {
    /// A machine that starts now is tracked.
    pub fn starts_tracked(self) -> bool {
        self.selected && self.gate
    }
}

/// The administrator's selectors, if there are any.
pub fn selectors(kubevirt: Option<&KubeVirt>) -> Option<ChangedBlockTrackingSelectors> {
    kubevirt?.spec.configuration.as_ref()?.changed_block_tracking_label_selectors.as_deref().cloned()
}

/// Whether the gate is on.
pub fn gate(kubevirt: Option<&KubeVirt>) -> bool {
    let developer = kubevirt.and_then(|kv| kv.spec.configuration.as_ref()?.developer_configuration.as_ref());
    developer.is_some_and(|developer| developer.feature_gates.iter().any(|gate| gate == GATE))
}

/// Which machines are tracked, in a word.
pub fn index(kubevirt: &KubeVirt) -> String {
    let said = selectors(Some(kubevirt)).map(|all| serde_json::to_string(&all).unwrap_or_default());
    format!("tracking:{}:{}", gate(Some(kubevirt)), said.unwrap_or_default())
}

/// Whether a machine with these labels in a namespace with those is selected.
pub fn selected(selectors: &ChangedBlockTrackingSelectors, machine: &Labels, namespace: &Labels) -> bool {
    matches(selectors.virtual_machine_label_selector.as_ref(), machine)
        || matches(selectors.namespace_label_selector.as_ref(), namespace)
}

/// A selector that makes no sense selects nothing.
fn matches(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let selector = selector.and_then(|selector| Selector::try_from(selector.clone()).ok());
    selector.is_some_and(|selector| selector.matches(labels))
}

/// What the status of `vm` says of it, given its instance.
pub fn status(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    wanted: Wanted,
) -> Option<ChangedBlockTrackingStatus> {
    let held = vm.status.as_ref().and_then(|status| status.changed_block_tracking.as_ref());
    let held = held.map_or("", |known| known.state.as_str());
    let of_instance = |vmi: &VirtualMachineInstance| {
        vmi.status.as_ref().and_then(|status| status.changed_block_tracking.clone()).unwrap_or_default()
    };
    let instance = vmi.map(of_instance);
    let state = next(held, instance.as_ref().map(|known| known.state.as_str()), wanted)?;
    Some(ChangedBlockTrackingStatus { state: state.to_owned(), backup_status: None })
}

/// The state after `held`, with an instance in this state if there is one; none is Undefined.
fn next(held: &str, instance: Option<&str>, wanted: Wanted) -> Option<&'static str> {
    let runs_tracked = instance.is_some_and(|state| [INITIALIZING, ENABLED].contains(&state));
    match (wanted.selected, wanted.gate) {
        (true, true) => Some(match (instance, held) {
            (Some(ENABLED), _) => ENABLED,
            (Some(INITIALIZING), _) => INITIALIZING,
            (Some(_), _) => PENDING_RESTART,
            (None, ENABLED) => ENABLED,
            (None, _) => INITIALIZING,
        }),
        (true, false) if !runs_tracked => Some(GATE_DISABLED),
        _ if runs_tracked => Some(PENDING_RESTART),
        // It never came to be.
        _ if ["", GATE_DISABLED].contains(&held) => None,
        _ => Some(DISABLED),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn states() {
        #[track_caller]
        fn check(held: &str, instance: Option<&str>, selected: bool, gate: bool, expect: Option<&str>) {
            assert_eq!(next(held, instance, Wanted { selected, gate }), expect);
        }
        check("", None, false, true, None);
        check("", Some(""), false, true, None);
        check("", None, true, true, Some("Initializing"));
        check("", Some(""), true, true, Some("PendingRestart"));
        check("PendingRestart", None, true, true, Some("Initializing"));
        check("PendingRestart", Some("Initializing"), true, true, Some("Initializing"));
        check("Initializing", Some("Enabled"), true, true, Some("Enabled"));
        check("Enabled", None, true, true, Some("Enabled"));
        check("Enabled", Some("Enabled"), false, true, Some("PendingRestart"));
        check("PendingRestart", None, false, true, Some("Disabled"));
        check("Disabled", Some(""), false, true, Some("Disabled"));
        check("Disabled", Some(""), true, true, Some("PendingRestart"));
        check("", Some(""), true, false, Some("IncrementalBackupFeatureGateDisabled"));
        check("IncrementalBackupFeatureGateDisabled", None, false, false, None);
        check("Enabled", Some("Enabled"), true, false, Some("PendingRestart"));
    }

    #[test]
    fn either_selector_selects() {
        #[track_caller]
        fn check(selectors: Value, expect: bool) {
            let labels = |key: &str| Labels::from([(key.to_owned(), "yes".to_owned())]);
            let selectors = serde_json::from_value(selectors).unwrap();
            assert_eq!(selected(&selectors, &labels("vm"), &labels("ns")), expect);
        }
        check(json!({}), false);
        check(json!({ "virtualMachineLabelSelector": { "matchLabels": { "vm": "yes" } } }), true);
        check(json!({ "virtualMachineLabelSelector": { "matchLabels": { "vm": "no" } } }), false);
        check(
            json!({ "namespaceLabelSelector": { "matchExpressions": [{ "key": "ns", "operator": "Exists" }] } }),
            true,
        );
        check(json!({ "virtualMachineLabelSelector": {} }), true);
    }
}
