//! What is known of a running guest, from its agent and from libvirt: the launcher publishes it, the node agent puts
//! it into the VMI's status.

use api::kubevirt::v1;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestFacts {
    pub agent_version: String,
    /// Commands the agent offers, sorted by name.
    pub supported_commands: Vec<v1::GuestAgentCommandInfo>,
    pub hostname: String,
    pub timezone: String,
    pub os: Option<v1::VirtualMachineInstanceGuestOSInfo>,
    pub interfaces: Vec<GuestInterface>,
    pub filesystems: Vec<v1::VirtualMachineInstanceFileSystem>,
    pub users: Vec<v1::VirtualMachineInstanceGuestOSUser>,
    /// `frozen` while the guest's file systems are frozen, else `thawed` or empty.
    pub fs_freeze_status: String,
    /// Machine type as QEMU resolved it, such as pc-q35-10.0.
    pub machine: String,
    /// What the balloon leaves the guest, in KiB.
    pub memory_kib: u64,
    pub devices: Vec<LiveDevice>,
    /// What the guest stands still for.
    pub failed_disks: Vec<FailedDisk>,
}

/// A disk that could not be read or written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedDisk {
    /// Name in the VMI.
    pub name: String,
    /// There was no room for what the guest wrote.
    pub full: bool,
}

/// A network interface as the guest sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestInterface {
    pub name: String,
    pub mac: String,
    /// Without prefix length.
    pub addresses: Vec<String>,
}

/// A disk or an interface of the live domain that the VMI named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiveDevice {
    pub kind: DeviceKind,
    /// Name in the VMI.
    pub name: String,
    /// The guest cannot write to it.
    pub readonly: bool,
    /// `vda`, or the tap.
    pub target: String,
    /// Interfaces only.
    pub mac: String,
    /// Interfaces only: `up` or `down`.
    pub link: String,
    pub queues: u32,
    /// Disks only: virtual size, 0 when not known.
    pub size: u64,
    /// Disks only: `disk`, `cdrom` or `lun`.
    pub device: String,
    /// Disks only: `virtio`, `scsi`, ….
    pub bus: String,
    /// Disks only: the file or device behind it; empty for a drive without a medium.
    pub source: String,
    /// Disks only: a layer above the data counts what changes.
    pub tracked: bool,
    /// Disks on the SCSI bus only: the target number of their address.
    pub unit: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    #[default]
    Disk,
    Interface,
}
