//! How much of the node a virtual machine asks for. Pure.
//!
//! The overhead was measured, process by process, not guessed: the session daemon, the launcher and QEMU itself, plus
//! what grows with the guest (page tables, virtual CPUs, graphics memory, the translation cache of emulation).

use std::collections::BTreeMap;

use api::kubevirt::size::{Topology, guest_memory};
use api::kubevirt::v1::{DomainSpec, VirtualMachineInstanceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meta::quantity::Amount;

use crate::settings::Settings;

const MIB: i64 = 1024 * 1024;
/// libvirt's session daemon, our launcher, and what lends it disks: 40 MiB measured for a pod whose libraries nobody shares.
const DAEMONS: i64 = 40 * MIB;
/// QEMU without guest memory, graphics and translated code: 40 MiB measured, and room for requests under way.
const QEMU: i64 = 50 * MIB;
const PER_VCPU: i64 = 2 * MIB;
const GRAPHICS: i64 = 16 * MIB;
/// QEMU's translated code, which the domain bounds to 32 MiB, and what QEMU notes about it.
const TRANSLATION: i64 = 48 * MIB;
/// Firmware with secure boot keeps its variables and a larger image in memory.
const EFI: i64 = 16 * MIB;

/// How many CPUs a guest gets.
pub fn vcpus(domain: &DomainSpec) -> i64 {
    i64::try_from(Topology::of(domain).vcpus()).unwrap_or(i64::MAX)
}

/// What the pod needs beyond the guest's memory.
pub fn overhead(spec: &VirtualMachineInstanceSpec, settings: &Settings, emulation: bool) -> Amount {
    let domain = &spec.domain;
    let guest = guest_memory(domain).value();
    let mut bytes = DAEMONS + QEMU + guest / 512;
    bytes += PER_VCPU.saturating_mul(vcpus(domain));
    if domain.devices.autoattach_graphics_device.unwrap_or(true) {
        bytes += GRAPHICS;
    }
    if emulation {
        bytes += TRANSLATION;
    }
    let efi = domain.firmware.as_ref().and_then(|f| f.bootloader.as_ref()).and_then(|b| b.efi.as_ref());
    if efi.is_some() {
        bytes += EFI;
    }
    let asked = domain.memory.as_ref().and_then(|memory| memory.reserved_overhead.as_ref());
    let added = asked.and_then(|asked| Amount::try_from(asked.added_overhead.as_ref()?).ok()).map_or(0, Amount::value);
    let bytes = (bytes / 100 * settings.overhead_percent).saturating_add(added.max(0));
    // Whole mebibytes read better in `kubectl describe` and schedule the same.
    Amount::from_integer((bytes + MIB - 1) / MIB * MIB)
}

/// Requests and limits of the compute container.
pub fn compute(
    spec: &VirtualMachineInstanceSpec,
    settings: &Settings,
    emulation: bool,
) -> (BTreeMap<String, Quantity>, BTreeMap<String, Quantity>) {
    let domain = &spec.domain;
    let overhead = overhead(spec, settings, emulation);
    let given = domain.resources.clone().unwrap_or_default();
    let mut requests = given.requests.clone();
    let mut limits = given.limits.clone();

    let vcpus = vcpus(domain);
    let dedicated = domain.cpu.as_ref().and_then(|cpu| cpu.dedicated_cpu_placement).unwrap_or(false);
    if dedicated {
        let all = Amount::from_integer(vcpus).to_decimal();
        requests.insert("cpu".into(), all.clone());
        limits.insert("cpu".into(), all);
    } else if !requests.contains_key("cpu") {
        let request = match limits.get("cpu") {
            Some(limit) => limit.clone(),
            None => settings.cpu_request(vcpus).to_decimal(),
        };
        requests.insert("cpu".into(), request);
    }

    let asked = given
        .requests
        .get("memory")
        .and_then(|q| Amount::try_from(q).ok())
        .unwrap_or_else(|| overcommitted(guest_memory(domain), settings));
    let hugepages = domain.memory.as_ref().and_then(|m| m.hugepages.as_ref()).and_then(|h| h.page_size.clone());
    let own = if given.overcommit_guest_overhead.unwrap_or(false) { Amount::ZERO } else { overhead };
    if let Some(size) = hugepages {
        let name = format!("hugepages-{size}");
        let pages = guest_memory(domain).to_binary();
        requests.insert(name.clone(), pages.clone());
        limits.insert(name, pages);
        requests.insert("memory".into(), own.to_binary());
        limits.remove("memory");
    } else {
        requests.insert("memory".into(), asked.saturating_add(own).to_binary());
        if let Some(limit) = given.limits.get("memory").and_then(|q| Amount::try_from(q).ok()) {
            limits.insert("memory".into(), limit.saturating_add(overhead).to_binary());
        }
    }
    requests.entry("ephemeral-storage".into()).or_insert_with(|| Quantity("50M".into()));

    let mut device = |name: &str| {
        requests.insert(name.into(), Quantity("1".into()));
        limits.insert(name.into(), Quantity("1".into()));
    };
    if !domain.devices.interfaces.is_empty() {
        device(api::kubevirt::constants::device::TUN);
    }
    if !emulation {
        device(api::kubevirt::constants::device::KVM);
    }
    (requests, limits)
}

fn overcommitted(memory: Amount, settings: &Settings) -> Amount {
    if settings.memory_overcommit == 100 {
        return memory;
    }
    let bytes = i128::from(memory.value()) * 100 / i128::from(settings.memory_overcommit);
    Amount::from_integer(i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(domain: serde_json::Value, emulation: bool, requests: serde_json::Value, limits: serde_json::Value) {
        let spec = serde_json::from_value(json!({ "domain": domain })).unwrap();
        let found = compute(&spec, &Settings::of(None, ""), emulation);
        assert_eq!((json!(found.0), json!(found.1)), (requests, limits));
    }

    #[test]
    fn memory_is_guest_plus_overhead() {
        let domain = json!({ "devices": { "interfaces": [{ "name": "default" }] }, "memory": { "guest": "256Mi" } });
        check(
            domain,
            true,
            json!({ "cpu": "100m", "memory": "413Mi", "ephemeral-storage": "50M", "devices.kubevirt.io/tun": "1" }),
            json!({ "devices.kubevirt.io/tun": "1" }),
        );
    }

    #[test]
    fn overhead_that_is_asked_for_is_added() {
        let of = |memory| {
            let spec = serde_json::from_value(json!({ "domain": { "devices": {}, "memory": memory } })).unwrap();
            overhead(&spec, &Settings::of(None, ""), false).value()
        };
        let asked = of(json!({ "guest": "1Gi", "reservedOverhead": { "addedOverhead": "64Mi" } }));
        assert_eq!(asked - of(json!({ "guest": "1Gi" })), 64 << 20);
    }

    #[test]
    fn given_requests_and_limits_are_kept() {
        let domain = json!({
            "devices": { "autoattachGraphicsDevice": false },
            "cpu": { "cores": 2 },
            "resources": { "requests": { "memory": "1Gi", "cpu": "2" }, "limits": { "memory": "2Gi" } },
        });
        check(
            domain,
            false,
            json!({ "cpu": "2", "memory": "1120Mi", "ephemeral-storage": "50M", "devices.kubevirt.io/kvm": "1" }),
            json!({ "memory": "2144Mi", "devices.kubevirt.io/kvm": "1" }),
        );
    }

    #[test]
    fn dedicated_cpus_are_requested_whole() {
        let domain = json!({
            "devices": { "autoattachGraphicsDevice": false },
            "cpu": { "sockets": 2, "cores": 2, "dedicatedCpuPlacement": true },
            "memory": { "guest": "512Mi" },
        });
        check(
            domain,
            true,
            json!({ "cpu": "4", "memory": "659Mi", "ephemeral-storage": "50M" }),
            json!({ "cpu": "4" }),
        );
    }
}
