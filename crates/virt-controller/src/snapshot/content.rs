//! The content of a snapshot: made once, kept while the snapshot is, and told how far its volumes are.

use api::snapshot::v1beta1::{
    Error as Trouble, VirtualMachineSnapshot, VirtualMachineSnapshotContent, VirtualMachineSnapshotContentStatus,
    VolumeSnapshotStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock;
use kit::store::Key;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::plan::Progress;
use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::copies::volume_snapshot_indexes;
use crate::{patch, write};
use meta::volume_snapshot::VolumeSnapshot;

const KIND: &str = "virtualmachinesnapshotcontent";
/// What keeps a content while its snapshot is there.
pub(super) const FINALIZER: &str = "snapshot.kubevirt.io/vmsnapshotcontent-protection";

/// The name of the content of `snapshot`.
pub fn name(snapshot: &VirtualMachineSnapshot) -> String {
    format!("vmsnapshot-content-{}", snapshot.uid().unwrap_or_default())
}

/// The content of `snapshot`, if it has been made.
pub(crate) async fn find(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
) -> Result<Option<VirtualMachineSnapshotContent>, Error> {
    let (namespace, name) = (snapshot.namespace().unwrap_or_default(), name(snapshot));
    let api: Api<VirtualMachineSnapshotContent> = Api::namespaced(context.client.clone(), &namespace);
    api.get_opt(&name).await.map_err(Error::api("read", KIND, &namespace, &name))
}

pub(super) async fn create(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    content: &VirtualMachineSnapshotContent,
) -> Result<VirtualMachineSnapshotContent, Error> {
    let (namespace, name) = (snapshot.namespace().unwrap_or_default(), content.name_any());
    let api: Api<VirtualMachineSnapshotContent> = Api::namespaced(context.client.clone(), &namespace);
    let created = api.create(&PostParams::default(), content).await;
    let created = created.map_err(Error::api("create", KIND, &namespace, &name))?;
    let message = format!("Successfully created VirtualMachineSnapshotContent {name}");
    context.recorder.normal(&reference(snapshot), "SuccessfulVirtualMachineSnapshotContentCreate", message);
    Ok(created)
}

/// Asks for a volume snapshot of `content`.
pub(super) async fn cut(
    context: &Context,
    content: &VirtualMachineSnapshotContent,
    wanted: &VolumeSnapshot,
) -> Result<(), Error> {
    let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<VolumeSnapshot> = Api::namespaced(context.client.clone(), &namespace);
    match api.create(&PostParams::default(), wanted).await {
        Ok(created) => {
            context.stores.volume_snapshots.put(&created, volume_snapshot_indexes(&created));
            let message = format!("Successfully created VolumeSnapshot {name}");
            context.recorder.normal(&reference(content), "SuccessfulVolumeSnapshotCreate", message);
            Ok(())
        }
        // Made by an earlier look whose result the watch has not brought yet.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(Error::api("create", "volumesnapshot", &namespace, &name)(error)),
    }
}

/// Says in `content` how far it is; what it says then.
pub(super) async fn tell(
    context: &Context,
    content: &VirtualMachineSnapshotContent,
    progress: &Progress,
    now: Timestamp,
) -> Result<VirtualMachineSnapshotContentStatus, Error> {
    let (namespace, name) = (content.namespace().unwrap_or_default(), content.name_any());
    let old = content.status.clone().unwrap_or_default();
    let mut new = old.clone();
    new.ready_to_use = Some(progress.ready);
    if progress.cut && new.creation_time.is_none() {
        new.creation_time = Some(Time(clock::seconds(now)));
    }
    let before = old.error.as_ref().and_then(|error| error.message.as_ref());
    if before != progress.error.as_ref() {
        let at = Time(clock::seconds(now));
        new.error = progress.error.clone().map(|message| Trouble { message: Some(message), time: Some(at) });
        for gone in &progress.gone {
            let message = format!("VolumeSnapshot {gone} no longer exists");
            context.recorder.warning(&reference(content), "VolumeSnapshotMissing", message);
        }
    }
    let names = content.spec.volume_backups.iter().filter_map(|backup| backup.volume_snapshot_name.as_deref());
    let known = names.filter_map(|name| context.stores.volume_snapshots.get(&Key::new(namespace.as_str(), name)));
    new.volume_snapshot_status = known.map(status_of).collect();
    let Some(changed) = patch::changed(&old, &new) else { return Ok(new) };
    let api: Api<VirtualMachineSnapshotContent> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({ "status": changed });
    let written = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map_err(Error::api("patch", KIND, &namespace, &name))?;
    Ok(new)
}

fn status_of(found: VolumeSnapshot) -> VolumeSnapshotStatus {
    let name = found.name_any();
    let status = found.status.unwrap_or_default();
    VolumeSnapshotStatus {
        volume_snapshot_name: name,
        creation_time: status.creation_time,
        ready_to_use: status.ready_to_use,
        error: status.error.map(|error| Trouble { message: error.message, time: error.time }),
    }
}

/// Lets go of the content of `snapshot`. Unless it is to be `kept` and can be used, it goes, and its volume snapshots with it.
pub(super) async fn release(context: &Context, snapshot: &VirtualMachineSnapshot, kept: bool) -> Result<(), Error> {
    let Some(content) = find(context, snapshot).await? else { return Ok(()) };
    let left: Vec<String> = content.finalizers().iter().filter(|held| *held != FINALIZER).cloned().collect();
    if left.len() != content.finalizers().len() {
        write::finalizers(&context.client, (KIND, &content), &left).await?;
    }
    let usable = content.status.as_ref().and_then(|status| status.ready_to_use) == Some(true);
    if kept && usable {
        return Ok(());
    }
    let (namespace, name) = (content.namespace().unwrap_or_default(), content.name_any());
    let api: Api<VirtualMachineSnapshotContent> = Api::namespaced(context.client.clone(), &namespace);
    match api.delete(&name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", KIND, &namespace, &name)(error)),
        Ok(_) => Ok(()),
    }
}
