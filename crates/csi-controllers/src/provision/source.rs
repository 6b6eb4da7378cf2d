//! What a new volume starts with: nothing, another claim's volume, or a snapshot.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TypedObjectReference};
use kit::controller::{Context, quantity};
use kit::store::Key;
use kube::ResourceExt;
use meta::volume_snapshot::{GROUP as SNAPSHOTS, VolumeSnapshot, VolumeSnapshotContent};
use rpc::csi::VolumeContentSource;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use rpc::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::super::driver::Abilities;
use super::super::facts;
use super::super::kinds::MODE_CHANGE;

/// What a claim's volume is to be filled with.
#[derive(Debug)]
pub(crate) enum Source {
    /// What the driver is told; `None` for an empty volume.
    Content(Option<VolumeContentSource>),
    /// Something only another controller can fill it with.
    Foreign,
}

/// Reads the source a claim names; the error says why it cannot be used (yet).
pub(crate) fn of(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    driver: &str,
    abilities: &Abilities,
) -> Result<Source, String> {
    let spec = claim.spec.as_ref();
    let Some(reference) = spec.and_then(|s| s.data_source_ref.as_ref()) else { return Ok(Source::Content(None)) };
    let group = reference.api_group.as_deref().unwrap_or_default();
    match (group, reference.kind.as_str()) {
        ("", "PersistentVolumeClaim") => {
            if !abilities.can(Can::CloneVolume) {
                return Err(format!("driver {driver} does not support cloning volumes"));
            }
            let volume_id = volume_of(ctx, claim, reference, driver)?;
            Ok(Source::Content(Some(VolumeContentSource { r#type: Some(Type::Volume(VolumeSource { volume_id })) })))
        }
        (SNAPSHOTS, "VolumeSnapshot") => {
            if !abilities.can(Can::CreateDeleteSnapshot) {
                return Err(format!("driver {driver} does not support snapshots"));
            }
            let snapshot_id = snapshot_of(ctx, claim, reference, driver)?;
            let source = SnapshotSource { snapshot_id };
            Ok(Source::Content(Some(VolumeContentSource { r#type: Some(Type::Snapshot(source)) })))
        }
        _ => Ok(Source::Foreign),
    }
}

/// The handle of the volume of the claim to be cloned.
fn volume_of(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    reference: &TypedObjectReference,
    driver: &str,
) -> Result<String, String> {
    let namespace = claim.namespace().unwrap_or_default();
    if reference.namespace.as_ref().is_some_and(|other| *other != namespace) {
        return Err("cloning a PVC of another namespace is not supported".into());
    }
    let name = &reference.name;
    let source = ctx.store::<PersistentVolumeClaim>().get(&Key::new(namespace, name));
    let source = source
        .ok_or_else(|| format!("error getting PVC {name} from api server: persistentvolumeclaim {name:?} not found"))?;
    if !facts::is_bound(&source) || facts::phase(&source) != "Bound" {
        return Err(format!("the PVC DataSource {name} must be in Bound state"));
    }
    if facts::is_leaving(source.as_ref()) {
        return Err(format!("the PVC DataSource {name} is currently being deleted"));
    }
    let volume = ctx.store::<PersistentVolume>().get(&Key::new("", facts::volume_name(&source)));
    let volume = volume.ok_or_else(|| format!("the volume of PVC DataSource {name} is not found"))?;
    let csi = volume.spec.as_ref().and_then(|s| s.csi.as_ref()).filter(|csi| csi.driver == driver);
    let csi = csi.ok_or_else(|| format!("the source volume of PVC {name} is not of driver {driver}"))?;
    let mode = |claim: &PersistentVolumeClaim| {
        facts::volume_mode(claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref())).to_owned()
    };
    if mode(&source) != mode(claim) {
        return Err("the source PVC and destination PVCs must have the same volume mode for cloning".into());
    }
    let (has, wants) = (facts::has(&source), facts::requested(claim));
    if wants < has {
        let (has, wants) = (facts::bytes(has), facts::bytes(wants));
        return Err(format!(
            "error, new PVC request must be greater than or equal in size to the specified PVC data source, requested {wants} but source is {has}"
        ));
    }
    Ok(csi.volume_handle.clone())
}

/// The handle of a snapshot that is ready.
fn snapshot_of(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    reference: &TypedObjectReference,
    driver: &str,
) -> Result<String, String> {
    let namespace = claim.namespace().unwrap_or_default();
    if reference.namespace.as_ref().is_some_and(|other| *other != namespace) {
        return Err("restoring a VolumeSnapshot of another namespace is not supported".into());
    }
    let name = &reference.name;
    let snapshot = ctx.store::<VolumeSnapshot>().get(&Key::new(namespace.as_str(), name));
    let snapshot =
        snapshot.ok_or_else(|| format!("error getting snapshot {name}: volumesnapshot {name:?} not found"))?;
    if facts::is_leaving(snapshot.as_ref()) {
        return Err(format!("snapshot {name} is currently being deleted"));
    }
    let status = snapshot.status.clone().unwrap_or_default();
    let bound = status.bound_volume_snapshot_content_name.unwrap_or_default();
    if bound.is_empty() || !snapshot.is_ready() {
        return Err(format!("snapshot {name} is not Ready"));
    }
    let restore = status.restore_size.as_ref().map_or(0, quantity::of);
    if facts::requested(claim) < restore {
        let (wants, has) = (facts::bytes(facts::requested(claim)), facts::bytes(restore));
        return Err(format!(
            "requested volume size {wants} is less than the size {has} for the source snapshot {name}"
        ));
    }
    let content = ctx.store::<VolumeSnapshotContent>().get(&Key::new("", bound.as_str()));
    let content = content.ok_or_else(|| {
        format!("error getting snapshotcontent {bound} for snapshot {name}: volumesnapshotcontent {bound:?} not found")
    })?;
    handle_of(&snapshot, &content, claim, driver)
}

/// The handle of a snapshot, if the claim may be filled from it.
fn handle_of(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    claim: &PersistentVolumeClaim,
    driver: &str,
) -> Result<String, String> {
    let (name, bound) = (snapshot.name_any(), content.name_any());
    // Whoever may write the status of a snapshot of theirs must not come to another's data by it.
    if !content.is_for(snapshot) {
        return Err(format!("snapshotcontent {bound} for snapshot {name} is bound to a different snapshot"));
    }
    if content.spec.driver != driver {
        return Err(format!("driver {} in snapshotcontent is not {driver}", content.spec.driver));
    }
    let was = content.spec.source_volume_mode.as_deref().unwrap_or_default();
    let wanted = facts::volume_mode(claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()));
    if !was.is_empty() && was != wanted && facts::annotation(content, MODE_CHANGE) != "true" {
        return Err(format!(
            "requested volume {}/{} modifies the mode of the source volume but does not have permission to do so. {MODE_CHANGE} annotation is not present on snapshotcontent {bound}",
            claim.namespace().unwrap_or_default(),
            claim.name_any(),
        ));
    }
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
    handle.ok_or_else(|| format!("snapshot handle of snapshot {name} is not available"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_snapshot_gives_nothing_of_a_content_that_is_anothers() {
        let snapshot = |namespace: &str, uid: &str| -> VolumeSnapshot {
            serde_json::from_value(json!({"metadata": {"name": "s", "namespace": namespace, "uid": uid}})).unwrap()
        };
        let content = |more: Value| -> VolumeSnapshotContent {
            let mut content = json!({"metadata": {"name": "c"}, "spec": {"driver": "d", "sourceVolumeMode": "Block",
                "volumeSnapshotRef": {"namespace": "victim", "name": "s", "uid": "u1"}}, "status": {"snapshotHandle": "h"}});
            content["metadata"]["annotations"] = more;
            serde_json::from_value(content).unwrap()
        };
        let claim: PersistentVolumeClaim = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"volumeMode": "Block"}}),
        )
        .unwrap();
        let check = |snapshot: &VolumeSnapshot, driver: &str, expect: Result<&str, &str>| {
            let found = handle_of(snapshot, &content(json!({})), &claim, driver);
            assert_eq!(found.as_deref().map_err(String::as_str), expect);
        };
        let different = Err("snapshotcontent c for snapshot s is bound to a different snapshot");
        check(&snapshot("victim", "u1"), "d", Ok("h"));
        check(&snapshot("attacker", "u2"), "d", different);
        check(&snapshot("victim", "u2"), "d", different);
        check(&snapshot("victim", "u1"), "e", Err("driver d in snapshotcontent is not e"));
        let mut files = claim.clone();
        files.spec.as_mut().unwrap().volume_mode = None;
        let own = snapshot("victim", "u1");
        let refused = handle_of(&own, &content(json!({})), &files, "d").unwrap_err();
        assert!(refused.contains("does not have permission"), "{refused}");
        assert_eq!(handle_of(&own, &content(json!({ MODE_CHANGE: "true" })), &files, "d").as_deref(), Ok("h"));
    }
}
