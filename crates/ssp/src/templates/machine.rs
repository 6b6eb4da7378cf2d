//! The machine in a template, with the rules that it is held to.

use serde_json::{Value, json};

use super::system::{Architecture, Firmware, Guest};
use super::{Template, VERSION, Workload};
use crate::words;

/// The user that a Linux machine begins with.
pub const USER: &str = "cloud-user";
const MEMORY: &str = "jsonpath::.spec.domain.memory.guest";
const DISK_BUS: &str = "jsonpath::.spec.domain.devices.disks[*].disk.bus";
const CD_BUS: &str = "jsonpath::.spec.domain.devices.disks[*].cdrom.bus";

/// The VirtualMachine, with parameters where it differs from others of its template.
pub fn render(template: &Template) -> Value {
    let (workload, flavor) = (template.workload.word(), template.flavor.word());
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": "${NAME}",
            "labels": {
                (words::TEMPLATE): template.name(), "vm.kubevirt.io/template.version": VERSION,
                "vm.kubevirt.io/template.revision": "1", "app": "${NAME}",
            },
            "annotations": { (words::VALIDATIONS): rules(template).to_string() },
        },
        "spec": {
            "runStrategy": "Halted",
            "dataVolumeTemplates": [{
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "${NAME}" },
                "spec": {
                    "storage": { "resources": { "requests": { "storage": template.system.disk } } },
                    "sourceRef": {
                        "kind": "DataSource", "name": "${DATA_SOURCE_NAME}", "namespace": "${DATA_SOURCE_NAMESPACE}",
                    },
                },
            }],
            "template": {
                "metadata": {
                    "annotations": {
                        "vm.kubevirt.io/os": template.system.name, "vm.kubevirt.io/workload": workload,
                        "vm.kubevirt.io/flavor": flavor,
                    },
                    "labels": { "kubevirt.io/domain": "${NAME}", "kubevirt.io/size": flavor },
                },
                "spec": spec(template),
            },
        },
    })
}

fn spec(template: &Template) -> Value {
    let windows = template.system.guest == Guest::Windows;
    let mut volumes = vec![json!({ "name": "rootdisk", "dataVolume": { "name": "${NAME}" } })];
    if !windows {
        let seed =
            format!("#cloud-config\nuser: {USER}\npassword: ${{CLOUD_USER_PASSWORD}}\nchpasswd: {{ expire: False }}");
        volumes.push(json!({ "name": "cloudinitdisk", "cloudInitNoCloud": { "userData": seed } }));
    }
    json!({
        "architecture": template.architecture.word(),
        "domain": domain(template),
        "terminationGracePeriodSeconds": if windows { 3600 } else { 180 },
        "networks": [{ "name": "default", "pod": {} }],
        "volumes": volumes,
    })
}

fn domain(template: &Template) -> Value {
    let Template { system, workload, flavor, architecture, .. } = *template;
    let fast = workload == Workload::HighPerformance;
    let windows = system.guest == Guest::Windows;
    let mut domain = json!({
        "cpu": { "sockets": flavor.sockets(), "cores": system.cores, "threads": 1 },
        "memory": { "guest": flavor.memory(system) },
        "devices": devices(template),
    });
    if fast {
        domain["cpu"]["dedicatedCpuPlacement"] = json!(true);
        domain["cpu"]["isolateEmulatorThread"] = json!(true);
        domain["devices"]["networkInterfaceMultiqueue"] = json!(true);
    }
    if windows {
        domain["clock"] = clock();
        domain["features"] = enlightenments();
    }
    match (system.firmware, architecture) {
        // Firmware of this architecture is the machine's own.
        (_, Architecture::S390x) | (Firmware::Bios, Architecture::Amd64) => {}
        // There is no other firmware, and none that starts only what is signed.
        (_, Architecture::Arm64) => domain["firmware"] = json!({ "bootloader": { "efi": { "secureBoot": false } } }),
        (Firmware::Efi, Architecture::Amd64) => {
            domain["firmware"] = json!({ "bootloader": { "efi": {} } });
            domain["features"]["smm"] = json!({ "enabled": true });
        }
        (Firmware::Secure, Architecture::Amd64) => {
            domain["firmware"] = json!({ "bootloader": { "efi": { "secureBoot": true, "persistent": true } } });
            domain["features"]["smm"] = json!({ "enabled": true });
            domain["devices"]["tpm"] = json!({ "persistent": true });
        }
    }
    domain
}

fn devices(template: &Template) -> Value {
    let windows = template.system.guest == Guest::Windows;
    // Windows lacks the drivers until somebody installs them; where every cycle counts, they are expected.
    let plain = windows && template.workload != Workload::HighPerformance;
    let (bus, model) = if plain { ("sata", "e1000e") } else { ("virtio", "virtio") };
    let mut disks = vec![json!({ "name": "rootdisk", "disk": { "bus": bus } })];
    if !windows {
        disks.push(json!({ "name": "cloudinitdisk", "disk": { "bus": bus } }));
    }
    let mut devices = json!({
        "disks": disks, "interfaces": [{ "name": "default", "masquerade": {}, "model": model }],
    });
    if !windows {
        devices["rng"] = json!({});
    }
    // A pointer that knows where it is.
    if (windows || template.workload == Workload::Desktop) && template.architecture != Architecture::S390x {
        let bus = if windows { "usb" } else { "virtio" };
        devices["inputs"] = json!([{ "name": "tablet", "type": "tablet", "bus": bus }]);
    }
    devices
}

fn clock() -> Value {
    json!({ "utc": {}, "timer": {
        "hpet": { "present": false }, "pit": { "tickPolicy": "delay" }, "rtc": { "tickPolicy": "catchup" }, "hyperv": {},
    } })
}

/// What Windows does differently when it is told that it is a guest.
fn enlightenments() -> Value {
    json!({ "acpi": {}, "apic": {}, "hyperv": {
        "relaxed": {}, "vapic": {}, "vpindex": {}, "spinlocks": { "spinlocks": 8191 }, "synic": {},
        "synictimer": { "direct": {} }, "tlbflush": {}, "frequencies": {}, "reenlightenment": {}, "ipi": {}, "runtime": {},
        "reset": {},
    } })
}

/// What the machine is held to, however it is changed.
pub fn rules(template: &Template) -> Value {
    let system = template.system;
    let mut rules = vec![json!({
        "name": "minimal-required-memory", "path": MEMORY, "rule": "integer",
        "message": "This VM requires more memory.", "min": system.least_memory,
    })];
    let bus = |name: &str, path: &str, message: &str, values: &[&str]| json!({ "name": name, "path": path, "valid": path, "rule": "enum", "message": message, "values": values });
    if system.guest == Guest::Windows {
        let message = "virtio disk bus type has better performance, install virtio drivers in VM and change bus type";
        let mut better = bus("windows-virtio-bus", DISK_BUS, message, &["virtio"]);
        better["justWarning"] = json!(true);
        rules.push(better);
        let message = "disk bus has to be either virtio or sata or scsi";
        rules.push(bus("windows-disk-bus", DISK_BUS, message, &["virtio", "sata", "scsi"]));
        rules.push(bus("windows-cd-bus", CD_BUS, "cd bus has to be sata", &["sata"]));
    }
    if system.cores > 1 {
        rules.push(json!({
            "name": "minimal-required-cores", "path": "jsonpath::.spec.domain.cpu.cores", "rule": "integer",
            "message": "This VM requires more cores.", "min": system.cores,
        }));
    }
    json!(rules)
}
