//! The containers of the launcher pod, each clean under the restricted Pod Security level.

use std::collections::BTreeSet;

use api::kubevirt::v1::VirtualMachineInstance;
use serde_json::{Value, json};

use super::volumes::Mounts;
use super::{GRACE_SECONDS, probes};
use crate::facts::launcher::USER;
use crate::resources;
use crate::settings::Settings;

const SOCKETS: &str = "/var/run/kubevirt/container-disks";
/// Before a volume's name: the container that lends its disk.
const DISK: &str = "volume";
/// The container that lends kernel and initrd.
const KERNEL: &str = "kernel-boot-volume";

/// Whether the container of this name lends a disk or a kernel out of a user's image.
pub(crate) fn is_disk_container(name: &str) -> bool {
    name.starts_with(DISK) || name == KERNEL
}

fn security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// The container that runs the guest.
pub(super) fn compute(vmi: &VirtualMachineInstance, settings: &Settings, emulation: bool, mounts: &Mounts) -> Value {
    let (requests, limits) = resources::compute(&vmi.spec, settings, emulation);
    let grace = vmi.spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS);
    let mut container = json!({
        "name": "compute",
        "image": settings.launcher_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [
            "/usr/bin/virt-launcher",
            "--name", vmi.metadata.name, "--namespace", vmi.metadata.namespace, "--uid", vmi.metadata.uid,
            "--grace-period-seconds", grace.to_string(),
        ],
        "env": [
            { "name": "XDG_CACHE_HOME", "value": "/var/run/kubevirt-private" },
            { "name": "XDG_CONFIG_HOME", "value": "/var/run/kubevirt-private" },
            { "name": "XDG_RUNTIME_DIR", "value": "/var/run" },
            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } },
        ],
        "resources": { "requests": requests, "limits": limits, "claims": claims(vmi) },
        "securityContext": security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts.mounts,
        "volumeDevices": mounts.devices,
        "readinessProbe": probes::translate(vmi, vmi.spec.readiness_probe.as_deref()),
        "livenessProbe": probes::translate(vmi, vmi.spec.liveness_probe.as_deref()),
    });
    if let Value::Object(fields) = &mut container {
        fields.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
    }
    container
}

fn claims(vmi: &VirtualMachineInstance) -> Value {
    let claims = json!(vmi.spec.resource_claims);
    let names: Vec<Value> = claims
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|claim| claim.get("name"))
        .map(|name| json!({ "name": name }))
        .collect();
    if names.is_empty() { Value::Null } else { json!(names) }
}

/// The init container that puts the file server where the users' images find it.
pub(super) fn init(settings: &Settings) -> Vec<Value> {
    vec![json!({
        "name": "container-disk-binary",
        "image": settings.launcher_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/usr/bin/container-disk", "--copy-to", "/init/usr/bin/container-disk"],
        "resources": {
            "requests": { "cpu": "10m", "memory": "1M" },
            "limits": { "memory": "40M" },
        },
        "securityContext": security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "virt-bin-share-dir", "mountPath": "/init/usr/bin" }],
    })]
}

/// One container for each image that holds a disk, or a kernel.
pub(super) fn disks(vmi: &VirtualMachineInstance) -> Vec<Value> {
    let mut out = Vec::new();
    for volume in &vmi.spec.volumes {
        let Some(disk) = &volume.container_disk else { continue };
        let mut arguments = vec!["--socket".to_owned(), format!("{SOCKETS}/{}.sock", volume.name)];
        if let Some(path) = disk.path.as_ref().filter(|path| !path.is_empty()) {
            arguments.extend(["--path".to_owned(), path.clone()]);
        }
        let name = format!("{DISK}{}", volume.name);
        out.push(disk_container(&name, &disk.image, disk.image_pull_policy.as_deref(), &arguments));
    }
    let kernel = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
    if let Some(container) = kernel.and_then(|kernel| kernel.container.as_ref()) {
        let mut arguments = vec!["--socket".to_owned(), format!("{SOCKETS}/kernel-boot.sock")];
        for path in [&container.kernel_path, &container.initrd_path].into_iter().flatten().filter(|p| !p.is_empty()) {
            arguments.extend(["--path".to_owned(), path.clone()]);
        }
        let policy = container.image_pull_policy.as_deref();
        out.push(disk_container(KERNEL, &container.image, policy, &arguments));
    }
    out
}

/// No CPU limit: the container runtime's own start counts against it, and a hundredth of a CPU makes seconds of it.
fn disk_container(name: &str, image: &str, policy: Option<&str>, arguments: &[String]) -> Value {
    let mut container = json!({
        "name": name,
        "image": image,
        "command": ["/usr/bin/container-disk"],
        "args": arguments,
        "resources": {
            "requests": { "cpu": "1m", "memory": "1M", "ephemeral-storage": "50M" },
            "limits": { "memory": "40M" },
        },
        "securityContext": security(),
        "volumeMounts": [
            { "name": "virt-bin-share-dir", "mountPath": "/usr/bin" },
            { "name": "container-disks", "mountPath": SOCKETS },
        ],
    });
    if let Some(policy) = policy.filter(|policy| !policy.is_empty()) {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}

/// Every pull secret the images name, once.
pub(super) fn pull_secrets(vmi: &VirtualMachineInstance) -> Vec<Value> {
    let disks = vmi.spec.volumes.iter().filter_map(|volume| volume.container_disk.as_ref()?.image_pull_secret.clone());
    let kernel = vmi
        .spec
        .domain
        .firmware
        .as_ref()
        .and_then(|firmware| firmware.kernel_boot.as_ref()?.container.as_ref()?.image_pull_secret.clone());
    let names: BTreeSet<String> = disks.chain(kernel).filter(|name| !name.is_empty()).collect();
    names.into_iter().map(|name| json!({ "name": name })).collect()
}
