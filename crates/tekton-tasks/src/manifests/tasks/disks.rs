//! The Tasks about the content of disks. Pure.

use serde_json::{Value, json};

use super::{TEMPORARY, args, needed, param, switch, temporary};
use crate::manifests::task::{Images, Param, Task, mounted, result, step, with};

/// Where the claim of a disk is mounted.
const CLAIM: &str = "/mnt/targetpvc";
const APPLIANCE: (&str, &str) = ("guestfsappliance", "/var/tmp/guestfs");

fn claim(param: &str, name: &str) -> Value {
    json!({ "name": name, "persistentVolumeClaim": { "claimName": format!("$(params.{param})") } })
}

const KVM: &str = "devices.kubevirt.io/kvm";

/// The same Tasks for a cluster without KVM, on none of whose nodes their steps would find a place: libguestfs then emulates its guest.
pub fn without_kvm(tasks: &mut [Value]) {
    for step in tasks.iter_mut().filter_map(|task| task["spec"]["steps"].as_array_mut()).flatten() {
        if let Some(limits) = step.pointer_mut("/computeResources/limits").and_then(Value::as_object_mut) {
            limits.remove(KVM);
        }
    }
}

/// The guest of libguestfs, which is QEMU's, is quick with KVM. Its network is QEMU's own and takes no device of the node.
fn kvm() -> Value {
    json!({ "computeResources": { "limits": { (KVM): "1" } } })
}

pub(super) fn disk_virt(name: &'static str, tool: &'static str, images: Images<'_>) -> Task {
    let flags = [
        ("virt-commands", "virtCommands"),
        ("verbose", "verbose"),
        ("additional-virt-options", "additionalVirtOptions"),
    ];
    let step =
        mounted(step("run", images.disk, &args(name, &flags, false)), &[TEMPORARY, APPLIANCE, ("targetpvc", CLAIM)]);
    let mut step = with(step, kvm());
    if let Some(variables) = step["env"].as_array_mut() {
        // Where libguestfs keeps the system of its guest, once it has put it together.
        variables.push(json!({ "name": "LIBGUESTFS_CACHEDIR", "value": APPLIANCE.1 }));
    }
    let (title, description) = match tool {
        "virt-sysprep" => (
            "Disk Virt Sysprep",
            "Seals a disk with virt-sysprep, so that machines can be made of it. \
             It takes the image guestfs, which `ferrovirt images build guestfs` makes, and `ferrovirt images load` gives to the nodes.",
        ),
        _ => (
            "Disk Virt Customize",
            "Customizes a disk with virt-customize. \
             It takes the image guestfs, which `ferrovirt images build guestfs` makes, and `ferrovirt images load` gives to the nodes.",
        ),
    };
    Task {
        name,
        title,
        description,
        params: vec![
            needed("pvc", "The claim of the disk, which no machine may use."),
            param("virtCommands", "Commands of the tool, one a line."),
            switch("verbose", "Whether libguestfs says all that it does."),
            param("additionalVirtOptions", "Further options of the tool."),
        ],
        results: Vec::new(),
        workspaces: (1..=10).map(|number| format!("data{number:02}")).collect(),
        steps: vec![step],
        volumes: vec![temporary(), json!({ "name": APPLIANCE.0, "emptyDir": {} }), claim("pvc", "targetpvc")],
    }
}

pub(super) fn modify_windows_iso_file(images: Images<'_>) -> Task {
    const EXTRACTED: (&str, &str) = ("extracted-iso", "/tmp/extracted-iso");
    const NEW: (&str, &str) = ("new-iso", "/tmp/new-iso");
    const TARGET: (&str, &str) = ("target-pvc", "/tmp/target-pvc");
    let of = |name: &str, image: &str, mounts: &[(&str, &str)]| mounted(step(name, image, &[name.to_owned()]), mounts);
    let room = |name: &str| json!({ "name": name, "emptyDir": { "sizeLimit": "12Gi" } });
    Task {
        name: "modify-windows-iso-file",
        title: "Modify Windows ISO",
        description: "Has an installation medium of Windows start without asking for a key. \
                      It takes the image guestfs, which `ferrovirt images build guestfs` makes, and `ferrovirt images load` gives to the nodes.",
        params: vec![needed("pvcName", "The claim of the medium.")],
        results: Vec::new(),
        workspaces: Vec::new(),
        steps: vec![
            with(of("modify-iso-file", images.disk, &[TEMPORARY, EXTRACTED, TARGET]), kvm()),
            of("create-iso-file", images.disk, &[TEMPORARY, EXTRACTED, NEW]),
            of("convert-iso-file", images.disk, &[TEMPORARY, NEW, TARGET]),
        ],
        volumes: vec![temporary(), room(EXTRACTED.0), room(NEW.0), claim("pvcName", TARGET.0)],
    }
}

pub(super) fn disk_uploader(images: Images<'_>) -> Task {
    let flags = [
        ("export-source-kind", "EXPORT_SOURCE_KIND"),
        ("export-source-name", "EXPORT_SOURCE_NAME"),
        ("volume-name", "VOLUME_NAME"),
        ("image-destination", "IMAGE_DESTINATION"),
        ("push-timeout", "PUSH_TIMEOUT"),
        ("plain-http", "PLAIN_HTTP"),
    ];
    let mut args = args("disk-uploader", &flags, false);
    args.push(result("digest-result", "digest"));
    let mut step = mounted(step("disk-uploader-step", images.tasks, &args), &[TEMPORARY]);
    let secret = |name: &str, key: &str| json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": "$(params.SECRET_NAME)", "key": key } } });
    if let Some(variables) = step["env"].as_array_mut() {
        variables.extend([secret("ACCESS_KEY_ID", "accessKeyId"), secret("SECRET_KEY", "secretKey")]);
    }
    // What is written into the volume counts as well, as long as the kernel holds it.
    let step =
        with(step, json!({ "computeResources": { "requests": { "memory": "3Gi" }, "limits": { "memory": "5Gi" } } }));
    Task {
        name: "disk-uploader",
        title: "Disk Uploader",
        description: "Sends a disk to a registry, as a containerDisk.",
        params: vec![
            needed("EXPORT_SOURCE_KIND", "vm, vmsnapshot or pvc."),
            needed("EXPORT_SOURCE_NAME", "Its name."),
            needed("VOLUME_NAME", "The volume."),
            needed("IMAGE_DESTINATION", "The image: registry/path:tag."),
            Param::Text("PUSH_TIMEOUT", "Minutes.", Some("120")),
            switch(
                "PLAIN_HTTP",
                "Whether the registry speaks HTTP without TLS; others than this product do not know this param.",
            ),
            needed("SECRET_NAME", "A Secret with accessKeyId and secretKey of the registry."),
        ],
        results: vec![("digest", "The digest of the image.")],
        workspaces: Vec::new(),
        steps: vec![step],
        volumes: vec![temporary()],
    }
}
