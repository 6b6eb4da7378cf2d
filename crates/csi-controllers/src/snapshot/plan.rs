//! What a VolumeSnapshot needs next. Pure.
//!
//! ```text
//!  snapshot --of a claim--> class found --> claim held --> content made --driver--> content ready --> snapshot ready
//!           --of a content that is there--> content bound ------------------^
//!  deleted: content marked --policy Delete--> content deleted --> finalizers off
//! ```

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kit::controller::quantity;
use kube::ResourceExt;
use kube::core::TypeMeta;
use meta::volume_snapshot::{
    GROUP, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, VolumeSnapshotContentSource,
    VolumeSnapshotContentSpec, VolumeSnapshotStatus,
};

use super::names::{AS_SOURCE, BEING_DELETED, BOUND, CLAIM, CONTENT, DEFAULT_CLASS};
use crate::facts;

/// What a snapshot can see of the world.
pub(crate) struct World<'a> {
    /// The content of the name that goes with the snapshot.
    pub(crate) content: Option<&'a VolumeSnapshotContent>,
    pub(crate) classes: &'a [Arc<VolumeSnapshotClass>],
    /// The claim it is of.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// That claim's volume.
    pub(crate) volume: Option<&'a PersistentVolume>,
    /// Whether a claim is being made from the snapshot.
    pub(crate) in_use: bool,
}

/// What is to be done; one thing at a time, each of which leads to the next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing, until something changes.
    Rest,
    /// To have these finalizers.
    Finalizers(Vec<String>),
    /// To take the default class.
    TakeClass(String),
    /// To keep the claim from being deleted until the snapshot is taken.
    HoldClaim,
    /// To have a content.
    Make(Box<VolumeSnapshotContent>),
    /// To have the content name this very snapshot.
    Bind,
    /// To say this.
    Say(VolumeSnapshotStatus),
    /// To say what is wrong.
    Fail { reason: &'static str, message: String },
    /// To wait for the claims that are made from it.
    Pending,
    /// To have the content say that its snapshot goes.
    Mark,
    /// To have the content deleted.
    DeleteContent,
}

fn fail(reason: &'static str, message: impl Into<String>) -> Step {
    Step::Fail { reason, message: message.into() }
}

/// What the snapshot needs next.
pub(crate) fn step(snapshot: &VolumeSnapshot, world: &World<'_>) -> Step {
    let content = world.content.filter(|content| content.is_for(snapshot));
    if facts::is_leaving(snapshot) {
        return leave(snapshot, content, world.in_use);
    }
    let mut wanted = vec![AS_SOURCE];
    wanted.extend(content.filter(|content| content.deletes()).map(|_| BOUND));
    let has = snapshot.finalizers();
    if wanted.iter().any(|name| !has.iter().any(|known| known == name)) {
        let missing = wanted.into_iter().filter(|name| !has.iter().any(|known| known == name));
        return Step::Finalizers(has.iter().cloned().chain(missing.map(str::to_owned)).collect());
    }
    let existing = snapshot.spec.source.volume_snapshot_content_name.is_some();
    let Some(found) = world.content else {
        return if existing || snapshot.is_ready() {
            fail("SnapshotContentMissing", "VolumeSnapshotContent is missing")
        } else {
            make(snapshot, world)
        };
    };
    if existing && found.spec.source.snapshot_handle.is_none() {
        let why = "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
        return fail("SnapshotContentMismatch", why);
    }
    let Some(content) = content else {
        return if snapshot.is_ready() {
            fail("SnapshotMisbound", "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly")
        } else {
            let why = format!("VolumeSnapshotContent [{}] is bound to a different snapshot", found.name_any());
            fail("SnapshotContentMisbound", why)
        };
    };
    if content.spec.volume_snapshot_ref.uid.as_deref().unwrap_or_default().is_empty() {
        return Step::Bind;
    }
    let status = status(content);
    if snapshot.status.as_ref() == Some(&status) { Step::Rest } else { Step::Say(status) }
}

/// What its content says of the snapshot.
fn status(content: &VolumeSnapshotContent) -> VolumeSnapshotStatus {
    let known = content.status.clone().unwrap_or_default();
    let taken = known.creation_time.filter(|nanos| *nanos > 0);
    let taken = taken.and_then(|nanos| jiff::Timestamp::from_second(nanos / 1_000_000_000).ok());
    let size = known.restore_size.map(|bytes| quantity::format(i128::from(bytes) * 1000, true));
    VolumeSnapshotStatus {
        bound_volume_snapshot_content_name: content.metadata.name.clone(),
        creation_time: taken.map(Time),
        ready_to_use: Some(content.is_ready()),
        restore_size: size,
        error: known.error,
    }
}

fn leave(snapshot: &VolumeSnapshot, content: Option<&VolumeSnapshotContent>, in_use: bool) -> Step {
    let ours = |name: &String| name == AS_SOURCE || name == BOUND;
    if !snapshot.finalizers().iter().any(ours) {
        return Step::Rest;
    }
    if in_use {
        return Step::Pending;
    }
    if let Some(content) = content {
        if !content.annotations().contains_key(BEING_DELETED) {
            return Step::Mark;
        }
        match (content.deletes(), facts::is_leaving(content)) {
            (true, false) => return Step::DeleteContent,
            (true, true) => return Step::Rest,
            (false, _) => {}
        }
    }
    Step::Finalizers(snapshot.finalizers().iter().filter(|name| !ours(name)).cloned().collect())
}

/// The content of a snapshot that is to be taken, when all is there that it needs.
fn make(snapshot: &VolumeSnapshot, world: &World<'_>) -> Step {
    let named = snapshot.spec.volume_snapshot_class_name.as_deref().filter(|name| !name.is_empty());
    let Some(named) = named else {
        return match default_class(snapshot, world) {
            Ok(name) => Step::TakeClass(name),
            Err(why) => {
                let message = format!("Failed to set default snapshot class with error {why}");
                fail("SetDefaultSnapshotClassFailed", message)
            }
        };
    };
    let Some(class) = world.classes.iter().find(|class| class.metadata.name.as_deref() == Some(named)) else {
        let message =
            format!("Failed to get snapshot class with error volumesnapshotclass.{GROUP} {named:?} not found");
        return fail("GetSnapshotClassFailed", message);
    };
    match content(snapshot, class, world) {
        Ok((_, claim)) if !claim.finalizers().iter().any(|name| name == CLAIM) => Step::HoldClaim,
        Ok((content, _)) => Step::Make(Box::new(content)),
        Err(why) => {
            let name = snapshot.name_any();
            let why = format!("failed to get input parameters to create snapshot {name}: {why:?}");
            fail("SnapshotContentCreationFailed", format!("Failed to create snapshot content with error {why}"))
        }
    }
}

fn claim_of<'a>(snapshot: &VolumeSnapshot, world: &World<'a>) -> Result<&'a PersistentVolumeClaim, String> {
    let name = snapshot.claim().unwrap_or_default();
    let missing = || format!("failed to retrieve PVC {name} from the lister: persistentvolumeclaim {name:?} not found");
    world.claim.ok_or_else(missing)
}

fn volume_of<'a>(claim: &PersistentVolumeClaim, world: &World<'a>) -> Result<&'a PersistentVolume, String> {
    let name = claim.name_any();
    if !facts::is_bound(claim) || facts::phase(claim) != "Bound" {
        return Err(format!("the PVC {name} is not yet bound to a PV, will not attempt to take a snapshot"));
    }
    let volume =
        world.volume.ok_or_else(|| format!("failed to retrieve PV {} of PVC {name}", facts::volume_name(claim)))?;
    if facts::is_for(volume, claim) { Ok(volume) } else { Err(format!("claim in PV is not bound to PVC {name}")) }
}

fn driver_of(volume: &PersistentVolume) -> Result<(&str, &str), String> {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let csi =
        csi.ok_or_else(|| format!("snapshotting non-CSI volumes is not supported, snapshot of {}", volume.name_any()))?;
    Ok((&csi.driver, &csi.volume_handle))
}

fn default_class(snapshot: &VolumeSnapshot, world: &World<'_>) -> Result<String, String> {
    let claim = claim_of(snapshot, world)?;
    let (driver, _) = driver_of(volume_of(claim, world)?)?;
    let is_default = |class: &&Arc<VolumeSnapshotClass>| {
        class.driver == driver && facts::annotation(class.as_ref(), DEFAULT_CLASS) == "true"
    };
    let found: Vec<_> = world.classes.iter().filter(is_default).collect();
    match found.as_slice() {
        [] => Err("cannot find default snapshot class".into()),
        [one] => Ok(one.name_any()),
        many => Err(format!("{} default snapshot classes were found", many.len())),
    }
}

fn content<'a>(
    snapshot: &VolumeSnapshot,
    class: &VolumeSnapshotClass,
    world: &World<'a>,
) -> Result<(VolumeSnapshotContent, &'a PersistentVolumeClaim), String> {
    let claim = claim_of(snapshot, world)?;
    if facts::is_leaving(claim) {
        return Err(format!("cannot snapshot PVC {} because it is being deleted", claim.name_any()));
    }
    let volume = volume_of(claim, world)?;
    let (driver, handle) = driver_of(volume)?;
    if driver != class.driver {
        return Err(format!(
            "snapshot class {} is of driver {}, and volume {} of {driver}",
            class.name_any(),
            class.driver,
            volume.name_any()
        ));
    }
    let content = VolumeSnapshotContent {
        types: Some(TypeMeta::resource::<VolumeSnapshotContent>()),
        metadata: ObjectMeta {
            name: Some(snapshot.content()),
            finalizers: Some(vec![CONTENT.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: VolumeSnapshotContentSpec {
            deletion_policy: class.deletion_policy.clone(),
            driver: class.driver.clone(),
            source: VolumeSnapshotContentSource { volume_handle: Some(handle.to_owned()), snapshot_handle: None },
            source_volume_mode: Some(
                facts::volume_mode(volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref())).to_owned(),
            ),
            volume_snapshot_class_name: Some(class.name_any()),
            volume_snapshot_ref: ObjectReference {
                api_version: Some(format!("{GROUP}/v1")),
                kind: Some("VolumeSnapshot".into()),
                namespace: snapshot.metadata.namespace.clone(),
                name: snapshot.metadata.name.clone(),
                uid: snapshot.metadata.uid.clone(),
                resource_version: snapshot.metadata.resource_version.clone(),
                ..ObjectReference::default()
            },
        },
        status: None,
    };
    Ok((content, claim))
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
