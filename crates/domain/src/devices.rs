//! Everything below `<devices>`: controllers, consoles, the agent's channel and what the VMI lists.

use api::kubevirt::v1::{DomainSpec, VirtualMachineInstance};

use crate::disks::Bus;
use crate::xml::Element;
use crate::{Environment, Error, console, disks, interfaces, machine, topology};

pub(crate) fn element(vmi: &VirtualMachineInstance, environment: &Environment) -> Result<Element, Error> {
    let spec = &vmi.spec.domain;
    let machine = machine::type_of(spec, environment);
    let virtio = topology::virtio(spec, &machine);
    let disks = disks::elements(vmi, environment)?;
    let interfaces = interfaces::elements(vmi, environment)?;
    let buses = disks::buses(spec)?;

    let usb = buses.contains(&Bus::Usb) || inputs(spec).iter().any(|(_, bus)| *bus == "usb");
    let scsi = buses.contains(&Bus::Scsi) || spec.devices.disable_hotplug != Some(true);
    let balloon = spec.devices.autoattach_mem_balloon.unwrap_or(true);
    let graphics = spec.devices.autoattach_graphics_device.unwrap_or(true);
    let serial = spec.devices.autoattach_serial_console.unwrap_or(true);
    // What takes a PCI slot: virtio disks, interfaces, the SCSI and the virtio-serial controller, and single devices.
    let virtio_inputs = inputs(spec).iter().filter(|(_, bus)| *bus == "virtio").count();
    let taken = buses.iter().filter(|bus| **bus == Bus::Virtio).count()
        + interfaces.len()
        + virtio_inputs
        + [true, scsi, usb, balloon, spec.devices.rng.is_some()].iter().filter(|taken| **taken).count();

    let controller =
        |kind: &str, model: &str| Element::new("controller").attr("type", kind).attr("index", 0).attr("model", model);
    let mut devices = Element::new("devices")
        .child(Element::with_text("emulator", &environment.paths.emulator))
        .children(topology::ports(spec, &machine, taken))
        .child(controller("usb", if usb { "qemu-xhci" } else { "none" }));
    if scsi {
        devices = devices.child(controller("scsi", virtio));
    }
    devices = devices
        .child(controller("virtio-serial", virtio))
        .children(disks)
        .children(interfaces)
        .child(
            Element::new("channel")
                .attr("type", "unix")
                .child(Element::new("target").attr("type", "virtio").attr("name", "org.qemu.guest_agent.0")),
        )
        .children(serial.then(|| serial_console(spec, environment)))
        .children(inputs(spec).iter().map(|(kind, bus)| {
            // Transitional flavours exist of other virtio devices only.
            let model = (*bus == "virtio").then_some("virtio");
            Element::new("input").attr("type", kind).attr("bus", bus).attr_opt("model", model)
        }));
    devices = if graphics { devices.children(screen(spec, environment)) } else { devices.child(no_video()) };
    devices = devices.children(spec.devices.sound.as_ref().map(|sound| {
        let model = sound.model.as_deref().filter(|model| !model.is_empty()).unwrap_or("ich9");
        Element::new("sound").attr("model", model).child(alias(&sound.name))
    }));
    if let Some(watchdog) = &spec.devices.watchdog {
        let action = watchdog.i6300esb.as_ref().and_then(|i6300| i6300.action.clone());
        let action = action.filter(|action| !action.is_empty()).unwrap_or_else(|| "reset".to_owned());
        devices = devices.child(
            Element::new("watchdog").attr("model", "i6300esb").attr("action", action).child(alias(&watchdog.name)),
        );
    }
    if spec.devices.rng.is_some() {
        devices = devices.child(
            Element::new("rng")
                .attr("model", virtio)
                .child(Element::with_text("backend", "/dev/urandom").attr("model", "random")),
        );
    }
    if let Some(tpm) = spec.devices.tpm.as_ref().filter(|tpm| tpm.enabled.unwrap_or(true)) {
        let keep = tpm.persistent.filter(|persistent| *persistent).map(|_| "yes");
        devices = devices.child(Element::new("tpm").attr("model", "tpm-crb").child(
            Element::new("backend").attr("type", "emulator").attr("version", "2.0").attr_opt("persistent_state", keep),
        ));
    }
    devices = devices.children(spec.devices.panic_devices.iter().map(|panic| {
        let model = panic.model.as_deref().filter(|model| !model.is_empty());
        Element::new("panic").attr("model", model.unwrap_or("isa"))
    }));
    Ok(devices.child(if balloon { memory_balloon(virtio, environment) } else { no_balloon() }))
}

fn alias(name: &str) -> Element {
    Element::new("alias").attr("name", format!("ua-{name}"))
}

fn no_video() -> Element {
    Element::new("video").child(Element::new("model").attr("type", "none"))
}

fn no_balloon() -> Element {
    Element::new("memballoon").attr("model", "none")
}

fn memory_balloon(model: &str, environment: &Environment) -> Element {
    Element::new("memballoon")
        .attr("model", model)
        .attr("freePageReporting", if environment.free_page_reporting { "on" } else { "off" })
        .child(Element::new("stats").attr("period", 10))
}

fn serial_console(spec: &DomainSpec, environment: &Environment) -> Element {
    let at = |name: &str| format!("{}/{name}", environment.paths.consoles);
    let log = spec.devices.log_serial_console.unwrap_or(environment.log_serial_console);
    Element::new("serial")
        .attr("type", "unix")
        .child(Element::new("source").attr("mode", "bind").attr("path", at(console::SERIAL)))
        .children(log.then(|| Element::new("log").attr("file", at(console::SERIAL_LOG)).attr("append", "on")))
        .child(Element::new("target").attr("port", 0))
}

fn screen(spec: &DomainSpec, environment: &Environment) -> [Element; 2] {
    let socket = format!("{}/{}", environment.paths.consoles, console::VNC);
    let named = spec.devices.video.as_ref().and_then(|video| video.type_.as_deref()).filter(|kind| !kind.is_empty());
    // bochs needs no VGA BIOS, which an EFI guest has no use for.
    let kind = named.unwrap_or(if machine::efi(spec).is_some() { "bochs" } else { "vga" });
    let mut model = Element::new("model").attr("type", kind).attr("heads", 1);
    if matches!(kind, "vga" | "bochs") {
        model = model.attr("vram", 16384);
    }
    [
        Element::new("graphics")
            .attr("type", "vnc")
            .child(Element::new("listen").attr("type", "socket").attr("socket", socket)),
        Element::new("video").child(model),
    ]
}

/// Type and bus of each input device the VMI asks for, the automatic tablet included.
fn inputs(spec: &DomainSpec) -> Vec<(&str, &str)> {
    let mut inputs: Vec<(&str, &str)> = spec
        .devices
        .inputs
        .iter()
        .map(|input| (input.type_.as_str(), input.bus.as_deref().filter(|bus| !bus.is_empty()).unwrap_or("usb")))
        .collect();
    if spec.devices.autoattach_input_device == Some(true) && inputs.is_empty() {
        inputs.push(("tablet", "usb"));
    }
    inputs
}
