//! What a launcher acts on of a VMI: only when that differs is the VMI handed over again. Pure.
//!
//! The generation does not tell: the status is no subresource, and each write of it raises the generation.

use api::kubevirt::constants::resize;
use api::kubevirt::v1::{
    PersistentVolumeClaimInfo, StorageMigratedVolumeInfo, VirtualMachineInstance, VirtualMachineInstanceSpec,
};
use serde::Serialize;

#[derive(Serialize)]
struct ActedOn<'a> {
    spec: &'a VirtualMachineInstanceSpec,
    /// Whether changes of the disks are tracked.
    tracking: Option<&'a str>,
    /// Disks that were copied on the way have no layer of their own yet.
    copied: &'a [StorageMigratedVolumeInfo],
    /// Changes of the guest's size that its pod has room for.
    resized: Vec<&'a str>,
    /// How large the claims are: their disks grow with them.
    claims: Vec<(&'a str, &'a PersistentVolumeClaimInfo)>,
}

/// The parts of `vmi` that its launcher acts on, to be compared.
pub(super) fn acted_on(vmi: &VirtualMachineInstance) -> Vec<u8> {
    let status = vmi.status.as_deref();
    let volumes = status.map(|status| status.volume_status.as_slice()).unwrap_or_default();
    let claim = |info| Option::<&Box<PersistentVolumeClaimInfo>>::map(info, Box::as_ref);
    let parts = ActedOn {
        spec: &vmi.spec,
        tracking: status.and_then(|status| status.changed_block_tracking.as_ref()).map(|known| known.state.as_str()),
        copied: status.map(|status| status.migrated_volumes.as_slice()).unwrap_or_default(),
        resized: status
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default()
            .iter()
            .filter(|told| told.reason.as_deref() == Some(resize::MADE))
            .map(|told| told.type_.as_str())
            .collect(),
        claims: volumes
            .iter()
            .filter_map(|volume| Some((volume.name.as_str(), claim(volume.persistent_volume_claim_info.as_ref())?)))
            .collect(),
    };
    serde_json::to_vec(&parts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Whether the VMI is handed over again once `patch` is in it.
    #[track_caller]
    fn check(path: &str, value: Value, expect: bool) {
        let mut vmi = json!({
            "metadata": { "name": "vm", "generation": 1, "annotations": {} },
            "spec": { "domain": { "devices": {} } },
            "status": {
                "phase": "Running",
                "conditions": [],
                "changedBlockTracking": { "state": "Initializing" },
                "migratedVolumes": [],
                "volumeStatus": [{
                    "name": "data", "target": "", "persistentVolumeClaimInfo": { "capacity": { "storage": "1Gi" } },
                }],
            },
        });
        let before = acted_on(&serde_json::from_value(vmi.clone()).unwrap());
        *vmi.pointer_mut(path).unwrap() = value;
        let after = acted_on(&serde_json::from_value(vmi).unwrap());
        assert_eq!(before != after, expect, "{path}");
    }

    #[test]
    fn only_what_the_launcher_acts_on_is_compared() {
        check("/spec", json!({ "domain": { "devices": {} }, "terminationGracePeriodSeconds": 5 }), true);
        check("/status/changedBlockTracking/state", json!("Enabled"), true);
        check("/status/migratedVolumes", json!([{ "volumeName": "data" }]), true);
        check("/status/volumeStatus/0/persistentVolumeClaimInfo/capacity/storage", json!("2Gi"), true);
        let condition = |reason: &str| json!([{ "type": "HotVCPUChange", "status": "True", "reason": reason }]);
        check("/status/conditions", condition("PodResized"), true);
        check("/status/conditions", condition("PodResizeInProgress"), false);
        check("/metadata/generation", json!(2), false);
        check("/metadata/annotations", json!({ "kubevirt.io/migration-progress": "{}" }), false);
        check("/status/phase", json!("Succeeded"), false);
        check("/status/volumeStatus/0/target", json!("vda"), false);
        let told = json!({ "state": "Initializing", "backupStatus": { "backupName": "b" } });
        check("/status/changedBlockTracking", told, false);
    }
}
