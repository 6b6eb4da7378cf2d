//! The labels of a node: what its libvirt can give a guest, in the words VMIs are scheduled by. Pure.

use std::collections::BTreeMap;

use api::kubevirt::constants::label;
use domain::NodeCapabilities;
use serde_json::{Value, json};

/// Machine types of the QEMU in our launcher image, where libvirt did not name them.
const MACHINES: [&str; 5] = ["q35", "pc", "pc-q35-10.0", "pc-i440fx-10.0", "microvm"];

/// Processors so old that nobody should rely on them, where the administrator names none.
const OBSOLETE: [&str; 18] = [
    "486",
    "486-v1",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "coreduo",
    "n270",
    "core2duo",
    "Conroe",
    "athlon",
    "phenom",
    "qemu64",
    "qemu32",
    "kvm64",
    "kvm32",
    "Opteron_G1",
    "Opteron_G2",
];

/// What begins the keys of labels that are ours alone: one that is there and not wanted is removed.
const OURS: [&str; 8] = [
    label::CPU_FEATURE_PREFIX,
    label::CPU_MODEL_PREFIX,
    label::CPU_MODEL_MIGRATION_PREFIX,
    label::CPU_TIMER_PREFIX,
    label::CPU_VENDOR_PREFIX,
    label::HYPERV_PREFIX,
    label::HOST_MODEL_CPU_PREFIX,
    label::HOST_MODEL_FEATURES_PREFIX,
];
/// Whole keys of which the same is true.
const ALONE: [&str; 4] = [label::OBSOLETE_HOST_MODEL, label::REALTIME, label::SEV, label::SEV_ES];

/// What is known of this machine.
pub(crate) struct Machine {
    /// What libvirt told.
    pub capabilities: NodeCapabilities,
    /// Guests run on KVM.
    pub kvm: bool,
    /// Real-time scheduling is not limited.
    pub realtime: bool,
}

/// The labels a node should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels {
    all: BTreeMap<String, String>,
    /// The host's model, when it is obsolete.
    pub obsolete: Option<String>,
}

impl Labels {
    fn say(&mut self, prefix: &str, name: &str) {
        self.put(prefix, name, "true");
    }

    fn put(&mut self, prefix: &str, name: &str, value: &str) {
        if is_name(name) {
            self.all.insert(format!("{prefix}{name}"), value.to_owned());
        }
    }

    /// What to merge into a node that has `held`: null takes a label away.
    pub(crate) fn changes(&self, held: &BTreeMap<String, String>) -> BTreeMap<String, Value> {
        let ours = |key: &String| OURS.iter().any(|prefix| key.starts_with(prefix)) || ALONE.contains(&key.as_str());
        let gone = held.keys().filter(|key| ours(key) && !self.all.contains_key(*key));
        let wanted = self.all.iter().filter(|(key, value)| held.get(*key) != Some(*value));
        wanted
            .map(|(key, value)| (key.clone(), json!(value)))
            .chain(gone.map(|key| (key.clone(), Value::Null)))
            .collect()
    }
}

/// What may follow the slash in a label's key.
fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() < 64 && name.chars().all(inner) && end(name.chars().next()) && end(name.chars().next_back())
}

impl Machine {
    /// The labels under the administrator's list of obsolete models; an empty one is the default.
    pub(crate) fn labels(&self, obsolete: &BTreeMap<String, bool>) -> Labels {
        let known = &self.capabilities;
        let is_obsolete = |model: &str| {
            if obsolete.is_empty() { OBSOLETE.contains(&model) } else { obsolete.get(model).copied().unwrap_or(false) }
        };
        let mut out = Labels::default();
        if known.machines.is_empty() {
            MACHINES.iter().for_each(|machine| out.say(label::MACHINE_TYPE_PREFIX, machine));
        }
        known.machines.iter().for_each(|machine| out.say(label::MACHINE_TYPE_PREFIX, machine));
        known.features.iter().for_each(|feature| out.say(label::CPU_FEATURE_PREFIX, feature));
        for model in known.models.iter().filter(|model| !is_obsolete(model)) {
            out.say(label::CPU_MODEL_PREFIX, model);
            out.say(label::CPU_MODEL_MIGRATION_PREFIX, model);
        }
        if !known.host_model.is_empty() {
            out.say(label::HOST_MODEL_CPU_PREFIX, &known.host_model);
            if is_obsolete(&known.host_model) {
                out.all.insert(label::OBSOLETE_HOST_MODEL.to_owned(), "true".to_owned());
                out.obsolete = Some(known.host_model.clone());
            } else {
                out.say(label::CPU_MODEL_MIGRATION_PREFIX, &known.host_model);
            }
        }
        known.host_model_features.iter().for_each(|feature| out.say(label::HOST_MODEL_FEATURES_PREFIX, feature));
        out.say(label::CPU_VENDOR_PREFIX, &known.vendor);
        if self.kvm {
            // What libvirt can name only as the host's own model is still a model to ask for.
            out.say(label::CPU_MODEL_PREFIX, "host-passthrough");
            known.hyperv.iter().for_each(|feature| out.say(label::HYPERV_PREFIX, feature));
        }
        if known.tsc_frequency > 0 {
            out.put(label::CPU_TIMER_PREFIX, "tsc-frequency", &known.tsc_frequency.to_string());
            out.put(label::CPU_TIMER_PREFIX, "tsc-scalable", &known.tsc_scalable.to_string());
        }
        let flags = [(label::REALTIME, self.realtime), (label::SEV, known.sev), (label::SEV_ES, known.sev_es)];
        out.all.extend(flags.iter().filter(|(_, set)| *set).map(|(key, _)| ((*key).to_owned(), String::new())));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let capabilities = NodeCapabilities {
            host_model: "Skylake-Client".into(),
            vendor: "Intel".into(),
            host_model_features: list(&["vmx"]),
            features: list(&["aes", "sse4.1", "bad name", "_x"]),
            models: list(&["Penryn", "qemu64", "Skylake-Client"]),
            machines: list(&["q35"]),
            hyperv: list(&["vapic"]),
            tsc_frequency: 42,
            ..Default::default()
        };
        Machine { capabilities, kvm: true, realtime: true }
    }

    #[track_caller]
    fn check(obsolete: &[(&str, bool)], expect: &[&str]) {
        let obsolete = obsolete.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect();
        let labels = machine().labels(&obsolete);
        let said: Vec<String> = labels
            .all
            .iter()
            .map(|(key, value)| if value == "true" { key.clone() } else { format!("{key}={value}") })
            .collect();
        assert_eq!(said, expect);
    }

    #[test]
    fn node_labels_follow_libvirts_capabilities() {
        check(
            &[],
            &[
                "cpu-feature.node.kubevirt.io/aes",
                "cpu-feature.node.kubevirt.io/sse4.1",
                "cpu-model-migration.node.kubevirt.io/Penryn",
                "cpu-model-migration.node.kubevirt.io/Skylake-Client",
                "cpu-model.node.kubevirt.io/Penryn",
                "cpu-model.node.kubevirt.io/Skylake-Client",
                "cpu-model.node.kubevirt.io/host-passthrough",
                "cpu-timer.node.kubevirt.io/tsc-frequency=42",
                "cpu-timer.node.kubevirt.io/tsc-scalable=false",
                "cpu-vendor.node.kubevirt.io/Intel",
                "host-model-cpu.node.kubevirt.io/Skylake-Client",
                "host-model-required-features.node.kubevirt.io/vmx",
                "hyperv.node.kubevirt.io/vapic",
                "kubevirt.io/realtime=",
                "machine-type.node.kubevirt.io/q35",
            ],
        );
    }

    #[test]
    fn the_administrator_says_which_models_are_obsolete() {
        let labels = machine().labels(&[("Skylake-Client".to_owned(), true), ("Penryn".to_owned(), false)].into());
        assert_eq!(labels.obsolete.as_deref(), Some("Skylake-Client"));
        assert!(labels.all.contains_key("node-labeller.kubevirt.io/obsolete-host-model"));
        assert!(labels.all.contains_key("cpu-model.node.kubevirt.io/qemu64"), "the default list is replaced");
        for gone in ["cpu-model.node.kubevirt.io/Skylake-Client", "cpu-model-migration.node.kubevirt.io/Skylake-Client"]
        {
            assert!(!labels.all.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn labels_that_are_true_no_more_are_taken_away_and_others_are_left() {
        let labels = machine().labels(&BTreeMap::new());
        let mut held = labels.all.clone();
        assert_eq!(labels.changes(&held), BTreeMap::new());
        for key in
            ["cpu-feature.node.kubevirt.io/avx512f", "kubevirt.io/sev", "kubernetes.io/os", "kubevirt.io/schedulable"]
        {
            held.insert(key.to_owned(), "true".to_owned());
        }
        held.remove("cpu-feature.node.kubevirt.io/aes");
        let expect = BTreeMap::from([
            ("cpu-feature.node.kubevirt.io/aes".to_owned(), json!("true")),
            ("cpu-feature.node.kubevirt.io/avx512f".to_owned(), Value::Null),
            ("kubevirt.io/sev".to_owned(), Value::Null),
        ]);
        assert_eq!(labels.changes(&held), expect);
    }
}
