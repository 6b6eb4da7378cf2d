//! The guest systems that there are templates for, as a table.

use super::{Flavor, Workload};

/// What a machine's processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// x86 of 64 bits.
    Amd64,
    /// ARM of 64 bits.
    Arm64,
    /// IBM Z.
    S390x,
}

impl Architecture {
    /// All that there are templates for.
    pub const ALL: [Architecture; 3] = [Architecture::Amd64, Architecture::Arm64, Architecture::S390x];

    /// As nodes are labelled with it.
    pub fn word(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
            Architecture::S390x => "s390x",
        }
    }

    /// The one that `word` names.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.word() == word)
    }

    /// That of this program.
    pub fn own() -> Self {
        match std::env::consts::ARCH {
            "aarch64" => Architecture::Arm64,
            "s390x" => Architecture::S390x,
            _ => Architecture::Amd64,
        }
    }
}

/// How a machine starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// As it did in the last century.
    Bios,
    /// UEFI; where the architecture has it, it starts what is signed.
    Efi,
    /// UEFI that starts only what is signed, and keeps what it is told, with a TPM.
    Secure,
}

/// Of which family the system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// Has the drivers of virtual devices.
    Linux,
    /// Gets them later.
    Windows,
}

/// A guest system.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// What names of its templates begin with.
    pub name: &'static str,
    /// The DataSource that its machines boot from.
    pub source: &'static str,
    /// Its versions, as libosinfo names them; the first is the oldest.
    pub versions: &'static [&'static str],
    /// What people call it.
    pub title: &'static str,
    /// What people call the oldest version, and those after it.
    pub pretty: &'static str,
    /// Who makes it: a tag, and an icon.
    pub maker: &'static str,
    /// Its family.
    pub guest: Guest,
    /// How its machines start.
    pub firmware: Firmware,
    /// What its machines are for.
    pub workloads: &'static [Workload],
    /// How large they are.
    pub flavors: &'static [Flavor],
    /// What they run on.
    pub architectures: &'static [Architecture],
    /// Memory of the tiny.
    pub tiny: &'static str,
    /// Memory of the small.
    pub small: &'static str,
    /// Bytes of memory below which its maker does not support it.
    pub least_memory: u64,
    /// Processor cores of a socket.
    pub cores: u32,
    /// Size of the root disk.
    pub disk: &'static str,
    /// An image of the disk in a container registry.
    pub container_disk: &'static str,
    /// Where its maker offers images.
    pub images: &'static str,
}

const MIB: u64 = 1 << 20;
const ALL_FLAVORS: &[Flavor] = &[Flavor::Tiny, Flavor::Small, Flavor::Medium, Flavor::Large];
const FROM_SMALL: &[Flavor] = &[Flavor::Small, Flavor::Medium, Flavor::Large];
const FROM_MEDIUM: &[Flavor] = &[Flavor::Medium, Flavor::Large];
const EVERYTHING: &[Workload] = &[Workload::Desktop, Workload::Server, Workload::HighPerformance];
const PERSONAL: &[Workload] = &[Workload::Desktop, Workload::Server];

const LINUX: System = System {
    name: "",
    source: "",
    versions: &[],
    title: "",
    pretty: "",
    maker: "",
    guest: Guest::Linux,
    firmware: Firmware::Efi,
    workloads: EVERYTHING,
    flavors: ALL_FLAVORS,
    architectures: &[Architecture::Amd64],
    tiny: "1536Mi",
    small: "2Gi",
    least_memory: 1536 * MIB,
    cores: 1,
    disk: "30Gi",
    container_disk: "",
    images: "",
};

const WINDOWS: System = System {
    maker: "windows",
    guest: Guest::Windows,
    firmware: Firmware::Bios,
    workloads: &[Workload::Server, Workload::HighPerformance],
    flavors: FROM_MEDIUM,
    least_memory: 512 * MIB,
    disk: "60Gi",
    ..LINUX
};

/// Those of home users.
const WINDOWS_DESKTOP: &[Workload] = &[Workload::Desktop, Workload::HighPerformance];

/// All of them.
pub const SYSTEMS: &[System] = &[
    System {
        name: "centos-stream9",
        source: "centos-stream9",
        versions: &["centos-stream9"],
        title: "CentOS Stream 9",
        pretty: "CentOS Stream 9",
        maker: "centos",
        workloads: PERSONAL,
        architectures: &Architecture::ALL,
        container_disk: "quay.io/containerdisks/centos-stream:9",
        images: "https://cloud.centos.org/centos/9-stream/",
        ..LINUX
    },
    System {
        name: "centos6",
        source: "centos6",
        versions: &[
            "centos6.0",
            "centos6.1",
            "centos6.2",
            "centos6.3",
            "centos6.4",
            "centos6.5",
            "centos6.6",
            "centos6.7",
            "centos6.8",
            "centos6.9",
            "centos6.10",
        ],
        title: "CentOS 6",
        pretty: "CentOS 6.0 or higher",
        maker: "centos",
        firmware: Firmware::Bios,
        workloads: &[Workload::Server],
        tiny: "1Gi",
        least_memory: 512 * MIB,
        images: "https://cloud.centos.org/centos/6/",
        ..LINUX
    },
    System {
        name: "fedora",
        source: "fedora",
        versions: &["fedora41", "fedora42", "fedora43"],
        title: "Fedora",
        pretty: "Fedora Linux 41 or higher",
        maker: "fedora",
        flavors: FROM_SMALL,
        architectures: &Architecture::ALL,
        least_memory: 2048 * MIB,
        container_disk: "quay.io/containerdisks/fedora:latest",
        images: "https://fedoraproject.org/cloud/download",
        ..LINUX
    },
    System {
        name: "opensuse",
        source: "opensuse",
        versions: &["opensuse15.6"],
        title: "openSUSE Leap 15",
        pretty: "openSUSE Leap 15.6 or higher",
        maker: "opensuse",
        firmware: Firmware::Bios,
        workloads: &[Workload::Server],
        flavors: FROM_SMALL,
        least_memory: 1024 * MIB,
        container_disk: "quay.io/containerdisks/opensuse-leap:15.6",
        images: "https://download.opensuse.org/distribution/leap/15.6/appliances/",
        ..LINUX
    },
    System {
        name: "rhel7",
        source: "rhel7",
        versions: &[
            "rhel7.0", "rhel7.1", "rhel7.2", "rhel7.3", "rhel7.4", "rhel7.5", "rhel7.6", "rhel7.7", "rhel7.8",
            "rhel7.9",
        ],
        title: "Red Hat Enterprise Linux 7",
        pretty: "Red Hat Enterprise Linux 7.0 or higher",
        maker: "rhel",
        firmware: Firmware::Bios,
        tiny: "1Gi",
        least_memory: 1024 * MIB,
        container_disk: "registry.redhat.io/rhel7/rhel-guest-image",
        ..LINUX
    },
    System {
        name: "rhel8",
        source: "rhel8",
        versions: &[
            "rhel8.0", "rhel8.1", "rhel8.2", "rhel8.3", "rhel8.4", "rhel8.5", "rhel8.6", "rhel8.7", "rhel8.8",
            "rhel8.9", "rhel8.10",
        ],
        title: "Red Hat Enterprise Linux 8",
        pretty: "Red Hat Enterprise Linux 8.0 or higher",
        maker: "rhel",
        architectures: &[Architecture::Amd64, Architecture::S390x],
        container_disk: "registry.redhat.io/rhel8/rhel-guest-image",
        ..LINUX
    },
    System {
        name: "rhel9",
        source: "rhel9",
        versions: &["rhel9.0", "rhel9.1", "rhel9.2", "rhel9.3", "rhel9.4", "rhel9.5", "rhel9.6", "rhel9.7", "rhel9.8"],
        title: "Red Hat Enterprise Linux 9",
        pretty: "Red Hat Enterprise Linux 9.0 or higher",
        maker: "rhel",
        architectures: &Architecture::ALL,
        container_disk: "registry.redhat.io/rhel9/rhel-guest-image",
        ..LINUX
    },
    System {
        name: "ubuntu",
        source: "ubuntu",
        versions: &["ubuntu22.04", "ubuntu24.04"],
        title: "Ubuntu",
        pretty: "Ubuntu 22.04 LTS or higher",
        maker: "ubuntu",
        firmware: Firmware::Bios,
        workloads: PERSONAL,
        flavors: FROM_SMALL,
        architectures: &Architecture::ALL,
        small: "3Gi",
        least_memory: 3072 * MIB,
        container_disk: "quay.io/containerdisks/ubuntu:24.04",
        images: "https://cloud-images.ubuntu.com/",
        ..LINUX
    },
    System {
        name: "windows10",
        source: "win10",
        versions: &["win10"],
        title: "Microsoft Windows 10",
        pretty: "Microsoft Windows 10",
        workloads: WINDOWS_DESKTOP,
        least_memory: 2048 * MIB,
        ..WINDOWS
    },
    System {
        name: "windows11",
        source: "win11",
        versions: &["win11"],
        title: "Microsoft Windows 11",
        pretty: "Microsoft Windows 11",
        firmware: Firmware::Secure,
        workloads: WINDOWS_DESKTOP,
        least_memory: 4096 * MIB,
        cores: 2,
        disk: "64Gi",
        ..WINDOWS
    },
    System {
        name: "windows2k16",
        source: "win2k16",
        versions: &["win2k16"],
        title: "Microsoft Windows Server 2016",
        pretty: "Microsoft Windows Server 2016",
        ..WINDOWS
    },
    System {
        name: "windows2k19",
        source: "win2k19",
        versions: &["win2k19"],
        title: "Microsoft Windows Server 2019",
        pretty: "Microsoft Windows Server 2019",
        ..WINDOWS
    },
    System {
        name: "windows2k22",
        source: "win2k22",
        versions: &["win2k22"],
        title: "Microsoft Windows Server 2022",
        pretty: "Microsoft Windows Server 2022",
        firmware: Firmware::Secure,
        ..WINDOWS
    },
    System {
        name: "windows2k25",
        source: "win2k25",
        versions: &["win2k25"],
        title: "Microsoft Windows Server 2025",
        pretty: "Microsoft Windows Server 2025",
        firmware: Firmware::Secure,
        disk: "64Gi",
        ..WINDOWS
    },
];
