//! Which nodes may run the pod. Pure.

use std::collections::BTreeMap;

use api::kubevirt::constants::{default, label};
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
};

use crate::settings::Settings;

const HOST_MODEL: &str = "host-model";
const HOST_PASSTHROUGH: &str = "host-passthrough";

/// The model the guest asks for; the host's when it asks for none.
fn model(vmi: &VirtualMachineInstance) -> &str {
    let asked = vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.model.as_deref()).unwrap_or_default();
    if asked.is_empty() { HOST_MODEL } else { asked }
}

/// Features of the processor under one of these policies.
fn features<'a>(vmi: &'a VirtualMachineInstance, policies: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let features = vmi.spec.domain.cpu.as_ref().map(|cpu| cpu.features.as_slice()).unwrap_or_default();
    let asked = features.iter().filter(|one| policies.contains(&one.policy.as_deref().unwrap_or_default()));
    asked.map(|one| one.name.as_str())
}

/// Labels the node must have: the user's, the administrator's, and what the guest needs of the node.
pub(super) fn node_selector(
    vmi: &VirtualMachineInstance,
    settings: &Settings,
    emulation: bool,
) -> BTreeMap<String, String> {
    let spec = &vmi.spec;
    let mut out = settings.node_selectors.clone();
    out.extend(spec.node_selector.clone());
    let mut need = |key: String| out.insert(key, "true".to_owned());
    need(label::SCHEDULABLE.to_owned());
    // Versioned types are left to QEMU, which knows far more of them than a node has labels for.
    let machine = spec.domain.machine.as_ref().and_then(|machine| machine.type_.as_deref()).unwrap_or_default();
    if matches!(machine, "q35" | "pc") {
        need(format!("{}{machine}", label::MACHINE_TYPE_PREFIX));
    }
    // Emulation offers every model and every feature it has on every node.
    if !emulation {
        if !matches!(model(vmi), HOST_MODEL | HOST_PASSTHROUGH) {
            need(format!("{}{}", label::CPU_MODEL_PREFIX, model(vmi)));
        }
        for feature in features(vmi, &["", "require"]) {
            need(format!("{}{feature}", label::CPU_FEATURE_PREFIX));
        }
    }
    let architecture = spec.architecture.clone().unwrap_or_else(|| default::ARCHITECTURE.to_owned());
    out.insert("kubernetes.io/arch".to_owned(), architecture);
    out
}

/// The user's affinity, and labels the node must not have: a processor that is not to be relied on any more, where the
/// guest takes whatever the host's is, and features the guest must not see.
pub(super) fn affinity(vmi: &VirtualMachineInstance, emulation: bool) -> Option<Affinity> {
    let mut rejected: Vec<String> = Vec::new();
    if !emulation {
        rejected.extend((model(vmi) == HOST_MODEL).then(|| label::OBSOLETE_HOST_MODEL.to_owned()));
        rejected.extend(features(vmi, &["forbid"]).map(|name| format!("{}{name}", label::CPU_FEATURE_PREFIX)));
    }
    let mut affinity = vmi.spec.affinity.clone();
    if rejected.is_empty() {
        return affinity;
    }
    let requirements = rejected.into_iter().map(|key| NodeSelectorRequirement {
        key,
        operator: "DoesNotExist".to_owned(),
        values: None,
    });
    let requirements: Vec<_> = requirements.collect();
    let node = affinity.get_or_insert_default().node_affinity.get_or_insert_with(NodeAffinity::default);
    let required = node.required_during_scheduling_ignored_during_execution.get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    // One term is enough for a node to fit, so each has to say it.
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().extend(requirements.iter().cloned());
    }
    affinity
}

/// Labels that the target of a migration needs beside those of any launcher pod: what the guest was given by the host it
/// was started on. `source` is that of the pod it runs in, which remembers it when the guest has been moved before.
pub fn migration_selector(
    vmi: &VirtualMachineInstance,
    emulation: bool,
    source: &BTreeMap<String, String>,
    node: &Node,
) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    if emulation || !matches!(model(vmi), HOST_MODEL | HOST_PASSTHROUGH) {
        return out;
    }
    let known = [label::CPU_MODEL_MIGRATION_PREFIX, label::HOST_MODEL_CPU_PREFIX];
    if source.keys().any(|key| known.iter().any(|prefix| key.starts_with(prefix))) {
        let kept = |key: &String| {
            key.starts_with(label::CPU_FEATURE_PREFIX) || known.iter().any(|prefix| key.starts_with(prefix))
        };
        out.extend(source.iter().filter(|(key, _)| kept(key)).map(|(key, value)| (key.clone(), value.clone())));
        return out;
    }
    // A guest with the very processor of its host goes only where the host's is the same.
    let passed = model(vmi) == HOST_PASSTHROUGH;
    for key in node.metadata.labels.iter().flat_map(BTreeMap::keys) {
        let needed = if let Some(model) = key.strip_prefix(label::HOST_MODEL_CPU_PREFIX) {
            let prefix = if passed { label::HOST_MODEL_CPU_PREFIX } else { label::CPU_MODEL_MIGRATION_PREFIX };
            format!("{prefix}{model}")
        } else if let Some(feature) = key.strip_prefix(label::HOST_MODEL_FEATURES_PREFIX) {
            format!("{}{feature}", label::CPU_FEATURE_PREFIX)
        } else if passed && key.starts_with(label::CPU_FEATURE_PREFIX) {
            key.clone()
        } else {
            continue;
        };
        out.insert(needed, "true".to_owned());
    }
    out
}

/// Why none of `nodes` can take a guest whose processor needs `selector`, in a sentence; none when one can.
pub fn unsuitable<'a>(
    selector: &BTreeMap<String, String>,
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Option<String> {
    let mut said = Vec::new();
    for node in nodes {
        let labels = node.metadata.labels.as_ref();
        let lacks = |(key, value): &(&String, &String)| labels.and_then(|all| all.get(*key)) != Some(*value);
        let missing: Vec<&str> = selector.iter().filter(lacks).map(|(key, _)| key.as_str()).collect();
        let (first, more) = missing.split_first()?;
        let named = node.metadata.name.as_deref().unwrap_or_default();
        let more = if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
        said.push(format!("{named} lacks {first}{more}"));
    }
    let none = "there is no other node";
    let nodes = if said.is_empty() { none.to_owned() } else { said.join("; ") };
    Some(format!("no other node has the processor that the guest was started with: {nodes}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn vmi(cpu: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({ "spec": { "domain": { "cpu": cpu, "devices": {} } } })).unwrap()
    }

    fn node(name: &str, labels: &[&str]) -> Node {
        let labels: BTreeMap<&str, &str> = labels.iter().map(|key| (*key, "true")).collect();
        serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap()
    }

    /// The labels about processors that a pod selects by.
    #[track_caller]
    fn check(cpu: Value, emulation: bool, expect: &[&str]) {
        let selector = node_selector(&vmi(cpu), &Settings::of(None, "i"), emulation);
        let found: Vec<&str> = selector.keys().map(String::as_str).filter(|key| key.starts_with("cpu-")).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn models_and_features_are_looked_for_where_processors_are_real() {
        let named = json!({ "model": "Haswell", "features": [
            { "name": "apic", "policy": "require" }, { "name": "aes" }, { "name": "avx", "policy": "optional" },
        ] });
        let labels = [
            "cpu-feature.node.kubevirt.io/aes",
            "cpu-feature.node.kubevirt.io/apic",
            "cpu-model.node.kubevirt.io/Haswell",
        ];
        check(named.clone(), false, &labels);
        check(named, true, &[]);
        check(json!({ "model": "host-model" }), false, &[]);
        check(json!({}), false, &[]);
    }

    #[test]
    fn obsolete_hosts_and_forbidden_features_are_rejected_in_every_term() {
        let mut guest = vmi(json!({ "features": [{ "name": "vmx", "policy": "forbid" }] }));
        let keys = |affinity: Option<Affinity>| -> Vec<Vec<String>> {
            let node = affinity.and_then(|affinity| affinity.node_affinity);
            let required = node.and_then(|node| node.required_during_scheduling_ignored_during_execution);
            let terms = required.map(|required| required.node_selector_terms).unwrap_or_default();
            let keys =
                |term: NodeSelectorTerm| term.match_expressions.into_iter().flatten().map(|one| one.key).collect();
            terms.into_iter().map(keys).collect()
        };
        let ours = ["node-labeller.kubevirt.io/obsolete-host-model", "cpu-feature.node.kubevirt.io/vmx"];
        assert_eq!(keys(affinity(&guest, false)), [ours]);
        assert_eq!(affinity(&guest, true), None);
        guest.spec.affinity = serde_json::from_value(json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "a", "operator": "Exists" }] },
                { "matchExpressions": [{ "key": "b", "operator": "Exists" }] },
            ] },
        } }))
        .unwrap();
        assert_eq!(keys(affinity(&guest, false)), [["a", ours[0], ours[1]], ["b", ours[0], ours[1]]]);
    }

    #[test]
    fn a_moved_guest_keeps_the_processor_it_was_started_with() {
        let guest = vmi(json!({ "model": "host-model" }));
        let first = node(
            "node1",
            &["host-model-cpu.node.kubevirt.io/Skylake", "host-model-required-features.node.kubevirt.io/avx512f"],
        );
        let selector = migration_selector(&guest, false, &BTreeMap::new(), &first);
        let keys: Vec<&str> = selector.keys().map(String::as_str).collect();
        assert_eq!(keys, ["cpu-feature.node.kubevirt.io/avx512f", "cpu-model-migration.node.kubevirt.io/Skylake"]);
        let second = node("node2", &["host-model-cpu.node.kubevirt.io/Icelake"]);
        assert_eq!(migration_selector(&guest, false, &selector, &second), selector);
        assert!(migration_selector(&guest, true, &BTreeMap::new(), &first).is_empty());
        let passed = vmi(json!({ "model": "host-passthrough" }));
        let selector = migration_selector(&passed, false, &BTreeMap::new(), &first);
        assert!(selector.contains_key("host-model-cpu.node.kubevirt.io/Skylake"), "{selector:?}");
    }

    #[test]
    fn an_unsuitable_node_is_refused_with_the_reason() {
        let selector = BTreeMap::from(
            ["cpu-feature.node.kubevirt.io/avx512f", "cpu-model-migration.node.kubevirt.io/Skylake"]
                .map(|key| (key.to_owned(), "true".to_owned())),
        );
        let (bare, half) = (node("node2", &[]), node("node3", &["cpu-model-migration.node.kubevirt.io/Skylake"]));
        let said = unsuitable(&selector, [&bare, &half]).unwrap();
        let why = "no other node has the processor that the guest was started with: node2 lacks \
                   cpu-feature.node.kubevirt.io/avx512f (and 1 more); node3 lacks cpu-feature.node.kubevirt.io/avx512f";
        assert_eq!(said, why);
        let full =
            node("node4", &["cpu-feature.node.kubevirt.io/avx512f", "cpu-model-migration.node.kubevirt.io/Skylake"]);
        assert_eq!(unsuitable(&selector, [&bare, &full]), None);
    }
}
