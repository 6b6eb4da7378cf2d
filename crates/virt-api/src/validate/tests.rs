//! Bad machines, each with the exact sentence a user reads.

use serde_json::{Value, json};

use super::*;

fn rules() -> Rules {
    Rules::of(&KubeVirtConfiguration::default(), "kubevirt")
}

fn good() -> Value {
    json!({
        "runStrategy": "Always",
        "template": { "spec": {
            "domain": {
                "devices": {
                    "disks": [{ "name": "root", "disk": { "bus": "virtio" } }],
                    "interfaces": [{ "name": "default", "masquerade": {} }],
                },
                "memory": { "guest": "256Mi" },
            },
            "networks": [{ "name": "default", "pod": {} }],
            "volumes": [{ "name": "root", "containerDisk": { "image": "r/x:v1" } }],
        } },
    })
}

/// Sets `pointer` of a good machine to `value` and expects `field: message`; an empty list for an accepted machine.
#[track_caller]
fn check(pointer: &str, value: Value, expect: &[(&str, &str)]) {
    let mut spec = good();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = spec.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(list) => {
            let index: usize = key.parse().unwrap();
            if index == list.len() { list.push(value) } else { list[index] = value }
        }
        other => other[key] = value,
    }
    let object = json!({ "metadata": { "name": "vm" }, "spec": spec });
    let verdict = vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, &rules());
    let found = match verdict {
        Verdict::Invalid(causes) => causes,
        _ => Vec::new(),
    };
    let found: Vec<(&str, &str)> = found.iter().map(|c| (c.field.as_str(), c.message.as_str())).collect();
    assert_eq!(found, expect);
}

const SPEC: &str = "/template/spec";

#[test]
fn a_good_machine_passes() {
    check("/runStrategy", json!("Manual"), &[]);
}

#[test]
fn unknown_fields() {
    check(
        &format!("{SPEC}/domain/memmory"),
        json!({ "guest": "1Gi" }),
        &[(
            "spec.template.spec.domain.memmory",
            "unknown field \"spec.template.spec.domain.memmory\": did you mean memory?",
        )],
    );
    check(
        &format!("{SPEC}/domain/devices/disks/0/frobnicate"),
        json!(true),
        &[(
            "spec.template.spec.domain.devices.disks[0].frobnicate",
            "unknown field \"spec.template.spec.domain.devices.disks[0].frobnicate\": remove it, or check its place and \
             spelling",
        )],
    );
}

#[test]
fn run_strategies() {
    check("/runStrategy", Value::Null, &[("spec.runStrategy", "One of Running or RunStrategy must be specified")]);
    check(
        "/running",
        json!(true),
        &[(
            "spec.running",
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
        )],
    );
    check(
        "/runStrategy",
        json!("Sometimes"),
        &[(
            "spec.runStrategy",
            "Invalid RunStrategy (Sometimes): use one of Halted, Manual, Always, RerunOnFailure, Once, WaitAsReceiver",
        )],
    );
}

#[test]
fn impossible_cpus() {
    check(
        &format!("{SPEC}/domain/cpu"),
        json!({ "sockets": 16, "cores": 16, "threads": 2 }),
        &[(
            "spec.template.spec.domain.cpu",
            "spec.template.spec.domain.cpu: 16 sockets x 16 cores x 2 threads are 512 virtual CPUs, more than the 255 a \
             machine can have: lower one of them",
        )],
    );
    check(
        &format!("{SPEC}/domain/cpu"),
        json!({ "sockets": 4, "maxSockets": 2 }),
        &[(
            "spec.template.spec.domain.cpu.sockets",
            "Number of sockets in CPU topology is greater than the maximum sockets allowed",
        )],
    );
}

#[test]
fn memory() {
    check(
        &format!("{SPEC}/domain/memory/guest"),
        json!("1Mi"),
        &[(
            "spec.template.spec.domain.memory.guest",
            "spec.template.spec.domain.memory.guest '1Mi': must be greater than or equal to 16Mi",
        )],
    );
    check(
        &format!("{SPEC}/domain/memory"),
        json!({}),
        &[(
            "spec.template.spec.domain.memory.guest",
            "no memory requested, at least one of memory guest size, memory requests or limits, or huge page size must \
             be set: for example domain.memory.guest: 1Gi",
        )],
    );
}

#[test]
fn disks_and_volumes() {
    check(
        &format!("{SPEC}/domain/devices/disks/0/name"),
        json!("boot"),
        &[(
            "spec.template.spec.domain.devices.disks[0].name",
            "spec.template.spec.domain.devices.disks[0].Name 'boot' not found: add a volume of this name to \
             spec.template.spec.volumes, or correct the disk's name",
        )],
    );
    check(
        &format!("{SPEC}/volumes/1"),
        json!({ "name": "root", "emptyDisk": { "capacity": "1Gi" } }),
        &[(
            "spec.template.spec.volumes[1].name",
            "spec.template.spec.volumes[1].name and spec.template.spec.volumes[0].name must not have the same Name: \
             \"root\" names one volume",
        )],
    );
    check(
        &format!("{SPEC}/volumes/0/emptyDisk"),
        json!({ "capacity": "1Gi" }),
        &[("spec.template.spec.volumes[0]", "spec.template.spec.volumes[0] must have exactly one source type set")],
    );
    check(
        &format!("{SPEC}/domain/devices/disks/0/disk/bus"),
        json!("ide"),
        &[(
            "spec.template.spec.domain.devices.disks[0].disk.bus",
            "spec.template.spec.domain.devices.disks[0].disk.bus is set with an unrecognized bus ide, must be one of: \
             [virtio sata scsi usb]",
        )],
    );
    check(
        &format!("{SPEC}/domain/devices/disks/0/bootOrder"),
        json!(0),
        &[(
            "spec.template.spec.domain.devices.disks[0].bootOrder",
            "spec.template.spec.domain.devices.disks[0] must have a boot order > 0, if supplied",
        )],
    );
}

#[test]
fn cloud_init() {
    let field = "spec.template.spec.volumes[0].cloudInitNoCloud";
    check(
        &format!("{SPEC}/volumes/0"),
        json!({ "name": "root", "cloudInitNoCloud": { "userData": "x".repeat(2049) } }),
        &[(
            &format!("{field}.userData"),
            &format!("{field} userdata exceeds 2048 byte limit. Should use UserDataSecretRef for larger data."),
        )],
    );
    check(
        &format!("{SPEC}/volumes/0"),
        json!({ "name": "root", "cloudInitNoCloud": {} }),
        &[(field, &format!("{field} must have at least one userdata source set."))],
    );
}

#[test]
fn networks() {
    check(
        &format!("{SPEC}/domain/devices/interfaces/0/name"),
        json!("other"),
        &[
            (
                "spec.template.spec.networks[0].name",
                "spec.template.spec.networks[0].name 'default' not found: add an interface of this name to \
                 spec.template.spec.domain.devices.interfaces",
            ),
            (
                "spec.template.spec.domain.devices.interfaces[0].name",
                "spec.template.spec.domain.devices.interfaces[0].name 'other' not found: add a network of this name to \
                 spec.template.spec.networks",
            ),
        ],
    );
    check(
        &format!("{SPEC}/domain/devices/interfaces/0/macAddress"),
        json!("de:ad"),
        &[(
            "spec.template.spec.domain.devices.interfaces[0].macAddress",
            "interface spec.template.spec.domain.devices.interfaces[0].name has malformed MAC address (de:ad): write it \
             like 02:00:00:00:00:01.",
        )],
    );
}

#[test]
fn firmware() {
    let field = "spec.template.spec.domain.firmware.bootloader";
    check(
        &format!("{SPEC}/domain/firmware"),
        json!({ "bootloader": { "efi": {} } }),
        &[(
            field,
            &format!(
                "{field} has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled: set \
                 spec.template.spec.domain.features.smm.enabled to true, or {field}.efi.secureBoot to false."
            ),
        )],
    );
    check(&format!("{SPEC}/domain/firmware"), json!({ "bootloader": { "efi": { "secureBoot": false } } }), &[]);
}

#[test]
fn a_running_guest_is_not_rewritten_by_users() {
    let object = json!({ "metadata": { "name": "vm" }, "spec": { "hostname": "b" } });
    let old_object = json!({ "metadata": { "name": "vm" }, "spec": { "hostname": "a" } });
    let mut request = Request { object, old_object, operation: "UPDATE".into(), ..Default::default() };
    assert!(matches!(vmi_update(&request, &rules()), Verdict::Invalid(_)));
    request.user_info.username = "system:serviceaccount:kubevirt:kubevirt-handler".into();
    assert_eq!(vmi_update(&request, &rules()), Verdict::allow());
}

#[test]
fn requests_in_the_status() {
    let ask = |requests: Value| {
        let object = json!({ "status": { "stateChangeRequests": requests } });
        status(&Request { object, ..Default::default() })
    };
    assert_eq!(ask(json!([{ "action": "Start" }])), Verdict::allow());
    assert!(matches!(ask(json!([{ "action": "Stop" }])), Verdict::Invalid(_)));
    assert!(matches!(ask(json!([{ "action": "Jump" }])), Verdict::Invalid(_)));
}
