//! What a preference says of each device of a machine.

use serde_json::{Value, json};

use crate::fields::{at, list, put, put_if_open};

/// How an interface may be bound to its network.
const BINDINGS: [&str; 8] = ["binding", "bridge", "macvtap", "masquerade", "passt", "passtBinding", "slirp", "sriov"];

pub(crate) fn apply(preference: &Value, spec: &mut Value) {
    disks(preference, spec);
    interfaces(preference, spec);
    each(preference, spec, "domain.devices.inputs", &[("preferredInputBus", "bus"), ("preferredInputType", "type")]);
    each(preference, spec, "domain.devices.gpus", &[("preferredVirtualGPUOptions", "virtualGPUOptions")]);
    if at(spec, "domain.devices.sound").is_some()
        && let Some(model) = wanted(preference, "preferredSoundModel")
    {
        put_if_open(spec, "domain.devices.sound.model", model);
    }
    if wanted(preference, "preferredPanicDeviceModel").is_some() {
        let none = at(spec, "domain.devices.panicDevices").and_then(Value::as_array).is_none_or(Vec::is_empty);
        if none {
            put(spec, "domain.devices.panicDevices", json!([{}]));
        }
        each(preference, spec, "domain.devices.panicDevices", &[("preferredPanicDeviceModel", "model")]);
    }
}

fn wanted<'a>(preference: &'a Value, field: &str) -> Option<&'a Value> {
    at(preference, "devices")?.get(field).filter(|value| !value.is_null())
}

/// Fields of every entry of a list, unless something is there.
fn each(preference: &Value, spec: &mut Value, path: &str, fields: &[(&str, &str)]) {
    for device in list(spec, path) {
        for (from, to) in fields {
            if let Some(value) = wanted(preference, from) {
                put_if_open(device, to, value);
            }
        }
    }
}

fn disks(preference: &Value, spec: &mut Value) {
    for disk in list(spec, "domain.devices.disks") {
        let kinds = [("disk", "preferredDiskBus"), ("cdrom", "preferredCdromBus"), ("lun", "preferredLunBus")];
        // An entry that does not say what it is, is a disk.
        let (kind, bus) = kinds.into_iter().find(|(kind, _)| at(disk, kind).is_some()).unwrap_or(kinds[0]);
        put_if_open(disk, kind, &json!({}));
        if let Some(bus) = wanted(preference, bus) {
            put_if_open(disk, &format!("{kind}.bus"), bus);
        }
    }
    let fields = [("preferredDiskBlockSize", "blockSize"), ("preferredDiskCache", "cache"), ("preferredDiskIO", "io")];
    each(preference, spec, "domain.devices.disks", &fields);
    let Some(dedicated) = wanted(preference, "preferredDiskDedicatedIoThread") else { return };
    for disk in list(spec, "domain.devices.disks") {
        // Other buses have no thread of their own.
        if at(disk, "disk.bus").is_some_and(|bus| bus == "virtio") {
            put_if_open(disk, "dedicatedIOThread", dedicated);
        }
    }
}

fn interfaces(preference: &Value, spec: &mut Value) {
    each(preference, spec, "domain.devices.interfaces", &[("preferredInterfaceModel", "model")]);
    let Some(masquerade) = wanted(preference, "preferredInterfaceMasquerade") else { return };
    let networks = at(spec, "networks").and_then(Value::as_array).into_iter().flatten();
    let of_pod: Vec<Value> = networks
        .filter(|network| network.get("pod").is_some_and(|pod| !pod.is_null()))
        .filter_map(|network| network.get("name").cloned())
        .collect();
    for interface in list(spec, "domain.devices.interfaces") {
        let bound = BINDINGS.iter().any(|binding| at(interface, binding).is_some());
        if !bound && interface.get("name").is_some_and(|name| of_pod.contains(name)) {
            put(interface, "masquerade", masquerade.clone());
        }
    }
}
