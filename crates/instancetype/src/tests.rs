//! What is made of a machine, by its instance type and its preference.

use serde_json::{Value, json};

use crate::{Chosen, conflicts, expand, problems};

fn chosen(instancetype: Value, preference: Value) -> Chosen {
    let some = |value: Value| Some(value).filter(|value| !value.is_null());
    Chosen { instancetype: some(instancetype), preference: some(preference) }
}

fn vm(spec: Value) -> Value {
    json!({ "spec": { "instancetype": { "name": "i" }, "preference": { "name": "p" }, "template": { "spec": spec } } })
}

fn size(cpu: Value, memory: Value) -> Value {
    json!({ "cpu": cpu, "memory": memory })
}

/// What is at `pointer` of the template's spec after `spec` was expanded.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check(spec: Value, chosen: &Chosen, pointer: &str, expect: Value) {
    let after = expand(vm(spec), chosen, "bridge");
    let found = after["spec"]["template"]["spec"].pointer(pointer).unwrap_or(&Value::Null);
    assert_eq!(found, &expect, "{after}");
}

#[test]
fn an_instance_type_is_written_out() {
    let plain = chosen(size(json!({ "guest": 4 }), json!({ "guest": "2Gi" })), Value::Null);
    check(json!({}), &plain, "/domain/cpu", json!({ "sockets": 4, "cores": 1, "threads": 1 }));
    check(json!({}), &plain, "/domain/memory/guest", json!("2Gi"));
    let after = expand(vm(json!({})), &plain, "bridge");
    assert!(after["spec"].get("instancetype").is_none() && after["spec"].get("preference").is_none(), "{after}");
    let cores = chosen(
        size(json!({ "guest": 4 }), json!({ "guest": "2Gi" })),
        json!({ "cpu": { "preferredCPUTopology": "cores" } }),
    );
    check(json!({}), &cores, "/domain/cpu", json!({ "sockets": 1, "cores": 4, "threads": 1 }));
    let half = chosen(size(json!({ "guest": 1 }), json!({ "guest": "3Gi", "overcommitPercent": 50 })), Value::Null);
    check(json!({}), &half, "/domain/resources/requests/memory", json!("1536Mi"));
    check(json!({}), &half, "/domain/memory/guest", json!("3Gi"));
}

#[test]
fn a_preference_alone_leaves_the_cpus_alone() {
    let preferred = chosen(Value::Null, json!({ "cpu": { "preferredCPUTopology": "cores" } }));
    check(json!({ "domain": { "cpu": { "sockets": 2 } } }), &preferred, "/domain/cpu", json!({ "sockets": 2 }));
}

#[test]
fn what_the_user_wrote_wins_over_a_preference() {
    let preference = json!({
        "devices": {
            "preferredDiskBus": "virtio", "preferredCdromBus": "sata", "preferredLunBus": "scsi", "preferredRng": {},
            "preferredDiskDedicatedIoThread": true, "preferredInterfaceModel": "virtio",
            "preferredAutoattachInputDevice": true, "preferredInputBus": "virtio", "preferredInputType": "tablet",
            "preferredTPM": { "persistent": true },
        },
        "features": { "preferredAcpi": { "enabled": false }, "preferredHyperv": { "vapic": {}, "relaxed": {} } },
        "cpu": { "preferredCPUFeatures": [{ "name": "vmx", "policy": "require" }, { "name": "aes" }] },
    });
    let chosen = chosen(Value::Null, preference);
    let spec = json!({
        "volumes": [{ "name": "a" }, { "name": "b" }, { "name": "loose" }, { "name": "dump", "memoryDump": {} }],
        "domain": {
            "cpu": { "features": [{ "name": "vmx", "policy": "disable" }] },
            "features": { "acpi": { "enabled": true }, "hyperv": { "vapic": { "enabled": false } } },
            "devices": {
                "disks": [{ "name": "a", "disk": { "bus": "sata" } }, { "name": "b", "cdrom": {} }],
                "tpm": {},
            },
        },
    });
    let disks = json!([
        { "name": "a", "disk": { "bus": "sata" } },
        { "name": "b", "cdrom": { "bus": "sata" } },
        { "name": "loose", "disk": { "bus": "virtio" }, "dedicatedIOThread": true },
    ]);
    check(spec.clone(), &chosen, "/domain/devices/disks", disks);
    check(spec.clone(), &chosen, "/domain/devices/tpm", json!({}));
    let tablet = json!([{ "name": "default-0", "bus": "virtio", "type": "tablet" }]);
    check(spec.clone(), &chosen, "/domain/devices/inputs", tablet);
    let interface = json!([{ "name": "default", "bridge": {}, "model": "virtio" }]);
    check(spec.clone(), &chosen, "/domain/devices/interfaces", interface);
    let features = json!([{ "name": "vmx", "policy": "disable" }, { "name": "aes" }]);
    check(spec.clone(), &chosen, "/domain/cpu/features", features);
    check(spec.clone(), &chosen, "/domain/features/hyperv", json!({ "vapic": { "enabled": false }, "relaxed": {} }));
    // This one is the preference's, as in KubeVirt.
    check(spec, &chosen, "/domain/features/acpi/enabled", json!(false));
}

#[test]
fn an_interface_is_masqueraded_where_that_is_preferred_and_nothing_else_is_said() {
    let preferred = chosen(Value::Null, json!({ "devices": { "preferredInterfaceMasquerade": {} } }));
    let alone = json!([{ "name": "default", "masquerade": {} }]);
    check(json!({}), &preferred, "/domain/devices/interfaces", alone);
    let spec = json!({
        "networks": [{ "name": "pod", "pod": {} }, { "name": "other", "multus": { "networkName": "n" } }],
        "domain": { "devices": { "interfaces": [{ "name": "pod", "bridge": {} }, { "name": "other" }] } },
    });
    let kept = json!([{ "name": "pod", "bridge": {} }, { "name": "other" }]);
    check(spec, &preferred, "/domain/devices/interfaces", kept);
    let none = chosen(Value::Null, json!({ "devices": { "preferredAutoattachPodInterface": false } }));
    check(json!({}), &none, "/domain/devices/interfaces", Value::Null);
}

#[test]
fn one_boot_loader_is_chosen() {
    let boots = |firmware: Value, spec: Value, expect: Value| {
        let chosen = chosen(Value::Null, json!({ "firmware": firmware }));
        check(spec, &chosen, "/domain/firmware/bootloader", expect);
    };
    let efi = json!({ "preferredEfi": { "persistent": true }, "preferredUseEfi": true, "preferredUseBios": true });
    boots(efi.clone(), json!({}), json!({ "efi": { "persistent": true } }));
    boots(
        json!({ "preferredUseEfi": true, "preferredUseSecureBoot": false }),
        json!({}),
        json!({ "efi": { "secureBoot": false } }),
    );
    boots(
        json!({ "preferredUseBios": true, "preferredUseBiosSerial": true }),
        json!({}),
        json!({ "bios": { "useSerial": true } }),
    );
    let own = json!({ "domain": { "firmware": { "bootloader": { "bios": {} } } } });
    boots(efi, own.clone(), json!({ "bios": {} }));
    boots(json!({ "preferredUseBiosSerial": true }), own, json!({ "bios": { "useSerial": true } }));
}

#[test]
fn what_an_instance_type_says_is_not_the_users_to_say() {
    let check = |instancetype: Value, template: Value, expect: &[&str]| {
        let vm = json!({ "spec": { "template": template } });
        assert_eq!(conflicts(&vm, &chosen(instancetype, Value::Null)), expect);
    };
    let plain = || size(json!({ "guest": 1 }), json!({ "guest": "1Gi" }));
    let spec = |domain: Value| json!({ "spec": { "domain": domain } });
    check(plain(), spec(json!({ "cpu": { "model": "host-model", "features": [{ "name": "a" }] } })), &[]);
    check(plain(), spec(json!({ "cpu": { "sockets": 0 }, "memory": { "guest": "" }, "resources": {} })), &[]);
    let sized = json!({ "cpu": { "cores": 2 }, "memory": { "guest": "1Gi" }, "resources": { "limits": { "cpu": 1 } } });
    let paths = [
        "spec.template.spec.domain.resources.limits.cpu",
        "spec.template.spec.domain.cpu.cores",
        "spec.template.spec.domain.memory.guest",
    ];
    check(plain(), spec(sized), &paths);
    let mut tuned = plain();
    tuned["cpu"]["model"] = json!("Nehalem");
    tuned["cpu"]["maxSockets"] = json!(4);
    tuned["annotations"] = json!({ "a/b": "1", "c": "2" });
    let mut template = spec(json!({ "cpu": { "model": "host-model", "maxSockets": 8 } }));
    template["metadata"] = json!({ "annotations": { "a/b": "other", "c": "2" } });
    check(tuned, template, &["spec.template.spec.domain.cpu.model", "annotations.a/b"]);
}

#[test]
fn requirements_are_met_or_named() {
    let requirements = json!({ "requirements": {
        "cpu": { "guest": 2 }, "memory": { "guest": "1Gi" }, "architecture": "amd64",
    } });
    let check = |instancetype: Value, preference: &Value, spec: Value, expect: &[&str]| {
        let found = problems(&vm(spec), &chosen(instancetype, preference.clone()));
        let found: Vec<String> = found.into_iter().map(|problem| problem.message).collect();
        let prefix = "failure checking preference requirements: ";
        let expect: Vec<String> = expect.iter().map(|what| format!("{prefix}{what}")).collect();
        assert_eq!(found, expect);
    };
    check(size(json!({ "guest": 2 }), json!({ "guest": "1Gi" })), &requirements, json!({}), &[]);
    let small = [
        "insufficient CPU resources of 1 vCPU provided by instance type, preference requires 2 vCPU",
        "insufficient Memory resources of 512Mi provided by instance type, preference requires 1Gi",
        "preference requires architecture amd64 but arm64 is being requested",
    ];
    let spec = json!({ "architecture": "arm64" });
    check(size(json!({ "guest": 1 }), json!({ "guest": "512Mi" })), &requirements, spec, &small);
    let none = [
        "no CPU resources provided by VirtualMachine, preference requires 2 vCPU",
        "insufficient Memory resources of 0 provided by VirtualMachine, preference requires 1Gi",
    ];
    check(Value::Null, &requirements, json!({}), &none);
    let own = |cpu: Value| json!({ "domain": { "cpu": cpu, "memory": { "guest": "1Gi" } } });
    check(Value::Null, &requirements, own(json!({ "sockets": 2 })), &[]);
    let cores = "insufficient CPU resources of 1 vCPU provided by VirtualMachine, preference requires 2 vCPU provided as sockets";
    check(Value::Null, &requirements, own(json!({ "cores": 4 })), &[cores]);
    let mut any = requirements.clone();
    any["cpu"] = json!({ "preferredCPUTopology": "any" });
    check(Value::Null, &any, own(json!({ "cores": 4 })), &[]);
    let asked = json!({ "domain": { "resources": { "requests": { "cpu": "1500m", "memory": "1Gi" } } } });
    check(Value::Null, &requirements, asked, &[]);
}

#[test]
fn cpus_that_cannot_be_spread_are_named() {
    let preference = json!({ "cpu": { "preferredCPUTopology": "spread", "spreadOptions": { "ratio": 4 } } });
    let chosen = chosen(size(json!({ "guest": 6 }), json!({ "guest": "1Gi" })), preference);
    let found = problems(&vm(json!({})), &chosen);
    assert_eq!((found.len(), found[0].field.as_str()), (1, "instancetype.spec.cpu.guest"));
    assert!(found[0].message.starts_with("6 vCPUs provided by the instance type are not divisible"), "{found:?}");
}

/// Each leaf of a schema, as an object in which nothing else is written.
fn leaves(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let wrap = |value: Value| {
        path.rsplit('.').fold(value, |value, name| match name.strip_suffix("[]") {
            Some(name) => json!({ name: [value] }),
            None => json!({ name: value }),
        })
    };
    if let Some(fields) = schema["properties"].as_object().filter(|fields| !fields.is_empty()) {
        for (name, field) in fields {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            leaves(field, &below, found);
        }
        return;
    }
    match schema["type"].as_str() {
        Some("array") if schema["items"]["properties"].is_object() => {
            leaves(&schema["items"], &format!("{path}[]"), found);
        }
        Some("array") => found.push((path.to_owned(), wrap(json!(["x"])))),
        Some("object") if schema["additionalProperties"].is_object() => {
            found.push((path.to_owned(), wrap(json!({ "k": "v" }))));
        }
        Some("object") => found.push((path.to_owned(), wrap(json!({})))),
        Some("boolean") => found.push((path.to_owned(), wrap(json!(true)))),
        Some("integer") => found.push((path.to_owned(), wrap(json!(2)))),
        _ => found.push((path.to_owned(), wrap(json!("2")))),
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn spec_schema(plural: &str) -> Value {
    let path = format!("../../deploy/crds/{plural}.instancetype.kubevirt.io.yaml");
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Fields that say how another is meant, with that other.
const WITH: &[(&str, &str)] = &[
    ("firmware.preferredUseSecureBoot", r#"{ "firmware": { "preferredUseEfi": true } }"#),
    ("firmware.preferredUseBiosSerial", r#"{ "firmware": { "preferredUseBios": true } }"#),
    ("devices.preferredDiskDedicatedIoThread", r#"{ "devices": { "preferredDiskBus": "virtio" } }"#),
    ("cpu.spreadOptions.across", r#"{ "cpu": { "preferredCPUTopology": "spread" } }"#),
    ("cpu.spreadOptions.ratio", r#"{ "cpu": { "preferredCPUTopology": "spread" } }"#),
    ("preferSpreadSocketToCoreRatio", r#"{ "cpu": { "preferredCPUTopology": "spread" } }"#),
];

/// Values other than the one that the type of a field suggests.
const VALUES: &[(&str, &str)] = &[
    ("cpu.preferredCPUTopology", r#"{ "cpu": { "preferredCPUTopology": "cores" } }"#),
    ("cpu.spreadOptions.across", r#"{ "cpu": { "spreadOptions": { "across": "CoresThreads" } } }"#),
    ("cpu.spreadOptions.ratio", r#"{ "cpu": { "spreadOptions": { "ratio": 4 } } }"#),
    ("preferSpreadSocketToCoreRatio", r#"{ "preferSpreadSocketToCoreRatio": 4 }"#),
    // Both are otherwise as they are without a preference.
    ("devices.preferredAutoattachPodInterface", r#"{ "devices": { "preferredAutoattachPodInterface": false } }"#),
    ("requirements.cpu.guest", r#"{ "requirements": { "cpu": { "guest": 99 } } }"#),
    ("requirements.memory.guest", r#"{ "requirements": { "memory": { "guest": "99Ti" } } }"#),
];

/// What virt-api writes when the VM is stored (`crates/virt-api/src/chosen.rs`).
const STORED: &[&str] = &["volumes.preferredStorageClassName"];

#[test]
fn every_field_of_the_schemas_makes_a_difference() {
    let template = json!({
        "architecture": "arm64",
        "volumes": [{ "name": "disk" }],
        "domain": { "devices": {
            "disks": [{ "name": "cd", "cdrom": {} }, { "name": "lun", "lun": {} }, { "name": "plain" }],
            "inputs": [{ "name": "i" }], "sound": { "name": "s" }, "gpus": [{ "name": "g" }],
        } },
    });
    let of = |path: &str, table: &[(&str, &str)]| -> Option<Value> {
        table.iter().find(|(key, _)| *key == path).map(|(_, value)| serde_json::from_str(value).unwrap())
    };
    let mut inert = Vec::new();
    for (plural, is_preference) in
        [("virtualmachineclusterinstancetypes", false), ("virtualmachineclusterpreferences", true)]
    {
        let mut all = Vec::new();
        leaves(&spec_schema(plural), "", &mut all);
        assert!(all.len() > 20, "{plural} has {} fields", all.len());
        for (path, value) in all {
            let size = size(json!({ "guest": 8 }), json!({ "guest": "1Gi" }));
            let (mut without, value) = match is_preference {
                true => (of(&path, WITH).unwrap_or_else(|| json!({})), of(&path, VALUES).unwrap_or(value)),
                false => (size.clone(), value),
            };
            let made = |spec: &Value| {
                let chosen =
                    if is_preference { chosen(size.clone(), spec.clone()) } else { chosen(spec.clone(), Value::Null) };
                let mut vm = vm(template.clone());
                if path == "preferredArchitecture" {
                    vm["spec"]["template"]["spec"]["architecture"] = Value::Null;
                }
                (problems(&vm, &chosen), expand(vm, &chosen, "bridge"))
            };
            let before = made(&without);
            merge(&mut without, value);
            if before == made(&without) && !STORED.contains(&path.as_str()) {
                inert.push(format!("{plural} {path}"));
            }
        }
    }
    assert!(inert.is_empty(), "{inert:#?}");
}
