//! What the status of an instance says of the claims that its volumes lie on. Pure.

use std::collections::BTreeMap;

use api::kubevirt::v1::{VirtualMachineInstance, VolumeStatus};

use super::claims::{Claims, at_start, info};
use super::persistent_state;

/// `held` with what is known of the claims now; volumes without a claim are left as they are.
pub fn statuses(vmi: &VirtualMachineInstance, claims: &Claims, held: &[VolumeStatus]) -> Vec<VolumeStatus> {
    let mut out = held.to_vec();
    for used in at_start(vmi) {
        let Some(claim) = claims.get(used.claim) else { continue };
        let info = Some(Box::new(info(claim)));
        match out.iter_mut().find(|status| status.name == used.volume) {
            Some(status) => status.persistent_volume_claim_info = info,
            None => out.push(VolumeStatus {
                name: used.volume.to_owned(),
                persistent_volume_claim_info: info,
                ..Default::default()
            }),
        }
    }
    if let Some(claim) = persistent_state::of(vmi, claims)
        && let Some(name) = claim.metadata.name.clone()
    {
        out.retain(|status| status.name != name);
        let persistent_volume_claim_info = Some(Box::new(info(claim)));
        out.push(VolumeStatus { name, persistent_volume_claim_info, ..Default::default() });
    }
    out
}

/// Says of volumes whose claims have been told of what those claims are now: they may have grown.
pub fn refresh(vmi: &VirtualMachineInstance, claims: &Claims, statuses: &mut [VolumeStatus]) {
    for used in at_start(vmi) {
        let entry = statuses.iter_mut().find(|status| status.name == used.volume);
        let known = entry.and_then(|entry| entry.persistent_volume_claim_info.as_mut());
        let (Some(known), Some(claim)) = (known, claims.get(used.claim)) else { continue };
        let now = info(claim);
        if !now.capacity.is_empty() && known.claim_name == now.claim_name {
            (known.capacity, known.requests) = (now.capacity, now.requests);
        }
    }
    // What the guest keeps beside its disks is in another claim after a migration.
    let held = statuses.iter_mut().find(|status| {
        let claim = status.persistent_volume_claim_info.as_ref().and_then(|info| info.claim_name.as_ref());
        let listed = vmi.spec.volumes.iter().any(|volume| volume.name == status.name);
        claim == Some(&status.name) && status.hotplug_volume.is_none() && !listed
    });
    if let (Some(entry), Some(claim)) = (held, persistent_state::of(vmi, claims)) {
        entry.name = claim.metadata.name.clone().unwrap_or_default();
        entry.persistent_volume_claim_info = Some(Box::new(info(claim)));
    }
}

/// The reason of a volume that stays where it is.
const STAYS: &str = "CannotBeCopied";

/// Says of volumes why they cannot be copied to another node; virt-handler judges by that whether the guest can be moved.
pub fn stay(statuses: &mut [VolumeStatus], why: &BTreeMap<String, String>) {
    for status in statuses.iter_mut() {
        let message = why.get(&status.name).cloned();
        status.reason = message.is_some().then(|| STAYS.to_owned());
        status.message = message;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::facts::claims::tests::{claims, vmi};

    #[test]
    fn a_claim_that_grows_is_told_of() {
        let vmi = vmi(json!({ "name": "root", "dataVolume": { "name": "data" } }));
        let mut held = statuses(&vmi, &claims(Some("2Gi")), &[]);
        refresh(&vmi, &claims(Some("3Gi")), &mut held);
        assert_eq!(held[0].persistent_volume_claim_info.as_ref().unwrap().capacity["storage"].0, "3Gi");
        refresh(&vmi, &Claims::new(), &mut held);
        assert_eq!(held[0].persistent_volume_claim_info.as_ref().unwrap().capacity["storage"].0, "3Gi");
    }

    #[test]
    fn the_status_says_what_the_claim_is() {
        let vmi = vmi(json!({ "name": "root", "dataVolume": { "name": "data" } }));
        let held = vec![VolumeStatus { name: "root".into(), target: "vda".into(), ..Default::default() }];
        let found = serde_json::to_value(statuses(&vmi, &claims(Some("2Gi")), &held)).unwrap();
        let expect = json!([{ "name": "root", "target": "vda", "persistentVolumeClaimInfo": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "2Gi" }, "claimName": "data",
            "filesystemOverhead": "0", "requests": { "storage": "1Gi" }, "volumeMode": "Filesystem",
        } }]);
        assert_eq!(found, expect);
    }
}
