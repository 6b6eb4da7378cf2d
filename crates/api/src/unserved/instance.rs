//! Of machines: the spec of a VirtualMachineInstance, and what a VirtualMachine has around it.

use super::{Row, When, not_started, refused, warned};

const BINDING: &str = "use masquerade: {} or bridge: {}";
const SOURCE: &str = "use one of cloudInitConfigDrive, cloudInitNoCloud, configMap, containerDisk, dataVolume, downwardAPI, \
                      emptyDisk, ephemeral, memoryDump, persistentVolumeClaim, secret, serviceAccount, sysprep";
const TAG: &str = "the guest is not told of it";

/// Of the spec of a VirtualMachineInstance, which a VirtualMachine has at `spec.template.spec`.
pub const INSTANCE: &[Row] = &[
    not_started("domain.devices.gpus", When::Set, "no GPU is passed through: remove it"),
    not_started("domain.devices.hostDevices", When::Set, "no host device is passed through: remove it"),
    not_started(
        "domain.devices.filesystems",
        When::Set,
        "virtiofs is not served: list the volume under domain.devices.disks, and mount it in the guest",
    ),
    not_started(
        "domain.devices.autoattachVSOCK",
        When::Set,
        "no VSOCK device is attached: remove it, and reach the guest through its network",
    ),
    not_started(
        "domain.devices.clientPassthrough",
        When::Present,
        "USB devices of clients are not redirected: remove it",
    ),
    not_started(
        "domain.devices.downwardMetrics",
        When::Present,
        "metrics of the host are not handed to guests: remove it",
    ),
    not_started("domain.firmware.acpi", When::Present, "no ACPI table is handed to the guest: remove it"),
    not_started(
        "domain.launchSecurity",
        When::Present,
        "the guest's memory is not encrypted: remove it if it may run without",
    ),
    not_started(
        "domain.cpu.dedicatedCpuPlacement",
        When::Set,
        "virtual CPUs are not pinned: remove it, and ask for whole CPUs with domain.resources.requests.cpu",
    ),
    not_started("domain.cpu.isolateEmulatorThread", When::Set, "virtual CPUs are not pinned: remove it"),
    not_started(
        "domain.cpu.numa.guestMappingPassthrough",
        When::Present,
        "the host's NUMA topology is not passed on: remove it",
    ),
    not_started("domain.cpu.realtime", When::Present, "virtual CPUs are not scheduled in real time: remove it"),
    not_started(
        "domain.memory.reservedOverhead.memLock",
        When::Is("Required"),
        "memory is not locked: set it to NotRequired",
    ),
    not_started("utilityVolumes", When::Set, "no volume is attached to the launcher alone: remove it"),
    not_started("domain.devices.disks[].lun.reservation", When::Set, "SCSI reservations are not passed on: remove it"),
    not_started(
        "domain.devices.interfaces[].portRanges",
        When::Set,
        "ranges of ports are not forwarded: list each port under ports, or none to forward all",
    ),
    not_started("domain.devices.interfaces[].sriov", When::Present, BINDING),
    not_started("domain.devices.interfaces[].macvtap", When::Present, BINDING),
    not_started("domain.devices.interfaces[].passt", When::Present, BINDING),
    not_started("domain.devices.interfaces[].passtBinding", When::Present, BINDING),
    not_started("domain.devices.interfaces[].slirp", When::Present, BINDING),
    not_started("domain.devices.interfaces[].binding", When::Present, BINDING),
    not_started(
        "networks[].multus.default",
        When::Set,
        "the pod's own network is the cluster's: use pod: {} for it, and multus for networks beside it",
    ),
    not_started("volumes[].containerPath", When::Present, SOURCE),
    not_started("volumes[].downwardMetrics", When::Present, SOURCE),
    not_started("volumes[].hostDisk", When::Present, SOURCE),
    refused("networks[].resourceClaim", When::Present, "no device is claimed for a network: use pod: {} or multus"),
    refused(
        "domain.memory.hugepages",
        When::Present,
        "launcher pods have no huge pages: remove it, and set domain.memory.guest",
    ),
    refused(
        "domain.devices.disks[].blockSize.matchVolume",
        When::Enabled,
        "the block size of a volume is not looked up: write it into blockSize.custom",
    ),
    refused(
        "domain.devices.watchdog.diag288",
        When::Present,
        "it is a device of s390x, and guests are x86-64: use i6300esb",
    ),
    refused("domain.features.apic.enabled", When::Is("false"), "every machine type has an APIC: remove it"),
    refused("resourceClaims", When::Set, "launcher pods claim no devices: remove it"),
    warned("domain.devices.disks[].tag", When::Set, TAG),
    warned("domain.devices.interfaces[].tag", When::Set, TAG),
    warned(
        "domain.devices.disks[].changedBlockTracking",
        When::Set,
        "machines are tracked that changedBlockTrackingLabelSelectors of the KubeVirt object select",
    ),
    warned(
        "domain.devices.logSerialConsole",
        When::Value("true"),
        "the log is a file in the container compute of the launcher pod: no container of its own shows it",
    ),
];

/// Of a VirtualMachine, without its template.
pub const MACHINE: &[Row] = &[
    refused(
        "spec.runStrategy",
        When::Value("WaitAsReceiver"),
        "no machine is received from another cluster, and its guest would boot: use Halted, Manual, Always, \
         RerunOnFailure or Once",
    ),
    warned(
        "spec.dataVolumeTemplates[].spec.source.vddk",
        When::Present,
        "there is no VDDK library to read the disk with, and the import fails: convert the disk, and use source http or upload",
    ),
];
