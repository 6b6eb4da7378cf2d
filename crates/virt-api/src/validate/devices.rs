//! Disks, firmware, machine type and what hangs on them.

use std::collections::BTreeMap;

use api::kubevirt::hotplug::is_hotplug;
use api::kubevirt::v1::{Disk, VirtualMachineInstanceSpec};
use kit::admission::Cause;

use super::{Rules, duplicate, hardware, invalid, required, volumes};

const BUSES: [&str; 4] = ["virtio", "scsi", "sata", "usb"];

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, rules: &Rules, causes: &mut Vec<Cause>) {
    disks(path, spec, causes);
    boot_order(path, spec, causes);
    firmware(path, spec, causes);
    if let Some(machine) = spec.domain.machine.as_ref().and_then(|machine| machine.type_.as_deref())
        && !machine.is_empty()
        && !rules.machines.iter().any(|pattern| matches(pattern, machine))
    {
        let field = format!("{path}.domain.machine.type");
        let message = format!("{field} is not supported: {machine} (allowed values: [{}])", rules.machines.join(" "));
        causes.push(invalid(field, message));
    }
    let count = spec.domain.devices.disks.len();
    if count > 256 {
        let field = format!("{path}.domain.devices.disks");
        causes.push(invalid(field.clone(), format!("{field} list exceeds the 256 element limit in length")));
    }
}

/// `*` at the end stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

fn disks(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let base = format!("{path}.domain.devices.disks");
    let all = &spec.domain.devices.disks;
    for (index, disk) in all.iter().enumerate() {
        let field = format!("{base}[{index}]");
        if let Some(other) = all[..index].iter().position(|held| held.name == disk.name) {
            let message = format!("{field}.name and {base}[{other}].name must not have the same Name.");
            causes.push(duplicate(format!("{field}.name"), message));
        }
        let volume = spec.volumes.iter().find(|volume| volume.name == disk.name);
        let bus = disk.disk.as_ref().map(|target| target.bus.as_deref().unwrap_or_default());
        if volume.is_some_and(is_hotplug) && bus.is_some_and(|bus| !["", "scsi", "virtio"].contains(&bus)) {
            let message = format!("hotplugged Disk {} does not use a scsi or virtio bus", disk.name);
            causes.push(invalid(format!("{field}.disk.bus"), message));
        }
        // A drive may be empty.
        if volume.is_none() && disk.cdrom.is_none() {
            let message = format!(
                "{field}.Name '{}' not found: add a volume of this name to {path}.volumes, or correct the disk's name",
                disk.name
            );
            causes.push(invalid(format!("{field}.name"), message));
        }
        target(&field, disk, causes);
        if let Some(serial) = disk.serial.as_deref() {
            if serial.len() > 256 {
                let message = format!("{field}.serial must be less than or equal to 256 in length, if specified");
                causes.push(invalid(format!("{field}.serial"), message));
            } else if !hardware::is_serial(serial) {
                let message = format!(
                    "{field}.serial must be made up of the following characters [A-Za-z0-9 _.+-], if specified"
                );
                causes.push(invalid(format!("{field}.serial"), message));
            }
        }
        let known = ["", "none", "writethrough", "writeback", "directsync"];
        if let Some(cache) = disk.cache.as_deref().filter(|cache| !known.contains(cache)) {
            let message =
                format!("{field}.cache has invalid value {cache}: use none, writethrough, writeback or directsync");
            causes.push(invalid(format!("{field}.cache"), message));
        }
        if let Some(cache) = disk.cache.as_deref().filter(|c| disk.shareable == Some(true) && !["", "none"].contains(c))
        {
            let message = format!("a sharable disk requires cache = none got: {cache}");
            causes.push(invalid(format!("{field}.cache"), message));
        }
        if let Some(io) = disk.io.as_deref().filter(|io| !["", "native", "default", "threads"].contains(io)) {
            let message =
                format!("Disk IO mode for {field} is not supported. Supported modes are: native, threads, default.");
            causes.push(invalid(format!("{field}.io"), format!("{message} Found {io}.")));
        }
        if disk.io.as_deref() == Some("native")
            && disk.cache.as_deref().is_some_and(|cache| !["", "none", "directsync"].contains(&cache))
        {
            let message = format!("{field}.io native needs {field}.cache none");
            causes.push(invalid(format!("{field}.io"), message));
        }
    }
}

fn target(field: &str, disk: &Disk, causes: &mut Vec<Cause>) {
    let targets = [
        ("disk", disk.disk.as_ref().map(|target| target.bus.as_deref())),
        ("cdrom", disk.cdrom.as_ref().map(|target| target.bus.as_deref())),
        ("lun", disk.lun.as_ref().map(|target| target.bus.as_deref())),
    ];
    let set: Vec<_> = targets.iter().filter_map(|(kind, bus)| bus.map(|bus| (*kind, bus))).collect();
    if set.len() > 1 {
        causes.push(invalid(field.to_owned(), format!("{field} can only have a single target type defined")));
    }
    for (kind, bus) in set {
        let Some(bus) = bus.filter(|bus| !bus.is_empty()) else { continue };
        let place = format!("{field}.{kind}.bus");
        if bus == "ide" {
            causes.push(invalid(place, "IDE bus is not supported: use sata".to_owned()));
        } else if !BUSES.contains(&bus) {
            let message =
                format!("{field} is set with an unrecognized bus {bus}, must be one of: [{}]", BUSES.join(" "));
            causes.push(invalid(place, message));
        } else if kind == "cdrom" && bus == "virtio" {
            causes.push(invalid(place, "Bus type virtio is invalid for CD-ROM device: use sata or scsi".to_owned()));
        } else if kind == "lun" && bus != "scsi" {
            causes.push(invalid(place, format!("Bus type {bus} is invalid for LUN device: use scsi")));
        }
    }
}

fn boot_order(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let devices = &spec.domain.devices;
    let base = format!("{path}.domain.devices");
    let disks = devices.disks.iter().enumerate().map(|(i, disk)| (format!("{base}.disks[{i}]"), disk.boot_order));
    let nics =
        devices.interfaces.iter().enumerate().map(|(i, nic)| (format!("{base}.interfaces[{i}]"), nic.boot_order));
    let mut seen: BTreeMap<i64, String> = BTreeMap::new();
    for (field, order) in disks.chain(nics) {
        let Some(order) = order.map(i64::from) else { continue };
        let place = format!("{field}.bootOrder");
        if order < 1 {
            causes.push(invalid(place, format!("{field} must have a boot order > 0, if supplied")));
        } else if let Some(other) = seen.insert(order, field.clone()) {
            let message = format!("Boot order for {place} already set for a different device: {other}.");
            causes.push(invalid(place, message));
        }
    }
}

fn firmware(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(firmware) = &spec.domain.firmware else { return };
    let base = format!("{path}.domain.firmware");
    if let Some(loader) = &firmware.bootloader {
        let field = format!("{base}.bootloader");
        if loader.efi.is_some() && loader.bios.is_some() {
            let message = format!("{field} has both EFI and BIOS configured, but they are mutually exclusive.");
            causes.push(invalid(field.clone(), message));
        }
        let secure = loader.efi.as_ref().is_some_and(|efi| efi.secure_boot.unwrap_or(true));
        let smm = spec.domain.features.as_ref().and_then(|features| features.smm.as_ref());
        let smm = smm.is_some_and(|smm| smm.enabled.unwrap_or(true));
        if secure && !smm {
            let message = format!(
                "{field} has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled: set \
                 {path}.domain.features.smm.enabled to true, or {field}.efi.secureBoot to false."
            );
            causes.push(invalid(field, message));
        }
    }
    let Some(kernel) = &firmware.kernel_boot else { return };
    let field = format!("{base}.kernelBoot");
    let Some(container) = &kernel.container else {
        if kernel.kernel_args.as_ref().is_some_and(|args| !args.is_empty()) {
            let message = "kernel arguments cannot be provided without an external kernel";
            causes.push(invalid(format!("{field}.kernelArgs"), message.to_owned()));
        }
        return;
    };
    if container.image.trim().is_empty() {
        let message = format!("{field}.container must be defined with an image");
        causes.push(required(format!("{field}.container.image"), message));
    }
    let paths = [("kernelPath", &container.kernel_path), ("initrdPath", &container.initrd_path)];
    if paths.iter().all(|(_, path)| path.as_ref().is_none_or(String::is_empty)) {
        let place = format!("{field}.container");
        causes.push(required(
            place.clone(),
            format!("{place} must be defined with at least one of the following: kernelPath, initrdPath"),
        ));
    }
    for (name, value) in paths {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            volumes::absolute(&format!("{field}.container.{name}"), value, causes);
        }
    }
}
