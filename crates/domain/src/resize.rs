//! What brings the CPUs and the memory of a running domain to what its VMI asks for. Pure.
//!
//! Memory beyond what the guest was started with is one virtio-mem device as large as the guest may grow, of which the guest is asked to
//! use a part: it takes and gives back blocks of it one by one.

use api::kubevirt::size::guest_memory;
use api::kubevirt::v1::VirtualMachineInstance;
use meta::quantity::Amount;

use crate::cpu::Topology;
use crate::xml::Element;
use crate::{Error, LiveDomain, memory};

/// What the guest takes and gives back at a time, in KiB: the size of its large pages.
const BLOCK: u64 = api::kubevirt::size::MEMORY_BLOCK / 1024;

/// One change of a running domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The guest is to have so many CPUs.
    Cpus(u32),
    /// The guest gets this memory device.
    PlugMemory(String),
    /// Of the memory device that it has, the guest is to use another part.
    RequestMemory(String),
}

/// What changes the CPUs of `live`; none when it has what `vmi` asks for.
///
/// # Errors
/// When it asks for more than any machine has.
pub fn cpus(vmi: &VirtualMachineInstance, live: &LiveDomain) -> Result<Option<Resize>, Error> {
    let wanted = u32::try_from(Topology::of(&vmi.spec.domain)?.vcpus()).unwrap_or(u32::MAX);
    Ok((live.vcpus != wanted).then_some(Resize::Cpus(wanted)))
}

/// What changes the memory of `live`; none when the guest was asked to have what `vmi` says.
pub fn memory(vmi: &VirtualMachineInstance, live: &LiveDomain) -> Option<Resize> {
    let spec = &vmi.spec.domain;
    let most = Amount::try_from(spec.memory.as_ref()?.max_guest.as_ref()?).ok()?;
    let at_boot = vmi.status.as_ref()?.memory.as_ref()?.guest_at_boot.as_ref()?;
    let at_boot = Amount::try_from(at_boot).ok()?.bytes();
    let beyond = |amount: Amount| memory::kib(amount.bytes().saturating_sub(at_boot)) / BLOCK * BLOCK;
    let requested = beyond(guest_memory(spec));
    match &live.memory_device {
        None if requested == 0 => None,
        None => Some(Resize::PlugMemory(device(beyond(most), requested))),
        Some(held) if held.requested == requested => None,
        Some(held) => Some(Resize::RequestMemory(held.requesting(requested.min(held.size)))),
    }
}

fn device(size: u64, requested: u64) -> String {
    let kib = |name: &'static str, value: u64| Element::with_text(name, value).attr("unit", "KiB");
    let target = Element::new("target")
        .child(kib("size", size))
        .child(Element::with_text("node", 0))
        .child(kib("block", BLOCK))
        .child(kib("requested", requested));
    let alias = Element::new("alias").attr("name", "ua-virtio-mem");
    Element::new("memory").attr("model", "virtio-mem").child(target).child(alias).render()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vmi(sockets: u32, guest: &str, most: Option<&str>) -> VirtualMachineInstance {
        let memory = json!({ "guest": guest, "maxGuest": most });
        let value: Value = json!({
            "spec": { "domain": { "devices": {}, "cpu": { "sockets": sockets, "cores": 2 }, "memory": memory } },
            "status": { "memory": { "guestAtBoot": "1Gi" } },
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn cpus_are_counted() {
        let live = LiveDomain { vcpus: 2, ..Default::default() };
        assert_eq!(cpus(&vmi(1, "1Gi", None), &live), Ok(None));
        assert_eq!(cpus(&vmi(3, "1Gi", None), &live), Ok(Some(Resize::Cpus(6))));
        let live = LiveDomain { vcpus: 4, ..Default::default() };
        assert_eq!(cpus(&vmi(1, "1Gi", None), &live), Ok(Some(Resize::Cpus(2))));
    }

    /// `P size/requested` plugs, `R size/requested` requests.
    #[track_caller]
    fn check(guest: &str, most: Option<&str>, held: Option<(u64, u64)>, expect: &str) {
        let live = held.map_or_else(LiveDomain::default, |(size, requested)| {
            let xml = device(size, requested);
            LiveDomain::read(&format!("<domain><devices>{xml}</devices></domain>")).unwrap()
        });
        let number = |xml: &str, name: &str| {
            let (_, rest) = xml.split_once(&format!("<{name} unit='KiB'>")).unwrap_or_else(|| panic!("{xml}"));
            rest.split('<').next().unwrap().to_owned()
        };
        let told = |xml: &str| format!("{}/{}", number(xml, "size"), number(xml, "requested"));
        let found = match memory(&vmi(1, guest, most), &live) {
            None => String::new(),
            Some(Resize::PlugMemory(xml)) => format!("P {}", told(&xml)),
            Some(Resize::RequestMemory(xml)) => format!("R {}", told(&xml)),
            Some(other) => format!("{other:?}"),
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn memory_is_plugged_once_and_then_requested() {
        check("1Gi", Some("4Gi"), None, "");
        check("2Gi", None, None, "");
        check("2Gi", Some("4Gi"), None, "P 3145728/1048576");
        check("3Gi", Some("4Gi"), Some((3_145_728, 1_048_576)), "R 3145728/2097152");
        check("2Gi", Some("4Gi"), Some((3_145_728, 1_048_576)), "");
        check("1Gi", Some("4Gi"), Some((3_145_728, 1_048_576)), "R 3145728/0");
        check("1025Mi", Some("4Gi"), None, "");
    }
}
