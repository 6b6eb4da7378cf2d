//! Network interfaces: taps that the node agent made, with the model the guest sees.

use api::kubevirt::v1::{Interface, VirtualMachineInstance};

use crate::cpu::Topology;
use crate::xml::Element;
use crate::{DeviceKind, Environment, Error, LiveDomain, machine, topology};

/// The interfaces of `live` whose link is not as `vmi` says, by name, and the XML to update them with.
///
/// # Errors
/// When one cannot be described.
pub fn links(
    vmi: &VirtualMachineInstance,
    environment: &Environment,
    live: &LiveDomain,
) -> Result<Vec<(String, String)>, Error> {
    let link = |state: Option<&str>| if state == Some("down") { "down" } else { "up" };
    let present = || {
        let all = vmi.spec.domain.devices.interfaces.iter();
        all.filter(|one| one.state.as_deref() != Some("absent"))
    };
    let differs = |one: &Interface| {
        let mut known = live.devices.iter().filter(|device| device.kind == DeviceKind::Interface);
        known.any(|device| device.name == one.name && device.link != link(one.state.as_deref()))
    };
    if !present().any(differs) {
        return Ok(Vec::new());
    }
    let all = present().zip(elements(vmi, environment)?);
    Ok(all.filter(|(one, _)| differs(one)).map(|(one, xml)| (one.name.clone(), xml.render())).collect())
}

pub(crate) fn elements(vmi: &VirtualMachineInstance, environment: &Environment) -> Result<Vec<Element>, Error> {
    let spec = &vmi.spec.domain;
    let machine = machine::type_of(spec, environment);
    let mut out = Vec::new();
    for interface in spec.devices.interfaces.iter().filter(|interface| interface.state.as_deref() != Some("absent")) {
        let plugged = environment
            .interfaces
            .iter()
            .find(|plugged| plugged.name == interface.name)
            .ok_or_else(|| Error::NotPlugged { interface: interface.name.clone() })?;
        let named = interface.model.as_deref().filter(|model| !model.is_empty()).unwrap_or("virtio");
        let model = match named {
            "virtio" => topology::virtio(spec, &machine),
            "e1000" | "e1000e" | "igb" | "rtl8139" | "ne2k_pci" | "pcnet" => named,
            other => {
                return Err(Error::Model { interface: interface.name.clone(), model: other.to_owned() });
            }
        };
        let virtio = named == "virtio";
        let mac = interface.mac_address.as_deref().filter(|mac| !mac.is_empty()).unwrap_or(&plugged.mac);
        let queues = if virtio && spec.devices.network_interface_multiqueue == Some(true) {
            Some(u64::from(plugged.queues).min(Topology::of(spec)?.vcpus())).filter(|queues| *queues > 1)
        } else {
            None
        };
        let mut element = Element::new("interface").attr("type", "ethernet");
        if !mac.is_empty() {
            element = element.child(Element::new("mac").attr("address", mac.replace('-', ":")));
        }
        element = element
            .child(Element::new("target").attr("dev", &plugged.tap).attr("managed", "no"))
            .child(Element::new("model").attr("type", model));
        if virtio {
            let name = if environment.vhost_net { "vhost" } else { "qemu" };
            element = element.child(Element::new("driver").attr("name", name).attr_opt("queues", queues));
        }
        if plugged.mtu > 0 {
            element = element.child(Element::new("mtu").attr("size", plugged.mtu));
        }
        if interface.state.as_deref() == Some("down") {
            element = element.child(Element::new("link").attr("state", "down"));
        }
        // A boot ROM is read at each boot and needed only to boot from this network.
        element = match interface.boot_order {
            Some(order) => element.child(Element::new("boot").attr("order", order)),
            None => element.child(Element::new("rom").attr("enabled", "no")),
        };
        element = element
            .children(interface.acpi_index.map(|index| Element::new("acpi").attr("index", index)))
            .child(Element::new("alias").attr("name", format!("ua-{}", interface.name)))
            .children(interface.pci_address.as_deref().and_then(topology::pci_address));
        out.push(element);
    }
    Ok(out)
}
