//! PCI: the ports devices sit in, and free ones for devices that come later.

use std::collections::BTreeSet;

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

/// Root ports for `devices` PCI devices: those in use and, unless hotplug is off, spare ones. A port holds one device, in slot
/// 0: buses on which the VMI names other slots are bridges to conventional PCI, which have 32.
pub(crate) fn ports(spec: &DomainSpec, machine: &str, devices: usize) -> Vec<Element> {
    if !is_q35(machine) {
        return Vec::new();
    }
    let spare = if spec.devices.disable_hotplug == Some(true) { 0 } else { SPARE_PORTS };
    let bridged: BTreeSet<usize> =
        addresses(spec).filter(|address| number(address.slot) > 0).map(|address| number(address.bus)).collect();
    let controller = |index: usize, model: &str| {
        Element::new("controller").attr("type", "pci").attr("index", index).attr("model", model)
    };
    let model = |index| if bridged.contains(&index) { "dmi-to-pci-bridge" } else { "pcie-root-port" };
    // libvirt adds the ports that lie between.
    let named = addresses(spec).map(|address| number(address.bus)).filter(|bus| *bus > 0);
    let buses: BTreeSet<usize> = (1..=devices + spare).chain(named).collect();
    std::iter::once(controller(0, "pcie-root")).chain(buses.iter().map(|bus| controller(*bus, model(*bus)))).collect()
}

/// Every address that the VMI gives a device.
fn addresses(spec: &DomainSpec) -> impl Iterator<Item = Address<'_>> {
    let disks = spec.devices.disks.iter().filter_map(|disk| disk.disk.as_ref()?.pci_address.as_deref());
    let interfaces = spec.devices.interfaces.iter().filter_map(|interface| interface.pci_address.as_deref());
    disks.chain(interfaces).filter_map(Address::parse)
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

/// `0000:81:01.0`: its parts in hexadecimal digits.
struct Address<'a> {
    domain: &'a str,
    bus: &'a str,
    slot: &'a str,
    function: &'a str,
}

impl<'a> Address<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (rest, function) = text.rsplit_once('.')?;
        let mut parts = rest.split(':');
        let (domain, bus, slot) = (parts.next()?, parts.next()?, parts.next()?);
        let hex = |part: &str, length: usize| part.len() <= length && part.chars().all(|c| c.is_ascii_hexdigit());
        let good = parts.next().is_none() && hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && hex(function, 1);
        good.then_some(Self { domain, bus, slot, function })
    }
}

fn number(digits: &str) -> usize {
    usize::from_str_radix(digits, 16).unwrap_or(0)
}

/// `0000:81:01.0` as libvirt's address element.
pub(crate) fn pci_address(text: &str) -> Option<Element> {
    let Address { domain, bus, slot, function } = Address::parse(text)?;
    Some(
        Element::new("address")
            .attr("type", "pci")
            .attr("domain", format!("0x{domain}"))
            .attr("bus", format!("0x{bus}"))
            .attr("slot", format!("0x{slot}"))
            .attr("function", format!("0x{function}")),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Models of the controllers, by index.
    fn models(addresses: &[&str]) -> Vec<String> {
        let interfaces: Vec<_> = addresses.iter().map(|at| json!({ "name": "n", "pciAddress": at })).collect();
        let spec = json!({ "devices": { "disableHotplug": true, "interfaces": interfaces } });
        let ports = ports(&serde_json::from_value(spec).unwrap(), "q35", 3);
        let model = |port: &Element| {
            port.render().split("model=").nth(1).unwrap().split(['"', '\'']).nth(1).unwrap().to_owned()
        };
        ports.iter().map(model).collect()
    }

    #[test]
    fn a_bus_has_the_slots_that_are_named_on_it() {
        let (root, port, bridge) = ("pcie-root", "pcie-root-port", "dmi-to-pci-bridge");
        assert_eq!(models(&[]), [root, port, port, port]);
        assert_eq!(models(&["0000:02:00.0"]), [root, port, port, port]);
        assert_eq!(models(&["0000:02:01.0"]), [root, port, bridge, port]);
        assert_eq!(models(&["0000:00:05.0", "0000:01:00.0", "0000:01:1f.0"]), [root, bridge, port, port]);
        assert_eq!(models(&["0000:81:01.0"]), [root, port, port, port, bridge]);
        assert_eq!(models(&["0000:81:00.0"]), [root, port, port, port, port]);
    }
}
