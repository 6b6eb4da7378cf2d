//! An attachment pod: it has volumes mounted on the guest's node, and does nothing. Pure.
//!
//! virt-handler finds the volumes at paths with the UID of the VMI, so that no pod of another guest is taken for one of this.

use std::collections::BTreeSet;

use api::kubevirt::constants::label;
use api::kubevirt::hotplug::{APP, CONTAINER, GUEST};
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::plan::{Holder, Wanted};
use crate::error::RenderError;
use crate::facts::launcher::{USER, suffix};
use crate::settings::Settings;

const MOUNTS: &str = "/var/run/kubevirt-private/hotplug-disks";

/// The name of the pod with these volumes beside `launcher`: a second creation meets the first.
pub fn name(launcher: &Pod, volumes: &[Wanted]) -> String {
    let mut key = launcher.uid().unwrap_or_default();
    for wanted in volumes {
        key = format!("{key}/{}={}", wanted.volume, wanted.claim);
    }
    format!("hp-volume-{}{}", suffix(&key), suffix(&format!("{key}/")))
}

/// The attachment pod with these volumes, on the node of `launcher`, the pod of `vmi`.
///
/// # Errors
/// When a part of the VMI does not fit into a pod.
pub fn render(
    vmi: &VirtualMachineInstance,
    launcher: &Pod,
    volumes: &[Wanted],
    settings: &Settings,
) -> Result<Pod, RenderError> {
    let uid = vmi.uid().unwrap_or_default();
    let node = launcher.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let mut sources = Vec::new();
    let (mut mounts, mut devices) = (Vec::new(), Vec::new());
    for Wanted { volume, claim, block, read_only, .. } in volumes {
        sources.push(json!({ "name": volume, "persistentVolumeClaim": { "claimName": claim, "readOnly": read_only } }));
        if *block {
            devices.push(json!({ "name": volume, "devicePath": format!("/dev/{uid}/{volume}") }));
        } else {
            let path = format!("{MOUNTS}/{uid}/{volume}");
            mounts.push(json!({ "name": volume, "mountPath": path, "readOnly": read_only }));
        }
    }
    let on_node = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name(launcher, volumes),
            "namespace": vmi.metadata.namespace,
            "labels": { (label::APP): APP, (GUEST): uid },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": launcher.name_any(), "uid": launcher.uid(),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "restartPolicy": "Never",
            // Nobody has to be told: what it holds is not written by it.
            "terminationGracePeriodSeconds": 1,
            // The scheduler chooses this node, and with it a volume for a claim that waits for its first consumer.
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchFields": [on_node] }],
            } } },
            // Wherever the guest runs, its disks are.
            "tolerations": [{ "operator": "Exists" }],
            "priorityClassName": vmi.spec.priority_class_name,
            "securityContext": {
                "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "fsGroup": USER,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": CONTAINER,
                "image": settings.launcher_image,
                "imagePullPolicy": settings.image_pull_policy,
                "command": ["/usr/bin/sleep", "infinity"],
                "resources": { "requests": { "cpu": "1m", "memory": "1M" }, "limits": { "memory": "40M" } },
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                    "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "volumeMounts": mounts,
                "volumeDevices": devices,
            }],
            "volumes": sources,
        },
    });
    serde_json::from_value(pod).map_err(RenderError)
}

/// What is known of an attachment pod.
pub fn holder(pod: &Pod) -> Holder {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let volumes: BTreeSet<(String, String)> = volumes
        .iter()
        .filter_map(|volume| Some((volume.name.clone(), volume.persistent_volume_claim.as_ref()?.claim_name.clone())))
        .collect();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    Holder {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        volumes,
        runs: phase == Some("Running"),
        ending: pod.metadata.deletion_timestamp.is_some(),
        ended: matches!(phase, Some("Succeeded" | "Failed")),
    }
}

/// True when `pod` was made for the pod with this UID.
pub fn is_of(pod: &Pod, launcher: &str) -> bool {
    pod.owner_references().iter().any(|owner| owner.uid == launcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_at_paths_of_their_guest_alone() {
        let vmi: VirtualMachineInstance =
            serde_json::from_value(json!({ "metadata": { "name": "vm", "namespace": "ns", "uid": "guest" } })).unwrap();
        let launcher: Pod = serde_json::from_value(json!({
            "metadata": { "name": "virt-launcher-vm", "uid": "pod" }, "spec": { "nodeName": "n1", "containers": [] },
        }))
        .unwrap();
        let wanted = |volume: &str, block| Wanted {
            volume: volume.into(),
            claim: format!("claim-{volume}"),
            block,
            read_only: false,
            alone: false,
        };
        let volumes = [wanted("a", false), wanted("b", true)];
        let pod = render(&vmi, &launcher, &volumes, &Settings::of(None, "launcher")).unwrap();
        assert_eq!(pod, render(&vmi, &launcher, &volumes, &Settings::of(None, "launcher")).unwrap());
        let spec = json!(pod.spec);
        assert_eq!(
            spec["containers"][0]["volumeMounts"][0]["mountPath"],
            "/var/run/kubevirt-private/hotplug-disks/guest/a"
        );
        assert_eq!(spec["containers"][0]["volumeDevices"][0]["devicePath"], "/dev/guest/b");
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["n1"]));
        let mut held = pod;
        crate::facts::trim::attachment(&mut held);
        let holder = holder(&held);
        assert!(holder.has("a", "claim-a") && holder.has("b", "claim-b") && !holder.runs && holder.is_live());
        assert!(is_of(&held, "pod") && !is_of(&held, "another"));
        assert_ne!(name(&launcher, &volumes), name(&launcher, &volumes[..1]));
    }
}
