//! A VirtualMachine written out: all that it chose is in its template.

use serde_json::{Value, json};

use crate::fields::{at, object, put};
use crate::{Chosen, preference, size};

const TEMPLATE: &str = "spec.template.spec";

/// `vm` with `chosen` in its template, and without the references to it. `binding` is how the pod network is bound to where nobody
/// says. A device that machines get by themselves is listed, so that a preference for such devices counts for it.
pub fn expand(mut vm: Value, chosen: &Chosen, binding: &str) -> Value {
    let nothing = Value::Null;
    let preferred = chosen.preference.as_ref().unwrap_or(&nothing);
    preference::attach(preferred, &mut vm);
    let masquerades = at(preferred, "devices.preferredInterfaceMasquerade").is_some();
    let spec = object(&mut vm, TEMPLATE);
    disks(spec);
    interface(spec, (!masquerades).then_some(binding));
    input(spec);
    preference::apply(preferred, &mut vm);
    if let Some(instancetype) = &chosen.instancetype {
        size::apply(instancetype, preferred, &mut vm);
    }
    for (part, field) in
        [("spec", "instancetype"), ("spec", "preference"), ("status", "instancetypeRef"), ("status", "preferenceRef")]
    {
        if let Some(fields) = vm.get_mut(part).and_then(Value::as_object_mut) {
            fields.remove(field);
        }
    }
    vm
}

fn names(list: Option<&Value>) -> Vec<Value> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(|entry| entry.get("name").cloned()).collect()
}

/// A disk for each volume that the guest is to see.
fn disks(spec: &mut Value) {
    let mut known = names(at(spec, "domain.devices.disks"));
    known.extend(names(at(spec, "domain.devices.filesystems")));
    let volumes = at(spec, "volumes").and_then(Value::as_array).into_iter().flatten();
    let dumped = |volume: &Value| volume.get("memoryDump").is_some_and(|source| !source.is_null());
    let seen = volumes.filter(|volume| !dumped(volume)).filter_map(|volume| volume.get("name").cloned());
    let loose: Vec<Value> =
        seen.filter(|name| !known.contains(name)).map(|name| json!({ "name": name, "disk": {} })).collect();
    if loose.is_empty() {
        return;
    }
    let disks = object(spec, "domain.devices.disks");
    match disks.as_array_mut() {
        Some(disks) => disks.extend(loose),
        None => *disks = Value::Array(loose),
    }
}

/// An interface on the pod network, where there is no other.
fn interface(spec: &mut Value, binding: Option<&str>) {
    let empty = |path| at(spec, path).and_then(Value::as_array).is_none_or(Vec::is_empty);
    let refused = at(spec, "domain.devices.autoattachPodInterface") == Some(&Value::Bool(false));
    if refused || !empty("networks") || !empty("domain.devices.interfaces") {
        return;
    }
    put(spec, "networks", json!([{ "name": "default", "pod": {} }]));
    let mut interface = json!({ "name": "default" });
    if let Some(binding) = binding {
        interface[binding] = json!({});
    }
    put(spec, "domain.devices.interfaces", json!([interface]));
}

/// The input device that is attached by itself.
fn input(spec: &mut Value) {
    let wanted = at(spec, "domain.devices.autoattachInputDevice") == Some(&Value::Bool(true));
    let none = at(spec, "domain.devices.inputs").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if wanted && none {
        put(spec, "domain.devices.inputs", json!([{ "name": "default-0" }]));
    }
}
