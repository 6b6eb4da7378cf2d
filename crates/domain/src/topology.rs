//! PCI: the ports devices sit in, and free ones for devices that come later.

use api::kubevirt::v1::DomainSpec;

use crate::xml::Element;

/// Free ports of a machine that accepts hotplug. Each costs the guest's firmware a few milliseconds at boot.
const SPARE_PORTS: usize = 4;

pub(crate) fn is_q35(machine: &str) -> bool {
    machine.contains("q35")
}

pub(crate) fn is_microvm(machine: &str) -> bool {
    machine.contains("microvm")
}

/// Root ports for `devices` PCI devices: those in use and, unless hotplug is off, spare ones.
pub(crate) fn ports(spec: &DomainSpec, machine: &str, devices: usize) -> Vec<Element> {
    if !is_q35(machine) {
        return Vec::new();
    }
    let spare = if spec.devices.disable_hotplug == Some(true) { 0 } else { SPARE_PORTS };
    let root = Element::new("controller").attr("type", "pci").attr("index", 0).attr("model", "pcie-root");
    let port = |index: usize| {
        Element::new("controller").attr("type", "pci").attr("index", index).attr("model", "pcie-root-port")
    };
    std::iter::once(root).chain((1..=devices + spare).map(port)).collect()
}

/// The virtio flavour: devices on PCI Express have no legacy interface unless the VM asks for it.
pub(crate) fn virtio(spec: &DomainSpec, machine: &str) -> &'static str {
    if is_microvm(machine) {
        "virtio"
    } else if spec.devices.use_virtio_transitional == Some(true) {
        "virtio-transitional"
    } else {
        "virtio-non-transitional"
    }
}

/// `0000:81:01.0` as libvirt's address element.
pub(crate) fn pci_address(text: &str) -> Option<Element> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.split(':');
    let (domain, bus, slot) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, len: usize| part.len() <= len && part.chars().all(|c| c.is_ascii_hexdigit());
    if parts.next().is_some() || !hex(domain, 4) || !hex(bus, 2) || !hex(slot, 2) || !hex(function, 1) {
        return None;
    }
    Some(
        Element::new("address")
            .attr("type", "pci")
            .attr("domain", format!("0x{domain}"))
            .attr("bus", format!("0x{bus}"))
            .attr("slot", format!("0x{slot}"))
            .attr("function", format!("0x{function}")),
    )
}
