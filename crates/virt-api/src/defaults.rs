//! What a machine is when nobody says: the mutating webhooks. Pure over JSON, so that nothing a user wrote is lost.

use api::kubevirt::constants::{annotation, finalizer, phase};
use api::kubevirt::size;
use api::kubevirt::v1::{DomainSpec, KubeVirtConfiguration, VirtualMachineInstanceSpec};
use kit::admission::{Request, Verdict};
use meta::quantity::Amount;
use serde_json::{Map, Value, json};

use crate::validate::resources::MAXIMUM_CPUS;
use crate::validate::{Rules, growth};
use crate::{hyperv, written};

/// What the administrator's configuration says about defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    machine: String,
    cpu_model: String,
    architecture: String,
    interface: String,
    eviction: String,
    live: Option<Live>,
}

/// How far guests may grow while they run, where the administrator wants that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Live {
    ratio: i64,
    sockets: Option<i64>,
    guest: Option<Amount>,
}

impl Live {
    fn of(configuration: &KubeVirtConfiguration) -> Option<Self> {
        if configuration.vm_rollout_strategy.as_deref() == Some("Stage") {
            return None;
        }
        let given = configuration.live_update_configuration.clone().unwrap_or_default();
        Some(Live {
            ratio: given.max_hotplug_ratio.filter(|ratio| *ratio > 0).unwrap_or(4),
            sockets: given.max_cpu_sockets.filter(|most| *most > 0),
            guest: given.max_guest.as_ref().and_then(|most| Amount::try_from(most).ok()),
        })
    }
}

impl Default for Defaults {
    fn default() -> Self {
        Defaults::of(&KubeVirtConfiguration::default())
    }
}

impl Defaults {
    /// The defaults under `configuration`.
    pub fn of(configuration: &KubeVirtConfiguration) -> Self {
        let or = |value: Option<&String>, default: &str| {
            value.filter(|text| !text.is_empty()).cloned().unwrap_or_else(|| default.to_owned())
        };
        let architecture = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            "s390x" => "s390x",
            _ => "amd64",
        };
        let amd64 = configuration.architecture_configuration.as_ref().and_then(|all| all.amd64.as_ref());
        let machine = amd64.and_then(|arch| arch.machine_type.as_ref()).or(configuration.machine_type.as_ref());
        Defaults {
            machine: or(machine, "q35"),
            cpu_model: or(configuration.cpu_model.as_ref(), "host-model"),
            architecture: architecture.to_owned(),
            interface: or(
                configuration.network.as_ref().and_then(|network| network.default_network_interface.as_ref()),
                "bridge",
            ),
            eviction: or(configuration.eviction_strategy.as_ref(), "None"),
            live: Live::of(configuration),
        }
    }
}

impl Defaults {
    /// How the pod network is bound to where nobody says.
    pub fn binding(&self) -> &str {
        &self.interface
    }
}

/// The object at `key`, made when it is missing.
fn object<'a>(of: &'a mut Value, key: &str) -> &'a mut Value {
    if !of.is_object() {
        *of = Value::Object(Map::new());
    }
    let found = &mut of[key];
    if !found.is_object() {
        *found = Value::Object(Map::new());
    }
    found
}

/// Sets `key` unless something is there.
fn default(of: &mut Value, key: &str, value: Value) {
    let empty = match of.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if empty {
        of[key] = value;
    }
}

fn hold(object: &mut Value, finalizer: &str) {
    let metadata = self::object(object, "metadata");
    match metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        Some(held) if held.iter().any(|name| name == finalizer) => {}
        Some(held) => held.push(json!(finalizer)),
        None => metadata["finalizers"] = json!([finalizer]),
    }
}

fn observed(object: &mut Value) {
    let annotations = self::object(self::object(object, "metadata"), "annotations");
    annotations[annotation::LATEST_OBSERVED_API_VERSION] = json!("v1");
    annotations[annotation::STORAGE_OBSERVED_API_VERSION] = json!("v1");
}

fn random() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// A VirtualMachine with its defaults.
pub fn machine(mut vm: Value, creating: bool, defaults: &Defaults) -> Value {
    observed(&mut vm);
    let deleting = vm.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null());
    if !deleting && creating {
        hold(&mut vm, finalizer::VM);
    }
    let template = object(object(&mut vm, "spec"), "template");
    if creating {
        let annotations = object(object(template, "metadata"), "annotations");
        default(annotations, annotation::PCI_TOPOLOGY_VERSION, json!("v3"));
    }
    let spec = object(template, "spec");
    written::instance(spec);
    default(spec, "architecture", json!(defaults.architecture));
    let domain = object(spec, "domain");
    default(object(domain, "machine"), "type", json!(defaults.machine));
    object(domain, "resources");
    if creating {
        let firmware = object(domain, "firmware");
        default(firmware, "uuid", json!(random()));
        default(firmware, "serial", json!(random()));
    }
    written::data_volumes(vm.pointer_mut("/spec/dataVolumeTemplates"));
    vm
}

/// A VirtualMachineInstance with its defaults.
pub fn instance(mut vmi: Value, defaults: &Defaults, now: &str) -> Value {
    observed(&mut vmi);
    hold(&mut vmi, finalizer::VMI);
    {
        let annotations = object(object(&mut vmi, "metadata"), "annotations");
        default(annotations, annotation::PCI_TOPOLOGY_VERSION, json!("v3"));
    }
    let status = object(&mut vmi, "status");
    default(status, "phase", json!(phase::PENDING));
    default(status, "phaseTransitionTimestamps", json!([{ "phase": phase::PENDING, "phaseTransitionTimestamp": now }]));
    let spec = object(&mut vmi, "spec");
    let firmware = object(object(spec, "domain"), "firmware");
    default(firmware, "uuid", json!(random()));
    default(firmware, "serial", json!(random()));
    self::spec(spec, defaults);
    vmi
}

/// The spec of an instance with the defaults that are the same for each.
pub(crate) fn spec(spec: &mut Value, defaults: &Defaults) {
    written::instance(spec);
    written::ranges(spec);
    default(spec, "architecture", json!(defaults.architecture));
    default(spec, "evictionStrategy", json!(defaults.eviction));
    networks(spec, defaults);
    disks(spec);
    inputs(spec);
    probes(spec);
    images(spec);
    let domain = object(spec, "domain");
    object(domain, "devices");
    default(object(domain, "machine"), "type", json!(defaults.machine));
    default(object(object(domain, "features"), "acpi"), "enabled", json!(true));
    hyperv::complete(domain);
    cpu(domain, defaults);
    memory(domain);
    room(domain, defaults);
}

fn cpu(domain: &mut Value, defaults: &Defaults) {
    let asked = ["limits", "requests"].iter().find_map(|kind| {
        let text = domain.pointer(&format!("/resources/{kind}/cpu"))?;
        let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
        Some(text.parse::<Amount>().ok()?.value().max(1))
    });
    let cpu = object(domain, "cpu");
    let named = ["sockets", "cores", "threads"].iter().any(|part| cpu.get(part).is_some_and(|v| !v.is_null()));
    // Without a topology, the guest gets a socket for each CPU it asks for.
    let sockets = if named { 1 } else { asked.unwrap_or(1) };
    default(cpu, "sockets", json!(sockets));
    default(cpu, "cores", json!(1));
    default(cpu, "threads", json!(1));
    default(cpu, "model", json!(defaults.cpu_model));
    let Some(live) = &defaults.live else { return };
    let count = |part: &str| cpu[part].as_i64().filter(|count| *count > 0).unwrap_or(1);
    let (sockets, per_socket) = (count("sockets"), count("cores").saturating_mul(count("threads")));
    let most = live.sockets.unwrap_or_else(|| sockets.saturating_mul(live.ratio));
    let most = most.min(MAXIMUM_CPUS / per_socket).max(sockets);
    default(cpu, "maxSockets", json!(most));
}

fn memory(domain: &mut Value) {
    object(domain, "resources");
    let asked = ["requests", "limits"]
        .iter()
        .find_map(|kind| domain.pointer(&format!("/resources/{kind}/memory")).cloned())
        .filter(|value| !value.is_null());
    let hugepages = domain.pointer("/memory/hugepages").is_some_and(|value| !value.is_null());
    if let Some(asked) = asked.filter(|_| !hugepages) {
        default(object(domain, "memory"), "guest", asked);
    }
}

/// How much memory the guest may come to have while it runs.
fn room(domain: &mut Value, defaults: &Defaults) {
    let Some(live) = &defaults.live else { return };
    let fixed = |domain: DomainSpec| growth::fixed(&domain, &defaults.architecture).is_some();
    if serde_json::from_value(domain.clone()).map_or(true, fixed) {
        return;
    }
    let amount = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned).parse::<Amount>().ok();
    let Some(guest) = domain.pointer("/memory/guest").and_then(amount) else { return };
    let whole = |amount: Amount| amount.bytes().is_multiple_of(size::MEMORY_BLOCK);
    let most = live.guest.unwrap_or_else(|| guest.saturating_mul(live.ratio));
    if guest.bytes() >= size::LEAST_GUEST && most > guest && whole(guest) && whole(most) {
        default(object(domain, "memory"), "maxGuest", json!(most.to_binary().0));
    }
}

fn networks(spec: &mut Value, defaults: &Defaults) {
    let empty = |value: Option<&Value>| value.and_then(Value::as_array).is_none_or(Vec::is_empty);
    let attach = spec.pointer("/domain/devices/autoattachPodInterface").and_then(Value::as_bool) != Some(false);
    let none = empty(spec.get("networks")) && empty(spec.pointer("/domain/devices/interfaces"));
    if !attach || !none {
        return;
    }
    spec["networks"] = json!([{ "name": "default", "pod": {} }]);
    let interface = json!({ "name": "default", (defaults.interface.clone()): {} });
    object(object(spec, "domain"), "devices")["interfaces"] = json!([interface]);
}

fn disks(spec: &mut Value) {
    let named = |list: Option<&Value>| -> Vec<String> {
        let all = list.and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|entry| entry.get("name")?.as_str().map(str::to_owned)).collect()
    };
    let mut known = named(spec.pointer("/domain/devices/disks"));
    known.extend(named(spec.pointer("/domain/devices/filesystems")));
    // What a guest's memory is dumped to is no disk of the guest's.
    let dumps: Vec<String> = spec
        .get("volumes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|volume| volume.get("memoryDump").is_some_and(|source| !source.is_null()))
        .filter_map(|volume| volume.get("name")?.as_str().map(str::to_owned))
        .collect();
    known.extend(dumps);
    let loose: Vec<String> = named(spec.get("volumes")).into_iter().filter(|name| !known.contains(name)).collect();
    if spec.pointer("/domain/devices/disks").is_none() && loose.is_empty() {
        return;
    }
    let devices = object(object(spec, "domain"), "devices");
    if !devices["disks"].is_array() {
        devices["disks"] = json!([]);
    }
    let Some(disks) = devices["disks"].as_array_mut() else { return };
    for name in loose {
        disks.push(json!({ "name": name }));
    }
    for disk in disks {
        let kind =
            ["disk", "cdrom", "lun"].into_iter().find(|kind| disk.get(kind).is_some_and(|value| !value.is_null()));
        default(object(disk, kind.unwrap_or("disk")), "bus", json!("sata"));
    }
}

fn inputs(spec: &mut Value) {
    let wanted = spec.pointer("/domain/devices/autoattachInputDevice").and_then(Value::as_bool) == Some(true);
    let named = spec.pointer("/domain/devices/inputs").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    if wanted && !named {
        object(object(spec, "domain"), "devices")["inputs"] = json!([{ "name": "default-0" }]);
    }
    let inputs = spec.pointer_mut("/domain/devices/inputs").and_then(Value::as_array_mut);
    for input in inputs.into_iter().flatten().filter(|input| input.is_object()) {
        default(input, "bus", json!("usb"));
        default(input, "type", json!("tablet"));
    }
}

/// What a pod's probe would get; zero counts as unset.
fn probes(spec: &mut Value) {
    for name in ["readinessProbe", "livenessProbe"] {
        let Some(probe) = spec.get_mut(name).filter(|probe| probe.is_object()) else { continue };
        let times = [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)];
        for (field, value) in times {
            if probe.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                probe[field] = json!(value);
            }
        }
    }
}

/// Moving tags are pulled each time, others once.
fn images(spec: &mut Value) {
    let policy = |image: &str| {
        let last = image.rsplit('/').next().unwrap_or_default();
        let fixed = last.contains('@') || last.split_once(':').is_some_and(|(_, tag)| tag != "latest");
        if fixed { "IfNotPresent" } else { "Always" }
    };
    let set = |source: Option<&mut Value>| {
        let Some(source) = source.filter(|source| source.is_object()) else { return };
        if let Some(image) = source.get("image").and_then(Value::as_str) {
            let policy = policy(image);
            default(source, "imagePullPolicy", json!(policy));
        }
    };
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        set(volume.get_mut("containerDisk"));
    }
    set(spec.pointer_mut("/domain/firmware/kernelBoot/container"));
}

/// The webhook's answer: the difference, or that there is none.
pub fn answer(before: &Value, after: &Value) -> Verdict {
    let patch = json_patch::diff(before, after);
    if patch.0.is_empty() {
        return Verdict::allow();
    }
    match serde_json::to_value(&patch) {
        Ok(patch) => Verdict::Patch(patch),
        Err(_) => Verdict::allow(),
    }
}

/// `/virtualmachines-mutate`, where `noted` is the object with what else is to be known of it.
pub fn mutate_machine(request: &Request, noted: Value, defaults: &Defaults) -> Verdict {
    if request.object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null()) {
        return Verdict::allow();
    }
    let after = machine(noted, request.operation == "CREATE", defaults);
    answer(&request.object, &after)
}

/// `/virtualmachineinstances-mutate`: what a running guest is does not change. The status is the components' alone, as if it
/// were a subresource: what others send of it is left out of a new instance, and put back where one exists. `given` is the object with what
/// presets give it.
pub fn mutate_instance(request: &Request, given: Value, defaults: &Defaults, rules: &Rules, now: &str) -> Verdict {
    let mut object = given;
    if let Some(sent) = object.as_object_mut().filter(|_| !rules.is_component(&request.user_info.username)) {
        match request.old_object.get("status") {
            Some(held) => sent.insert("status".to_owned(), held.clone()),
            None => sent.remove("status"),
        };
    }
    if request.operation == "CREATE" {
        object = instance(object, defaults, now);
    }
    answer(&request.object, &object)
}

/// True when `spec` still decodes after the defaults; for tests of the defaults themselves.
pub fn decodes(spec: &Value) -> bool {
    serde_json::from_value::<VirtualMachineInstanceSpec>(spec.clone()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, pointer: &str, expect: Value) {
        let after = instance(json!({ "spec": spec }), &Defaults::default(), NOW);
        assert!(decodes(&after["spec"]));
        assert_eq!(after["spec"].pointer(pointer), Some(&expect), "{after}");
    }

    #[test]
    fn an_empty_instance_becomes_whole() {
        let spec = json!({ "domain": { "devices": {} } });
        check(spec.clone(), "/domain/machine/type", json!("q35"));
        check(spec.clone(), "/domain/features/acpi/enabled", json!(true));
        check(spec.clone(), "/networks", json!([{ "name": "default", "pod": {} }]));
        check(spec.clone(), "/domain/devices/interfaces", json!([{ "name": "default", "bridge": {} }]));
        check(spec, "/evictionStrategy", json!("None"));
    }

    #[test]
    fn cpu_follows_what_is_asked() {
        let cpu = |sockets: i64, cores: i64, max: i64| json!({ "sockets": sockets, "cores": cores, "threads": 1, "model": "host-model", "maxSockets": max });
        check(json!({ "domain": {} }), "/domain/cpu", cpu(1, 1, 4));
        check(json!({ "domain": { "cpu": { "cores": 2 } } }), "/domain/cpu", cpu(1, 2, 4));
        check(json!({ "domain": { "resources": { "requests": { "cpu": "3" } } } }), "/domain/cpu", cpu(3, 1, 12));
        check(json!({ "domain": { "resources": { "limits": { "cpu": 2 } } } }), "/domain/cpu", cpu(2, 1, 8));
    }

    #[test]
    fn disks_have_a_bus_and_every_volume_a_disk() {
        let spec = json!({
            "domain": { "devices": { "disks": [{ "name": "a", "disk": { "bus": "virtio" } }, { "name": "c", "cdrom": {} }] } },
            "volumes": [{ "name": "a" }, { "name": "b", "containerDisk": { "image": "x/y:latest" } }, { "name": "c" }],
        });
        check(
            spec.clone(),
            "/domain/devices/disks",
            json!([
                { "name": "a", "disk": { "bus": "virtio" } },
                { "name": "c", "cdrom": { "bus": "sata" } },
                { "name": "b", "disk": { "bus": "sata" } },
            ]),
        );
        check(spec, "/volumes/1/containerDisk/imagePullPolicy", json!("Always"));
        let pinned = json!({ "volumes": [{ "name": "b", "containerDisk": { "image": "r:5000/x:v1" } }] });
        check(pinned, "/volumes/0/containerDisk/imagePullPolicy", json!("IfNotPresent"));
    }

    #[test]
    fn inputs_and_probes_are_completed() {
        let spec = json!({
            "domain": { "devices": { "inputs": [{ "name": "pointer" }] } },
            "readinessProbe": { "tcpSocket": { "port": 22 }, "periodSeconds": 5 },
        });
        check(spec.clone(), "/domain/devices/inputs/0", json!({ "name": "pointer", "bus": "usb", "type": "tablet" }));
        let probe = json!({
            "tcpSocket": { "port": 22 }, "periodSeconds": 5, "timeoutSeconds": 1, "successThreshold": 1,
            "failureThreshold": 3,
        });
        check(spec, "/readinessProbe", probe);
        let tablet = json!([{ "name": "default-0", "bus": "usb", "type": "tablet" }]);
        let attached = json!({ "domain": { "devices": { "autoattachInputDevice": true } } });
        check(attached, "/domain/devices/inputs", tablet);
        let own = json!({ "autoattachInputDevice": true, "inputs": [{ "name": "pen", "bus": "virtio" }] });
        let kept = json!([{ "name": "pen", "bus": "virtio", "type": "tablet" }]);
        check(json!({ "domain": { "devices": own } }), "/domain/devices/inputs", kept);
    }

    /// What is stored of an instance that `user` sends over `old`.
    fn stored(user: &str, old: Value, new: Value) -> Value {
        let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
        let mut after = new.clone();
        let mut request = Request { object: new, old_object: old, operation: operation.into(), ..Default::default() };
        request.user_info.username = user.into();
        let rules = Rules::of(&KubeVirtConfiguration::default(), "kubevirt");
        if let Verdict::Patch(patch) =
            mutate_instance(&request, request.object.clone(), &Defaults::default(), &rules, NOW)
        {
            let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
            json_patch::patch(&mut after, &patch).unwrap();
        }
        after
    }

    #[test]
    fn users_neither_make_nor_change_the_status_of_an_instance() {
        let forged = json!({ "phase": "Running", "nodeName": "n", "activePods": { "a": "n" }, "runtimeUser": 0 });
        let with = |status: &Value| json!({ "spec": { "domain": {} }, "status": status });
        let made = stored("user", Value::Null, with(&forged));
        assert_eq!(made["status"]["phase"], "Pending");
        assert_eq!(made["status"].as_object().unwrap().len(), 2, "{made}");
        let held = json!({ "phase": "Running", "nodeName": "m" });
        assert_eq!(stored("user", with(&held), with(&forged))["status"], held);
        assert_eq!(stored("user", with(&held), json!({ "spec": { "domain": {} } }))["status"], held);
        let component = "system:serviceaccount:kubevirt:kubevirt-handler";
        assert_eq!(stored(component, with(&held), with(&forged))["status"], forged);
    }

    #[test]
    fn memory_follows_the_request() {
        let spec = json!({ "domain": { "resources": { "requests": { "memory": "64Mi" } } } });
        check(spec, "/domain/memory/guest", json!("64Mi"));
    }

    #[test]
    fn a_machine_keeps_what_was_written_and_its_identity() {
        let vm = json!({ "spec": { "template": { "spec": { "domain": { "machine": { "type": "pc" } } } } } });
        let after = machine(vm, true, &Defaults::default());
        let domain = &after["spec"]["template"]["spec"]["domain"];
        assert_eq!(domain["machine"]["type"], "pc");
        assert!(domain["firmware"]["uuid"].is_string());
        assert_eq!(after["metadata"]["finalizers"], json!([finalizer::VM]));
        assert_eq!(machine(after.clone(), false, &Defaults::default()), after);
    }
}
