//! Memory that a guest may come to have while it runs. The sentences are KubeVirt's: clients look for them.

use api::kubevirt::size::{LEAST_GUEST, MEMORY_BLOCK, MEMORY_BLOCK_TEXT};
use api::kubevirt::v1::{DomainSpec, VirtualMachineInstanceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kit::admission::Cause;
use meta::quantity::Amount;

use super::{invalid, required};

/// Why the memory of a guest like this stays as it is while it runs; none when it may change.
pub(crate) fn fixed(domain: &DomainSpec, architecture: &str) -> Option<&'static str> {
    let cpu = domain.cpu.as_ref();
    let numa = cpu.and_then(|cpu| cpu.numa.as_ref());
    if cpu.is_some_and(|cpu| cpu.realtime.is_some()) {
        Some("Memory hotplug is not compatible with realtime VMs")
    } else if numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some()) {
        Some("Memory hotplug is not compatible with guest mapping passthrough")
    } else if domain.launch_security.is_some() {
        Some("Memory hotplug is not compatible with encrypted VMs")
    } else if architecture != "amd64" {
        Some("Memory hotplug is only available for x86_64 VMs")
    } else {
        None
    }
}

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(memory) = &spec.domain.memory else { return };
    let Some(most) = &memory.max_guest else { return };
    let at = |field: &str| format!("{path}.domain.memory.{field}");
    let Some(guest) = &memory.guest else {
        let message = "Guest memory must be configured when memory hotplug is enabled";
        causes.push(required(at("guest"), message.to_owned()));
        return;
    };
    let architecture = spec.architecture.as_deref().filter(|name| !name.is_empty()).unwrap_or("amd64");
    if let Some(why) = fixed(&spec.domain, architecture) {
        causes.push(invalid(at("maxGuest"), why.to_owned()));
    }
    let bytes = |quantity: &Quantity| Amount::try_from(quantity).ok().map(Amount::bytes);
    let (Some(guest), Some(most)) = (bytes(guest), bytes(most)) else {
        if bytes(most).is_none() {
            causes.push(invalid(at("maxGuest"), format!("{} '{}' is not a quantity", at("maxGuest"), most.0)));
        }
        return;
    };
    if guest > most {
        let message = "Guest memory is greater than the configured maxGuest memory";
        causes.push(invalid(at("guest"), message.to_owned()));
    }
    if guest < LEAST_GUEST {
        let message = "Memory hotplug is only available for VMs with at least 1Gi of guest memory";
        causes.push(invalid(at("guest"), message.to_owned()));
    }
    for (field, name, bytes) in [("guest", "Guest memory", guest), ("maxGuest", "MaxGuest", most)] {
        if bytes % MEMORY_BLOCK != 0 {
            causes.push(invalid(at(field), format!("{name} must be {MEMORY_BLOCK_TEXT} aligned")));
        }
    }
}
