//! What brings the disks of a running domain to what its VMI asks for: disks that come and go, media of drives. Pure.
//!
//! A disk comes once its file or device is there, and goes when the VMI does not name it any more. Names and addresses are
//! chosen among those that the live domain leaves free, since a disk that goes leaves a gap.

use std::collections::{BTreeMap, BTreeSet};

use api::kubevirt::hotplug::{at_start, disk, volumes};
use api::kubevirt::v1::{Disk, VirtualMachineInstance};

use crate::disks::{self, Bus, Device, IoThreads, letters};
use crate::xml::Element;
use crate::{DeviceKind, Environment, Error, LiveDevice, LiveDomain, ResolvedDisk};

/// Targets of the one SCSI controller.
const UNITS: u32 = 256;

/// One change of a running domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The volume it is about.
    pub volume: String,
    /// What is to happen to it.
    pub action: Action,
    /// The device.
    pub xml: String,
}

/// What happens to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The guest gets it.
    Attach,
    /// The guest is asked to let go of it.
    Detach,
    /// The medium of a drive is put in, exchanged or taken out.
    Medium,
}

/// The changes that `live` needs. Of the volumes that come and go, `available` are there.
///
/// # Errors
/// When a disk cannot be described, or has no place in the machine.
pub fn changes(
    vmi: &VirtualMachineInstance,
    environment: &Environment,
    live: &LiveDomain,
    available: &BTreeMap<String, ResolvedDisk>,
) -> Result<Vec<Change>, Error> {
    let present = || live.devices.iter().filter(|device| device.kind == DeviceKind::Disk);
    let mut places = Places::of(present());
    let mut out: Vec<Change> = present()
        .filter(|device| disk(&vmi.spec, &device.name).is_none())
        .map(|device| Change { volume: device.name.clone(), action: Action::Detach, xml: named(device).render() })
        .collect();
    for wanted in &vmi.spec.domain.devices.disks {
        let name = &wanted.name;
        let found = present().find(|device| device.name == *name);
        let volume = volumes(&vmi.spec).find(|volume| volume.name == *name);
        let here = volume.and_then(|_| available.get(name));
        match (found, here) {
            (None, Some(here)) => {
                let xml = attached(vmi, environment, wanted, here, &mut places)?;
                out.push(Change { volume: name.clone(), action: Action::Attach, xml });
            }
            (Some(device), _) if device.device == Device::Cdrom.word() => {
                let taken_out = !vmi.spec.volumes.iter().any(|volume| volume.name == *name);
                let empty = ResolvedDisk { readonly: true, ..ResolvedDisk::default() };
                let medium = here.filter(|here| here.path != device.source);
                let medium = medium.or((taken_out && !device.source.is_empty()).then_some(&empty));
                if let Some(medium) = medium {
                    let xml = drive(wanted, device, medium).render();
                    out.push(Change { volume: name.clone(), action: Action::Medium, xml });
                }
            }
            _ => {}
        }
    }
    Ok(out)
}

/// Names and addresses that are taken.
struct Places {
    targets: BTreeSet<String>,
    units: BTreeSet<u32>,
}

impl Places {
    fn of<'a>(devices: impl Iterator<Item = &'a LiveDevice>) -> Self {
        let mut taken = Self { targets: BTreeSet::new(), units: BTreeSet::new() };
        for device in devices {
            taken.targets.insert(device.target.clone());
            taken.units.extend(device.unit.filter(|_| device.bus == Bus::Scsi.word()));
        }
        taken
    }

    fn target(&mut self, bus: Bus) -> String {
        let mut names = (0..).map(|index| format!("{}{}", bus.prefix(), letters(index)));
        let free = names.find(|name| !self.targets.contains(name)).unwrap_or_default();
        self.targets.insert(free.clone());
        free
    }

    fn unit(&mut self) -> Option<u32> {
        let free = (0..UNITS).find(|unit| !self.units.contains(unit))?;
        self.units.insert(free);
        Some(free)
    }
}

fn attached(
    vmi: &VirtualMachineInstance,
    environment: &Environment,
    wanted: &Disk,
    here: &ResolvedDisk,
    places: &mut Places,
) -> Result<String, Error> {
    let bus = Bus::of(wanted)?;
    let target = Element::new("target").attr("dev", places.target(bus)).attr("bus", bus.word());
    let mut element = described(vmi, environment, wanted, bus, here).child(target);
    if bus == Bus::Scsi {
        let unit = places.unit().ok_or_else(|| Error::NoAddress { disk: wanted.name.clone() })?;
        element = element.child(disks::scsi_address(unit));
    }
    Ok(element.render())
}

/// A drive that is there, with this medium. How it is cached and the like is left out, which libvirt takes for as it is: of a
/// drive that is there, it changes nothing but the medium.
fn drive(wanted: &Disk, device: &LiveDevice, medium: &ResolvedDisk) -> Element {
    let (kind, attribute) = if medium.block { ("block", "dev") } else { ("file", "file") };
    let source = (!medium.path.is_empty()).then(|| Element::new("source").attr(attribute, &medium.path));
    Element::new("disk")
        .attr("type", kind)
        .attr("device", &device.device)
        .child(Element::new("driver").attr("name", "qemu").attr("type", medium.format.word()))
        .children(source)
        .child(Element::new("target").attr("dev", &device.target).attr("bus", &device.bus))
        .child(Element::new("readonly"))
        .children(wanted.serial.as_ref().map(|serial| Element::with_text("serial", serial)))
        .child(Element::new("alias").attr("name", format!("ua-{}", wanted.name)))
}

fn described(
    vmi: &VirtualMachineInstance,
    environment: &Environment,
    wanted: &Disk,
    bus: Bus,
    resolved: &ResolvedDisk,
) -> Element {
    // The threads of a running domain are those that it was started with.
    let started = at_start(&vmi.spec).domain;
    disks::element(&started, environment, wanted, bus, resolved, &IoThreads::of(&started))
}

/// As much of a device as libvirt finds it by.
fn named(device: &LiveDevice) -> Element {
    Element::new("disk")
        .attr("type", "file")
        .attr("device", &device.device)
        .child(Element::new("target").attr("dev", &device.target).attr("bus", &device.bus))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn vmi(disks: Value, volumes: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({ "spec": { "domain": { "devices": { "disks": disks } }, "volumes": volumes } }))
            .unwrap()
    }

    fn live(devices: &[(&str, &str, &str, &str, Option<u32>)]) -> LiveDomain {
        let device = |(name, device, target, source, unit): &(&str, &str, &str, &str, Option<u32>)| LiveDevice {
            name: (*name).to_owned(),
            device: (*device).to_owned(),
            target: (*target).to_owned(),
            bus: if unit.is_some() { "scsi" } else { "virtio" }.to_owned(),
            source: (*source).to_owned(),
            unit: *unit,
            ..LiveDevice::default()
        };
        LiveDomain { devices: devices.iter().map(device).collect(), ..LiveDomain::default() }
    }

    fn available(names: &[&str]) -> BTreeMap<String, ResolvedDisk> {
        let disk = |name: &&str| ResolvedDisk { path: format!("/run/{name}.img"), ..ResolvedDisk::default() };
        names.iter().map(|name| ((*name).to_owned(), disk(name))).collect()
    }

    fn later(name: &str) -> Value {
        json!({ "name": name, "persistentVolumeClaim": { "claimName": name, "hotpluggable": true } })
    }

    #[track_caller]
    fn check(vmi: &VirtualMachineInstance, live: &LiveDomain, here: &[&str], expect: &[(&str, Action, &[&str])]) {
        let found = changes(vmi, &Environment::default(), live, &available(here)).unwrap();
        let short: Vec<_> = found.iter().map(|change| (change.volume.as_str(), change.action)).collect();
        assert_eq!(short, expect.iter().map(|(volume, action, _)| (*volume, *action)).collect::<Vec<_>>());
        for (change, (.., parts)) in found.iter().zip(expect) {
            for part in *parts {
                assert!(change.xml.contains(part), "no {part} in {}", change.xml);
            }
        }
    }

    #[test]
    fn disks_come_once_they_are_there_and_take_what_is_free() {
        let scsi = |name: &str| json!({ "name": name, "disk": { "bus": "scsi" } });
        let disks = json!([{ "name": "root" }, scsi("a"), scsi("b"), { "name": "c", "disk": { "bus": "virtio" } }]);
        let root = json!({ "name": "root", "containerDisk": { "image": "i" } });
        let vmi = vmi(disks, json!([root, later("a"), later("b"), later("c")]));
        let running = live(&[("root", "disk", "vda", "/r", None), ("a", "disk", "sdb", "/run/a.img", Some(0))]);
        check(&vmi, &running, &["a"], &[]);
        check(
            &vmi,
            &running,
            &["a", "b", "c"],
            &[
                ("b", Action::Attach, &["dev='sda' bus='scsi'", "target='1'", "name='ua-b'", "file='/run/b.img'"]),
                ("c", Action::Attach, &["dev='vdb' bus='virtio'"]),
            ],
        );
    }

    #[test]
    fn a_disk_goes_when_nothing_names_it() {
        let vmi = vmi(json!([{ "name": "root" }]), json!([{ "name": "root", "containerDisk": { "image": "i" } }]));
        let running = live(&[("root", "disk", "vda", "/r", None), ("a", "disk", "sda", "/a", Some(0))]);
        check(&vmi, &running, &["a"], &[("a", Action::Detach, &["dev='sda' bus='scsi'"])]);
    }

    #[test]
    fn media_of_drives() {
        let drive = json!([{ "name": "m", "cdrom": { "bus": "sata" } }]);
        let empty = live(&[("m", "cdrom", "sda", "", None)]);
        let full = live(&[("m", "cdrom", "sda", "/run/m.img", None)]);
        let (with, without) = (vmi(drive.clone(), json!([later("m")])), vmi(drive, json!([])));
        check(&with, &empty, &[], &[]);
        check(&with, &empty, &["m"], &[("m", Action::Medium, &["file='/run/m.img'", "<readonly/>"])]);
        check(&with, &full, &["m"], &[]);
        check(&without, &full, &[], &[("m", Action::Medium, &["device='cdrom'"])]);
        check(&without, &empty, &[], &[]);
        let taken = changes(&without, &Environment::default(), &full, &BTreeMap::new()).unwrap();
        assert!(!taken[0].xml.contains("<source") && !taken[0].xml.contains("cache="), "{}", taken[0].xml);
    }

    #[test]
    fn there_are_as_many_places_as_targets() {
        let names: Vec<String> = (0..257).map(|index| format!("d{index}")).collect();
        let disks: Vec<Value> = names.iter().map(|name| json!({ "name": name, "disk": { "bus": "scsi" } })).collect();
        let vmi = vmi(json!(disks), names.iter().map(|name| later(name)).collect());
        let here: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = |count: usize| changes(&vmi, &Environment::default(), &live(&[]), &available(&here[..count]));
        assert_eq!(all(256).unwrap().len(), 256);
        assert_eq!(all(257), Err(Error::NoAddress { disk: "d256".into() }));
    }
}
