//! What a machine has where it says nothing, before rules look at it. Pure.

use serde_json::{Value, json};

/// A template with the parts of a processor that it does not count, of which there is one each, and with the empty text where a
/// disk or an interface leaves its bus or its model to the cluster: rules judge these, too.
pub fn complete(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(cpu) = template.pointer_mut("/spec/domain/cpu").and_then(Value::as_object_mut) {
        for part in ["sockets", "cores", "threads"] {
            let count = cpu.entry(part).or_insert(json!(1));
            if count.is_null() || *count == 0 {
                *count = json!(1);
            }
        }
    }
    if let Some(devices) = template.pointer_mut("/spec/domain/devices") {
        for disk in devices.get_mut("disks").and_then(Value::as_array_mut).into_iter().flatten() {
            for target in ["disk", "cdrom", "lun"] {
                empty(disk.get_mut(target), "bus");
            }
        }
        for interface in devices.get_mut("interfaces").and_then(Value::as_array_mut).into_iter().flatten() {
            empty(Some(interface), "model");
        }
    }
    template
}

fn empty(object: Option<&mut Value>, field: &str) {
    if let Some(object) = object.and_then(Value::as_object_mut) {
        object.entry(field).or_insert(json!(""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_open_is_filled() {
        let check = |template: Value, expect: Value| assert_eq!(complete(&template), expect);
        check(json!(null), json!(null));
        check(json!({ "spec": { "domain": {} } }), json!({ "spec": { "domain": {} } }));
        check(
            json!({ "spec": { "domain": {
                "cpu": { "sockets": 0, "cores": 4, "threads": null },
                "devices": {
                    "disks": [{ "name": "a", "disk": {} }, { "name": "b", "cdrom": { "bus": "sata" } }, "odd"],
                    "interfaces": [{ "name": "default" }, { "model": "e1000" }],
                },
            } } }),
            json!({ "spec": { "domain": {
                "cpu": { "sockets": 1, "cores": 4, "threads": 1 },
                "devices": {
                    "disks": [{ "name": "a", "disk": { "bus": "" } }, { "name": "b", "cdrom": { "bus": "sata" } }, "odd"],
                    "interfaces": [{ "name": "default", "model": "" }, { "model": "e1000" }],
                },
            } } }),
        );
        check(
            json!({ "spec": { "domain": { "cpu": [], "devices": 5 } } }),
            json!({ "spec": { "domain": { "cpu": [], "devices": 5 } } }),
        );
    }
}
