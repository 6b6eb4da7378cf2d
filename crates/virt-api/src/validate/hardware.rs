//! Small devices, I/O threads, addresses and identities: words from fixed lists, and values QEMU would only refuse later.

use api::kubevirt::v1::{Disk, DomainSpec, VirtualMachineInstanceSpec};
use kit::admission::Cause;

use super::{invalid, unsupported};

/// Smallest and largest block a guest is shown.
const BLOCK: std::ops::RangeInclusive<i64> = 512..=2_097_152;
/// Longest serial number.
const SERIAL: usize = 256;

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let domain = &spec.domain;
    let devices = format!("{path}.domain.devices");
    inputs(&devices, domain, causes);
    if let Some(sound) = &domain.devices.sound {
        let field = format!("{devices}.sound");
        if sound.model.as_deref().is_some_and(|model| !["", "ich9", "ac97"].contains(&model)) {
            let message = "Sound device type is not supported. Options: 'ich9' or 'ac97'".to_owned();
            causes.push(invalid(format!("{field}.model"), message));
        }
        if sound.name.is_empty() {
            causes.push(invalid(format!("{field}.name"), "Sound device requires a name field.".to_owned()));
        }
    }
    if let Some(action) = domain.devices.watchdog.as_ref().and_then(|dog| dog.i6300esb.as_ref()?.action.as_deref())
        && !["", "poweroff", "reset", "shutdown"].contains(&action)
    {
        let field = format!("{devices}.watchdog.i6300esb.action");
        causes.push(invalid(field.clone(), format!("{field} {action:?} is not one of poweroff, reset, shutdown")));
    }
    for (index, panic) in domain.devices.panic_devices.iter().enumerate() {
        if let Some(model) = panic.model.as_deref().filter(|model| !["hyperv", "isa", "pvpanic"].contains(model)) {
            let message = format!("invalid PanicDeviceModel({model}): use hyperv, isa or pvpanic");
            causes.push(invalid(format!("{devices}.panicDevices[{index}].model"), message));
        }
    }
    for (index, feature) in domain.cpu.iter().flat_map(|cpu| &cpu.features).enumerate() {
        let policy = feature.policy.as_deref().unwrap_or_default();
        if !["", "force", "require", "optional", "disable", "forbid"].contains(&policy) {
            let message = format!("CPU feature {} uses policy {policy} that is not supported.", feature.name);
            causes.push(unsupported(format!("{path}.domain.cpu.features[{index}].policy"), message));
        }
    }
    io_threads(path, domain, causes);
    identity(path, domain, causes);
    for (index, disk) in domain.devices.disks.iter().enumerate() {
        disk_details(&format!("{devices}.disks[{index}]"), disk, spec, causes);
    }
    for (index, interface) in domain.devices.interfaces.iter().enumerate() {
        if let Some(address) = interface.pci_address.as_deref().filter(|text| !text.is_empty() && !is_pci(text)) {
            let field = format!("{devices}.interfaces[{index}]");
            let message =
                format!("interface {field}.name has malformed PCI address ({address}): write it like 0000:81:01.0.");
            causes.push(invalid(format!("{field}.pciAddress"), message));
        }
    }
}

fn inputs(devices: &str, domain: &DomainSpec, causes: &mut Vec<Cause>) {
    for (index, input) in domain.devices.inputs.iter().enumerate() {
        let field = format!("{devices}.inputs[{index}]");
        if input.bus.as_deref().is_some_and(|bus| !["", "virtio", "usb"].contains(&bus)) {
            let message = "Input device can have only virtio or usb bus.".to_owned();
            causes.push(invalid(format!("{field}.bus"), message));
        }
        if !["", "tablet"].contains(&input.type_.as_str()) {
            causes.push(invalid(format!("{field}.type"), "Input device can have only tablet type.".to_owned()));
        }
    }
}

fn io_threads(path: &str, domain: &DomainSpec, causes: &mut Vec<Cause>) {
    let Some(policy) = domain.io_threads_policy.as_deref() else { return };
    if !["shared", "auto", "supplementalPool"].contains(&policy) {
        let message = format!("Invalid IOThreadsPolicy ({policy}): use shared, auto or supplementalPool");
        causes.push(invalid(format!("{path}.domain.ioThreadsPolicy"), message));
    }
    let count = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count).unwrap_or(0);
    if policy == "supplementalPool" && count < 1 {
        let field = format!("{path}.domain.ioThreads.supplementalPoolThreadCount");
        let message = "the number of iothreads needs to be set and positive for the dedicated policy".to_owned();
        causes.push(invalid(field, message));
    }
}

fn identity(path: &str, domain: &DomainSpec, causes: &mut Vec<Cause>) {
    let Some(firmware) = &domain.firmware else { return };
    if let Some(uuid) = firmware.uuid.as_deref().filter(|uuid| !uuid.is_empty() && uuid::Uuid::parse_str(uuid).is_err())
    {
        let field = format!("{path}.domain.firmware.uuid");
        causes.push(invalid(field.clone(), format!("{field} {uuid:?} is not a UUID: leave it out to get one")));
    }
    if let Some(serial) = firmware.serial.as_deref().filter(|serial| !serial.is_empty()) {
        let field = format!("{path}.domain.firmware.serial");
        if serial.len() > SERIAL {
            let message = format!("{field} must be less than or equal to {SERIAL} in length, if specified");
            causes.push(invalid(field, message));
        } else if !is_serial(serial) {
            let message = format!("{field} must be made up of the following characters [A-Za-z0-9 _.+-], if specified");
            causes.push(invalid(field, message));
        }
    }
}

/// Characters of a serial number.
pub(super) fn is_serial(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-' | '+' | '.'))
}

fn disk_details(field: &str, disk: &Disk, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    if let Some(policy) =
        disk.error_policy.as_deref().filter(|p| !["", "stop", "ignore", "report", "enospace"].contains(p))
    {
        let message =
            format!("{field}.errorPolicy has invalid value \"{policy}\": use stop, ignore, report or enospace");
        causes.push(invalid(format!("{field}.errorPolicy"), message));
    }
    let bus = disk.disk.as_ref().and_then(|target| target.bus.as_deref()).unwrap_or_default();
    let other = disk.cdrom.is_some() || disk.lun.is_some();
    if disk.dedicated_io_thread == Some(true) && (other || !["", "virtio"].contains(&bus)) {
        let bus = if other { "CD-ROM or LUN" } else { bus };
        let message = format!("IOThreads are not supported for disks on a {bus} bus: use virtio");
        causes.push(unsupported(format!("{field}.dedicatedIOThread"), message));
    }
    if bus == "sata" && disk.disk.as_ref().is_some_and(|target| target.readonly == Some(true)) {
        let message = "sata hard-disks do not support read-only.".to_owned();
        causes.push(invalid(format!("{field}.disk.bus"), message));
    }
    if disk.lun.is_some()
        && let Some(volume) = spec.volumes.iter().find(|volume| volume.name == disk.name)
        && volume.persistent_volume_claim.is_none()
        && volume.data_volume.is_none()
    {
        let message = format!("{field}.lun can only be mapped to a DataVolume or PersistentVolumeClaim volume.");
        causes.push(invalid(format!("{field}.lun"), message));
    }
    if let Some(address) = disk.disk.as_ref().and_then(|target| target.pci_address.as_deref()).filter(|t| !t.is_empty())
    {
        let place = format!("{field}.disk.pciAddress");
        if !["", "virtio"].contains(&bus) {
            let message = format!("disk {field}.name - setting a PCI address is only possible with bus type virtio.");
            causes.push(invalid(place.clone(), message));
        }
        if !is_pci(address) {
            let message =
                format!("disk {field}.name has malformed PCI address ({address}): write it like 0000:81:01.0.");
            causes.push(invalid(place, message));
        }
    }
    block_size(field, disk, causes);
}

fn block_size(field: &str, disk: &Disk, causes: &mut Vec<Cause>) {
    let Some(custom) = disk.block_size.as_ref().and_then(|size| size.custom.as_ref()) else { return };
    let field = format!("{field}.blockSize");
    let matched = disk.block_size.as_ref().and_then(|size| size.match_volume.as_ref());
    if matched.is_some_and(|state| state.enabled.unwrap_or(true)) {
        let message = "Block size matching can't be enabled together with a custom value".to_owned();
        causes.push(invalid(field, message));
        return;
    }
    let (logical, physical) = (i64::from(custom.logical.unwrap_or(0)), i64::from(custom.physical.unwrap_or(0)));
    if logical > physical {
        let message = format!("Logical size {logical} must be the same or less than the physical size of {physical}");
        causes.push(invalid(format!("{field}.custom.logical"), message));
        return;
    }
    for (name, size) in [("logical", logical), ("physical", physical)] {
        let (low, high) = (BLOCK.start(), BLOCK.end());
        let message = if size < *low {
            format!("Provided size of {size} is less than the supported minimum size of {low}")
        } else if size > *high {
            format!("Provided size of {size} is greater than the supported maximum size of {high}")
        } else if size & (size - 1) != 0 {
            format!("Provided size of {size} is not a power of 2")
        } else {
            continue;
        };
        causes.push(invalid(format!("{field}.custom.{name}"), message));
    }
}

/// `DDDD:BB:SS.F`, all hexadecimal.
fn is_pci(text: &str) -> bool {
    let Some((rest, function)) = text.rsplit_once('.') else { return false };
    let hex = |part: &str, length: usize| part.len() == length && part.chars().all(|c| c.is_ascii_hexdigit());
    match rest.split(':').collect::<Vec<_>>().as_slice() {
        [domain, bus, slot] => hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && hex(function, 1),
        _ => false,
    }
}
