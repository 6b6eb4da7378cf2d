//! What an instance type gives a machine, and what of the machine is therefore not its user's to say.

use meta::quantity::Amount;
use serde_json::{Map, Value, json};

use crate::cpu::{self, Topology};
use crate::fields::{at, object, put, written};

/// Where the fields of an instance type go, below `spec` of an instance. A user who wrote one of them too is in conflict.
const FIELDS: &[(&str, &str)] = &[
    ("cpu.model", "domain.cpu.model"),
    ("cpu.dedicatedCPUPlacement", "domain.cpu.dedicatedCpuPlacement"),
    ("cpu.isolateEmulatorThread", "domain.cpu.isolateEmulatorThread"),
    ("cpu.numa", "domain.cpu.numa"),
    ("cpu.realtime", "domain.cpu.realtime"),
    ("memory.hugepages", "domain.memory.hugepages"),
    ("memory.maxGuest", "domain.memory.maxGuest"),
    ("nodeSelector", "nodeSelector"),
    ("schedulerName", "schedulerName"),
    ("ioThreadsPolicy", "domain.ioThreadsPolicy"),
    ("ioThreads.supplementalPoolThreadCount", "domain.ioThreads.supplementalPoolThreadCount"),
    ("launchSecurity", "domain.launchSecurity"),
    ("gpus", "domain.devices.gpus"),
    ("hostDevices", "domain.devices.hostDevices"),
];

/// Fields of the size itself, which every instance type says.
const SIZE: &[&str] = &[
    "domain.resources.requests.cpu",
    "domain.resources.limits.cpu",
    "domain.cpu.sockets",
    "domain.cpu.cores",
    "domain.cpu.threads",
    "domain.memory.guest",
    "domain.resources.requests.memory",
    "domain.resources.limits.memory",
];

const TEMPLATE: &str = "spec.template.spec";
const ANNOTATIONS: &str = "spec.template.metadata.annotations";

/// How many virtual CPUs the spec of an instance type gives.
pub(crate) fn vcpus(instancetype: &Value) -> i64 {
    at(instancetype, "cpu.guest").and_then(Value::as_i64).unwrap_or(1).max(1)
}

/// Fields of the VirtualMachine `vm` that `instancetype` says.
pub(crate) fn conflicts(instancetype: &Value, vm: &Value) -> Vec<String> {
    let said = FIELDS.iter().filter(|(from, _)| written(instancetype, from).is_some()).map(|(_, to)| *to);
    let paths = SIZE.iter().copied().chain(said).map(|path| format!("{TEMPLATE}.{path}"));
    let mut found: Vec<String> = paths.filter(|path| written(vm, path).is_some()).collect();
    let held = at(vm, ANNOTATIONS);
    for (key, value) in annotations(instancetype) {
        let other = held.and_then(|all| all.get(key)).is_some_and(|held| held != value);
        found.extend(other.then(|| format!("annotations.{key}")));
    }
    found
}

fn annotations(spec: &Value) -> impl Iterator<Item = (&String, &Value)> {
    at(spec, "annotations").and_then(Value::as_object).into_iter().flatten()
}

/// Gives `vm` what `instancetype` says; `preference` says how the CPUs are spread. What cannot be spread so is made of sockets.
pub(crate) fn apply(instancetype: &Value, preference: &Value, vm: &mut Value) {
    let spec = object(vm, TEMPLATE);
    let vcpus = vcpus(instancetype);
    let Topology { sockets, cores, threads } =
        cpu::topology(vcpus, preference).unwrap_or(Topology { sockets: vcpus, cores: 1, threads: 1 });
    for (path, value) in [("sockets", sockets), ("cores", cores), ("threads", threads)] {
        put(spec, &format!("domain.cpu.{path}"), json!(value));
    }
    let others = [("memory.guest", "domain.memory.guest"), ("cpu.maxSockets", "domain.cpu.maxSockets")];
    for (from, to) in FIELDS.iter().copied().chain(others) {
        if let Some(value) = at(instancetype, from) {
            put(spec, to, value.clone());
        }
    }
    if let Some(request) = overcommitted(instancetype) {
        put(spec, "domain.resources.requests.memory", request);
    }
    let wanted: Map<String, Value> =
        annotations(instancetype).map(|(key, value)| (key.clone(), value.clone())).collect();
    if wanted.is_empty() {
        return;
    }
    let held = object(vm, ANNOTATIONS);
    match held.as_object_mut() {
        Some(held) => held.extend(wanted),
        None => *held = Value::Object(wanted),
    }
}

/// The memory that the pod asks for where the guest's is overcommitted.
fn overcommitted(instancetype: &Value) -> Option<Value> {
    let percent =
        at(instancetype, "memory.overcommitPercent")?.as_i64().filter(|percent| (1..=100).contains(percent))?;
    let guest: Amount = text(at(instancetype, "memory.guest")?)?.parse().ok()?;
    let kept = i128::from(guest.value()) * i128::from(100 - percent) / 100;
    Some(json!(Amount::from_bytes(u64::try_from(kept).unwrap_or(0)).to_binary()))
}

/// A quantity as it is written: text, or a number.
pub(crate) fn text(quantity: &Value) -> Option<String> {
    match quantity {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
