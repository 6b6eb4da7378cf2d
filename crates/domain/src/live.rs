//! What libvirt's live XML says of a running domain.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::facts::{DeviceKind, LiveDevice};

/// Larger than any domain libvirt writes; longer text is not read.
const LIMIT: usize = 4 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveDomain {
    /// Machine type with its version, such as pc-q35-10.0.
    pub machine: String,
    /// What the balloon leaves the guest.
    pub memory_kib: u64,
    pub vcpus: u32,
    /// Memory that came while the guest ran.
    pub memory_device: Option<MemoryDevice>,
    pub devices: Vec<LiveDevice>,
}

/// Memory that came while the guest ran, in KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryDevice {
    /// All of it.
    pub size: u64,
    /// What the guest was asked to use.
    pub requested: u64,
    /// What it uses.
    pub current: u64,
    xml: String,
}

impl MemoryDevice {
    /// As libvirt has it, in a domain's XML.
    const BEGIN: &str = "<memory model='virtio-mem'";
    const END: &str = "</memory>";

    /// XML to update the device with: all as it is, since nothing else of it can be changed, and another part requested.
    pub(crate) fn requesting(&self, requested: u64) -> String {
        let (before, after) = (format!(">{}</requested>", self.requested), format!(">{requested}</requested>"));
        self.xml.replacen(&before, &after, 1)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the domain XML has {0} bytes, more than any domain needs")]
    TooLong(usize),
    #[error("reading the domain XML")]
    Syntax(#[from] quick_xml::Error),
}

impl LiveDomain {
    pub fn read(xml: &str) -> Result<Self, ReadError> {
        if xml.len() > LIMIT {
            return Err(ReadError::TooLong(xml.len()));
        }
        let mut live = Self::default();
        let mut reader = Reader::from_str(xml);
        let mut path: Vec<String> = Vec::new();
        loop {
            match reader.read_event()? {
                Event::Start(start) => {
                    path.push(name(&start));
                    live.opened(&path, &start);
                }
                Event::Empty(start) => {
                    path.push(name(&start));
                    live.opened(&path, &start);
                    live.closed(&path);
                    path.pop();
                }
                Event::Text(text) => live.text(&path, &text),
                Event::End(_) => {
                    live.closed(&path);
                    path.pop();
                }
                Event::Eof => {
                    if let Some(device) = &mut live.memory_device {
                        let begun = xml.find(MemoryDevice::BEGIN).map(|start| &xml[start..]);
                        let whole = begun
                            .and_then(|rest| Some(&rest[..rest.find(MemoryDevice::END)? + MemoryDevice::END.len()]));
                        device.xml = whole.unwrap_or_default().to_owned();
                    }
                    return Ok(live);
                }
                _ => {}
            }
        }
    }

    fn opened(&mut self, path: &[String], start: &BytesStart<'_>) {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["domain", "os", "type"] => self.machine = attribute(start, "machine"),
            ["domain", "vcpu"] => self.vcpus = attribute(start, "current").parse().unwrap_or(0),
            ["domain", "devices", "memory"] if attribute(start, "model") == "virtio-mem" => {
                self.memory_device = Some(MemoryDevice::default());
            }
            ["domain", "devices", "disk"] => {
                self.devices.push(LiveDevice { device: attribute(start, "device"), ..LiveDevice::default() });
            }
            ["domain", "devices", "interface"] => {
                self.devices.push(LiveDevice {
                    kind: DeviceKind::Interface,
                    link: "up".to_owned(),
                    queues: 1,
                    ..LiveDevice::default()
                });
            }
            ["domain", "devices", "disk", "source", "dataStore"] => {
                if let Some(device) = self.devices.last_mut() {
                    device.tracked = true;
                }
            }
            ["domain", "devices", "disk" | "interface", field] => {
                let Some(device) = self.devices.last_mut() else { return };
                match *field {
                    "target" => {
                        device.target = attribute(start, "dev");
                        device.bus = attribute(start, "bus");
                    }
                    "source" if device.kind == DeviceKind::Disk => {
                        device.source = ["file", "dev"].map(|kind| attribute(start, kind)).concat();
                    }
                    "address" if attribute(start, "type") == "drive" => {
                        device.unit = attribute(start, "target").parse().ok();
                    }
                    "mac" => device.mac = attribute(start, "address"),
                    "alias" => {
                        let alias = attribute(start, "name");
                        device.name = alias.strip_prefix("ua-").unwrap_or(&alias).to_owned();
                    }
                    "readonly" => device.readonly = true,
                    "link" => device.link = attribute(start, "state"),
                    "driver" => device.queues = attribute(start, "queues").parse().unwrap_or(device.queues),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, path: &[String], text: &str) {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["domain", "currentMemory"] => self.memory_kib = text.trim().parse().unwrap_or(0),
            ["domain", "devices", "memory", "target", field] => {
                let Some(device) = &mut self.memory_device else { return };
                let value = text.trim().parse().unwrap_or(0);
                match *field {
                    "size" => device.size = value,
                    "requested" => device.requested = value,
                    "current" => device.current = value,
                    _ => {}
                }
            }
            ["domain", "vcpu"] if self.vcpus == 0 => self.vcpus = text.trim().parse().unwrap_or(0),
            _ => {}
        }
    }

    fn closed(&mut self, path: &[String]) {
        // Devices that the VMI did not name have no alias of ours: none are made, so an empty name is a leftover.
        if path.len() == 3 && self.devices.last().is_some_and(|device| device.name.is_empty()) {
            self.devices.pop();
        }
    }
}

pub(crate) fn name(start: &BytesStart<'_>) -> String {
    start.name().as_ref().to_owned()
}

pub(crate) fn attribute(start: &BytesStart<'_>, name: &str) -> String {
    start.try_get_attribute(name).ok().flatten().map(|attribute| attribute.value.into_owned()).unwrap_or_default()
}
