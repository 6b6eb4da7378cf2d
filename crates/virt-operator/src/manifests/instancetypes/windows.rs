//! Preferences of guests that run Windows: as it is installed, and with the drivers for virtio.

use serde_json::{Value, json};

use super::preference::Difference::{self, Annotation, Disk, Interface, SecureBoot, SecureBootAndTpm, Tablet, Video};
use super::preference::Preference;

/// Name, the name for people, what the guest needs, what differs.
type Row = (&'static str, &'static str, (u32, &'static str), &'static [Difference]);

/// Releases for which there are drivers for virtio.
const ROWS: &[Row] = &[
    ("windows.7", "Microsoft Windows 7", (1, "2Gi"), &[]),
    ("windows.10", "Microsoft Windows 10", (1, "2Gi"), &[SecureBoot]),
    ("windows.11", "Microsoft Windows 11", (2, "4Gi"), &[SecureBootAndTpm]),
    ("windows.2k8", "Microsoft Windows Server 2008", (1, "512Mi"), &[Interface("e1000")]),
    ("windows.2k12", "Microsoft Windows Server 2012", (1, "512Mi"), &[]),
    ("windows.2k16", "Microsoft Windows Server 2016", (1, "2Gi"), &[SecureBoot]),
    ("windows.2k19", "Microsoft Windows Server 2019", (1, "2Gi"), &[SecureBoot]),
    ("windows.2k22", "Microsoft Windows Server 2022", (1, "2Gi"), &[SecureBootAndTpm]),
    ("windows.2k25", "Microsoft Windows Server 2025", (1, "2Gi"), &[SecureBootAndTpm]),
];
/// Their memory ends where devices begin, and they cannot look beyond.
const LOW: Difference = Annotation("kubevirt.io/disablePCIHole64", "true");
/// Releases without.
const OLD: &[Row] = &[
    ("windows.2k3", "Microsoft Windows Server 2003", (1, "256Mi"), &[Interface("rtl8139"), LOW]),
    ("windows.xp", "Microsoft Windows XP", (1, "128Mi"), &[LOW]),
];
const VIRTIO: [Difference; 4] = [Disk("virtio"), Interface("virtio"), Tablet, Video("virtio")];

pub(super) fn render() -> Vec<Value> {
    let plain = |(name, display, needs, differs): &Row| Preference {
        name: (*name).to_owned(),
        display: (*display).to_owned(),
        needs: Some(*needs),
        differs: differs.to_vec(),
    };
    let virtio = |row: &Row| {
        let mut with = plain(row);
        with.name += ".virtio";
        with.display += " with virtio drivers";
        with.differs.extend(VIRTIO);
        with
    };
    let all = ROWS.iter().chain(OLD).map(plain).chain(ROWS.iter().map(virtio));
    all.map(|preference| preference.render("windows", base())).collect()
}

/// Time and interrupts as Windows takes them from a hypervisor that it knows.
fn base() -> Value {
    json!({
        "clock": {
            "preferredClockOffset": { "utc": {} },
            "preferredTimer": {
                "hpet": { "present": false }, "hyperv": {},
                "pit": { "tickPolicy": "delay" }, "rtc": { "tickPolicy": "catchup" },
            },
        },
        "cpu": { "preferredCPUTopology": "sockets" },
        "devices": {
            "preferredAutoattachInputDevice": true, "preferredDiskBus": "sata", "preferredInterfaceModel": "e1000e",
        },
        "features": {
            "preferredAcpi": {}, "preferredApic": {},
            "preferredHyperv": {
                "frequencies": {}, "ipi": {}, "reenlightenment": {}, "relaxed": {}, "reset": {}, "runtime": {},
                "spinlocks": { "spinlocks": 8191 }, "synic": {}, "synictimer": { "direct": {} }, "tlbflush": {},
                "vapic": {}, "vpindex": {},
            },
        },
        // Updates are installed on the way down.
        "preferredTerminationGracePeriodSeconds": 3600,
    })
}
