//! What a node adds to a VMI: devices as plugged, files as resolved, and what its machine can do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Everything that is not in the VMI and still decides its domain.
///
/// virt-handler fills what the node knows (`emulation`, `interfaces`, `smbios`, cluster defaults); virt-launcher adds
/// what its pod knows (`disks`, `kernel`, `firmware`, `paths`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Environment {
    /// KVM is not usable here: QEMU translates.
    pub emulation: bool,
    /// Interfaces plugged into the pod, by name of the VMI's interface.
    pub interfaces: Vec<PluggedInterface>,
    /// Volumes as files, by volume name.
    pub disks: BTreeMap<String, ResolvedDisk>,
    pub kernel: Option<ResolvedKernel>,
    /// Machine type when the VMI names none; empty means q35.
    pub machine: String,
    pub smbios: Smbios,
    pub firmware: FirmwareFiles,
    pub paths: Paths,
    /// /dev/vhost-net is usable in the pod.
    pub vhost_net: bool,
    /// The balloon gives back the pages that the guest frees.
    pub free_page_reporting: bool,
    /// The serial console is logged to a file unless the VMI says otherwise.
    pub log_serial_console: bool,
}

/// An interface whose host side exists already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PluggedInterface {
    /// Name of the VMI's interface.
    pub name: String,
    /// Tap device in the pod's network namespace, owned by the launcher's user.
    pub tap: String,
    /// Used when the VMI names no address; empty lets libvirt choose.
    pub mac: String,
    /// 0: the model's default.
    pub mtu: u32,
    /// Queues of the tap; 0 and 1 are one queue.
    pub queues: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    #[default]
    Raw,
    Qcow2,
}

impl Format {
    pub fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// A volume as QEMU opens it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResolvedDisk {
    pub path: String,
    pub format: Format,
    /// `path` is a block device.
    pub block: bool,
    /// Only for an overlay: the file below it, which itself has nothing below.
    pub backing: Option<Backing>,
    /// Only for a layer that tracks changes: the raw disk that holds what it shows.
    pub data: Option<Backing>,
    /// Contents that go with the pod (overlays, seed images, empty disks).
    pub ephemeral: bool,
    /// The file system below allows O_DIRECT.
    pub direct_io: bool,
    /// All blocks are allocated.
    pub preallocated: bool,
    pub readonly: bool,
}

impl ResolvedDisk {
    /// The file or device with the disk's contents: the one below, where a layer tracks what changes; and whether it is a
    /// device.
    pub fn contents(&self) -> (&str, bool) {
        self.data.as_ref().map_or((&self.path, self.block), |data| (&data.path, data.block))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Backing {
    pub path: String,
    pub format: Format,
    /// `path` is a block device.
    pub block: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResolvedKernel {
    pub kernel: Option<String>,
    pub initrd: Option<String>,
}

/// What the guest reads as its vendor. Empty fields take KubeVirt's defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Smbios {
    pub manufacturer: String,
    pub product: String,
    pub version: String,
    pub sku: String,
    pub family: String,
}

/// OVMF images of the launcher image, and where this VM's variables are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FirmwareFiles {
    pub code: String,
    pub vars: String,
    pub secure_code: String,
    pub secure_vars: String,
    pub nvram: String,
}

impl Default for FirmwareFiles {
    fn default() -> Self {
        Self {
            code: "/usr/share/OVMF/OVMF_CODE_4M.fd".to_owned(),
            vars: "/usr/share/OVMF/OVMF_VARS_4M.fd".to_owned(),
            secure_code: "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd".to_owned(),
            secure_vars: "/usr/share/OVMF/OVMF_VARS_4M.ms.fd".to_owned(),
            nvram: "/var/run/kubevirt-private/nvram/vars.fd".to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Paths {
    pub emulator: String,
    /// Directory of the console sockets: `/var/run/kubevirt-private/<uid>`.
    pub consoles: String,
}

impl Default for Paths {
    fn default() -> Self {
        Self { emulator: "/usr/bin/qemu-system-x86_64".to_owned(), consoles: "/var/run/kubevirt-private".to_owned() }
    }
}
