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
    let verdict = vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, None, &rules());
    let found = match verdict {
        Verdict::Invalid(causes) => causes,
        _ => Vec::new(),
    };
    let found: Vec<(&str, &str)> = found.iter().map(|c| (c.field.as_str(), c.message.as_str())).collect();
    assert_eq!(found, expect);
}

/// Sets `pointer` of a good machine to `value`, and expects it to be kept with a warning about `field`, and an instance
/// of it to be refused.
#[track_caller]
fn kept(pointer: &str, value: Value, field: &str, why: &str) {
    let mut spec = good();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match spec.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        other => other[key] = value,
    }
    let instance = json!({ "metadata": { "name": "vm" }, "spec": spec["template"]["spec"] });
    let object = json!({ "metadata": { "name": "vm" }, "spec": spec });
    let verdict = vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, None, &rules());
    let said = format!("{field} cannot be used in this version: {why}");
    let warning = format!("{said} (the VM is kept as it is, and refused when it starts)");
    assert_eq!(verdict, Verdict::Allow { warnings: vec![warning] });
    let Some(rest) = field.strip_prefix("spec.template.") else { return };
    let verdict = vmi_create(&Request { object: instance, operation: "CREATE".into(), ..Default::default() }, &rules());
    assert_eq!(verdict, Verdict::Invalid(vec![unserved(rest.to_owned(), why)]));
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
fn an_eviction_strategy_that_cannot_be_followed_is_said() {
    let warned = |strategy: &str, binding: &str, cluster: &str| {
        let mut spec = good();
        let template = &mut spec["template"]["spec"];
        template["evictionStrategy"] = if strategy.is_empty() { Value::Null } else { json!(strategy) };
        template["domain"]["devices"]["interfaces"] = json!([{ "name": "default", (binding): {} }]);
        let object = json!({ "metadata": { "name": "vm" }, "spec": spec });
        let configuration = serde_json::from_value(json!({ "evictionStrategy": cluster })).unwrap();
        let rules = Rules::of(&configuration, "kubevirt");
        match vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, None, &rules) {
            Verdict::Allow { warnings } => warnings,
            other => panic!("{other:?}"),
        }
    };
    let said = warned("LiveMigrate", "bridge", "None");
    assert_eq!(said.len(), 1, "{said:?}");
    let why = "spec.template.spec.evictionStrategy LiveMigrate keeps the pod from being evicted, but the guest cannot be \
               moved (InterfaceNotLiveMigratable: ";
    assert!(said[0].starts_with(why), "{said:?}");
    assert_eq!(warned("", "bridge", "LiveMigrate"), said);
    assert_eq!(warned("LiveMigrate", "masquerade", "None"), Vec::<String>::new());
    assert_eq!(warned("LiveMigrateIfPossible", "bridge", "LiveMigrate"), Vec::<String>::new());
}

#[test]
fn run_strategies() {
    check("/runStrategy", Value::Null, &[("spec.running", "One of Running or RunStrategy must be specified")]);
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
            "Invalid RunStrategy (Sometimes): use one of Halted, Manual, Always, RerunOnFailure, Once",
        )],
    );
}

#[test]
fn the_machine_types_of_the_architecture_come_before_those_of_all() {
    let of = |configuration: Value| Rules::of(&serde_json::from_value(configuration).unwrap(), "kubevirt").machines;
    let amd64 = json!({ "amd64": { "emulatedMachines": ["q35"] } });
    assert_eq!(of(json!({ "emulatedMachines": ["pc*"], "architectureConfiguration": amd64 })), ["q35"]);
    assert_eq!(of(json!({ "emulatedMachines": ["pc*"] })), ["pc*"]);
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
        json!("900k"),
        &[(
            "spec.template.spec.domain.memory.guest",
            "spec.template.spec.domain.memory.guest '900k': must be greater than or equal to 1M.",
        )],
    );
    for small in [json!("1Mi"), json!("4Mi"), json!("8Mi"), json!(2_222_222)] {
        check(&format!("{SPEC}/domain/memory/guest"), small, &[]);
    }
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
        &format!("{SPEC}/volumes/0"),
        json!({ "name": "root", "ephemeral": { "persistentVolumeClaim": { "claimName": "" } } }),
        &[(
            "spec.template.spec.volumes[0].ephemeral.persistentVolumeClaim.claimName",
            "spec.template.spec.volumes[0].ephemeral.persistentVolumeClaim.claimName is a required field: \
             name the claim that holds the disk",
        )],
    );
    check(&format!("{SPEC}/volumes/0"), json!({ "name": "root", "dataVolume": { "name": "claim" } }), &[]);
    check(
        &format!("{SPEC}/volumes/0/emptyDisk"),
        json!({ "capacity": "1Gi" }),
        &[("spec.template.spec.volumes[0]", "spec.template.spec.volumes[0] must have exactly one source type set")],
    );
    check(
        &format!("{SPEC}/domain/devices/disks/0/disk/bus"),
        json!("ide"),
        &[("spec.template.spec.domain.devices.disks[0].disk.bus", "IDE bus is not supported: use sata")],
    );
    check(
        &format!("{SPEC}/domain/devices/disks/0/disk/bus"),
        json!("pci"),
        &[(
            "spec.template.spec.domain.devices.disks[0].disk.bus",
            "spec.template.spec.domain.devices.disks[0] is set with an unrecognized bus pci, must be one of: \
             [virtio scsi sata usb]",
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
        &[(field, &format!("{field} must have at least one userdatasource or one networkdatasource set."))],
    );
}

#[test]
fn ranges_of_the_guest() {
    let pod = format!("{SPEC}/networks/0/pod");
    check(&pod, json!({ "vmNetworkCIDR": "10.11.0.0/24", "vmIPv6NetworkCIDR": "fd10::/120" }), &[]);
    check(&pod, json!({ "vmNetworkCIDR": "10.011.000.0/24" }), &[]);
    let field = "spec.template.spec.networks[0].pod.vmNetworkCIDR";
    for wrong in ["foo", "10.0.2.0", "10.0.2.0/32", "10.0.2.0/-1", "fd10::/120", ""] {
        let room = "is not a network with room for a gateway and a guest: write it like 10.0.2.0/24";
        check(&pod, json!({ "vmNetworkCIDR": wrong }), &[(field, &format!("{field} {wrong:?} {room}"))]);
    }
    let field = "spec.template.spec.networks[0].pod.vmIPv6NetworkCIDR";
    let room = "is not a network with room for a gateway and a guest: write it like fd10:0:2::/120";
    check(&pod, json!({ "vmIPv6NetworkCIDR": "fd10::/127" }), &[(field, &format!("{field} \"fd10::/127\" {room}"))]);
}

#[test]
fn networks_beside_the_pods_own() {
    let template = |multus: Value, binding: &str| {
        let mut template = good()["template"]["spec"].clone();
        template["networks"] = json!([{ "name": "default", "pod": {} }, { "name": "blue", "multus": multus }]);
        let blue = json!({ "name": "blue", (binding): {} });
        template["domain"]["devices"]["interfaces"] = json!([{ "name": "default", "masquerade": {} }, blue]);
        template
    };
    let named = |name: &str| json!({ "networkName": name });
    for name in ["red", "other/red", "other/red.two"] {
        check(SPEC, template(named(name), "bridge"), &[]);
    }
    let field = "spec.template.spec.networks[1].multus.networkName";
    check(SPEC, template(named(""), "bridge"), &[(field, "CNI delegating plugin must have a networkName")]);
    for name in ["Red", "a/b/c", "/red", "red/"] {
        let message = format!(
            "{field} {name:?} does not name a NetworkAttachmentDefinition: write it like red, or namespace/red"
        );
        check(SPEC, template(named(name), "bridge"), &[(field, &message)]);
    }
    let field = "spec.template.spec.domain.devices.interfaces[1].name";
    let message = "Masquerade interface only implemented with pod network";
    check(SPEC, template(named("red"), "masquerade"), &[(field, message)]);
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
    check(
        &format!("{SPEC}/domain/firmware"),
        json!({ "kernelBoot": { "kernelArgs": "console=ttyS0" } }),
        &[(
            "spec.template.spec.domain.firmware.kernelBoot.kernelArgs",
            "kernel arguments cannot be provided without an external kernel",
        )],
    );
    check(&format!("{SPEC}/domain/firmware"), json!({ "kernelBoot": { "kernelArgs": "" } }), &[]);
    let field = "spec.template.spec.domain.firmware.kernelBoot.container";
    let container = json!({ "image": "i", "kernelPath": "/boot/vmlinuz" });
    let boot = json!({ "container": container, "kernelArgs": "quiet" });
    check(&format!("{SPEC}/domain/firmware"), json!({ "kernelBoot": boot }), &[]);
    check(
        &format!("{SPEC}/domain/firmware"),
        json!({ "kernelBoot": { "container": { "image": "i", "initrdPath": "boot/initrd" } } }),
        &[(
            &format!("{field}.initrdPath"),
            &format!("{field}.initrdPath \"boot/initrd\" must be an absolute path without \"..\""),
        )],
    );
    check(
        &format!("{SPEC}/domain/firmware"),
        json!({ "kernelBoot": { "container": { "image": "" } } }),
        &[
            (&format!("{field}.image"), &format!("{field} must be defined with an image")),
            (field, &format!("{field} must be defined with at least one of the following: kernelPath, initrdPath")),
        ],
    );
}

/// What this version does not act on is refused, and never runs without what was asked for.
#[test]
fn nothing_is_silently_left_out() {
    let gone = [
        ("domain/devices/gpus", json!([{ "name": "g", "deviceName": "n/g" }]), "no GPU is passed through: remove it"),
        (
            "domain/devices/hostDevices",
            json!([{ "name": "h", "deviceName": "n/h" }]),
            "no host device is passed through: remove it",
        ),
        (
            "domain/devices/filesystems",
            json!([{ "name": "root", "virtiofs": {} }]),
            "virtiofs is not served: list the volume under domain.devices.disks, and mount it in the guest",
        ),
        (
            "domain/launchSecurity",
            json!({ "sev": {} }),
            "the guest's memory is not encrypted: remove it if it may run without",
        ),
        (
            "domain/devices/autoattachVSOCK",
            json!(true),
            "no VSOCK device is attached: remove it, and reach the guest through its network",
        ),
    ];
    for (pointer, value, why) in gone {
        let field = format!("spec.template.spec.{}", pointer.replace('/', "."));
        kept(&format!("{SPEC}/{pointer}"), value, &field, why);
    }
    let deep = [
        (
            "domain/cpu",
            json!({ "cores": 2, "dedicatedCpuPlacement": true }),
            "dedicatedCpuPlacement",
            "virtual CPUs are not pinned: remove it, and ask for whole CPUs with domain.resources.requests.cpu",
        ),
        (
            "domain/cpu",
            json!({ "numa": { "guestMappingPassthrough": {} } }),
            "numa.guestMappingPassthrough",
            "the host's NUMA topology is not passed on: remove it",
        ),
    ];
    for (pointer, value, rest, why) in deep {
        let field = format!("spec.template.spec.{}.{rest}", pointer.replace('/', "."));
        kept(&format!("{SPEC}/{pointer}"), value, &field, why);
    }
    check(&format!("{SPEC}/domain/devices/tpm"), json!({ "persistent": true }), &[]);
    let efi = json!({ "bootloader": { "efi": { "secureBoot": false, "persistent": true } } });
    check(&format!("{SPEC}/domain/firmware"), efi, &[]);
    kept(
        &format!("{SPEC}/volumes/0"),
        json!({ "name": "root", "hostDisk": { "path": "/disk.img", "type": "Disk" } }),
        "spec.template.spec.volumes[0].hostDisk",
        "use one of cloudInitConfigDrive, cloudInitNoCloud, configMap, containerDisk, dataVolume, downwardAPI, emptyDisk, \
         ephemeral, memoryDump, persistentVolumeClaim, secret, serviceAccount, sysprep",
    );
    let mut template = good()["template"]["spec"].clone();
    template["networks"] = json!([{ "name": "default", "multus": { "networkName": "net", "default": true } }]);
    template["domain"]["devices"]["interfaces"] = json!([{ "name": "default", "bridge": {} }]);
    let why = "the pod's own network is the cluster's: use pod: {} for it, and multus for networks beside it";
    kept(SPEC, template, "spec.template.spec.networks[0].multus.default", why);
}

/// Sets `pointer` of a good machine to `value`, and expects the machine and an instance of it to be refused with one sentence.
#[track_caller]
fn refused(pointer: &str, value: Value, field: &str, why: &str) {
    let message = |field: &str| format!("{field} cannot be used in this version: {why}");
    let place = format!("spec.template.spec.{field}");
    let path = place.split(' ').next().unwrap();
    check(&format!("{SPEC}/{pointer}"), value.clone(), &[(path, &message(&place))]);
    let mut spec = good()["template"]["spec"].clone();
    let (parent, key) = pointer.rsplit_once('/').map_or((String::new(), pointer), |(at, key)| (format!("/{at}"), key));
    spec.pointer_mut(&parent).unwrap()[key] = value;
    let object = json!({ "metadata": { "name": "vm" }, "spec": spec });
    let verdict = vmi_create(&Request { object, operation: "CREATE".into(), ..Default::default() }, &rules());
    let place = format!("spec.{field}");
    let path = place.split(' ').next().unwrap().to_owned();
    assert_eq!(verdict, Verdict::Invalid(vec![unsupported(path, message(&place))]));
}

#[test]
fn fields_nothing_can_act_on_are_refused_at_admission() {
    refused(
        "domain/memory",
        json!({ "guest": "256Mi", "hugepages": { "pageSize": "2Mi" } }),
        "domain.memory.hugepages",
        "launcher pods have no huge pages: remove it, and set domain.memory.guest",
    );
    let block =
        json!([{ "name": "root", "disk": { "bus": "virtio" }, "blockSize": { "matchVolume": { "enabled": true } } }]);
    refused(
        "domain/devices/disks",
        block,
        "domain.devices.disks[0].blockSize.matchVolume",
        "the block size of a volume is not looked up: write it into blockSize.custom",
    );
    refused(
        "domain/devices/watchdog",
        json!({ "name": "dog", "diag288": { "action": "reset" } }),
        "domain.devices.watchdog.diag288",
        "it is a device of s390x, and guests are x86-64: use i6300esb",
    );
    refused(
        "domain/features",
        json!({ "apic": { "enabled": false } }),
        "domain.features.apic.enabled false",
        "every machine type has an APIC: remove it",
    );
    refused(
        "resourceClaims",
        json!([{ "name": "gpu", "resourceClaimName": "gpu" }]),
        "resourceClaims",
        "launcher pods claim no devices: remove it",
    );
    let features = format!("{SPEC}/domain/features");
    check(&features, json!({ "apic": { "enabled": true, "endOfInterrupt": true } }), &[]);
    let unmatched = json!([{ "name": "root", "disk": {}, "blockSize": { "matchVolume": { "enabled": false } } }]);
    check(&format!("{SPEC}/domain/devices/disks"), unmatched, &[]);
    check(
        "/runStrategy",
        json!("WaitAsReceiver"),
        &[(
            "spec.runStrategy",
            "spec.runStrategy WaitAsReceiver cannot be used in this version: no machine is received from another cluster, \
             and its guest would boot: use Halted, Manual, Always, RerunOnFailure or Once",
        )],
    );
    let hyperv = json!({ "hyperv": { "synic": {}, "vpindex": { "enabled": false } } });
    let field = "spec.template.spec.domain.features.hyperv";
    let said = format!(
        "'{field}.synic' requires '{field}.vpindex', which was disabled: enable it, or leave it out, and it is enabled"
    );
    check(&features, hyperv, &[(&format!("{field}.synic"), &said)]);
}

#[test]
fn annotations_without_effect_are_refused_where_the_guest_would_lack_something() {
    let annotated = |metadata: Value| {
        let mut spec = good();
        spec["template"]["metadata"] = metadata;
        let object = json!({ "metadata": { "name": "vm" }, "spec": spec });
        vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, None, &rules())
    };
    let key = "hooks.kubevirt.io/hookSidecars";
    let field = format!("spec.template.metadata.annotations[{key}]");
    let said = format!(
        "{field} cannot be used in this version: no hook changes the guest's definition: remove it if the guest may run without"
    );
    let verdict = annotated(json!({ "annotations": { key: "[{}]" } }));
    assert_eq!(verdict, Verdict::Invalid(vec![unsupported(field, said)]));
    let told = "spec.template.metadata.labels[logVerbosity] is not acted on in this version: how much a launcher logs cannot \
                be set for one guest";
    assert_eq!(
        annotated(json!({ "labels": { "logVerbosity": "4" } })),
        Verdict::Allow { warnings: vec![told.to_owned()] }
    );
}

#[test]
fn templates_of_data_volumes_say_what_and_how_large_and_are_used() {
    let blank = json!({ "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": "1Gi" } } } });
    let one = |spec: &Value| json!([{ "metadata": { "name": "dv" }, "spec": spec }]);
    let unused = (
        "spec.dataVolumeTemplates[0]",
        "DataVolumeTemplate entry dv must be referenced in the VMI template's 'volumes' list",
    );
    check("/dataVolumeTemplates", one(&blank), &[unused]);
    let place = "spec.dataVolumeTemplates[0]";
    let neither = "Data volume should have either Source, SourceRef, or be externally populated";
    check(
        "/dataVolumeTemplates",
        one(&json!({})),
        &[(place, neither), (place, "Missing Data volume PVC or Storage"), unused],
    );
    let nameless = "'name' field must not be empty for DataVolumeTemplate entry in 'spec.dataVolumeTemplates'";
    check("/dataVolumeTemplates", json!([{ "spec": blank }]), &[("spec.dataVolumeTemplates[0].name", nameless)]);
}

#[test]
fn hotpluggable_disks_need_a_hotpluggable_bus() {
    let volume = json!({ "name": "root", "persistentVolumeClaim": { "claimName": "a", "hotpluggable": true } });
    let mut template = good()["template"]["spec"].clone();
    template["volumes"] = json!([volume]);
    template["domain"]["devices"]["disks"] = json!([{ "name": "root", "disk": { "bus": "sata" } }]);
    let place = "spec.template.spec.domain.devices.disks[0].disk.bus";
    let said = "hotplugged Disk root does not use a scsi or virtio bus";
    check(SPEC, template.clone(), &[(place, said)]);
    template["domain"]["devices"]["disks"] = json!([{ "name": "root", "disk": { "bus": "scsi" } }]);
    check(SPEC, template.clone(), &[]);
    // A drive may be empty.
    template["domain"]["devices"]["disks"] = json!([{ "name": "root", "disk": {} }, { "name": "cd", "cdrom": {} }]);
    check(SPEC, template, &[]);
}

#[test]
fn memory_may_be_the_instance_types() {
    let mut spec = good();
    spec["template"]["spec"]["domain"]["memory"] = json!({});
    let asked = |spec: &Value| {
        let object = json!({ "metadata": { "name": "vm" }, "spec": spec });
        vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, None, &rules())
    };
    assert!(matches!(asked(&spec), Verdict::Invalid(_)));
    spec["instancetype"] = json!({ "name": "small" });
    assert!(matches!(asked(&spec), Verdict::Allow { .. }));
}

#[test]
fn ignored_fields_without_consequence_are_warned_of() {
    let mut spec = good();
    spec["template"]["spec"]["domain"]["devices"]["disks"][0]["tag"] = json!("boot");
    let object = json!({ "metadata": { "name": "vm" }, "spec": spec });
    let verdict = vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, None, &rules());
    let tag =
        "spec.template.spec.domain.devices.disks[0].tag is not acted on in this version: the guest is not told of it";
    assert_eq!(verdict, Verdict::Allow { warnings: vec![tag.to_owned()] });
}

#[test]
fn details_of_devices() {
    let devices = "spec.template.spec.domain.devices";
    let input = |input: Value, expect: &[(&str, &str)]| {
        check(&format!("{SPEC}/domain/devices/inputs"), json!([input]), expect);
    };
    input(json!({ "name": "t", "type": "tablet", "bus": "virtio" }), &[]);
    input(
        json!({ "name": "t", "type": "keyboard", "bus": "ps2" }),
        &[
            (&format!("{devices}.inputs[0].bus"), "Input device can have only virtio or usb bus."),
            (&format!("{devices}.inputs[0].type"), "Input device can have only tablet type."),
        ],
    );
    check(
        &format!("{SPEC}/domain/ioThreadsPolicy"),
        json!("many"),
        &[(
            "spec.template.spec.domain.ioThreadsPolicy",
            "Invalid IOThreadsPolicy (many): use shared, auto or supplementalPool",
        )],
    );
    let disk = |disk: Value, expect: &[(&str, &str)]| {
        check(&format!("{SPEC}/domain/devices/disks/0"), disk, expect);
    };
    let field = format!("{devices}.disks[0]");
    disk(
        json!({ "name": "root", "disk": { "bus": "sata" }, "dedicatedIOThread": true }),
        &[(&format!("{field}.dedicatedIOThread"), "IOThreads are not supported for disks on a sata bus: use virtio")],
    );
    disk(
        json!({ "name": "root", "disk": { "bus": "sata", "readonly": true } }),
        &[(&format!("{field}.disk.bus"), "sata hard-disks do not support read-only.")],
    );
    disk(
        json!({ "name": "root", "lun": {} }),
        &[(
            &format!("{field}.lun"),
            &format!("{field}.lun can only be mapped to a DataVolume or PersistentVolumeClaim volume."),
        )],
    );
    disk(
        json!({ "name": "root", "disk": { "pciAddress": "81:1" } }),
        &[(
            &format!("{field}.disk.pciAddress"),
            &format!("disk {field}.name has malformed PCI address (81:1): write it like 0000:81:01.0."),
        )],
    );
    disk(json!({ "name": "root", "disk": { "bus": "virtio", "pciAddress": "0000:81:01.0" } }), &[]);
    disk(json!({ "name": "root", "serial": "WD 40 EFRX" }), &[]);
    disk(
        json!({ "name": "root", "serial": "a\nb" }),
        &[(
            &format!("{field}.serial"),
            &format!("{field}.serial must be made up of the following characters [A-Za-z0-9 _.+-], if specified"),
        )],
    );
    disk(
        json!({ "name": "root", "blockSize": { "custom": { "logical": 1000, "physical": 4096 } } }),
        &[(&format!("{field}.blockSize.custom.logical"), "Provided size of 1000 is not a power of 2")],
    );
    check(
        &format!("{SPEC}/domain/firmware"),
        json!({ "uuid": "mine" }),
        &[(
            "spec.template.spec.domain.firmware.uuid",
            "spec.template.spec.domain.firmware.uuid \"mine\" is not a UUID: leave it out to get one",
        )],
    );
}

#[test]
fn credentials() {
    let field = "spec.template.spec.accessCredentials[0]";
    let source = json!({ "secret": { "secretName": "s" } });
    let key = |way: Value| json!([{ "sshPublicKey": { "source": source, "propagationMethod": way } }]);
    let password =
        |source: &Value, way: Value| json!([{ "userPassword": { "source": source, "propagationMethod": way } }]);
    let agent = |users: &[&str]| key(json!({ "qemuGuestAgent": { "users": users } }));
    let says = |credentials: Value, expect: &[(&str, &str)]| {
        let expect: Vec<(String, String)> =
            expect.iter().map(|(place, message)| (format!("{field}{place}"), format!("{field}{message}"))).collect();
        let expect: Vec<(&str, &str)> = expect.iter().map(|(place, message)| (&**place, &**message)).collect();
        check(&format!("{SPEC}/accessCredentials"), credentials, &expect);
    };
    let ssh = ".sshPublicKey.propagationMethod";
    let no_seed = " requires a noCloud volume to exist when the noCloud propagationMethod is in use.";
    let one_way = " must have exactly one propagationMethod set";
    let one_kind = " must have exactly one access credential type set";
    says(key(json!({ "noCloud": {} })), &[(ssh, no_seed)]);
    says(agent(&["me", "DOMAIN\\Jürgen Müller"]), &[]);
    let users = ".sshPublicKey.propagationMethod.qemuGuestAgent.users";
    says(agent(&[]), &[(users, " requires at least one user to be present in the users list")]);
    let option = " \"-rf\" is not the name of a user";
    says(agent(&["me", "-rf"]), &[(&format!("{users}[1]"), &format!("{users}[1]{option}"))]);
    says(key(json!({})), &[(ssh, one_way)]);
    says(key(json!({ "qemuGuestAgent": { "users": ["me"] }, "noCloud": {} })), &[(ssh, no_seed), (ssh, one_way)]);
    let none = json!({});
    says(password(&source, json!({ "qemuGuestAgent": {} })), &[]);
    says(password(&source, json!({})), &[(".userPassword.propagationMethod", one_way)]);
    let sourceless = (".userPassword.source", " must have exactly one source set");
    says(password(&none, json!({ "qemuGuestAgent": {} })), &[sourceless]);
    says(json!([{}]), &[("", one_kind)]);
    let mut both = agent(&["me"]);
    both[0]["userPassword"] = password(&source, json!({ "qemuGuestAgent": {} }))[0]["userPassword"].clone();
    says(both, &[("", one_kind)]);
}

#[test]
fn a_probe_reaches_nothing_but_the_guest() {
    let why = "a probe is of the guest itself: leave the host out";
    for (kind, host) in [("httpGet", "169.254.169.254"), ("tcpSocket", "10.96.0.1")] {
        let probe = json!({ (kind): { "port": 80, "host": host } });
        for name in ["readinessProbe", "livenessProbe"] {
            kept(&format!("{SPEC}/{name}"), probe.clone(), &format!("spec.template.spec.{name}.{kind}.host"), why);
        }
    }
}

#[test]
fn probes_and_names() {
    let probe = json!({ "tcpSocket": { "port": 22 } });
    check(&format!("{SPEC}/readinessProbe"), probe.clone(), &[]);
    let mut alone = good();
    alone["template"]["spec"]["networks"] = json!([]);
    alone["template"]["spec"]["domain"]["devices"] = json!({ "autoattachPodInterface": false });
    alone["template"]["spec"]["readinessProbe"] = probe;
    alone["template"]["spec"]["volumes"] = json!([]);
    let object = json!({ "metadata": { "name": "vm" }, "spec": alone });
    let verdict = vm(&Request { object, operation: "CREATE".into(), ..Default::default() }, None, &rules());
    let Verdict::Invalid(causes) = verdict else { panic!("accepted") };
    let field = "spec.template.spec.readinessProbe.tcpSocket";
    assert_eq!(causes[0].message, format!("{field} is only allowed if the Pod Network is attached"));
    check(
        &format!("{SPEC}/dnsPolicy"),
        json!("None"),
        &[("spec.template.spec.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None")],
    );
    let interface = "spec.template.spec.domain.devices.interfaces[0]";
    check(
        &format!("{SPEC}/domain/devices/interfaces/0"),
        json!({ "name": "default" }),
        &[(interface, &format!("{interface} should have a binding method: masquerade: {{}} or bridge: {{}}"))],
    );
    check(
        &format!("{SPEC}/domain/devices/interfaces/0/ports"),
        json!([{ "port": 0 }, { "port": 80, "name": "Web_1" }]),
        &[
            (&format!("{interface}.ports[0]"), "Port field is mandatory."),
            (&format!("{interface}.ports[1].name"), "Invalid name of the port: Web_1"),
        ],
    );
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
fn users_do_not_tell_components_what_to_believe() {
    let with = |status: Value| json!({ "metadata": { "name": "vm" }, "status": status });
    let ask = |old: Value, new: Value, user: &str| {
        let mut request = Request { object: with(new), old_object: with(old), ..Default::default() };
        request.operation = "UPDATE".into();
        request.user_info.username = user.into();
        vmi_update(&request, &rules())
    };
    let (there, other) = (json!({ "activePods": { "a": "n" } }), json!({ "activePods": { "a": "n", "b": "n" } }));
    let Verdict::Invalid(causes) = ask(there.clone(), other.clone(), "user") else { panic!("a user may") };
    assert_eq!(causes[0].field, "status.activePods");
    assert_eq!(ask(there.clone(), other, "system:serviceaccount:kubevirt:kubevirt-controller"), Verdict::allow());
    assert_eq!(ask(there.clone(), there, "user"), Verdict::allow());
    let moved = json!({ "migrationState": { "targetPod": "mine" } });
    assert!(matches!(ask(Value::Null, moved, "user"), Verdict::Invalid(_)));
    assert_eq!(ask(Value::Null, json!({ "activePods": {}, "reason": "" }), "user"), Verdict::allow());
    assert!(matches!(ask(Value::Null, json!({ "reason": "x" }), "user"), Verdict::Invalid(_)));
    let address = json!({ "interfaces": [{ "ipAddress": "127.0.0.1" }] });
    assert!(matches!(ask(json!({ "interfaces": [] }), address, "user"), Verdict::Invalid(_)));
    assert_eq!(ask(Value::Null, json!({ "runtimeUser": 0, "guestOSInfo": {} }), "user"), Verdict::allow());
    assert!(matches!(ask(json!({ "runtimeUser": 107 }), json!({ "runtimeUser": 0 }), "user"), Verdict::Invalid(_)));
}

#[test]
fn an_amount_written_in_another_form_is_no_change_of_a_guest() {
    let guest = |amount: &str| json!({ "spec": { "domain": { "memory": { "guest": amount } } } });
    let ask = |new: &str| {
        let request = Request { object: guest(new), old_object: guest("1.5Gi"), ..Default::default() };
        vmi_update(&request, &rules())
    };
    assert_eq!(ask("1536Mi"), Verdict::allow());
    assert!(matches!(ask("1535Mi"), Verdict::Invalid(_)));
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
