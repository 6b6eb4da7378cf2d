//! The claim that a DataVolume's `spec.storage` asks for: class, access modes, volume mode and size, completed from the
//! profile of the class. Pure.

use api::cdi::constants::annotation;
use api::cdi::v1beta1::{ClaimPropertySet, DataVolume, DataVolumeSpec, StorageProfile, StorageSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use crate::controller::settings::{self, Settings, bytes};

/// Value of `volumeMode` that asks for the profile's first.
pub const FROM_PROFILE: &str = "FromStorageProfile";
/// A file system, the mode of a claim that names none.
pub const FILESYSTEM: &str = "Filesystem";
/// A device.
pub const BLOCK: &str = "Block";
const SMALLEST: u64 = 1 << 20;

/// What a claim is rendered from.
pub struct Storage<'a> {
    /// Every storage class.
    pub classes: &'a [StorageClass],
    /// Every profile.
    pub profiles: &'a [StorageProfile],
    /// Every volume that is made by hand.
    pub volumes: &'a [PersistentVolume],
    /// The configuration.
    pub settings: &'a Settings,
}

/// Why there can be no claim yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl<T: Into<String>> From<T> for Refusal {
    fn from(message: T) -> Self {
        Self(message.into())
    }
}

/// The spec of the claim of `volume`. `source` is the size of what is cloned, for a clone that asks for none.
pub fn claim(
    volume: &DataVolume,
    storage: &Storage<'_>,
    source: Option<u64>,
) -> Result<PersistentVolumeClaimSpec, Refusal> {
    if let Some(literal) = &volume.spec.pvc {
        let mut spec = literal.clone();
        if requested(&spec).is_none()
            && let Some(bytes) = source
        {
            request(&mut spec, Quantity(bytes.to_string()));
        }
        return Ok(spec);
    }
    let Some(asked) = volume.spec.storage.as_deref() else {
        return Err("datavolume one of {pvc, storage} field is required".into());
    };
    let archive = volume.spec.content_type.as_deref() == Some("archive");
    complete(copied(asked), archive, storage, source, is_clone(&volume.spec))
}

/// True when the data come from a volume or a snapshot of the cluster.
pub fn is_clone(spec: &DataVolumeSpec) -> bool {
    spec.source.as_ref().is_some_and(|source| source.pvc.is_some() || source.snapshot.is_some())
}

/// A claim's spec with what the profile of its class adds.
pub fn complete(
    mut spec: PersistentVolumeClaimSpec,
    archive: bool,
    storage: &Storage<'_>,
    source: Option<u64>,
    clone: bool,
) -> Result<PersistentVolumeClaimSpec, Refusal> {
    if archive {
        if spec.volume_mode.as_deref() == Some(BLOCK) {
            return Err("ContentType Archive cannot have block volumeMode".into());
        }
        spec.volume_mode = Some(FILESYSTEM.to_owned());
    }
    match settings::class(storage.classes, spec.storage_class_name.as_deref(), !archive) {
        Some(class) => {
            let name = class.name_any();
            let profile = storage.profiles.iter().find(|profile| profile.name_any() == name);
            modes(&mut spec, &name, profile)?;
            spec.storage_class_name = Some(name);
            size(&mut spec, Some(profile), storage.settings, source, clone)?;
        }
        None => {
            from_volume(&mut spec, storage.volumes);
            if spec.access_modes.as_ref().is_none_or(Vec::is_empty) {
                return Err(classless(spec.storage_class_name.as_deref()));
            }
            size(&mut spec, None, storage.settings, source, clone)?;
        }
    }
    Ok(spec)
}

fn classless(named: Option<&str>) -> Refusal {
    let told = "PVC spec is missing accessMode and no storageClass to choose profile";
    Refusal(match named.filter(|name| !name.is_empty()) {
        Some(name) => format!("{told}: StorageClass {name} does not exist: make it, or name another"),
        None => format!(
            "{told}: no StorageClass is the default: name one, or mark one with {}=true",
            annotation::DEFAULT_CLASS
        ),
    })
}

fn copied(asked: &StorageSpec) -> PersistentVolumeClaimSpec {
    PersistentVolumeClaimSpec {
        access_modes: (!asked.access_modes.is_empty()).then(|| asked.access_modes.clone()),
        data_source: asked.data_source.clone(),
        data_source_ref: asked.data_source_ref.clone(),
        resources: asked.resources.clone(),
        selector: asked.selector.clone(),
        storage_class_name: asked.storage_class_name.clone(),
        volume_mode: asked.volume_mode.clone().filter(|mode| mode != FROM_PROFILE && !mode.is_empty()),
        volume_name: asked.volume_name.clone(),
        volume_attributes_class_name: None,
    }
}

fn modes(spec: &mut PersistentVolumeClaimSpec, class: &str, profile: Option<&StorageProfile>) -> Result<(), Refusal> {
    let sets =
        profile.and_then(|profile| profile.status.as_ref()).map_or(&[][..], |status| &status.claim_property_sets);
    let access = spec.access_modes.clone().unwrap_or_default();
    let usable = |set: &&ClaimPropertySet| !set.access_modes.is_empty();
    let incomplete = |missing: &str| {
        Refusal(format!(
            "no accessMode specified in StorageProfile {class}: {missing} in the DataVolume or PVC, or spec.claimPropertySets in the profile"
        ))
    };
    match (spec.volume_mode.as_deref(), access.is_empty()) {
        (None, true) => {
            let set = sets.first().filter(usable);
            let set = set.ok_or_else(|| incomplete("name accessModes and volumeMode"))?;
            spec.access_modes = Some(set.access_modes.clone());
            spec.volume_mode = Some(set.volume_mode.clone()).filter(|mode| !mode.is_empty());
        }
        (Some(mode), true) => {
            // Of a mode that the profile says nothing of, its first is as good a guess as any.
            let set = sets.iter().find(|set| usable(set) && set.volume_mode == mode);
            let set = set.or_else(|| sets.iter().find(usable)).ok_or_else(|| incomplete("name accessModes"))?;
            spec.access_modes = Some(set.access_modes.clone());
        }
        (None, false) => {
            let offers = |set: &&ClaimPropertySet| set.access_modes.iter().any(|mode| access.contains(mode));
            let set = sets.iter().find(offers).or_else(|| sets.first());
            spec.volume_mode = set.map(|set| set.volume_mode.clone()).filter(|mode| !mode.is_empty());
        }
        (Some(_), false) => {}
    }
    Ok(())
}

/// The modes of a volume made by hand that the claim could take.
fn from_volume(spec: &mut PersistentVolumeClaimSpec, volumes: &[PersistentVolume]) {
    let Some(class) = spec.storage_class_name.clone() else { return };
    let wanted = requested(spec).unwrap_or_default();
    let fits = |volume: &&PersistentVolume| {
        let Some(offered) = &volume.spec else { return false };
        let capacity = offered.capacity.as_ref().and_then(|all| all.get("storage")).map_or(0, bytes);
        let modes = offered.access_modes.clone().unwrap_or_default();
        offered.storage_class_name.as_deref() == Some(&class)
            && offered.claim_ref.is_none()
            && capacity >= wanted
            && spec.access_modes.iter().flatten().all(|mode| modes.contains(mode))
            && spec
                .volume_mode
                .as_deref()
                .is_none_or(|mode| offered.volume_mode.as_deref().unwrap_or(FILESYSTEM) == mode)
    };
    if let Some(offered) = volumes.iter().find(fits).and_then(|volume| volume.spec.as_ref()) {
        spec.volume_mode.clone_from(&offered.volume_mode);
        if spec.access_modes.as_ref().is_none_or(Vec::is_empty) {
            spec.access_modes.clone_from(&offered.access_modes);
        }
    }
}

fn size(
    spec: &mut PersistentVolumeClaimSpec,
    profile: Option<Option<&StorageProfile>>,
    settings: &Settings,
    source: Option<u64>,
    clone: bool,
) -> Result<(), Refusal> {
    let filesystem = spec.volume_mode.as_deref().unwrap_or(FILESYSTEM) == FILESYSTEM;
    let wanted = match (requested(spec), source) {
        (Some(wanted), _) if wanted < SMALLEST => {
            return Err("PVC Spec is not valid - storage size should be at least 1MiB".into());
        }
        (Some(wanted), _) if filesystem => settings.inflated(wanted, spec.storage_class_name.as_deref()),
        (Some(wanted), _) => Quantity(wanted.to_string()),
        // A clone has the size of what it is a clone of, its file system included.
        (None, Some(source)) => Quantity(source.to_string()),
        (None, None) if clone => return Err("the size of the clone's source is not known yet".into()),
        (None, None) => return Err("PVC Spec is not valid - missing storage size".into()),
    };
    let least = profile.flatten().and_then(|profile| profile.annotations().get(annotation::MINIMUM_PVC_SIZE));
    let least = least.map(|text| Quantity(text.clone())).filter(|least| bytes(least) > bytes(&wanted));
    let unchanged = requested(spec) == Some(bytes(&wanted)) && least.is_none();
    if !unchanged {
        request(spec, least.unwrap_or(wanted));
    }
    Ok(())
}

/// What a claim has, or while it has nothing, asks for.
pub fn size_of(claim: &PersistentVolumeClaim) -> Option<u64> {
    let has =
        claim.status.as_ref().and_then(|status| status.capacity.as_ref()).and_then(|all| all.get("storage")).map(bytes);
    let asks = claim.spec.as_ref().and_then(requested);
    has.max(asks).filter(|size| *size > 0)
}

/// The bytes that a claim asks for.
pub fn requested(spec: &PersistentVolumeClaimSpec) -> Option<u64> {
    spec.resources.as_ref()?.requests.as_ref()?.get("storage").map(bytes).filter(|bytes| *bytes > 0)
}

fn request(spec: &mut PersistentVolumeClaimSpec, size: Quantity) {
    let resources = spec.resources.get_or_insert_with(VolumeResourceRequirements::default);
    resources.requests.get_or_insert_default().insert("storage".to_owned(), size);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn rendered(storage: Value, sets: Value, archive: bool) -> Result<Value, Refusal> {
        let class = json!({ "metadata": { "name": "fast", "annotations": { annotation::DEFAULT_CLASS: "true" } }, "provisioner": "p" });
        let profile = json!({ "metadata": { "name": "fast", "annotations": { annotation::MINIMUM_PVC_SIZE: "16Mi" } },
            "spec": {}, "status": { "claimPropertySets": sets } });
        let by_hand = json!({ "metadata": { "name": "v" }, "spec": { "storageClassName": "manual", "volumeMode": "Block",
            "accessModes": ["ReadOnlyMany"], "capacity": { "storage": "2Gi" } } });
        let content = if archive { "archive" } else { "kubevirt" };
        let volume = json!({ "metadata": { "name": "dv" }, "spec": { "storage": storage, "contentType": content, "source": { "blank": {} } } });
        let settings = Settings::of(Some(
            &serde_json::from_value(json!({ "spec": { "filesystemOverhead": { "global": "0.5" } } })).unwrap(),
        ));
        let storage = Storage {
            classes: &[serde_json::from_value(class).unwrap()],
            profiles: &[serde_json::from_value(profile).unwrap()],
            volumes: &[serde_json::from_value(by_hand).unwrap()],
            settings: &settings,
        };
        claim(&serde_json::from_value(volume).unwrap(), &storage, None).map(|spec| serde_json::to_value(spec).unwrap())
    }

    fn two() -> Value {
        json!([
            { "accessModes": ["ReadWriteMany"], "volumeMode": "Block" },
            { "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem" },
        ])
    }

    #[track_caller]
    fn check(storage: Value, access: &str, mode: &str, size: &str) {
        let spec = rendered(storage, two(), false).unwrap();
        let found = json!([spec["accessModes"][0], spec["volumeMode"], spec["resources"]["requests"]["storage"]]);
        assert_eq!(found, json!([access, mode, size]));
    }

    #[test]
    fn a_profile_completes_what_is_not_said() {
        let gib = json!({ "requests": { "storage": "1Gi" } });
        check(json!({ "resources": gib }), "ReadWriteMany", "Block", "1Gi");
        check(json!({ "resources": gib, "volumeMode": "FromStorageProfile" }), "ReadWriteMany", "Block", "1Gi");
        check(json!({ "resources": gib, "volumeMode": "Filesystem" }), "ReadWriteOnce", "Filesystem", "2147483648");
        check(
            json!({ "resources": gib, "accessModes": ["ReadWriteOnce"] }),
            "ReadWriteOnce",
            "Filesystem",
            "2147483648",
        );
        let many = json!(["ReadOnlyMany"]);
        check(json!({ "resources": gib, "accessModes": many }), "ReadOnlyMany", "Block", "1Gi");
        check(json!({ "resources": { "requests": { "storage": "1Mi" } } }), "ReadWriteMany", "Block", "16Mi");
        check(json!({ "resources": gib, "storageClassName": "manual" }), "ReadOnlyMany", "Block", "1Gi");
    }

    #[track_caller]
    fn refused(storage: Value, sets: Value, archive: bool, expect: &str) {
        assert_eq!(rendered(storage, sets, archive), Err(expect.into()));
    }

    #[test]
    fn a_mode_that_the_profile_does_not_know_is_had_with_its_first_access() {
        let sets = json!([{ "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem" }]);
        let block = json!({ "resources": { "requests": { "storage": "1Gi" } }, "volumeMode": "Block" });
        let spec = rendered(block, sets, false).unwrap();
        assert_eq!((&spec["accessModes"], &spec["volumeMode"]), (&json!(["ReadWriteOnce"]), &json!("Block")));
    }

    #[test]
    fn an_incomplete_storage_profile_is_named_with_the_remedy() {
        let gib = json!({ "requests": { "storage": "1Gi" } });
        let told = |missing: &str| {
            format!(
                "no accessMode specified in StorageProfile fast: {missing} in the DataVolume or PVC, or spec.claimPropertySets in the profile"
            )
        };
        refused(json!({ "resources": gib }), json!([]), false, &told("name accessModes and volumeMode"));
        let block = json!({ "resources": gib, "volumeMode": "Block" });
        refused(block, json!([]), false, &told("name accessModes"));
        let class = "PVC spec is missing accessMode and no storageClass to choose profile: StorageClass gone does not exist: make it, or name another";
        refused(json!({ "resources": gib, "storageClassName": "gone" }), two(), false, class);
        refused(json!({}), two(), false, "PVC Spec is not valid - missing storage size");
        let small = json!({ "resources": { "requests": { "storage": "1Ki" } } });
        refused(small, two(), false, "PVC Spec is not valid - storage size should be at least 1MiB");
        let block = json!({ "resources": gib, "volumeMode": "Block" });
        refused(block, two(), true, "ContentType Archive cannot have block volumeMode");
    }
}
