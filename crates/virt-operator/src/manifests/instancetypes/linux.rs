//! Preferences of guests that run Linux, and of those that know none of its devices.

use serde_json::{Value, json};

use super::preference::Difference::{
    self, DedicatedIoThread, Efi, Headless, Multiqueue, Only, SecureBoot, Spread, Tablet, Transitional,
};
use super::preference::Preference;

/// Name, the name for people, what the guest needs, what differs.
type Row = (&'static str, &'static str, Option<(u32, &'static str)>, &'static [Difference]);

const SMALL: Option<(u32, &str)> = Some((1, "512Mi"));
const USUAL: Option<(u32, &str)> = Some((1, "2Gi"));
/// Of Red Hat's systems and their kin.
const HAT: Option<(u32, &str)> = Some((1, "1.5Gi"));
const HAT_DPDK: Option<(u32, &str)> = Some((8, "1.5Gi"));
/// Processors as DPDK polls on them.
const POLLING: Difference = Spread(Some(4));

const ROWS: &[Row] = &[
    ("alpine", "Alpine Linux", SMALL, &[]),
    ("cirros", "CirrOS", Some((1, "256Mi")), &[]),
    ("centos.stream9", "CentOS Stream 9", HAT, &[DedicatedIoThread]),
    ("centos.stream9.desktop", "CentOS Stream 9 with a desktop", HAT, &[DedicatedIoThread, Tablet]),
    ("centos.stream9.dpdk", "CentOS Stream 9 with DPDK", HAT_DPDK, &[DedicatedIoThread, POLLING, Multiqueue]),
    ("centos.stream10", "CentOS Stream 10", HAT, &[DedicatedIoThread]),
    ("centos.stream10.desktop", "CentOS Stream 10 with a desktop", HAT, &[DedicatedIoThread, Tablet]),
    ("debian", "Debian", SMALL, &[Efi]),
    ("fedora", "Fedora (amd64)", USUAL, &[Only("amd64"), SecureBoot]),
    ("fedora.arm64", "Fedora (arm64)", USUAL, &[Only("arm64")]),
    ("fedora.s390x", "Fedora (s390x)", USUAL, &[Only("s390x")]),
    ("linux", "Linux", None, &[]),
    ("linux.efi", "Linux with UEFI", None, &[Efi]),
    ("linux.virtiotransitional", "Linux with transitional virtio devices", None, &[Transitional]),
    ("opensuse.leap", "openSUSE Leap", USUAL, &[]),
    ("opensuse.tumbleweed", "openSUSE Tumbleweed", USUAL, &[]),
    ("oraclelinux", "Oracle Linux", Some((2, "4Gi")), &[Efi]),
    ("rhel.7", "Red Hat Enterprise Linux 7", Some((1, "1Gi")), &[]),
    ("rhel.7.desktop", "Red Hat Enterprise Linux 7 with a desktop", Some((1, "1Gi")), &[Tablet]),
    ("rhel.8", "Red Hat Enterprise Linux 8", HAT, &[]),
    ("rhel.8.desktop", "Red Hat Enterprise Linux 8 with a desktop", HAT, &[Tablet]),
    ("rhel.8.dpdk", "Red Hat Enterprise Linux 8 with DPDK", HAT_DPDK, &[POLLING, Multiqueue]),
    ("rhel.9", "Red Hat Enterprise Linux 9 (amd64)", HAT, &[Only("amd64"), DedicatedIoThread, SecureBoot]),
    ("rhel.9.arm64", "Red Hat Enterprise Linux 9 (arm64)", HAT, &[Only("arm64"), DedicatedIoThread]),
    ("rhel.9.s390x", "Red Hat Enterprise Linux 9 (s390x)", HAT, &[Only("s390x"), DedicatedIoThread]),
    (
        "rhel.9.desktop",
        "Red Hat Enterprise Linux 9 with a desktop (amd64)",
        HAT,
        &[Only("amd64"), DedicatedIoThread, SecureBoot, Tablet],
    ),
    (
        "rhel.9.dpdk",
        "Red Hat Enterprise Linux 9 with DPDK (amd64)",
        HAT_DPDK,
        &[Only("amd64"), DedicatedIoThread, SecureBoot, POLLING, Multiqueue],
    ),
    (
        "rhel.9.realtime",
        "Red Hat Enterprise Linux 9 for real time (amd64)",
        Some((4, "4Gi")),
        &[Only("amd64"), DedicatedIoThread, SecureBoot, Spread(None), Headless, Multiqueue],
    ),
    ("rhel.10", "Red Hat Enterprise Linux 10 (amd64)", HAT, &[Only("amd64"), DedicatedIoThread, SecureBoot]),
    ("rhel.10.arm64", "Red Hat Enterprise Linux 10 (arm64)", HAT, &[Only("arm64"), DedicatedIoThread]),
    ("rhel.10.s390x", "Red Hat Enterprise Linux 10 (s390x)", HAT, &[Only("s390x"), DedicatedIoThread]),
    ("sles", "SUSE Linux Enterprise Server", USUAL, &[]),
    ("ubuntu", "Ubuntu", USUAL, &[]),
];

pub(super) fn render() -> Vec<Value> {
    let linux = |(name, display, needs, differs): &Row| {
        let base = json!({ "devices": {
            "preferredDiskBus": "virtio", "preferredInterfaceModel": "virtio", "preferredRng": {},
        } });
        preference(name, display, *needs, differs).render("linux", base)
    };
    let mut all: Vec<Value> = ROWS.iter().map(linux).collect();
    // Whatever it is, it has drivers for devices that every PC had.
    let legacy = json!({ "devices": { "preferredDiskBus": "sata", "preferredInterfaceModel": "e1000" } });
    all.push(preference("legacy", "Systems without virtio", None, &[]).render("legacy", legacy));
    all
}

fn preference(
    name: &str,
    display: &str,
    needs: Option<(u32, &'static str)>,
    differs: &'static [Difference],
) -> Preference {
    Preference { name: name.to_owned(), display: display.to_owned(), needs, differs: differs.to_vec() }
}
