//! The launcher pod of a virtual machine instance. Pure: the same VMI is always the same pod, name included.
//!
//! ```text
//! init  container-disk-binary   copies the tiny file server into virt-bin-share-dir
//! main  compute                 launcher, libvirt, QEMU; uid 107, no capability
//! main  volumeNAME              a user's image; serves its disk by passing one read-only file descriptor
//! main  kernel-boot-volume      the same for kernel and initrd
//! ```

mod containers;
mod networks;
pub mod placement;
mod probes;
mod volumes;

use api::kubevirt::constants::{annotation, label};
use api::kubevirt::identity::instance_id;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use origin::network;
use serde_json::{Value, json};

use crate::error::RenderError;
use crate::facts::claims::Claims;
use crate::facts::launcher::{USER, suffix};
use crate::resources;
use crate::settings::Settings;

pub(crate) use containers::is_disk_container;

/// What the pod gets beyond the guest's own grace period: time for the launcher to report the end.
const SLACK_SECONDS: i64 = 30;
/// A guest's time to shut down when nobody says.
pub const GRACE_SECONDS: i64 = 30;

/// The name of the pod that `vmi` is started in: chosen by the VMI's UID, so that a second creation meets the first
/// instead of doubling it.
pub fn name(vmi: &VirtualMachineInstance) -> String {
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    name_of(vmi.metadata.name.as_deref().unwrap_or_default(), uid)
}

/// The name of the pod that the object with this UID has made for the VMI called `vmi`.
pub fn name_of(vmi: &str, uid: &str) -> String {
    let suffix = suffix(uid);
    // 253 is the longest name of a pod.
    let room = 253 - "virt-launcher--".len() - suffix.len();
    let short = &vmi[..vmi.len().min(room)];
    format!("virt-launcher-{}-{suffix}", short.trim_end_matches(['-', '.']))
}

/// The pod that runs `vmi`, whose claims are `claims`.
///
/// # Errors
/// When a part of the VMI does not fit into a pod.
pub fn render(
    vmi: &VirtualMachineInstance,
    claims: &Claims,
    settings: &Settings,
    emulation: bool,
) -> Result<Pod, RenderError> {
    let spec = &vmi.spec;
    let vmi_name = vmi.metadata.name.clone().unwrap_or_default();
    let grace = spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS);
    let mounts = volumes::of(vmi, claims);

    let mut init_containers = containers::init(settings);
    let mut main = vec![containers::compute(vmi, settings, emulation, &mounts)];
    main.extend(containers::disks(vmi));
    init_containers.retain(|_| main.len() > 1);

    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(vmi),
            "generateName": format!("virt-launcher-{vmi_name}-"),
            "namespace": vmi.metadata.namespace,
            "labels": labels(vmi),
            "annotations": annotations(vmi, settings, emulation),
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": vmi_name, "uid": vmi.metadata.uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "automountServiceAccountToken": mounts.service_account.is_some(),
            "containers": main,
            "initContainers": init_containers,
            "dnsPolicy": spec.dns_policy.clone().unwrap_or_else(|| "ClusterFirst".into()),
            "dnsConfig": spec.dns_config,
            "enableServiceLinks": false,
            "hostname": hostname(vmi),
            "subdomain": spec.subdomain,
            "readinessGates": [{ "conditionType": super::UNPAUSED_GATE }],
            "restartPolicy": "Never",
            "securityContext": {
                "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "fsGroup": USER,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "terminationGracePeriodSeconds": grace.saturating_add(SLACK_SECONDS),
            "volumes": mounts.volumes,
            "nodeSelector": placement::node_selector(vmi, settings, emulation),
            "affinity": placement::affinity(vmi, emulation),
            "tolerations": spec.tolerations,
            "topologySpreadConstraints": spec.topology_spread_constraints,
            "priorityClassName": spec.priority_class_name,
            "schedulerName": spec.scheduler_name,
            "runtimeClassName": settings.runtime_class,
            "serviceAccountName": mounts.service_account.as_ref().or(spec.service_account_name.as_ref()),
            "imagePullSecrets": containers::pull_secrets(vmi),
        },
    });
    drop_empty(&mut pod);
    serde_json::from_value(pod).map_err(RenderError)
}

/// Removes nulls and empty lists below the pod's spec, so that the pod says only what was meant.
fn drop_empty(pod: &mut Value) {
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        spec.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
    }
}

/// The guest's host name: as asked, else the VMI's name cut to what DNS allows.
fn hostname(vmi: &VirtualMachineInstance) -> String {
    if let Some(hostname) = vmi.spec.hostname.as_ref().filter(|name| !name.is_empty()) {
        return hostname.clone();
    }
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let label = name.split('.').next().unwrap_or_default();
    label[..label.len().min(63)].trim_end_matches('-').to_owned()
}

fn labels(vmi: &VirtualMachineInstance) -> Value {
    let mut labels = vmi.metadata.labels.clone().unwrap_or_default();
    labels.remove(label::NODE_NAME);
    labels.remove(label::MIGRATION_TARGET_NODE);
    labels.remove(label::OUTDATED_LAUNCHER);
    let vmi_name = vmi.metadata.name.clone().unwrap_or_default();
    labels.insert(label::APP.into(), label::APP_VIRT_LAUNCHER.into());
    labels.insert(label::CREATED_BY.into(), vmi.metadata.uid.clone().unwrap_or_default());
    labels.insert(label::VM_NAME.into(), hostname(vmi));
    labels.insert(label::VMI_ID.into(), instance_id(&vmi_name));
    json!(labels)
}

fn annotations(vmi: &VirtualMachineInstance, settings: &Settings, emulation: bool) -> Value {
    // The user's, for whatever reads pods; not what says how the VMI itself was written, or moves.
    const ITS_OWN: [&str; 3] = [
        annotation::LATEST_OBSERVED_API_VERSION,
        annotation::STORAGE_OBSERVED_API_VERSION,
        annotation::MIGRATION_JOB_NAME,
    ];
    let mut out = vmi.metadata.annotations.clone().unwrap_or_default();
    out.retain(|key, _| {
        !ITS_OWN.contains(&key.as_str())
            && !["kubectl.kubernetes.io/", "ferrovirt.io/"].iter().any(|prefix| key.starts_with(prefix))
    });
    let name = vmi.metadata.name.clone().unwrap_or_default();
    let namespace = vmi.metadata.namespace.clone().unwrap_or_default();
    // Who may have a network of another namespace is asked for `spec.networks`.
    network::keep_own(&mut out, &namespace);
    let freezer = |verb: &str| {
        json!(["/usr/bin/virt-freezer", verb, "--name", name.as_str(), "--namespace", namespace.as_str()]).to_string()
    };
    let overhead = resources::overhead(&vmi.spec, settings, emulation).bytes();
    let mut add = |key: &str, value: String| {
        out.insert(key.to_owned(), value);
    };
    add(annotation::DEFAULT_CONTAINER, "compute".into());
    add(annotation::DOMAIN, name.clone());
    add("kubevirt.io/memory-overhead-bytes", overhead.to_string());
    add("descheduler.alpha.kubernetes.io/request-evict-only", String::new());
    add("pre.hook.backup.velero.io/container", "compute".into());
    add("pre.hook.backup.velero.io/command", freezer("--freeze"));
    add("pre.hook.backup.velero.io/timeout", "60s".into());
    add("post.hook.backup.velero.io/container", "compute".into());
    add("post.hook.backup.velero.io/command", freezer("--unfreeze"));
    if vmi.spec.domain.devices.interfaces.iter().any(|interface| interface.masquerade.is_some()) {
        add("istio.io/reroute-virtual-interfaces", "k6t-eth0".into());
        add("traffic.sidecar.istio.io/kubevirtInterfaces", "k6t-eth0".into());
    }
    if let Some(networks) = networks::annotation(vmi) {
        out.insert(networks::ANNOTATION.to_owned(), networks);
    }
    json!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_container_of_a_launcher_has_a_capability() {
        let image = json!({ "image": "i", "kernelPath": "/k" });
        for binding in ["masquerade", "bridge"] {
            let vmi = json!({ "metadata": { "name": "vm", "namespace": "ns", "uid": "u" }, "spec": {
                "domain": {
                    "devices": {
                        "disks": [{ "name": "root", "disk": {} }], "interfaces": [{ "name": "default", (binding): {} }],
                    },
                    "firmware": { "kernelBoot": { "container": image } },
                },
                "networks": [{ "name": "default", "pod": {} }],
                "volumes": [{ "name": "root", "containerDisk": { "image": "i" } }],
            } });
            let vmi = serde_json::from_value(vmi).unwrap();
            let pod = json!(render(&vmi, &Claims::default(), &Settings::of(None, ""), false).unwrap());
            let all = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array().unwrap());
            assert_eq!(all.map(Vec::len), [3, 1]);
            for container in all.into_iter().flatten() {
                let security = &container["securityContext"];
                assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }), "{}", container["name"]);
                assert_eq!(security["allowPrivilegeEscalation"], false, "{}", container["name"]);
            }
        }
    }

    #[test]
    fn a_users_annotations_reach_the_pod_and_replace_none_of_ours() {
        let given = json!({
            "kubevirt.io/test": "test", "kubernetes.io/test": "test", "example.com/note": "n",
            "kubevirt.io/domain": "another", "kubevirt.io/migrationJobName": "job",
            "kubevirt.io/latest-observed-api-version": "v1", "kubevirt.io/storage-observed-api-version": "v1",
            "kubectl.kubernetes.io/last-applied-configuration": "{}", "ferrovirt.io/migration-progress": "{}",
        });
        let vmi = json!({ "metadata": { "name": "vm", "namespace": "ns", "annotations": given } });
        let vmi = serde_json::from_value(vmi).unwrap();
        let found = annotations(&vmi, &Settings::of(None, ""), false);
        let expect = [("kubevirt.io/test", "test"), ("kubernetes.io/test", "test"), ("example.com/note", "n")];
        for (key, value) in expect.into_iter().chain([(annotation::DOMAIN, "vm")]) {
            assert_eq!(found[key], value, "{key}");
        }
        for key in [
            "kubevirt.io/migrationJobName",
            "kubevirt.io/latest-observed-api-version",
            "kubevirt.io/storage-observed-api-version",
            "kubectl.kubernetes.io/last-applied-configuration",
            "ferrovirt.io/migration-progress",
        ] {
            assert!(found.get(key).is_none(), "{key}");
        }
    }

    #[test]
    fn annotations_put_a_launcher_on_no_network_of_another_namespace() {
        let check = |text: &str, expect: Option<&str>| {
            let given = json!({ "k8s.v1.cni.cncf.io/networks": text, "v1.multus-cni.io/default-network": text });
            let vmi = json!({ "metadata": { "name": "vm", "namespace": "evil", "annotations": given } });
            let found = annotations(&serde_json::from_value(vmi).unwrap(), &Settings::of(None, ""), false);
            for key in given.as_object().unwrap().keys() {
                assert_eq!(found.get(key).and_then(Value::as_str), expect, "{key}: {text}");
            }
        };
        check("victim/red", None);
        check(r#"[{"name": "red", "Namespace": "victim"}]"#, None);
        check("red", Some("red"));
    }
}
