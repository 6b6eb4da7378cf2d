//! Which nodes may run the pod.

use std::collections::BTreeMap;

use api::kubevirt::{
    v1::VirtualMachineInstance,
    words::{default, label},
};

use crate::settings::Settings;

/// Labels the node must have: the user's, the administrator's, and what the guest needs of the node.
pub(super) fn node_selector(
    vmi: &VirtualMachineInstance,
    settings: &Settings,
    emulation: bool,
) -> BTreeMap<String, String> {
    let spec = &vmi.spec;
    let mut out = settings.node_selectors.clone();
    out.extend(spec.node_selector.clone());
    out.insert(label::SCHEDULABLE.to_owned(), "true".to_owned());
    let architecture = spec.architecture.clone().unwrap_or_else(|| default::ARCHITECTURE.to_owned());
    out.insert("kubernetes.io/arch".to_owned(), architecture);
    // Versioned types are left to QEMU, which knows far more of them than a node has labels for.
    let machine = spec.domain.machine.as_ref().and_then(|machine| machine.type_.as_deref()).unwrap_or_default();
    if matches!(machine, "q35" | "pc") {
        out.insert(format!("{}{machine}", label::MACHINE_TYPE_PREFIX), "true".to_owned());
    }
    // Emulation offers every model on every node.
    let model = spec.domain.cpu.as_ref().and_then(|cpu| cpu.model.as_deref()).unwrap_or_default();
    if !emulation && !model.is_empty() && model != "host-model" && model != "host-passthrough" {
        out.insert(format!("{}{model}", label::CPU_MODEL_PREFIX), "true".to_owned());
    }
    out
}
