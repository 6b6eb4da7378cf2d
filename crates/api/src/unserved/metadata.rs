//! Annotations and labels of VirtualMachines, their templates and instances.

use super::{Row, When, refused, warned};

/// Keys of annotations.
pub const ANNOTATIONS: &[Row] = &[
    refused(
        "hooks.kubevirt.io/hookSidecars",
        When::Set,
        "no hook changes the guest's definition: remove it if the guest may run without",
    ),
    refused(
        "kubevirt.io/ignitiondata",
        When::Set,
        "no Ignition data are handed to the guest: use a cloudInitConfigDrive volume, or remove it",
    ),
    warned("kubevirt.io/disablePCIHole64", When::Is("true"), "the guest's 64-bit PCI hole stays as QEMU makes it"),
    warned("kubevirt.io/image-volume-skip-digest-resolution", When::Set, "containerDisks are no image volumes"),
    warned("kubevirt.io/immediate-data-volume-creation", When::Is("false"), "DataVolumes are made with their machine"),
    warned("kubevirt.io/keep-launcher-alive-after-failure", When::Is("true"), "a launcher ends with its guest"),
    warned("kubevirt.io/libvirt-log-filters", When::Set, "libvirt logs what it logs by default"),
    warned("kubevirt.io/memfd", When::Set, "the guest's memory is anonymous memory of QEMU"),
    warned(
        "kubevirt.io/migrationUtilityVolumesTimeoutSeconds",
        When::Set,
        "the time is utilityVolumesTimeout of the KubeVirt object or of a MigrationPolicy",
    ),
    warned("kubevirt.io/pause-guest-agent-probes", When::Set, "probes of the guest agent go on"),
    warned("kubevirt.io/pci-interface-slot-count", When::Set, "the number of free PCI slots is fixed"),
    warned("kubevirt.io/placePCIDevicesOnRootComplex", When::Is("true"), "each PCI device has a port of its own"),
    warned("kubevirt.io/qgs-socket-path", When::Set, "guests are not attested"),
    warned(
        "kubevirt.io/vga-display-efi-x86",
        When::Set,
        "a guest with EFI has the display that domain.devices.video.type names, or bochs",
    ),
];

/// Keys of labels.
pub const LABELS: &[Row] = &[
    warned("debugLogs", When::Set, "how much a launcher logs cannot be set for one guest"),
    warned("logVerbosity", When::Set, "how much a launcher logs cannot be set for one guest"),
    warned("kubevirt.io/memory-hotplug-overhead-ratio", When::Set, "the memory of a running guest cannot be changed"),
];

/// Keys of annotations of the KubeVirt object.
pub const KUBEVIRT_ANNOTATIONS: &[Row] =
    &[warned("alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity", When::Present, "virtual CPUs are not pinned")];
