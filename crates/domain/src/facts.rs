//! What is known of a running guest, from its agent and from libvirt: the launcher publishes it, the node agent puts
//! it into the VMI's status.

use std::fmt;
use std::marker::PhantomData;

use api::kubevirt::v1;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// So many entries of a list are read. The least of them is a few bytes of text and hundreds in memory, and a launcher that
/// was taken over writes what it likes.
const LONGEST_LIST: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestFacts {
    pub agent_version: String,
    /// Commands the agent offers, sorted by name.
    #[serde(deserialize_with = "first")]
    pub supported_commands: Vec<v1::GuestAgentCommandInfo>,
    pub hostname: String,
    pub timezone: String,
    pub os: Option<v1::VirtualMachineInstanceGuestOSInfo>,
    #[serde(deserialize_with = "first")]
    pub interfaces: Vec<GuestInterface>,
    #[serde(deserialize_with = "first")]
    pub filesystems: Vec<v1::VirtualMachineInstanceFileSystem>,
    #[serde(deserialize_with = "first")]
    pub users: Vec<v1::VirtualMachineInstanceGuestOSUser>,
    /// `frozen` while the guest's file systems are frozen, else `thawed` or empty.
    pub fs_freeze_status: String,
    /// Machine type as QEMU resolved it, such as pc-q35-10.0.
    pub machine: String,
    /// What the balloon leaves the guest, in KiB.
    pub memory_kib: u64,
    /// What the guest was asked to use beyond what it was started with, in KiB.
    pub plugged_kib: u64,
    /// CPUs that the guest has.
    pub vcpus: u32,
    #[serde(deserialize_with = "first")]
    pub devices: Vec<LiveDevice>,
    /// What the guest stands still for.
    #[serde(deserialize_with = "first")]
    pub failed_disks: Vec<FailedDisk>,
}

/// The first entries of a list; the rest is read and not kept.
fn first<'de, D, T>(list: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct First<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for First<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while kept.len() < LONGEST_LIST {
                match list.next_element()? {
                    Some(entry) => kept.push(entry),
                    None => return Ok(kept),
                }
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }
    list.deserialize_seq(First(PhantomData))
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
    #[serde(deserialize_with = "first")]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> GuestFacts {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// The text is a megabyte, which is what is read of a state; without a bound it would be a hundred of them in memory.
    #[test]
    fn a_launcher_does_not_fill_the_memory_of_who_reads_it() {
        let many = |entry: &str| format!("[{}]", vec![entry; (1 << 20) / (entry.len() + 1)].join(","));
        for list in ["devices", "interfaces", "filesystems", "users", "supportedCommands", "failedDisks"] {
            let entry = if list == "supportedCommands" { r#"{"name":""}"# } else { "{}" };
            let facts = told(&format!(r#"{{"hostname":"a","{list}":{},"timezone":"b"}}"#, many(entry)));
            assert!(serde_json::to_string(&facts).unwrap().len() < LONGEST_LIST * 400, "{list}");
            if matches!(list, "devices" | "interfaces" | "failedDisks") {
                // What comes after the list is read, too.
                assert_eq!((facts.hostname.as_str(), facts.timezone.as_str()), ("a", "b"), "{list}");
            }
        }
        assert_eq!(told(&format!(r#"{{"devices":{}}}"#, many("{}"))).devices.len(), LONGEST_LIST);
        let addresses = format!(r#"{{"interfaces":[{{"addresses":{}}}]}}"#, many("\"\""));
        assert_eq!(told(&addresses).interfaces[0].addresses.len(), LONGEST_LIST);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn told(text: &str) -> GuestFacts {
        serde_json::from_str(text).unwrap_or_default()
    }

    fn facts() -> impl Strategy<Value = GuestFacts> {
        let word = "\\PC{0,12}";
        let device = (word, word, any::<bool>(), any::<u32>(), any::<u64>(), proptest::option::of(any::<u32>()));
        let device = device.prop_map(|(name, mac, readonly, queues, size, unit)| LiveDevice {
            name,
            mac,
            readonly,
            queues,
            size,
            unit,
            ..LiveDevice::default()
        });
        let interface = (word, word, proptest::collection::vec(word, 0..3));
        let interface = interface.prop_map(|(name, mac, addresses)| GuestInterface { name, mac, addresses });
        let lists = (proptest::collection::vec(device, 0..4), proptest::collection::vec(interface, 0..4));
        (word, any::<u64>(), lists).prop_map(|(hostname, memory_kib, (devices, interfaces))| GuestFacts {
            hostname,
            memory_kib,
            devices,
            interfaces,
            ..GuestFacts::default()
        })
    }

    proptest! {
        #[test]
        fn facts_are_read_as_they_were_written(facts in facts()) {
            prop_assert_eq!(told(&json!(facts).to_string()), facts);
        }

        #[test]
        fn facts_that_were_changed_are_facts_or_none(facts in facts(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut text = json!(facts).to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let read = told(&String::from_utf8_lossy(&text));
            prop_assert_eq!(told(&json!(read).to_string()), read);
        }

        #[test]
        fn any_facts_of_a_launcher_are_an_object(text in "\\PC{0,80}|\\{\"(devices|interfaces|os|memoryKib)\": .{0,40}\\}") {
            let read = told(&text);
            prop_assert!(serde_json::to_value(read).is_ok_and(|read: Value| read.is_object()));
        }
    }
}
