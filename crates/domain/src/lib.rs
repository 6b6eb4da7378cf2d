//! A VirtualMachineInstance as a libvirt domain, and the live domain back as facts. Pure: no I/O, no clock.
//!
//! ```text
//!   VMI + Environment --to_xml--> domain XML --libvirt--> live XML --LiveDomain::read--> facts
//! ```

pub mod backup;
mod capabilities;
mod clock;
mod cpu;
mod credentials;
mod devices;
mod disks;
mod environment;
mod facts;
mod features;
pub mod hotplug;
pub mod interfaces;
mod live;
mod machine;
mod memory;
mod memory_dump;
mod migratable;
mod migration;
mod relocate;
pub mod resize;
mod state;
mod topology;
mod xml;

use api::kubevirt::hotplug::at_start;
use api::kubevirt::v1::VirtualMachineInstance;

pub use capabilities::NodeCapabilities;
pub use credentials::CredentialsOutcome;
pub use environment::{
    Backing, Environment, FirmwareFiles, Format, Paths, PluggedInterface, ResolvedDisk, ResolvedKernel, Smbios,
};
pub use facts::{DeviceKind, FailedDisk, GuestFacts, GuestInterface, LiveDevice};
pub use features::features_of_kvm;
pub use live::{LiveDomain, MemoryDevice, ReadError};
pub use memory_dump::MemoryDump;
pub use migratable::{Host, Migratability, Obstacle, migratability};
pub use migration::{
    Destination, DowntimeRamp, MigrationChannel, MigrationMode, MigrationOptions, MigrationOutcome, MigrationProgress,
    StallDetector,
};
pub use relocate::{Place, relocated};
pub use state::{DomainReason, DomainStatus};
use xml::Element;

/// Why a VMI has no domain. The sentence reaches the user in a condition.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("disk {disk} has no volume of that name")]
    NoVolume { disk: String },
    #[error("disk {disk}: its volume was not resolved to a file")]
    NotResolved { disk: String },
    #[error("disk {disk}: bus {bus} is not one of virtio, sata, scsi, usb")]
    Bus { disk: String, bus: String },
    #[error("interface {interface} is not plugged into the pod")]
    NotPlugged { interface: String },
    #[error("interface {interface}: model {model} is not known")]
    Model { interface: String, model: String },
    #[error("no memory is requested: set spec.domain.memory.guest or spec.domain.resources.requests.memory")]
    NoMemory,
    #[error("spec.domain.{field}: {value:?} is not a quantity")]
    Quantity { field: &'static str, value: String },
    #[error("spec.domain.cpu: {vcpus} vCPUs are more than a machine of this type has ({limit})")]
    TooManyCpus { vcpus: u64, limit: u64 },
    #[error("disk {disk}: the SCSI controller has no address left")]
    NoAddress { disk: String },
    #[error("spec.domain.{field} is not supported yet")]
    Unsupported { field: &'static str },
}

/// The name libvirt knows a VMI by.
pub fn domain_name(namespace: &str, name: &str) -> String {
    format!("{namespace}_{name}")
}

/// The domain's UUID, which is also the firmware's.
pub fn uuid(vmi: &VirtualMachineInstance) -> String {
    machine::uuid(vmi)
}

/// Paths of the sockets and the log in the consoles' directory.
pub mod console {
    pub const SERIAL: &str = "virt-serial0";
    pub const SERIAL_LOG: &str = "virt-serial0-log";
    pub const VNC: &str = "virt-vnc";
}

/// The domain of a VMI in this environment.
pub fn to_xml(vmi: &VirtualMachineInstance, environment: &Environment) -> Result<String, Error> {
    let vmi = &VirtualMachineInstance { spec: at_start(&vmi.spec), ..vmi.clone() };
    let spec = &vmi.spec.domain;
    if !spec.devices.gpus.is_empty() {
        return Err(Error::Unsupported { field: "devices.gpus" });
    }
    if !spec.devices.host_devices.is_empty() {
        return Err(Error::Unsupported { field: "devices.hostDevices" });
    }
    if !spec.devices.filesystems.is_empty() {
        return Err(Error::Unsupported { field: "devices.filesystems" });
    }
    let topology = cpu::Topology::of(spec)?;
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or("default");
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let uuid = machine::uuid(vmi);

    let domain = Element::new("domain")
        .attr("type", if environment.emulation { "qemu" } else { "kvm" })
        .child(Element::with_text("name", domain_name(namespace, name)))
        .child(Element::with_text("uuid", &uuid))
        .children(memory::elements(spec)?)
        .child(topology.vcpu())
        .children(topology.each())
        .children(disks::io_threads(spec))
        .child(machine::sysinfo(vmi, &uuid, &environment.smbios))
        .child(machine::os(spec, environment))
        .child(features::element(spec, environment))
        .child(cpu::element(spec, &topology, environment)?)
        .child(clock::element(spec, environment))
        .child(Element::with_text("on_poweroff", "destroy"))
        .child(Element::with_text("on_reboot", machine::on_reboot(spec)))
        .child(Element::with_text("on_crash", "destroy"))
        .child(devices::element(vmi, environment)?);
    Ok(domain.render())
}
