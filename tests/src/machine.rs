//! Manifests of machines, and words of their status.

use serde_json::{Value, json};

/// The demo's disk.
pub const DISK_IMAGE: &str = "ferrovirt.local/guest-demo:v0.1.0";
/// The demo's kernel with its root file system in memory.
pub const KERNEL_IMAGE: &str = "ferrovirt.local/guest-kernel:v0.1.0";

/// A VM on the demo's disk, with a seed disk that names the guest after the VM.
pub fn on_disk(name: &str, run_strategy: &str) -> Value {
    let mut vm = bare(name, run_strategy);
    add_disk(&mut vm, "root", json!({ "containerDisk": { "image": DISK_IMAGE } }));
    cloud_init(&mut vm, &format!("hostname: {name}"));
    vm
}

/// A VM that boots the demo's kernel, with no disk at all: the quickest guest there is.
pub fn on_kernel(name: &str, run_strategy: &str) -> Value {
    let mut vm = bare(name, run_strategy);
    domain(&mut vm)["firmware"] = json!({ "kernelBoot": {
        "kernelArgs": "console=ttyS0 quiet mitigations=off nokaslr cryptomgr.notests tsc=reliable no_timer_check net.ifnames=0",
        "container": { "image": KERNEL_IMAGE, "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd" },
    } });
    // Nothing is lost with a guest that lives in memory.
    spec(&mut vm)["terminationGracePeriodSeconds"] = json!(1);
    vm
}

/// A VM on the disks of these claims: its firmware may boot each of them, the first before the others.
pub fn on_disks<'a>(name: &str, claims: impl IntoIterator<Item = &'a str>) -> Value {
    let mut vm = bare(name, "Always");
    for (number, claim) in claims.into_iter().enumerate() {
        add_disk(&mut vm, claim, json!({ "persistentVolumeClaim": { "claimName": claim } }));
        domain(&mut vm)["devices"]["disks"][number]["bootOrder"] = json!(number + 1);
    }
    domain(&mut vm)["memory"]["guest"] = json!("64Mi");
    // A guest that says its line and halts leaves the processor to others.
    domain(&mut vm)["resources"] = json!({ "requests": { "cpu": "10m" } });
    vm
}

fn bare(name: &str, run_strategy: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": { "name": name },
        "spec": {
            "runStrategy": run_strategy,
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "terminationGracePeriodSeconds": 60,
                    "domain": {
                        "memory": { "guest": "192Mi" },
                        "devices": { "disks": [], "interfaces": [{ "name": "default", "masquerade": {} }] },
                    },
                    "networks": [{ "name": "default", "pod": {} }],
                    "volumes": [],
                },
            },
        },
    })
}

/// The template's spec.
pub fn spec(vm: &mut Value) -> &mut Value {
    &mut vm["spec"]["template"]["spec"]
}

/// The template's domain.
pub fn domain(vm: &mut Value) -> &mut Value {
    &mut vm["spec"]["template"]["spec"]["domain"]
}

/// Adds a volume with this source, and its disk.
pub fn add_disk(vm: &mut Value, name: &str, source: Value) {
    let mut volume = source;
    volume["name"] = json!(name);
    push(&mut spec(vm)["volumes"], volume);
    push(&mut domain(vm)["devices"]["disks"], json!({ "name": name, "disk": { "bus": "virtio" } }));
}

/// Seeds the guest with a cloud-config, in place of the seed it has.
pub fn cloud_init(vm: &mut Value, config: &str) {
    let source = json!({ "cloudInitNoCloud": { "userData": format!("#cloud-config\n{config}\n") } });
    let volumes = spec(vm)["volumes"].as_array_mut();
    match volumes.and_then(|volumes| volumes.iter_mut().find(|volume| volume["name"] == "seed")) {
        Some(seed) => seed["cloudInitNoCloud"] = source["cloudInitNoCloud"].clone(),
        None => add_disk(vm, "seed", source),
    }
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// A VMI's phase.
pub fn phase(vmi: &Value) -> &str {
    vmi["status"]["phase"].as_str().unwrap_or_default()
}

/// A VM's state in a word.
pub fn word(vm: &Value) -> &str {
    vm["status"]["printableStatus"].as_str().unwrap_or_default()
}

/// An object's uid.
pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Whether a condition is True.
pub fn holds(object: &Value, kind: &str) -> bool {
    condition(object, kind)["status"] == "True"
}

/// A condition; null when there is none of this type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let list = object["status"]["conditions"].as_array();
    list.and_then(|list| list.iter().find(|condition| condition["type"] == kind)).unwrap_or(&Value::Null)
}

/// The uid of the launcher pod of a VMI that was handed to its node.
pub fn pod_uid(vmi: &Value) -> &str {
    let pods = vmi["status"]["activePods"].as_object();
    pods.and_then(|pods| pods.keys().next()).map(String::as_str).unwrap_or_default()
}
