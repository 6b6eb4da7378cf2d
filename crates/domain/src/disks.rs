//! Disks, CD-ROMs and LUNs, with the bus, cache and chain of files each needs.
//!
//! `spec` is what the guest is started with: what comes later is in [`crate::hotplug`].

use std::collections::BTreeMap;

use api::kubevirt::v1::{Disk, DomainSpec, VirtualMachineInstance};

use crate::cpu::Topology;
use crate::environment::ResolvedDisk;
use crate::xml::Element;
use crate::{Environment, Error, topology};

/// What a disk looks like to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Disk,
    Cdrom,
    Lun,
}

impl Device {
    pub(crate) fn of(disk: &Disk) -> Self {
        match (&disk.cdrom, &disk.lun) {
            (Some(_), _) => Self::Cdrom,
            (None, Some(_)) => Self::Lun,
            (None, None) => Self::Disk,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Cdrom => "cdrom",
            Self::Lun => "lun",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bus {
    Virtio,
    Sata,
    Scsi,
    Usb,
}

impl Bus {
    pub(crate) fn of(disk: &Disk) -> Result<Self, Error> {
        let named = match (&disk.disk, &disk.cdrom, &disk.lun) {
            (_, Some(cdrom), _) => cdrom.bus.as_deref().filter(|bus| !bus.is_empty()).unwrap_or("sata"),
            (_, _, Some(lun)) => lun.bus.as_deref().filter(|bus| !bus.is_empty()).unwrap_or("scsi"),
            (Some(disk), ..) => disk.bus.as_deref().filter(|bus| !bus.is_empty()).unwrap_or("virtio"),
            (None, None, None) => "virtio",
        };
        match named {
            "virtio" => Ok(Self::Virtio),
            "sata" => Ok(Self::Sata),
            "scsi" => Ok(Self::Scsi),
            "usb" => Ok(Self::Usb),
            other => Err(Error::Bus { disk: disk.name.clone(), bus: other.to_owned() }),
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::Sata => "sata",
            Self::Scsi => "scsi",
            Self::Usb => "usb",
        }
    }

    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Virtio => "vd",
            Self::Sata | Self::Scsi | Self::Usb => "sd",
        }
    }
}

/// `a`, `b`, … `z`, `aa`, `ab`, …
pub(crate) fn letters(index: usize) -> String {
    let mut out = Vec::new();
    let mut rest = index + 1;
    while rest > 0 {
        rest -= 1;
        out.push(b'a' + u8::try_from(rest % 26).unwrap_or_default());
        rest /= 26;
    }
    out.iter().rev().map(|byte| char::from(*byte)).collect()
}

/// Which buses the VM's disks sit on.
pub(crate) fn buses(spec: &DomainSpec) -> Result<Vec<Bus>, Error> {
    spec.devices.disks.iter().map(Bus::of).collect()
}

pub(crate) fn elements(vmi: &VirtualMachineInstance, environment: &Environment) -> Result<Vec<Element>, Error> {
    let spec = &vmi.spec.domain;
    let ordered = spec.devices.disks.iter().any(|disk| disk.boot_order.is_some())
        || spec.devices.interfaces.iter().any(|interface| interface.boot_order.is_some());
    let threads = IoThreads::of(spec);
    let mut named: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut scsi_units = 0_u32;
    let mut out = Vec::new();
    for (position, disk) in spec.devices.disks.iter().enumerate() {
        let bus = Bus::of(disk)?;
        let index = named.entry(bus.prefix()).or_default();
        let target = format!("{}{}", bus.prefix(), letters(*index));
        *index += 1;
        let has_volume = vmi.spec.volumes.iter().any(|volume| volume.name == disk.name);
        let empty = ResolvedDisk { readonly: true, ..ResolvedDisk::default() };
        let resolved = match environment.disks.get(&disk.name) {
            Some(resolved) => resolved,
            None if has_volume => return Err(Error::NotResolved { disk: disk.name.clone() }),
            None if Device::of(disk) == Device::Cdrom => &empty,
            None => return Err(Error::NoVolume { disk: disk.name.clone() }),
        };
        // Without any order in the VMI the firmware tries the disks as they are listed.
        let order = match disk.boot_order {
            Some(order) => Some(i64::from(order)),
            None if ordered || environment.kernel.is_some() => None,
            None => i64::try_from(position + 1).ok(),
        };
        let mut element = element(spec, environment, disk, bus, resolved, &threads)
            .child(Element::new("target").attr("dev", target).attr("bus", bus.word()).attr_opt(
                "tray",
                disk.cdrom.as_ref().and_then(|cdrom| cdrom.tray.as_deref()).filter(|tray| *tray == "open"),
            ))
            .children(order.map(|order| Element::new("boot").attr("order", order)));
        if bus == Bus::Scsi {
            // Named units: left alone, libvirt adds a controller for each seven disks.
            element = element.child(scsi_address(scsi_units));
            scsi_units += 1;
        }
        out.push(element);
    }
    Ok(out)
}

/// A place on the one SCSI controller.
pub(crate) fn scsi_address(target: u32) -> Element {
    Element::new("address")
        .attr("type", "drive")
        .attr("controller", 0)
        .attr("bus", 0)
        .attr("target", target)
        .attr("unit", 0)
}

pub(crate) fn element(
    spec: &DomainSpec,
    environment: &Environment,
    disk: &Disk,
    bus: Bus,
    resolved: &ResolvedDisk,
    threads: &IoThreads,
) -> Element {
    let device = Device::of(disk);
    let machine = crate::machine::type_of(spec, environment);
    let kind = if resolved.block { "block" } else { "file" };
    let source = |path: &str, block: bool| Element::new("source").attr(if block { "dev" } else { "file" }, path);
    let mut element = Element::new("disk").attr("type", kind).attr("device", device.word());
    if bus == Bus::Virtio {
        element = element.attr("model", topology::virtio(spec, &machine));
    }
    element = element.child(driver(spec, disk, bus, resolved, threads));
    // Which file holds the data is our word, too, and not the header's.
    let data = resolved.data.as_ref().map(|data| {
        Element::new("dataStore")
            .attr("type", if data.block { "block" } else { "file" })
            .child(Element::new("format").attr("type", data.format.word()))
            .child(source(&data.path, data.block))
    });
    // Without a path it is a drive without a medium.
    let path = (!resolved.path.is_empty()).then(|| source(&resolved.path, resolved.block).children(data));
    element = element.children(path);
    if let Some(backing) = &resolved.backing {
        // The chain ends here by our word: nothing in the image's header may extend it.
        element = element.child(
            Element::new("backingStore")
                .attr("type", if backing.block { "block" } else { "file" })
                .child(Element::new("format").attr("type", backing.format.word()))
                .child(source(&backing.path, backing.block))
                .child(Element::new("backingStore")),
        );
    } else {
        element = element.child(Element::new("backingStore"));
    }
    if let Some(custom) = disk.block_size.as_ref().and_then(|size| size.custom.as_ref()) {
        element = element.child(
            Element::new("blockio")
                .attr_opt("logical_block_size", custom.logical)
                .attr_opt("physical_block_size", custom.physical)
                .attr_opt("discard_granularity", custom.discard_granularity),
        );
    }
    let readonly = match device {
        Device::Cdrom => true,
        Device::Disk => disk.disk.as_ref().is_some_and(|target| target.readonly == Some(true)),
        Device::Lun => disk.lun.as_ref().is_some_and(|target| target.readonly == Some(true)),
    };
    if readonly || resolved.readonly {
        element = element.child(Element::new("readonly"));
    }
    if disk.shareable == Some(true) {
        element = element.child(Element::new("shareable"));
    }
    element = element
        .children(disk.serial.as_ref().map(|serial| Element::with_text("serial", serial)))
        .child(Element::new("alias").attr("name", format!("ua-{}", disk.name)));
    let address = disk.disk.as_ref().and_then(|target| target.pci_address.as_deref()).and_then(topology::pci_address);
    if bus == Bus::Virtio { element.children(address) } else { element }
}

fn driver(spec: &DomainSpec, disk: &Disk, bus: Bus, resolved: &ResolvedDisk, threads: &IoThreads) -> Element {
    // Contents that die with the pod gain nothing from bypassing the page cache, and share it between VMs. What guests write
    // together none of them may find in a cache of its own.
    let shared = disk.shareable == Some(true);
    let cache = disk.cache.as_deref().filter(|cache| !cache.is_empty()).unwrap_or(
        match (resolved.ephemeral, resolved.direct_io) {
            _ if shared => "none",
            (true, _) => "writeback",
            (false, true) => "none",
            (false, false) => "writethrough",
        },
    );
    let io = match disk.io.as_deref() {
        // QEMU's own default, which has no name in libvirt.
        Some("default") => None,
        Some(io) if !io.is_empty() => Some(io),
        _ => (cache == "none" && (resolved.block || resolved.preallocated)).then_some("native"),
    };
    let policy = disk.error_policy.as_deref().filter(|policy| !policy.is_empty()).unwrap_or("stop");
    let discard = (Device::of(disk) == Device::Disk && !resolved.readonly).then_some("unmap");
    let queues = (bus == Bus::Virtio && spec.devices.block_multi_queue == Some(true))
        .then(|| Topology::of(spec).map(Topology::vcpus).unwrap_or(1));
    Element::new("driver")
        .attr("name", "qemu")
        .attr("type", resolved.format.word())
        .attr("cache", cache)
        .attr("error_policy", policy)
        .attr_opt("io", io)
        .attr_opt("discard", discard)
        .attr_opt("iothread", (bus == Bus::Virtio).then(|| threads.of_disk(&disk.name)).flatten())
        .attr_opt("queues", queues)
}

/// Which I/O thread serves each disk.
pub(crate) struct IoThreads {
    count: u64,
    by_disk: BTreeMap<String, u64>,
}

impl IoThreads {
    /// A disk with a thread of its own gets one; the others share one, or spread over a pool.
    pub(crate) fn of(spec: &DomainSpec) -> Self {
        let disks = &spec.devices.disks;
        let dedicated = |disk: &&Disk| disk.dedicated_io_thread == Some(true);
        let own: Vec<&Disk> = disks.iter().filter(dedicated).collect();
        let others: Vec<&Disk> = disks.iter().filter(|disk| !dedicated(disk)).collect();
        let pool = match spec.io_threads_policy.as_deref() {
            None if own.is_empty() => 0,
            None | Some("shared") => 1,
            Some("supplementalPool") => spec
                .io_threads
                .as_ref()
                .and_then(|threads| threads.supplemental_pool_thread_count)
                .and_then(|count| u64::try_from(count).ok())
                .unwrap_or(1),
            // Twice the vCPUs are enough for any guest; a thread without a disk is none.
            Some(_) => {
                let limit = Topology::of(spec).map(Topology::vcpus).unwrap_or(1) * 2;
                limit.saturating_sub(own.len() as u64).clamp(1, (others.len() as u64).max(1))
            }
        };
        let mut by_disk = BTreeMap::new();
        for (index, disk) in others.iter().enumerate() {
            if let Some(slot) = (index as u64).checked_rem(pool) {
                by_disk.insert(disk.name.clone(), slot + 1);
            }
        }
        for (disk, thread) in own.iter().zip(pool + 1..) {
            by_disk.insert(disk.name.clone(), thread);
        }
        Self { count: pool + own.len() as u64, by_disk }
    }

    fn of_disk(&self, name: &str) -> Option<u64> {
        self.by_disk.get(name).copied()
    }
}

pub(crate) fn io_threads(spec: &DomainSpec) -> Option<Element> {
    let threads = IoThreads::of(spec);
    (threads.count > 0).then(|| Element::with_text("iothreads", threads.count))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn caches() {
        #[track_caller]
        fn check(disk: Value, direct_io: bool, expect: &str) {
            let disk: Disk = serde_json::from_value(disk).unwrap();
            let resolved = ResolvedDisk { direct_io, ..ResolvedDisk::default() };
            let spec = DomainSpec::default();
            let found = driver(&spec, &disk, Bus::Virtio, &resolved, &IoThreads::of(&spec)).render();
            assert!(found.contains(&format!("cache='{expect}' error_policy='stop'")), "{found}");
        }
        check(json!({ "name": "a" }), true, "none");
        check(json!({ "name": "a" }), false, "writethrough");
        check(json!({ "name": "a", "cache": "writeback" }), true, "writeback");
        check(json!({ "name": "a", "shareable": true }), false, "none");
    }

    #[test]
    fn the_io_mode_default_is_left_to_qemu() {
        #[track_caller]
        fn check(io: Option<&str>, expect: Option<&str>) {
            let disk = Disk { name: "a".to_owned(), io: io.map(str::to_owned), ..Disk::default() };
            let resolved = ResolvedDisk { direct_io: true, block: true, ..ResolvedDisk::default() };
            let spec = DomainSpec::default();
            let found = driver(&spec, &disk, Bus::Virtio, &resolved, &IoThreads::of(&spec)).render();
            let named = ["native", "threads", "default"].into_iter().find(|io| found.contains(&format!(" io='{io}'")));
            assert_eq!(named, expect, "{found}");
        }
        check(None, Some("native"));
        check(Some("threads"), Some("threads"));
        check(Some("default"), None);
    }

    #[test]
    fn names_of_many_disks() {
        assert_eq!([0, 25, 26, 27, 701, 702].map(letters), ["a", "z", "aa", "ab", "zz", "aaa"]);
    }
}
