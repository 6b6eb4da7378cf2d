//! What is said of the storage of a class. Pure.

use api::cdi::constants::{annotation, clone_strategy, condition};
use api::cdi::v1beta1::{CDICondition, ClaimPropertySet, StorageProfile, StorageProfileStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use meta::conditions;

use crate::controller::profile::provisioners::{self, BY_HAND, UNSUPPORTED};

/// The status of the profile of `class`: what its `spec` says, and for the rest what is known of the provisioner.
/// `snapshots` is the snapshot class of its driver, if there is one.
pub fn status(
    profile: &StorageProfile,
    class: &StorageClass,
    volumes: &[PersistentVolume],
    snapshots: Option<&str>,
    now: Timestamp,
) -> StorageProfileStatus {
    let known = provisioners::known(class);
    let sets = if profile.spec.claim_property_sets.is_empty() {
        let by_hand = class.provisioner == BY_HAND;
        if by_hand { offered(class, volumes) } else { known.map(provisioners::Known::sets).unwrap_or_default() }
    } else {
        profile.spec.claim_property_sets.clone()
    };
    let snapshot_class = profile.spec.snapshot_class.clone().or_else(|| snapshots.map(ToOwned::to_owned));
    let recognized = if !profile.spec.claim_property_sets.is_empty() {
        ("True", "UserDefined", format!("The claim property sets of StorageProfile {} are its own", profile.name_any()))
    } else if known.is_some() {
        ("True", "RecognizedProvisioner", format!("Provisioner {} is known", class.provisioner))
    } else if UNSUPPORTED.contains(&class.provisioner.as_str()) && sets.is_empty() {
        (
            "False",
            "UnsupportedProvisioner",
            format!("Provisioner {} does not make volumes for disks", class.provisioner),
        )
    } else if !sets.is_empty() {
        ("True", "RecognizedVolumes", "The claim property sets are those of the volumes of the class".to_owned())
    } else {
        (
            "False",
            "UnrecognizedProvisioner",
            format!(
                "Provisioner {} is not known: set spec.claimPropertySets of StorageProfile {}, or access and volume modes in each claim",
                class.provisioner,
                profile.name_any()
            ),
        )
    };
    let mut conditions = profile.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let (truth, reason, message) = recognized;
    conditions::set(&mut conditions, condition::RECOGNIZED, truth, Some(reason), Some(&message), &Time(now));
    StorageProfileStatus {
        claim_property_sets: sets,
        clone_strategy: Some(strategy(profile, class, snapshot_class.is_some()).to_owned()),
        conditions: recognized_only(conditions),
        data_import_cron_source_format: Some(format(profile, class, snapshot_class.is_some()).to_owned()),
        provisioner: Some(class.provisioner.clone()),
        snapshot_class,
        storage_class: Some(class.name_any()),
    }
}

fn recognized_only(conditions: Vec<CDICondition>) -> Vec<CDICondition> {
    conditions.into_iter().filter(|one| one.type_ == condition::RECOGNIZED).collect()
}

/// The modes of the volumes of a class whose volumes are made by hand.
fn offered(class: &StorageClass, volumes: &[PersistentVolume]) -> Vec<ClaimPropertySet> {
    let mut sets: Vec<ClaimPropertySet> = Vec::new();
    let of_class = volumes.iter().filter_map(|volume| volume.spec.as_ref());
    for spec in of_class.filter(|spec| spec.storage_class_name.as_deref() == Some(&class.name_any())) {
        let volume_mode = spec.volume_mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
        for access in spec.access_modes.iter().flatten() {
            let set = ClaimPropertySet { access_modes: vec![access.clone()], volume_mode: volume_mode.clone() };
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
    }
    sets.sort_by_key(|set| (rank(set), set.volume_mode.clone()));
    sets
}

/// Volumes for guests that move come first, devices before file systems.
fn rank(set: &ClaimPropertySet) -> u8 {
    match (set.access_modes.first().map(String::as_str), set.volume_mode.as_str()) {
        (Some("ReadWriteMany"), "Block") => 0,
        (Some("ReadWriteOnce"), "Block") => 1,
        (Some("ReadWriteMany"), _) => 2,
        (Some("ReadWriteOnce"), _) => 3,
        _ => 4,
    }
}

fn strategy<'a>(profile: &'a StorageProfile, class: &'a StorageClass, snapshots: bool) -> &'a str {
    if let Some(said) = profile.spec.clone_strategy.as_deref() {
        return said;
    }
    let said = class.annotations().get(annotation::CLONE_STRATEGY).map(String::as_str);
    if let Some(said @ (clone_strategy::COPY | clone_strategy::SNAPSHOT | clone_strategy::CSI)) = said {
        return said;
    }
    let known = provisioners::known(class).and_then(|known| known.clone);
    match known.unwrap_or(clone_strategy::SNAPSHOT) {
        clone_strategy::SNAPSHOT if !snapshots => clone_strategy::COPY,
        best => best,
    }
}

fn format<'a>(profile: &'a StorageProfile, class: &StorageClass, snapshots: bool) -> &'a str {
    if let Some(said) = profile.spec.data_import_cron_source_format.as_deref() {
        return said;
    }
    if snapshots && provisioners::known(class).is_some_and(|known| known.snapshots) { "snapshot" } else { "pvc" }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn said(spec: Value, class: Value, snapshots: Option<&str>) -> StorageProfileStatus {
        let profile = serde_json::from_value(json!({ "metadata": { "name": "c" }, "spec": spec })).unwrap();
        let mut class = class;
        class["metadata"]["name"] = json!("c");
        let volume = json!({ "metadata": { "name": "v" }, "spec": { "storageClassName": "c", "volumeMode": "Block", "accessModes": ["ReadOnlyMany", "ReadWriteOnce"] } });
        let volumes = [serde_json::from_value(volume).unwrap()];
        status(&profile, &serde_json::from_value(class).unwrap(), &volumes, snapshots, Timestamp::UNIX_EPOCH)
    }

    #[track_caller]
    fn check(spec: Value, class: Value, snapshots: Option<&str>, clone: &str, format: &str, recognized: &str) {
        let found = said(spec, class, snapshots);
        assert_eq!(found.clone_strategy.as_deref(), Some(clone));
        assert_eq!(found.data_import_cron_source_format.as_deref(), Some(format));
        assert_eq!(found.conditions[0].reason.as_deref(), Some(recognized));
    }

    #[test]
    fn annotations_precede_known_capabilities() {
        let (hpp, ceph) = (
            json!({ "provisioner": "kubevirt.io.hostpath-provisioner" }),
            json!({ "provisioner": "rook-ceph.rbd.csi.ceph.com" }),
        );
        let annotated = json!({ "metadata": { "annotations": { annotation::CLONE_STRATEGY: "csi-clone" } }, "provisioner": "kubevirt.io.hostpath-provisioner" });
        let by_hand = json!({ "provisioner": BY_HAND });
        check(json!({}), hpp.clone(), None, "copy", "pvc", "RecognizedProvisioner");
        check(json!({}), hpp.clone(), Some("snap"), "snapshot", "pvc", "RecognizedProvisioner");
        check(json!({}), annotated.clone(), None, "csi-clone", "pvc", "RecognizedProvisioner");
        check(json!({ "cloneStrategy": "copy" }), annotated, None, "copy", "pvc", "RecognizedProvisioner");
        check(json!({}), ceph.clone(), None, "csi-clone", "pvc", "RecognizedProvisioner");
        check(json!({}), ceph, Some("snap"), "csi-clone", "snapshot", "RecognizedProvisioner");
        check(json!({}), json!({ "provisioner": "x" }), None, "copy", "pvc", "UnrecognizedProvisioner");
        check(json!({}), json!({ "provisioner": "stork-snapshot" }), None, "copy", "pvc", "UnsupportedProvisioner");
        check(json!({}), by_hand.clone(), None, "copy", "pvc", "RecognizedVolumes");
        let own = json!({ "claimPropertySets": [{ "accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem" }] });
        check(own, hpp, None, "copy", "pvc", "UserDefined");
        let sets = said(json!({}), by_hand, None).claim_property_sets;
        let modes: Vec<_> = sets.iter().map(|set| set.access_modes[0].as_str()).collect();
        assert_eq!(modes, ["ReadWriteOnce", "ReadOnlyMany"]);
    }
}
