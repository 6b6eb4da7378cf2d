//! Fields of the schema that this version does not act on, by name, so that no machine runs without what it asked for.

use api::kubevirt::v1::VirtualMachineInstanceSpec;
use kit::admission::Cause;

use super::unserved;

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let domain = &spec.domain;
    let devices = &domain.devices;
    let cpu = domain.cpu.clone().unwrap_or_default();
    let firmware = domain.firmware.clone().unwrap_or_default();
    let is = |flag: Option<bool>| flag == Some(true);
    let table = [
        (!devices.gpus.is_empty(), "domain.devices.gpus", "no GPU is passed through: remove it"),
        (!devices.host_devices.is_empty(), "domain.devices.hostDevices", "no host device is passed through: remove it"),
        (
            !devices.filesystems.is_empty(),
            "domain.devices.filesystems",
            "virtiofs is not served: list the volume under domain.devices.disks, and mount it in the guest",
        ),
        (
            is(devices.autoattach_vsock),
            "domain.devices.autoattachVSOCK",
            "no VSOCK device is attached: remove it, and reach the guest through its network",
        ),
        (
            devices.client_passthrough.is_some(),
            "domain.devices.clientPassthrough",
            "USB devices of clients are not redirected: remove it",
        ),
        (
            devices.downward_metrics.is_some(),
            "domain.devices.downwardMetrics",
            "metrics of the host are not handed to guests: remove it",
        ),
        (firmware.acpi.is_some(), "domain.firmware.acpi", "no ACPI table is handed to the guest: remove it"),
        (
            domain.launch_security.is_some(),
            "domain.launchSecurity",
            "the guest's memory is not encrypted: remove it if it may run without",
        ),
        (
            is(cpu.dedicated_cpu_placement),
            "domain.cpu.dedicatedCpuPlacement",
            "virtual CPUs are not pinned: remove it, and ask for whole CPUs with domain.resources.requests.cpu",
        ),
        (is(cpu.isolate_emulator_thread), "domain.cpu.isolateEmulatorThread", "virtual CPUs are not pinned: remove it"),
        (
            cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some()),
            "domain.cpu.numa.guestMappingPassthrough",
            "the host's NUMA topology is not passed on: remove it",
        ),
        (cpu.realtime.is_some(), "domain.cpu.realtime", "virtual CPUs are not scheduled in real time: remove it"),
        (
            domain.memory.as_ref().and_then(|m| m.reserved_overhead.as_ref()?.mem_lock.as_deref()) == Some("Required"),
            "domain.memory.reservedOverhead.memLock",
            "memory is not locked: set it to NotRequired",
        ),
        (!spec.utility_volumes.is_empty(), "utilityVolumes", "no volume is attached to the launcher alone: remove it"),
    ];
    for (_, field, why) in table.into_iter().filter(|(asked, ..)| *asked) {
        causes.push(unserved(format!("{path}.{field}"), why));
    }
    for (index, disk) in devices.disks.iter().enumerate() {
        if disk.lun.as_ref().is_some_and(|lun| is(lun.reservation)) {
            let field = format!("{path}.domain.devices.disks[{index}].lun.reservation");
            causes.push(unserved(field, "SCSI reservations are not passed on: remove it"));
        }
    }
    for (index, interface) in devices.interfaces.iter().enumerate() {
        if !interface.port_ranges.is_empty() {
            let field = format!("{path}.domain.devices.interfaces[{index}].portRanges");
            let why = "ranges of ports are not forwarded: list each port under ports, or none to forward all";
            causes.push(unserved(field, why));
        }
    }
}

/// What is left out without harm, in a sentence each.
pub(super) fn remarks(path: &str, spec: &VirtualMachineInstanceSpec) -> Vec<String> {
    let devices = &spec.domain.devices;
    let disks = devices.disks.iter().enumerate().map(|(index, disk)| (format!("disks[{index}]"), &disk.tag));
    let interfaces =
        devices.interfaces.iter().enumerate().map(|(index, one)| (format!("interfaces[{index}]"), &one.tag));
    let tagged = disks.chain(interfaces).filter(|(_, tag)| tag.as_deref().is_some_and(|tag| !tag.is_empty()));
    tagged
        .map(|(place, _)| {
            format!("{path}.domain.devices.{place}.tag is not acted on in this version: the guest is not told of it")
        })
        .collect()
}
