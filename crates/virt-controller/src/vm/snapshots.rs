//! Which volumes of a machine a snapshot of it includes, and why it leaves out the others.
//!
//! A volume can be snapshotted when the driver that made it has a class of snapshots.

use api::kubevirt::v1::{VirtualMachine, VolumeSnapshotStatus};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::ResourceExt;
use meta::volume_snapshot::class_of;

use crate::context::Context;
use crate::facts::persistent_state;
use crate::snapshot::state_volume;

/// What is known of the volumes of `vm`.
pub(super) fn known(context: &Context, vm: &VirtualMachine) -> Vec<VolumeSnapshotStatus> {
    let namespace = vm.namespace().unwrap_or_default();
    let classes = context.stores.snapshot_classes.list();
    let can = |class: &str| {
        let storage = context.stores.storage_classes.get(&Key::new("", class));
        storage.is_some_and(|storage| class_of(&classes, &storage.provisioner).is_some())
    };
    let kept = vm.spec.template.spec.as_deref().is_some_and(persistent_state::is_kept);
    let state = kept.then(|| persistent_state::find(&context.stores.claims, &namespace, &vm.name_any())).flatten();
    let state = state.map(|claim| (state_volume(&vm.name_any()), claim.name_any()));
    statuses(vm, state.as_ref(), |name| context.stores.claims.get(&Key::new(namespace.as_str(), name)), can)
}

/// A word on every volume of `vm`, and on the claim of what it keeps beside its disks, its `state`; `claim` finds claims, and
/// `can` says of a storage class whether snapshots are made of its volumes. Pure.
pub fn statuses(
    vm: &VirtualMachine,
    state: Option<&(String, String)>,
    claim: impl Fn(&str) -> Option<PersistentVolumeClaim>,
    can: impl Fn(&str) -> bool,
) -> Vec<VolumeSnapshotStatus> {
    let volumes = vm.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    let own = volumes.map(|volume| (&volume.name, volume.kept_claim()));
    let state = state.map(|(name, claim)| (name, Some(claim.as_str())));
    let said = own.chain(state).map(|(name, used)| {
        let Some(used) = used else {
            return (name, Some(format!("Snapshot is not supported for this volumeSource type [{name}]")));
        };
        let Some(found) = claim(used) else { return (name, Some("PVC not found".to_owned())) };
        let class = found.spec.and_then(|spec| spec.storage_class_name).unwrap_or_default();
        let why = (!can(&class)).then(|| {
            format!(
                "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [{class}] [{name}]"
            )
        });
        (name, why)
    });
    said.map(|(name, reason)| VolumeSnapshotStatus { name: name.clone(), enabled: reason.is_none(), reason }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_volume_has_its_word() {
        let vm: VirtualMachine = serde_json::from_value(json!({ "spec": { "template": { "spec": {
            "domain": { "devices": {} },
            "volumes": [
                { "name": "root", "dataVolume": { "name": "fast" } },
                { "name": "data", "persistentVolumeClaim": { "claimName": "slow" } },
                { "name": "gone", "persistentVolumeClaim": { "claimName": "gone" } },
                { "name": "layer", "ephemeral": { "persistentVolumeClaim": { "claimName": "fast" } } },
                { "name": "seed", "cloudInitNoCloud": { "userData": "x" } },
            ],
        } } } }))
        .unwrap();
        let claim = |name: &str| {
            let claim = json!({ "metadata": { "name": name }, "spec": { "storageClassName": name } });
            (name != "gone").then(|| serde_json::from_value(claim).unwrap())
        };
        let state = ("persistent-state-for-vm".to_owned(), "fast".to_owned());
        let found = statuses(&vm, Some(&state), claim, |class| class == "fast");
        let said: Vec<String> =
            found.iter().map(|one| format!("{}: {}", one.name, one.reason.as_deref().unwrap_or("yes"))).collect();
        assert_eq!(
            said,
            [
                "root: yes",
                "data: No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [slow] [data]",
                "gone: PVC not found",
                "layer: Snapshot is not supported for this volumeSource type [layer]",
                "seed: Snapshot is not supported for this volumeSource type [seed]",
                "persistent-state-for-vm: yes",
            ]
        );
        assert!(found.iter().all(|one| one.enabled == one.reason.is_none()));
    }
}
