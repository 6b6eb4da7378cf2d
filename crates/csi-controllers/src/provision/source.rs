//! What a new volume starts with: nothing, another claim's volume, or a snapshot.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TypedObjectReference};
use kit::controller::{Context, quantity};
use kit::store::Key;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt};
use rpc::csi::VolumeContentSource;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use rpc::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::super::driver::Abilities;
use super::super::facts;
use super::super::kinds::{GROUP as SNAPSHOTS, MODE_CHANGE};

/// What a claim's volume is to be filled with.
#[derive(Debug)]
pub(crate) enum Source {
    /// What the driver is told; `None` for an empty volume.
    Content(Option<VolumeContentSource>),
    /// Something only another controller can fill it with.
    Foreign,
}

/// Reads the source a claim names; the error says why it cannot be used (yet).
pub(crate) async fn of(
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
            let snapshot_id = snapshot_of(ctx, claim, reference, driver).await?;
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

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(SNAPSHOTS, "v1", kind), plural)
}

/// The handle of a snapshot that is ready.
async fn snapshot_of(
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
    let text = |object: &DynamicObject, at: &str| {
        object.data.pointer(at).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    };
    let snapshots: Api<DynamicObject> =
        Api::namespaced_with(ctx.client.clone(), &namespace, &resource("VolumeSnapshot", "volumesnapshots"));
    let failed = |error: kube::Error| format!("error getting snapshot {name} from api server: {error}");
    let snapshot = snapshots.get(name).await.map_err(failed)?;
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(format!("snapshot {name} is currently being deleted"));
    }
    let content = text(&snapshot, "/status/boundVolumeSnapshotContentName");
    if content.is_empty()
        || snapshot.data.pointer("/status/readyToUse").and_then(serde_json::Value::as_bool) != Some(true)
    {
        return Err(format!("snapshot {name} is not Ready"));
    }
    let restore = quantity::parse(&text(&snapshot, "/status/restoreSize")).unwrap_or(0);
    if facts::requested(claim) < restore {
        let (wants, has) = (facts::bytes(facts::requested(claim)), facts::bytes(restore));
        return Err(format!(
            "requested volume size {wants} is less than the size {has} for the source snapshot {name}"
        ));
    }
    let contents: Api<DynamicObject> =
        Api::all_with(ctx.client.clone(), &resource("VolumeSnapshotContent", "volumesnapshotcontents"));
    let failed = |error: kube::Error| format!("error getting snapshotcontent {content} for snapshot {name}: {error}");
    let content = contents.get(&content).await.map_err(failed)?;
    let handle = text(&content, "/status/snapshotHandle");
    if text(&content, "/spec/driver") != driver {
        return Err(format!("driver {} in snapshotcontent is not {driver}", text(&content, "/spec/driver")));
    }
    let was = text(&content, "/spec/sourceVolumeMode");
    let wanted = facts::volume_mode(claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()));
    if !was.is_empty() && was != wanted && facts::annotation(&content, MODE_CHANGE) != "true" {
        return Err(format!(
            "requested volume {namespace}/{} modifies the mode of the source volume but does not have permission to do so. {MODE_CHANGE} annotation is not present on snapshotcontent {}",
            claim.name_any(),
            content.name_any()
        ));
    }
    if handle.is_empty() {
        return Err(format!("snapshot handle of snapshot {name} is not available"));
    }
    Ok(handle)
}
