//! What the compiler does not tell: fields that act without code that reads them by their type.

/// Passed on with all that is below, or read below it as JSON: schema, place, crate, and the code that does it.
pub(super) const WHOLE: &[(&str, &str, &str, &str)] = &[];

/// Read as JSON, or acted on by admission, whose answer is all there is to do: schema, place, crate, and the code that does it.
pub(super) const OTHERWISE: &[(&str, &str, &str, &str)] = &[
    (
        "VirtualMachineInstance",
        "domain.devices.autoattachPodInterface",
        "virt-api",
        "spec.pointer(\"/domain/devices/autoattachPodInterface\")",
    ),
    (
        "KubeVirt",
        "spec.configuration.architectureConfiguration.amd64.emulatedMachines",
        "virt-api",
        "arch.emulated_machines.clone()",
    ),
    ("KubeVirt", "spec.configuration.emulatedMachines", "virt-api", "configuration.emulated_machines.clone()"),
    (
        "KubeVirt",
        "spec.configuration.network.permitBridgeInterfaceOnPodNetwork",
        "virt-api",
        "network.and_then(|n| n.permit_bridge_interface_on_pod_network)",
    ),
    ("KubeVirt", "spec.uninstallStrategy", "virt-operator", "pointer(\"/spec/uninstallStrategy\")"),
    ("CDI", "spec.uninstallStrategy", "cdi", "cdi.spec.uninstall_strategy.as_deref() == Some(BLOCK)"),
];

/// With nothing to act on: schema, place, and why.
pub(super) const INERT: &[(&str, &str, &str)] = &[
    ("VirtualMachineInstance", "domain.devices.inputs.name", "tells entries apart"),
    ("VirtualMachineInstance", "domain.devices.interfaces.ports.name", "tells entries apart"),
    ("VirtualMachine", "spec.dataVolumeTemplates.apiVersion", "there is one version"),
    ("VirtualMachine", "spec.dataVolumeTemplates.kind", "there is one kind"),
    ("VirtualMachine", "spec.dataVolumeTemplates.status", "an empty object that old clients send"),
    ("CDI", "spec.config.tlsSecurityProfile.intermediate", "an empty object: the type names the profile"),
    ("CDI", "spec.config.tlsSecurityProfile.modern", "an empty object: the type names the profile"),
    ("CDI", "spec.config.tlsSecurityProfile.old", "an empty object: the type names the profile"),
];
