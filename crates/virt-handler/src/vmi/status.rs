//! The part of a VMI's status that virt-handler writes: everything from the running domain. Pure.

pub(crate) mod credentials;
pub(crate) mod dump;
mod legible;
#[cfg(test)]
mod properties;
mod tracking;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use api::kubevirt::constants::{condition, eviction_strategy, phase};
use api::kubevirt::hotplug::{self, is_hotplug};
use api::kubevirt::size::Topology;
use api::kubevirt::v1::{
    CPUTopology, Machine, VirtualMachineInstance, VirtualMachineInstanceCondition,
    VirtualMachineInstanceNetworkInterface, VirtualMachineInstancePhaseTransitionTimestamp,
    VirtualMachineInstanceStatus, VolumeStatus,
};
use domain::{DeviceKind, DomainReason as Reason, DomainStatus as Status, FailedDisk, GuestFacts, Host, MemoryDump};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::{remove, set};
use meta::quantity::Amount;

use super::launcher_state::LauncherState;
use crate::hotplug::has;
use crate::network::is_secondary;

/// The reason of the Synchronized condition, as clients of KubeVirt know it.
const NOT_SYNCHRONIZED: &str = "Synchronizing with the Domain failed.";

/// What is known beside the VMI.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// The newest state that the launcher published; none before it answered.
    pub domain: Option<LauncherState>,
    /// The launcher process is known to be gone.
    pub launcher_gone: bool,
    /// Interface, pod link, addresses of the pod that reach the guest.
    pub addresses: Vec<(String, String, Vec<String>)>,
    /// Why the interfaces could not be plugged or the VMI not handed over.
    pub trouble: Option<String>,
    /// Why the guest is emulated, if it is.
    pub emulation: Option<String>,
    /// Volumes that the launcher was lent while it ran.
    pub lent: BTreeSet<String>,
    /// A migration from here has begun and not ended: how the launcher ended says nothing yet.
    pub on_its_way: bool,
    /// The model of this node's processors as libvirt names it.
    pub host_model: Option<String>,
}

impl Observed {
    /// What the agent and the domain say of the guest.
    pub(crate) fn facts(&self) -> &GuestFacts {
        static NONE: LazyLock<GuestFacts> = LazyLock::new(GuestFacts::default);
        self.domain.as_ref().map_or(&*NONE, |state| &state.facts)
    }

    /// What the launcher told last of a dump of the guest's memory.
    pub(crate) fn dump(&self) -> MemoryDump {
        self.domain.as_ref().and_then(|state| state.memory_dump.clone()).unwrap_or_default()
    }
}

/// The status the VMI should have.
pub(crate) fn status(vmi: &VirtualMachineInstance, seen: &Observed, now: Timestamp) -> VirtualMachineInstanceStatus {
    let mut status = seen_now(vmi, seen, now);
    legible::write_out(&mut status);
    status
}

fn seen_now(vmi: &VirtualMachineInstance, seen: &Observed, now: Timestamp) -> VirtualMachineInstanceStatus {
    let mut status = vmi.status.as_deref().cloned().unwrap_or_default();
    let before = status.phase.clone().unwrap_or_default();
    let (wanted, reason) = next_phase(vmi, seen);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != before) {
        status.phase = Some(wanted.to_owned());
        status.reason = reason;
        status.phase_transition_timestamps.push(VirtualMachineInstancePhaseTransitionTimestamp {
            phase: Some(wanted.to_owned()),
            phase_transition_timestamp: Some(Time(now)),
        });
    }
    let current = status.phase.clone().unwrap_or_default();
    let ended = matches!(current.as_str(), phase::SUCCEEDED | phase::FAILED);
    if current == phase::RUNNING && seen.domain.is_none() {
        // Just after a restart nothing has been heard of the guest yet: what was known of it stands.
        synchronized(&mut status.conditions, seen, &Time(now));
        return status;
    }
    conditions(&mut status, vmi, seen, ended, now);
    if current == phase::RUNNING {
        interfaces(&mut status, vmi, seen);
        volumes(&mut status, vmi, seen, now);
        tracking::tracking(&mut status, seen);
        guest(&mut status, vmi, seen);
    }
    status
}

/// The phase this node wants, with a reason when it is the end. `None` leaves the phase as it is.
fn next_phase(vmi: &VirtualMachineInstance, seen: &Observed) -> (Option<&'static str>, Option<String>) {
    let because = |text: &str| Some(text.to_owned());
    let state = seen.domain.as_ref();
    if let Some(state) = state.filter(|s| s.terminal && !s.sync_error.is_empty()) {
        return (Some(phase::FAILED), Some(state.sync_error.clone()));
    }
    match state.map(|state| state.status).unwrap_or_default() {
        Status::Running | Status::Paused | Status::Blocked | Status::PmSuspended if !seen.launcher_gone => {
            (Some(phase::RUNNING), None)
        }
        Status::Shutoff | Status::Crashed => match state.map(|state| state.reason).unwrap_or_default() {
            Reason::PostCopyFailed => (
                Some(phase::FAILED),
                because("the way to the other node broke during post-copy, when the guest's memory was on both nodes"),
            ),
            // It goes on elsewhere.
            Reason::Migrated => (None, None),
            Reason::Crashed | Reason::Panicked => (Some(phase::FAILED), because("the guest crashed")),
            Reason::Failed => {
                (Some(phase::FAILED), because("QEMU ended with an error; see the log of the launcher pod"))
            }
            // With ACPI the guest was asked first: being destroyed means that it did not answer in its grace period.
            Reason::Destroyed if has_acpi(vmi) => {
                (Some(phase::FAILED), because("the guest did not shut down in its grace period and was ended"))
            }
            _ => (Some(phase::SUCCEEDED), None),
        },
        _ if seen.launcher_gone && !seen.on_its_way => {
            let was_running = vmi.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase::RUNNING);
            let why = if was_running {
                "the launcher ended while the guest ran"
            } else {
                "the launcher ended before the guest ran"
            };
            (Some(phase::FAILED), because(why))
        }
        _ => (None, None),
    }
}

fn has_acpi(vmi: &VirtualMachineInstance) -> bool {
    let features = vmi.spec.domain.features.as_ref();
    features.and_then(|f| f.acpi.as_ref()).and_then(|acpi| acpi.enabled).unwrap_or(true)
}

fn synchronized(list: &mut Vec<VirtualMachineInstanceCondition>, seen: &Observed, now: &Time) {
    let refused = || seen.domain.as_ref().map(|state| state.sync_error.clone()).filter(|error| !error.is_empty());
    match seen.trouble.clone().or_else(refused) {
        Some(message) => set(list, condition::SYNCHRONIZED, "False", Some(NOT_SYNCHRONIZED), Some(&message), now),
        None => remove(list, condition::SYNCHRONIZED),
    }
}

fn conditions(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    seen: &Observed,
    ended: bool,
    now: Timestamp,
) {
    let now = Time(now);
    let state = seen.domain.clone().unwrap_or_default();
    let list = &mut status.conditions;
    synchronized(list, seen, &now);
    if state.status == Status::Running && waits_for_guest_alone(list, vmi) {
        set(list, condition::READY, "True", None, None, &now);
    }
    // For a dump of its memory it is halted for a moment, which nobody has to do anything about.
    if state.status == Status::Paused && !ended && state.reason != Reason::PausedDump {
        let (reason, message) = match state.reason {
            Reason::PausedIoError => ("PausedIOError", paused_for(&state.facts.failed_disks)),
            _ => ("PausedByUser", "VMI was paused by user".to_owned()),
        };
        set(list, condition::PAUSED, "True", Some(reason), Some(&message), &now);
    } else {
        remove(list, condition::PAUSED);
    }
    if state.agent_connected && !ended {
        set(list, condition::AGENT_CONNECTED, "True", None, None, &now);
    } else {
        remove(list, condition::AGENT_CONNECTED);
    }
    if !ended {
        credentials::synchronized(list, state.credentials.as_ref(), &now);
    }
    // Before the guest was started there is nothing to say about moving it, and one write less.
    if state.status != Status::Unset {
        migratable(status, vmi, seen, &now);
        let list = &mut status.conditions;
        match &seen.emulation {
            Some(why) => {
                let mut message = format!("the guest is emulated, which is slow: {why}");
                let left_out = domain::features_of_kvm(&vmi.spec.domain);
                if !left_out.is_empty() {
                    message = format!("{message}; the guest has no {}", left_out.join(", "));
                }
                set(list, condition::SOFTWARE_EMULATION, "True", Some("KVMNotUsable"), Some(&message), &now);
            }
            None => remove(list, condition::SOFTWARE_EMULATION),
        }
    }
}

/// What a guest waits for whose disks failed.
fn paused_for(disks: &[FailedDisk]) -> String {
    let full: Vec<&str> = disks.iter().filter(|disk| disk.full).map(|disk| disk.name.as_str()).collect();
    match full.as_slice() {
        [] => "VMI was paused, IO error".to_owned(),
        full => format!("VMI was paused, IO error: not enough space on volume {}", full.join(", ")),
    }
}

/// The event of a disk that failed.
pub(crate) fn failure(disk: &FailedDisk) -> String {
    let FailedDisk { name, full } = disk;
    let why = if *full { "not enough space on volume" } else { "IO error at the volume" };
    format!("VM Paused due to {why}: {name}")
}

/// Whether the guest can move, by which method, and why.
fn migratable(status: &mut VirtualMachineInstanceStatus, vmi: &VirtualMachineInstance, seen: &Observed, now: &Time) {
    let host = Host {
        node: status.node_name.as_deref().unwrap_or_default(),
        emulation: seen.emulation.is_some(),
        cpu_model: seen.host_model.as_deref(),
    };
    let found = domain::migratability(vmi, host);
    let list = &mut status.conditions;
    match found.obstacle() {
        Some(why) => set(list, condition::LIVE_MIGRATABLE, "False", Some(why.reason), Some(&why.message), now),
        None => set(list, condition::LIVE_MIGRATABLE, "True", None, found.why().as_deref(), now),
    }
    match found.storage_obstacle() {
        Some(why) => set(list, condition::STORAGE_LIVE_MIGRATABLE, "False", Some(why.reason), Some(&why.message), now),
        None => set(list, condition::STORAGE_LIVE_MIGRATABLE, "True", None, None, now),
    }
    status.migration_method = Some(found.method().to_owned());
    status.migration_transport = Some("Unix".to_owned());
}

/// Why the guest cannot be moved, though its eviction strategy wants it moved.
pub(crate) fn stays_though_asked_to_move(
    vmi: &VirtualMachineInstance,
    status: &VirtualMachineInstanceStatus,
) -> Option<String> {
    let asked = vmi.spec.eviction_strategy.as_deref() == Some(eviction_strategy::LIVE_MIGRATE);
    let said = status.conditions.iter().find(|known| known.type_ == condition::LIVE_MIGRATABLE)?;
    (asked && said.status == "False").then(|| said.message.clone().unwrap_or_default())
}

/// virt-controller, whose condition Ready is, handed the VMI over once its pod was ready, and nothing probes the guest:
/// then it is ready with the guest's first instruction. Said together with that, it is one write less, and nobody sees a
/// VMI that runs and is not ready.
fn waits_for_guest_alone(conditions: &[VirtualMachineInstanceCondition], vmi: &VirtualMachineInstance) -> bool {
    let ready = conditions.iter().find(|known| known.type_ == condition::READY);
    vmi.spec.readiness_probe.is_none() && ready.is_some_and(|ready| ready.reason.as_deref() == Some("GuestNotRunning"))
}

/// The word for a pod that has the interface of a network beside its own.
const MULTUS: &str = "multus-status";

fn interfaces(status: &mut VirtualMachineInstanceStatus, vmi: &VirtualMachineInstance, seen: &Observed) {
    let facts = seen.facts();
    let live = |name: &str| facts.devices.iter().find(|d| d.kind == DeviceKind::Interface && d.name == name);
    let mut known = Vec::new();
    let mut out: Vec<VirtualMachineInstanceNetworkInterface> = Vec::new();
    for interface in &vmi.spec.domain.devices.interfaces {
        let device = live(&interface.name);
        let mac = device.map(|d| d.mac.clone()).filter(|mac| !mac.is_empty());
        let guest = facts.interfaces.iter().find(|g| mac.as_deref().is_some_and(|mac| g.mac.eq_ignore_ascii_case(mac)));
        known.extend(mac.clone());
        let pod = seen.addresses.iter().find(|(name, ..)| *name == interface.name);
        // Behind masquerade the world reaches the guest at the pod's address; else the guest's own is the address.
        let own = guest.map(|g| g.addresses.clone()).unwrap_or_default();
        let before = status.interfaces.iter().find(|i| i.name.as_deref() == Some(&interface.name));
        let addresses = match (pod, before) {
            (Some((_, _, pod)), _) if interface.masquerade.is_some() || own.is_empty() => pod.clone(),
            // Not looked at again yet after a restart.
            (None, Some(before)) if interface.masquerade.is_some() => before.ip_addresses.clone(),
            _ => own,
        };
        let link = pod.map(|(_, link, _)| link).or_else(|| before?.pod_interface_name.as_ref());
        let mut source = Vec::new();
        source.extend(device.map(|_| "domain"));
        source.extend(guest.map(|_| "guest-agent"));
        let attached =
            pod.is_some() || before.and_then(|i| i.info_source.as_deref()).is_some_and(|s| s.contains(MULTUS));
        source.extend((attached && is_secondary(vmi, &interface.name)).then_some(MULTUS));
        out.push(VirtualMachineInstanceNetworkInterface {
            name: Some(interface.name.clone()),
            mac: mac.or_else(|| interface.mac_address.clone()),
            ip_address: addresses.first().cloned(),
            ip_addresses: addresses,
            interface_name: guest.map(|g| g.name.clone()),
            info_source: (!source.is_empty()).then(|| source.join(", ")),
            link_state: device.map(|d| if d.link.is_empty() { "up".to_owned() } else { d.link.clone() }),
            pod_interface_name: link.cloned(),
            queue_count: device.map(|d| i32::try_from(d.queues.max(1)).unwrap_or(1)),
        });
    }
    // What only the guest knows: interfaces it made itself.
    for guest in
        facts.interfaces.iter().filter(|g| g.name != "lo" && !known.iter().any(|m| m.eq_ignore_ascii_case(&g.mac)))
    {
        out.push(VirtualMachineInstanceNetworkInterface {
            mac: Some(guest.mac.clone()),
            ip_address: guest.addresses.first().cloned(),
            ip_addresses: guest.addresses.clone(),
            interface_name: Some(guest.name.clone()),
            info_source: Some("guest-agent".to_owned()),
            ..Default::default()
        });
    }
    status.interfaces = out;
}

fn volumes(status: &mut VirtualMachineInstanceStatus, vmi: &VirtualMachineInstance, seen: &Observed, now: Timestamp) {
    let held = std::mem::take(&mut status.volume_status);
    let known = |name: &str| held.iter().find(|v| v.name == name).cloned();
    status.volume_status = vmi
        .spec
        .volumes
        .iter()
        .filter_map(|volume| {
            let device = seen.facts().devices.iter().find(|d| d.kind == DeviceKind::Disk && d.name == volume.name);
            let Some(device) = device.filter(|_| !is_hotplug(volume) || has(&seen.facts().devices, &volume.name))
            else {
                return known(&volume.name).filter(|_| is_hotplug(volume)).map(|entry| coming(entry, &seen.lent));
            };
            let mut entry =
                known(&volume.name).unwrap_or_else(|| VolumeStatus { name: volume.name.clone(), ..Default::default() });
            if is_hotplug(volume) {
                let message = format!("Successfully attach hotplugged volume {} to VM", volume.name);
                say(&mut entry, hotplug::phase::READY, hotplug::reason::READY, message);
            }
            entry.target.clone_from(&device.target);
            let seed = volume.cloud_init_no_cloud.is_some() || volume.cloud_init_config_drive.is_some();
            // Where it is copied to, a disk has to be as large as here.
            let claimed = entry.persistent_volume_claim_info.is_some();
            if (seed || volume.empty_disk.is_some() || claimed) && device.size > 0 {
                entry.size = i64::try_from(device.size).ok();
            }
            Some(entry)
        })
        .collect();
    let told = seen.dump();
    let machine = vmi.metadata.name.as_deref().unwrap_or_default();
    let own = hotplug::utilities(&vmi.spec).filter_map(|volume| Some((volume, known(volume.name)?)));
    status.volume_status.extend(
        own.map(|(volume, entry)| dump::entry(machine, volume, entry, |entry| coming(entry, &seen.lent), &told, now)),
    );
    let named = |name: &str| hotplug::is_named(&vmi.spec, name);
    let gone = held.iter().filter(|entry| entry.hotplug_volume.is_some() && !named(&entry.name));
    status.volume_status.extend(gone.map(|entry| going(entry.clone(), seen)));
    // What the guest keeps beside its disks is no volume of its specification.
    let state = |entry: &&VolumeStatus| {
        let claim = entry.persistent_volume_claim_info.as_ref().and_then(|info| info.claim_name.as_ref());
        claim == Some(&entry.name) && entry.hotplug_volume.is_none() && !named(&entry.name)
    };
    status.volume_status.extend(held.iter().filter(state).cloned());
}

/// A volume that the guest does not have yet.
fn coming(mut entry: VolumeStatus, lent: &BTreeSet<String>) -> VolumeStatus {
    if lent.contains(&entry.name) && entry.hotplug_volume.is_some() {
        let message = format!("Volume {} has been mounted in virt-launcher pod", entry.name);
        say(&mut entry, hotplug::phase::MOUNTED_TO_POD, hotplug::reason::MOUNTED, message);
    }
    entry
}

/// A volume that the guest is not to have any more.
fn going(mut entry: VolumeStatus, seen: &Observed) -> VolumeStatus {
    let used = seen.lent.contains(&entry.name) || seen.dump().is_writing(&entry.name);
    if !has(&seen.facts().devices, &entry.name) && !used {
        entry.target.clear();
        let message = format!("Volume {} has been unmounted from virt-launcher pod", entry.name);
        say(&mut entry, hotplug::phase::UNMOUNTED_FROM_POD, hotplug::reason::UNMOUNTED, message);
    }
    entry
}

fn say(entry: &mut VolumeStatus, phase: &str, reason: &str, message: String) {
    entry.phase = Some(phase.to_owned());
    entry.reason = Some(reason.to_owned());
    entry.message = Some(message);
}

fn guest(status: &mut VirtualMachineInstanceStatus, vmi: &VirtualMachineInstance, seen: &Observed) {
    let facts = seen.facts();
    if !facts.machine.is_empty() {
        status.machine = Some(Machine { type_: Some(facts.machine.clone()) });
    }
    if let (Some(memory), 1..) = (status.memory.as_mut(), facts.memory_kib) {
        memory.guest_current = Some(Amount::from_bytes(facts.memory_kib.saturating_mul(1024)).to_binary());
    }
    sizes(status, vmi, facts);
    let agent = seen.domain.as_ref().is_some_and(|d| d.agent_connected);
    if let Some(os) = facts.os.clone().filter(|_| agent) {
        status.guest_os_info = Some(Box::new(os));
    }
    status.fs_freeze_status = Some(facts.fs_freeze_status.clone()).filter(|text| text == "frozen");
    status.selinux_context.get_or_insert_with(|| "none".to_owned());
}

/// How many CPUs the guest has, and how much memory it was asked to use.
fn sizes(status: &mut VirtualMachineInstanceStatus, vmi: &VirtualMachineInstance, facts: &GuestFacts) {
    let Topology { cores, threads, .. } = Topology::of(&vmi.spec.domain);
    let socket = cores.saturating_mul(threads);
    let vcpus = u64::from(facts.vcpus);
    // A launcher of an older build does not tell.
    if vcpus > 0 && vcpus.is_multiple_of(socket) {
        let count = |number: u64| i64::try_from(number).ok();
        let (sockets, cores, threads) = (count(vcpus / socket), count(cores), count(threads));
        status.current_cpu_topology = Some(CPUTopology { sockets, cores, threads });
    }
    let Some(memory) = status.memory.as_mut().filter(|_| vcpus > 0) else { return };
    let at_boot = memory.guest_at_boot.as_ref().and_then(|quantity| Amount::try_from(quantity).ok());
    if let Some(at_boot) = at_boot {
        let plugged = Amount::from_bytes(facts.plugged_kib.saturating_mul(1024));
        memory.guest_requested = match facts.plugged_kib {
            0 => memory.guest_at_boot.clone(),
            _ => Some(at_boot.saturating_add(plugged).to_binary()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{GuestInterface, LiveDevice};
    use serde_json::json;

    fn vmi(phase: &str) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {
                "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}], "disks": [{"name": "root"}]}},
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [{"name": "root", "containerDisk": {"image": "i"}}],
            },
            "status": {"phase": phase, "memory": {"guestCurrent": "128Mi"}},
        }))
        .unwrap()
    }

    fn domain(status: &str, reason: &str) -> Observed {
        let state = LauncherState { status: status.into(), reason: reason.into(), ..Default::default() };
        Observed { domain: Some(state), ..Default::default() }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    #[track_caller]
    fn check(before: &str, seen: &Observed, expect: &str) {
        assert_eq!(status(&vmi(before), seen, now()).phase.as_deref(), Some(expect));
    }

    #[test]
    fn phases() {
        check("Scheduled", &Observed::default(), "Scheduled");
        check("Scheduled", &domain("", ""), "Scheduled");
        check("Scheduled", &domain("Running", ""), "Running");
        check("Scheduled", &domain("Paused", "User"), "Running");
        check("Running", &domain("Shutoff", "Shutdown"), "Succeeded");
        check("Running", &domain("Shutoff", "Crashed"), "Failed");
        check("Running", &domain("Shutoff", "Destroyed"), "Failed");
        check("Running", &domain("Crashed", "Panicked"), "Failed");
        check("Running", &Observed { launcher_gone: true, ..Default::default() }, "Failed");
        check("Running", &Observed { launcher_gone: true, ..domain("Running", "") }, "Failed");
        check("Running", &Observed { launcher_gone: true, ..domain("Shutoff", "Shutdown") }, "Succeeded");
        check("Running", &domain("Shutoff", "PostCopyFailed"), "Failed");
        check("Running", &domain("Shutoff", "Migrated"), "Running");
        check("Running", &Observed { launcher_gone: true, ..domain("Shutoff", "Migrated") }, "Running");
        check("Running", &Observed { launcher_gone: true, on_its_way: true, ..Observed::default() }, "Running");
        let mut terminal = domain("", "");
        terminal.domain =
            Some(LauncherState { terminal: true, sync_error: "not an image".into(), ..Default::default() });
        check("Scheduled", &terminal, "Failed");
    }

    #[test]
    fn without_acpi_being_destroyed_is_how_a_guest_ends() {
        let mut vmi = vmi("Running");
        vmi.spec.domain.features = serde_json::from_value(json!({"acpi": {"enabled": false}})).unwrap();
        assert_eq!(status(&vmi, &domain("Shutoff", "Destroyed"), now()).phase.as_deref(), Some("Succeeded"));
    }

    #[test]
    fn a_secondary_interface_says_that_the_pod_has_it() {
        let mut vmi = vmi("Running");
        vmi.spec.domain.devices.interfaces =
            serde_json::from_value(json!([{"name": "default", "masquerade": {}}, {"name": "blue", "bridge": {}}]))
                .unwrap();
        vmi.spec.networks = serde_json::from_value(
            json!([{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "n"}}]),
        )
        .unwrap();
        let mut seen = domain("Running", "");
        let device = |name: &str, mac: &str| LiveDevice {
            kind: DeviceKind::Interface,
            name: name.into(),
            mac: mac.into(),
            ..Default::default()
        };
        seen.domain.as_mut().unwrap().facts.devices =
            vec![device("default", "02:00:00:00:00:01"), device("blue", "02:00:00:00:00:02")];
        let pods = |name: &str, link: &str| (name.to_owned(), link.to_owned(), Vec::new());
        seen.addresses = vec![pods("default", "eth0"), pods("blue", "pod16477688c0e")];
        let told = |status: &VirtualMachineInstanceStatus| {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            let one = |i: &VirtualMachineInstanceNetworkInterface| (text(&i.info_source), text(&i.pod_interface_name));
            status.interfaces.iter().map(one).collect::<Vec<_>>()
        };
        let own = |text: &str, link: &str| (text.to_owned(), link.to_owned());
        let expect = [own("domain", "eth0"), own("domain, multus-status", "pod16477688c0e")];
        let after = status(&vmi, &seen, now());
        assert_eq!(told(&after), expect);
        // Also before the pod was looked at again, after this process was started anew.
        seen.addresses.clear();
        vmi.status = Some(Box::new(after));
        assert_eq!(told(&status(&vmi, &seen, now())), expect);
    }

    #[test]
    fn facts_of_a_running_guest() {
        let mut seen = domain("Running", "");
        seen.domain.as_mut().unwrap().agent_connected = true;
        seen.addresses = vec![("default".into(), "eth0".into(), vec!["10.244.0.9".into()])];
        seen.domain.as_mut().unwrap().facts = GuestFacts {
            machine: "pc-q35-10.0".into(),
            memory_kib: 131_072,
            interfaces: vec![
                GuestInterface {
                    name: "eth0".into(),
                    mac: "02:00:00:00:00:01".into(),
                    addresses: vec!["10.0.2.2".into()],
                },
                GuestInterface {
                    name: "docker0".into(),
                    mac: "02:42:00:00:00:00".into(),
                    addresses: vec!["172.17.0.1".into()],
                },
                GuestInterface {
                    name: "lo".into(),
                    mac: "00:00:00:00:00:00".into(),
                    addresses: vec!["127.0.0.1".into()],
                },
            ],
            devices: vec![
                LiveDevice {
                    kind: DeviceKind::Interface,
                    name: "default".into(),
                    mac: "02:00:00:00:00:01".into(),
                    target: "tap0".into(),
                    ..Default::default()
                },
                LiveDevice {
                    kind: DeviceKind::Disk,
                    name: "root".into(),
                    target: "vda".into(),
                    size: 1,
                    ..Default::default()
                },
            ],
            ..Default::default()
        };
        let status = status(&vmi("Running"), &seen, now());
        insta::assert_json_snapshot!(serde_json::to_value(&status).unwrap(), @r#"
        {
          "conditions": [
            {
              "lastTransitionTime": "2023-11-14T22:13:20Z",
              "status": "True",
              "type": "AgentConnected"
            },
            {
              "lastTransitionTime": "2023-11-14T22:13:20Z",
              "message": "disk root (changes to a containerDisk) is copied: no other pod has it",
              "status": "True",
              "type": "LiveMigratable"
            },
            {
              "lastTransitionTime": "2023-11-14T22:13:20Z",
              "status": "True",
              "type": "StorageLiveMigratable"
            }
          ],
          "interfaces": [
            {
              "infoSource": "domain, guest-agent",
              "interfaceName": "eth0",
              "ipAddress": "10.244.0.9",
              "ipAddresses": [
                "10.244.0.9"
              ],
              "linkState": "up",
              "mac": "02:00:00:00:00:01",
              "name": "default",
              "podInterfaceName": "eth0",
              "queueCount": 1
            },
            {
              "infoSource": "guest-agent",
              "interfaceName": "docker0",
              "ipAddress": "172.17.0.1",
              "ipAddresses": [
                "172.17.0.1"
              ],
              "mac": "02:42:00:00:00:00"
            }
          ],
          "machine": {
            "type": "pc-q35-10.0"
          },
          "memory": {
            "guestCurrent": "128Mi"
          },
          "migrationMethod": "BlockMigration",
          "migrationTransport": "Unix",
          "phase": "Running",
          "selinuxContext": "none",
          "volumeStatus": [
            {
              "name": "root",
              "target": "vda"
            }
          ]
        }
        "#);
    }

    #[test]
    fn the_status_stays_while_the_launcher_is_silent() {
        let mut seen = domain("Paused", "PausedUser");
        seen.domain.as_mut().unwrap().agent_connected = true;
        let mut before = vmi("Running");
        before.status = Some(Box::new(status(&before, &seen, now())));
        assert_eq!(status(&before, &Observed::default(), now()), before.status.clone().map(|s| *s).unwrap());
    }

    #[test]
    fn ready_is_said_with_running_when_only_the_guest_is_waited_for() {
        #[track_caller]
        fn check(reason: &str, probed: bool, seen: &Observed, expect: &str) {
            let mut vmi = vmi("Scheduled");
            vmi.spec.readiness_probe = probed.then(Default::default);
            let conditions = &mut vmi.status.as_mut().unwrap().conditions;
            set(conditions, condition::READY, "False", Some(reason), None, &Time(now()));
            let status = status(&vmi, seen, now());
            let ready = status.conditions.iter().find(|known| known.type_ == condition::READY).unwrap();
            assert_eq!((ready.status.as_str(), ready.reason.is_none()), (expect, expect == "True"));
        }
        check("GuestNotRunning", false, &domain("Running", ""), "True");
        check("GuestNotRunning", false, &domain("", ""), "False");
        check("GuestNotRunning", false, &domain("Paused", "User"), "False");
        check("GuestNotRunning", true, &domain("Running", ""), "False");
        check("PodTerminating", false, &domain("Running", ""), "False");
    }

    #[test]
    fn a_guest_whose_disk_failed_says_which() {
        #[track_caller]
        fn check(disks: &[(&str, bool)], condition: &str, events: &[&str]) {
            let failed = |(name, full): &(&str, bool)| FailedDisk { name: (*name).to_owned(), full: *full };
            let mut seen = domain("Paused", "PausedIOError");
            seen.domain.as_mut().unwrap().facts.failed_disks = disks.iter().map(failed).collect();
            let said: Vec<String> = seen.facts().failed_disks.iter().map(failure).collect();
            let status = status(&vmi("Running"), &seen, now());
            let paused = status.conditions.iter().find(|known| known.type_ == condition::PAUSED).unwrap();
            assert_eq!(paused.message.as_deref(), Some(condition));
            assert_eq!(said, events);
        }
        check(&[], "VMI was paused, IO error", &[]);
        check(&[("a", false)], "VMI was paused, IO error", &["VM Paused due to IO error at the volume: a"]);
        check(
            &[("a", true), ("b", false), ("c", true)],
            "VMI was paused, IO error: not enough space on volume a, c",
            &[
                "VM Paused due to not enough space on volume: a",
                "VM Paused due to IO error at the volume: b",
                "VM Paused due to not enough space on volume: c",
            ],
        );
    }

    #[test]
    fn conditions_come_and_go() {
        let paused = status(&vmi("Running"), &domain("Paused", "PausedIOError"), now());
        let held = paused.conditions.iter().find(|c| c.type_ == condition::PAUSED).unwrap();
        assert_eq!(held.reason.as_deref(), Some("PausedIOError"));
        let mut vmi = vmi("Running");
        vmi.status = Some(Box::new(paused));
        assert!(status(&vmi, &domain("Running", ""), now()).conditions.iter().all(|c| c.type_ != condition::PAUSED));
        let trouble = Observed { trouble: Some("why".into()), ..Default::default() };
        let failed = status(&vmi, &trouble, now());
        assert!(failed.conditions.iter().any(|c| c.type_ == condition::SYNCHRONIZED && c.status == "False"));
    }
}
