//! The claim a disk is copied into while its guest moves: which disks need one, and what it looks like. Pure.

use api::kubevirt::constants::label;
use api::kubevirt::v1::{PersistentVolumeClaimVolumeSource, StorageMigratedVolumeInfo, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use meta::quantity::Amount;
use sha2::{Digest, Sha256};

use crate::facts::claims::{self, Claims, Use};
use crate::facts::{migration_state, volumes_change};

/// On a stand-in: the claim whose disk it has.
pub const STANDS_IN_FOR: &str = "ferrovirt.io/stands-in-for";
/// On a claim: the stand-in that has its disk.
pub const MOVED_TO: &str = "ferrovirt.io/moved-to";
/// Claims with this access mode are the same disk on every node.
const SHARED: &str = "ReadWriteMany";
const STORAGE: &str = "storage";
/// The longest name of a claim.
const LONGEST: usize = 253;

/// The volumes of `vmi` whose disks are copied when the guest moves: those that another node cannot have, and those that
/// are to be on other claims ([`crate::volumes_update`]).
pub fn copied<'a>(vmi: &'a VirtualMachineInstance, claims: &Claims) -> Vec<Use<'a>> {
    let shared = |claim: &PersistentVolumeClaim| {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
        modes.iter().any(|mode| mode == SHARED)
    };
    let mut out = claims::written(vmi);
    let leaves = |used: &Use<'_>| volumes_change::destination_of(vmi, used.volume).is_some();
    out.retain(|used| claims.get(used.claim).is_some_and(|claim| leaves(used) || !shared(claim)));
    out
}

/// The name of the claim by which the disk of `claim` is known to people: a stand-in's disk is that of the claim it
/// stands in for.
pub fn root(claim: &PersistentVolumeClaim) -> String {
    stands_in_for(claim).map_or_else(|| claim.name_any(), str::to_owned)
}

/// The claim that `claim` stands in for, if it is a stand-in.
pub fn stands_in_for(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(STANDS_IN_FOR).map(String::as_str)
}

/// The stand-in that has the disk of `claim`, if one has.
pub fn moved_to(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(MOVED_TO).map(String::as_str)
}

/// Deleting `claim` deletes `stand_in`: another claim under the same name has nothing to do with it.
pub fn belongs_to(stand_in: &PersistentVolumeClaim, claim: &PersistentVolumeClaim) -> bool {
    stand_in.owner_references().iter().any(|owner| Some(&owner.uid) == claim.metadata.uid.as_ref())
}

/// The name of the stand-in that the migration with the UID `migration` makes for the claim `root`.
pub fn name(root: &str, migration: &str) -> String {
    let digest = Sha256::digest(format!("{root}/{migration}"));
    let suffix: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    let short = &root[..root.len().min(LONGEST - 1 - suffix.len())];
    format!("{}-{suffix}", short.trim_end_matches(['-', '.']))
}

/// The claim into which the disk on `source` is copied when the migration with the UID `migration` moves the guest with
/// the UID `guest`. `root` is the claim whose disk that is: with it goes whatever stands in for it.
pub fn stand_in(
    root: &PersistentVolumeClaim,
    source: &PersistentVolumeClaim,
    guest: &str,
    migration: &str,
) -> PersistentVolumeClaim {
    let spec = source.spec.clone().unwrap_or_default();
    let mut claim = PersistentVolumeClaim::default();
    claim.metadata.name = Some(name(&root.name_any(), migration));
    claim.metadata.namespace.clone_from(&root.metadata.namespace);
    claim.labels_mut().extend([
        (label::CREATED_BY.to_owned(), guest.to_owned()),
        (label::MIGRATION_JOB.to_owned(), migration.to_owned()),
    ]);
    claim.annotations_mut().insert(STANDS_IN_FOR.to_owned(), root.name_any());
    claim.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "PersistentVolumeClaim".to_owned(),
        name: root.name_any(),
        uid: root.uid().unwrap_or_default(),
        ..Default::default()
    }]);
    // What the volume was filled from does not matter any more: all of it is copied.
    claim.spec = Some(PersistentVolumeClaimSpec {
        access_modes: spec.access_modes,
        storage_class_name: spec.storage_class_name,
        volume_attributes_class_name: spec.volume_attributes_class_name,
        volume_mode: spec.volume_mode,
        selector: spec.selector,
        resources: Some(VolumeResourceRequirements {
            requests: Some([(STORAGE.to_owned(), size(source))].into()),
            limits: None,
        }),
        ..Default::default()
    });
    claim
}

/// How large the volume of `claim` is: what it got, which may be more than it asked for.
pub fn size(claim: &PersistentVolumeClaim) -> Quantity {
    let got = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get(STORAGE).cloned());
    let asked = || claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(STORAGE).cloned();
    match (got, asked()) {
        // It is being expanded.
        (Some(got), Some(asked)) if size_of(&asked) > size_of(&got) => asked,
        (got, asked) => got.or(asked).unwrap_or_default(),
    }
}

/// Bytes; 0 of what is not a size.
pub(crate) fn size_of(size: &Quantity) -> u64 {
    Amount::try_from(size).map_or(0, Amount::bytes)
}

/// What the status says of the disks that the migration with the UID `migration` copies.
pub fn migrated(vmi: &VirtualMachineInstance, claims: &Claims, migration: &str) -> Vec<StorageMigratedVolumeInfo> {
    let info = |claim: &PersistentVolumeClaim| Some(Box::new(claims::info(claim)));
    let told = |used: Use<'_>| {
        let source = claims.get(used.claim)?;
        let chosen = volumes_change::destination_of(vmi, used.volume).map(str::to_owned);
        let target = claims.get(&chosen.unwrap_or_else(|| name(&root(source), migration)))?;
        Some(StorageMigratedVolumeInfo {
            volume_name: used.volume.to_owned(),
            source_pvc_info: info(source),
            destination_pvc_info: info(target),
        })
    };
    copied(vmi, claims).into_iter().filter_map(told).collect()
}

/// `vmi` as it will be on the target of the migration with the UID `migration`, as far as `claims` has its claims there.
pub fn there(vmi: &VirtualMachineInstance, claims: &Claims, migration: &str) -> VirtualMachineInstance {
    let moved = migrated(vmi, claims, migration);
    on(vmi, |used| {
        let found = moved.iter().find(|moved| moved.volume_name == used.volume);
        found.map(|moved| volumes_change::destination(moved).to_owned())
    })
}

/// `vmi` with its disks on the stand-ins that `renamed` gives for their claims.
pub fn on(vmi: &VirtualMachineInstance, renamed: impl Fn(&Use<'_>) -> Option<String>) -> VirtualMachineInstance {
    let mut out = vmi.clone();
    for volume in &mut out.spec.volumes {
        let Some(claim) = claims::of_volume(volume).and_then(|used| renamed(&used)) else { continue };
        // A data volume is found by the name of its claim, which this one does not have.
        let data = volume.data_volume.take();
        let held = volume.persistent_volume_claim.take().unwrap_or_default();
        let hotpluggable = held.hotpluggable.or(data.and_then(|data| data.hotpluggable));
        let source = PersistentVolumeClaimVolumeSource { claim_name: claim, hotpluggable, ..held };
        volume.persistent_volume_claim = Some(source);
    }
    out
}

/// The volumes whose disks were copied by the last migration of `vmi`, when it succeeded, each with its stand-in.
pub fn arrived(vmi: &VirtualMachineInstance) -> impl Iterator<Item = (&str, &str)> {
    // What is asked for is not what an earlier migration did.
    let moved = migration_state::of(vmi).is_some_and(migration_state::moved)
        && (volumes_change::copier(vmi).is_none() || volumes_change::has_arrived(vmi));
    let copied = vmi.status.iter().filter(move |_| moved).flat_map(|status| &status.migrated_volumes);
    copied.filter_map(|one| {
        let claim = one.destination_pvc_info.as_ref()?.claim_name.as_deref()?;
        Some((one.volume_name.as_str(), claim))
    })
}

/// The guest was moved, and its spec does not name the claims yet that its disks are on.
pub fn is_switching(vmi: &VirtualMachineInstance) -> bool {
    arrived(vmi).any(|(volume, claim)| claims::of(vmi).any(|used| used.volume == volume && used.claim != claim))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(value: Value) -> PersistentVolumeClaim {
        serde_json::from_value(value).unwrap()
    }

    fn local(name: &str) -> PersistentVolumeClaim {
        claim(json!({
            "metadata": { "name": name, "namespace": "ns", "uid": "u" },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeMode": "Block",
                "volumeName": "pv", "dataSource": { "kind": "VolumeSnapshot", "name": "s" },
                "resources": { "requests": { "storage": "1Gi" } },
            },
            "status": { "capacity": { "storage": "2Gi" } },
        }))
    }

    #[test]
    fn a_stand_in_is_empty_and_as_large_as_the_volume() {
        let made = serde_json::to_value(stand_in(&local("data"), &local("data"), "guest", "job")).unwrap();
        let name = name("data", "job");
        assert!(name.starts_with("data-") && name.len() == 15, "{name}");
        let expect = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name, "namespace": "ns", "annotations": { "ferrovirt.io/stands-in-for": "data" },
                "labels": { "kubevirt.io/created-by": "guest", "kubevirt.io/migrationJobUID": "job" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "u" },
                ],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeMode": "Block",
                "resources": { "requests": { "storage": "2Gi" } },
            },
        });
        assert_eq!(made, expect);
    }

    #[test]
    fn the_longest_names_have_stand_ins_too() {
        let long = "a".repeat(253);
        assert_eq!(name(&long, "job").len(), 253);
        assert_ne!(name(&long, "job"), name(&long, "another"));
    }

    #[test]
    fn hotpluggable_volumes_stay_hotpluggable_on_another_claim() {
        let vmi =
            json!({ "spec": { "volumes": [{ "name": "a", "dataVolume": { "name": "d", "hotpluggable": true } }] } });
        let moved = on(&serde_json::from_value(vmi).unwrap(), |_| Some("copy".to_owned()));
        let expect = json!({ "claimName": "copy", "hotpluggable": true });
        assert_eq!(json!(moved.spec.volumes[0].persistent_volume_claim), expect);
    }

    #[test]
    fn only_disks_that_another_node_cannot_have_are_copied() {
        let vmi = serde_json::from_value(json!({ "spec": {
            "domain": { "devices": { "disks": [{ "name": "a" }, { "name": "b" }, { "name": "c" }, { "name": "d" }] } },
            "volumes": [
                { "name": "a", "persistentVolumeClaim": { "claimName": "local" } },
                { "name": "b", "dataVolume": { "name": "shared" } },
                { "name": "c", "persistentVolumeClaim": { "claimName": "local", "readOnly": true } },
                { "name": "d", "emptyDisk": { "capacity": "1Gi" } },
            ],
        } }))
        .unwrap();
        let shared = claim(json!({ "metadata": { "name": "shared" }, "spec": { "accessModes": ["ReadWriteMany"] } }));
        let claims = [("local".to_owned(), local("local")), ("shared".to_owned(), shared)].into();
        let found: Vec<_> = copied(&vmi, &claims).into_iter().map(|used| (used.volume, used.claim)).collect();
        assert_eq!(found, [("a", "local")]);
        let moved = on(&vmi, |used| (used.claim != "shared").then(|| "new".to_owned()));
        let found: Vec<_> = claims::of(&moved).map(|used| (used.volume, used.claim, used.read_only)).collect();
        assert_eq!(found, [("a", "new", false), ("b", "shared", false), ("c", "new", true)]);
    }
}
