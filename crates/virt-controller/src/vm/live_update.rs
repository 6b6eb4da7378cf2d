//! What of a changed template a running guest gets without a restart. Pure.
//!
//! | changed | what follows |
//! |---|---|
//! | `domain.cpu.sockets`, up to `maxSockets` | the instance is asked to have them ([`crate::vmi::resize`]) |
//! | `domain.memory.guest`, up to `maxGuest` and down to what the guest was started with | the same |
//! | `interfaces[].state`, up and down | the guest's link is plugged and unplugged |
//! | `nodeSelector`, `affinity`, `tolerations` | the instance has them for its next pod |
//! | anything else that needs a new guest | the machine has to be restarted, and until then nothing is changed live |
//!
//! The sentences are KubeVirt's where it has any: clients look for them.

use api::kubevirt::size::{self, Topology, guest_memory};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec};
use meta::quantity::Amount;

use crate::facts::migration_state;
use crate::settings::Settings;

const CPU_ERROR: &str = "HotPlugCPUError";
const MEMORY_ERROR: &str = "HotPlugMemoryError";
const AFFINITY_ERROR: &str = "AffinityChangeError";
/// The state of an interface that is to go.
const ABSENT: &str = "absent";
const TOLERATIONS_ERROR: &str = "TolerationsChangeError";

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The instance is to be as this says.
    pub spec: Option<Box<VirtualMachineInstanceSpec>>,
    /// A change cannot be made now: the reason and the sentence of the condition Failure. It is tried again.
    pub failure: Option<(&'static str, String)>,
    /// A change can only be had by a restart, and why.
    pub restart: Option<String>,
}

/// Gives `started`, what a guest was started with, the values of `now` that need no restart: what differs after that does.
pub fn carry(started: &mut VirtualMachineInstanceSpec, now: &VirtualMachineInstanceSpec) {
    let sockets = now.domain.cpu.as_ref().and_then(|cpu| cpu.sockets);
    started.domain.cpu.get_or_insert_default().sockets = sockets;
    let guest = now.domain.memory.as_ref().and_then(|memory| memory.guest.clone());
    started.domain.memory.get_or_insert_default().guest = guest;
    // Nothing said is an object without values, too.
    if started.domain.cpu.as_ref() == Some(&Default::default()) && now.domain.cpu.is_none() {
        started.domain.cpu = None;
    }
    if started.domain.memory.as_ref() == Some(&Default::default()) && now.domain.memory.is_none() {
        started.domain.memory = None;
    }
    started.node_selector.clone_from(&now.node_selector);
    started.affinity.clone_from(&now.affinity);
    started.tolerations.clone_from(&now.tolerations);
    links(started, now);
}

/// Gives the interfaces of `to` the link that those of the same name have in `from`. One that is to go, or to come back, is no link.
fn links(to: &mut VirtualMachineInstanceSpec, from: &VirtualMachineInstanceSpec) {
    let is_link = |state: Option<&str>| state != Some(ABSENT);
    for interface in &mut to.domain.devices.interfaces {
        let named = from.domain.devices.interfaces.iter().find(|other| other.name == interface.name);
        let Some(named) = named else { continue };
        if is_link(named.state.as_deref()) && is_link(interface.state.as_deref()) {
            interface.state.clone_from(&named.state);
        }
    }
}

/// What the running `vmi` is to get of `wanted`, the template of its machine with all that the machine chose.
pub fn plan(wanted: &VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance, settings: &Settings) -> Update {
    let mut update = Update::default();
    let mut spec = vmi.spec.clone();
    let migrating =
        migration_state::of(vmi).is_some_and(|state| migration_state::started(state) && !migration_state::over(state));
    placement(wanted, &mut spec, migrating, &mut update);
    links(&mut spec, wanted);
    sockets(wanted, vmi, &mut spec, (migrating, settings), &mut update);
    memory(wanted, vmi, &mut spec, migrating, &mut update);
    // What can only be had by a restart is had with all the rest by it.
    if update.restart.is_none() && spec != vmi.spec {
        update.spec = Some(Box::new(spec));
    }
    update
}

fn placement(
    wanted: &VirtualMachineInstanceSpec,
    spec: &mut VirtualMachineInstanceSpec,
    migrating: bool,
    update: &mut Update,
) {
    let mut refuse = |reason, what: &str| {
        let message = format!("{what} should not be changed during VMI migration");
        update.failure.get_or_insert((reason, message));
    };
    if wanted.node_selector != spec.node_selector || wanted.affinity != spec.affinity {
        if migrating {
            refuse(AFFINITY_ERROR, "Node affinity");
        } else {
            spec.node_selector.clone_from(&wanted.node_selector);
            spec.affinity.clone_from(&wanted.affinity);
        }
    }
    if wanted.tolerations != spec.tolerations {
        if migrating {
            refuse(TOLERATIONS_ERROR, "Tolerations");
        } else {
            spec.tolerations.clone_from(&wanted.tolerations);
        }
    }
}

fn sockets(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    spec: &mut VirtualMachineInstanceSpec,
    (migrating, settings): (bool, &Settings),
    update: &mut Update,
) {
    let (wanted, held) = (Topology::of(&wanted.domain), Topology::of(&vmi.spec.domain));
    if wanted.sockets == held.sockets {
        return;
    }
    let cpu = spec.domain.cpu.get_or_insert_default();
    let most = cpu.max_sockets.and_then(|most| u64::try_from(most).ok()).unwrap_or(held.sockets);
    if wanted.sockets > most {
        let message = "CPU sockets updated in template spec to a value higher than what's available";
        update.restart.get_or_insert_with(|| message.to_owned());
        return;
    }
    let current = vmi.status.as_ref().and_then(|status| status.current_cpu_topology.as_ref());
    let current = current.and_then(|topology| u64::try_from(topology.sockets?).ok()).unwrap_or(held.sockets);
    // Who changes their mind about what the guest has yet to get, or to give back, is not kept waiting for it.
    let reverts = wanted.sockets == current;
    if migrating {
        let message = "CPU hotplug is not allowed while VMI is migrating";
        update.failure.get_or_insert_with(|| (CPU_ERROR, message.to_owned()));
        return;
    }
    if current != held.sockets && !reverts {
        let message = "another CPU hotplug is in progress";
        update.failure.get_or_insert_with(|| (CPU_ERROR, message.to_owned()));
        return;
    }
    cpu.sockets = i64::try_from(wanted.sockets).ok();
    let per_socket = held.cores.saturating_mul(held.threads);
    let (before, after) = (held.sockets.saturating_mul(per_socket), wanted.sockets.saturating_mul(per_socket));
    let milli = |vcpus: u64| settings.cpu_request(i64::try_from(vcpus).unwrap_or(i64::MAX)).milli_value();
    let delta = milli(after).saturating_sub(milli(before));
    let Some(resources) = &mut spec.domain.resources else { return };
    for list in [&mut resources.requests, &mut resources.limits] {
        let Some(asked) = list.get_mut("cpu") else { continue };
        let Ok(amount) = Amount::try_from(&*asked) else { continue };
        let sum = amount.milli_value().saturating_add(delta).max(1);
        if let Ok(sum) = format!("{sum}m").parse::<Amount>() {
            *asked = sum.to_decimal();
        }
    }
}

fn memory(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    spec: &mut VirtualMachineInstanceSpec,
    migrating: bool,
    update: &mut Update,
) {
    let (wanted, held) = (guest_memory(&wanted.domain), guest_memory(&vmi.spec.domain));
    let asked = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    if wanted == held || wanted == Amount::ZERO || asked.is_none() {
        return;
    }
    let mut restart = |why: &str| {
        update.restart.get_or_insert_with(|| format!("memory updated in template spec{why}"));
    };
    let memory = spec.domain.memory.get_or_insert_default();
    let Some(most) = memory.max_guest.as_ref().and_then(|most| Amount::try_from(most).ok()) else {
        return restart(". Memory-hotplug is not available for this VM configuration");
    };
    let status = vmi.status.as_ref().and_then(|status| status.memory.as_ref());
    let known = |field: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
        field.and_then(|quantity| Amount::try_from(quantity).ok())
    };
    let at_boot = known(status.and_then(|memory| memory.guest_at_boot.as_ref())).unwrap_or(held);
    let requested = known(status.and_then(|memory| memory.guest_requested.as_ref())).unwrap_or(held);
    if wanted < at_boot {
        return restart(" to a value lower than what the VM started with");
    }
    if wanted > most {
        return restart(" to a value higher than what's available");
    }
    if wanted.bytes() % size::MEMORY_BLOCK != 0 {
        return restart(&format!(
            ". Memory-hotplug is not available: Guest memory must be {} aligned",
            size::MEMORY_BLOCK_TEXT
        ));
    }
    if migrating {
        let message = "memory hotplug is not allowed while VMI is migrating";
        update.failure.get_or_insert_with(|| (MEMORY_ERROR, message.to_owned()));
        return;
    }
    if requested != held && wanted != requested {
        let message = "another memory hotplug is in progress";
        update.failure.get_or_insert_with(|| (MEMORY_ERROR, message.to_owned()));
        return;
    }
    memory.guest = Some(wanted.to_binary());
    let delta = wanted.value().saturating_sub(held.value());
    let Some(resources) = &mut spec.domain.resources else { return };
    for list in [&mut resources.requests, &mut resources.limits] {
        let Some(asked) = list.get_mut("memory") else { continue };
        let Ok(amount) = Amount::try_from(&*asked) else { continue };
        *asked = Amount::from_integer(amount.value().saturating_add(delta).max(1)).to_binary();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(sockets: Option<i64>, guest: &str, extra: Value) -> Value {
        let mut spec = json!({
            "domain": { "devices": {}, "cpu": { "sockets": sockets, "cores": 2 }, "memory": { "guest": guest } },
        });
        json_patch::merge(&mut spec, &extra);
        spec
    }

    /// What is changed of an instance with two sockets of four and 1Gi of 4Gi, which has the rest of `held`.
    #[track_caller]
    fn check(wanted: Value, held: Value, status: Value, expect: Value) {
        let mut own =
            spec(Some(2), "1Gi", json!({ "domain": { "cpu": { "maxSockets": 4 }, "memory": { "maxGuest": "4Gi" } } }));
        json_patch::merge(&mut own, &held);
        let mut known = json!({
            "currentCPUTopology": { "sockets": 2, "cores": 2, "threads": 1 },
            "memory": { "guestAtBoot": "1Gi", "guestRequested": "1Gi" },
        });
        json_patch::merge(&mut known, &status);
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({ "spec": own, "status": known })).unwrap();
        let Update { spec, failure, restart } =
            plan(&serde_json::from_value(wanted).unwrap(), &vmi, &Settings::of(None, ""));
        let changed = spec.and_then(|spec| kit::merge_patch::difference(&json!(vmi.spec), json!(spec)));
        let failure = failure.map(|(reason, message)| format!("{reason}: {message}"));
        assert_eq!(json!([changed, failure, restart]), expect);
    }

    #[test]
    fn sizes_change_within_their_bounds() {
        let none = || json!({});
        check(spec(Some(2), "1Gi", none()), none(), none(), json!([null, null, null]));
        let grown = json!({ "domain": { "cpu": { "sockets": 4 }, "memory": { "guest": "2Gi" } } });
        check(spec(Some(4), "2Gi", none()), none(), none(), json!([grown, null, null]));
        // Who has said what the pod requests has that changed with it.
        let resources = json!({ "domain": { "resources": {
            "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2" },
        } } });
        let grown = json!({ "domain": { "cpu": { "sockets": 4 }, "memory": { "guest": "2Gi" }, "resources": {
            "requests": { "cpu": "1400m", "memory": "2Gi" }, "limits": { "cpu": "2400m" },
        } } });
        check(spec(Some(4), "2Gi", resources.clone()), resources, none(), json!([grown, null, null]));
        let why = "CPU sockets updated in template spec to a value higher than what's available";
        check(spec(Some(5), "2Gi", none()), none(), none(), json!([null, null, why]));
        let why = "memory updated in template spec. Memory-hotplug is not available: Guest memory must be 2Mi aligned";
        check(spec(Some(2), "1025Mi", none()), none(), none(), json!([null, null, why]));
    }

    #[test]
    fn one_change_follows_the_other() {
        let none = || json!({});
        let held = json!({ "domain": { "cpu": { "sockets": 3 }, "memory": { "guest": "2Gi" } } });
        let why = "HotPlugCPUError: another CPU hotplug is in progress";
        check(spec(Some(4), "2Gi", none()), held.clone(), none(), json!([null, why, null]));
        let why = "HotPlugMemoryError: another memory hotplug is in progress";
        check(spec(Some(3), "3Gi", none()), held.clone(), none(), json!([null, why, null]));
        // It may be taken back.
        let back = json!({ "domain": { "cpu": { "sockets": 2 }, "memory": { "guest": "1Gi" } } });
        check(spec(Some(2), "1Gi", none()), held, none(), json!([back, null, null]));
        let moving = json!({ "migrationState": { "migrationUid": "m", "startTimestamp": "2026-01-01T00:00:00Z" } });
        let why = "HotPlugCPUError: CPU hotplug is not allowed while VMI is migrating";
        check(spec(Some(4), "1Gi", none()), none(), moving.clone(), json!([null, why, null]));
        let why = "AffinityChangeError: Node affinity should not be changed during VMI migration";
        check(spec(Some(2), "1Gi", json!({ "nodeSelector": { "a": "b" } })), none(), moving, json!([null, why, null]));
    }

    #[test]
    fn what_needs_no_restart_does_not_differ() {
        let carried = |before: Value, now: Value| {
            let mut before = serde_json::from_value(before).unwrap();
            let now = serde_json::from_value(now).unwrap();
            carry(&mut before, &now);
            before == now
        };
        assert!(carried(spec(None, "1Gi", json!({})), spec(Some(4), "2Gi", json!({ "nodeSelector": { "a": "b" } }))));
        assert!(carried(json!({ "domain": { "devices": {} } }), json!({ "domain": { "devices": {} } })));
        assert!(carried(
            json!({ "domain": { "devices": {} } }),
            json!({ "domain": { "devices": {}, "cpu": { "sockets": 2 } } })
        ));
        assert!(carried(
            json!({ "domain": { "devices": {}, "cpu": { "sockets": 2 } } }),
            json!({ "domain": { "devices": {} } })
        ));
        let link = |state: Value| json!({ "domain": { "devices": { "interfaces": [{ "name": "a", "bridge": {}, "state": state }] } } });
        assert!(carried(link(json!("up")), link(json!("down"))) && carried(link(json!("down")), link(Value::Null)));
        assert!(!carried(link(json!("up")), link(json!("absent"))));
        assert!(!carried(
            spec(Some(1), "1Gi", json!({})),
            spec(Some(1), "1Gi", json!({ "domain": { "cpu": { "cores": 4 } } }))
        ));
    }
}
