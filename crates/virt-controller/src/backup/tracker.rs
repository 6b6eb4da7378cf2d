//! VirtualMachineBackupTracker: the checkpoint of the last backup of one solution, from which its next one goes on.
//!
//! libvirt forgets checkpoints with the launcher; the bitmaps stay with the disks. A launcher that does not know a
//! checkpoint is told of it, and then says whether all of its bitmaps are there and whole. One of which that is not so is
//! forgotten, which makes the next backup a full one.

use api::backup::v1alpha1::{
    BackupCheckpoint, BackupVolumeInfo, VirtualMachineBackupTracker, VirtualMachineBackupTrackerStatus,
};
use api::kubevirt::constants::{phase, tracking};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceBackupStatus};
use kit::Chain;
use kit::queue::{Next, Queue};
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{is_gone, subresource};
use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::copies::{machine_index, tracker_indexes};
use crate::facts::persistent_state;
use crate::setup::Setup;
use crate::stores::Changes;
use crate::{patch, write};

/// Has trackers looked after.
pub(crate) fn register(setup: &mut Setup) {
    let (context, queue) = (setup.context.clone(), Queue::default());
    wakes(&mut setup.changes, &queue);
    let stores = context.stores.clone();
    let known = async move {
        tokio::join!(
            stores.vms.synced(),
            stores.vmis.synced(),
            stores.claims.synced(),
            stores.backups.synced(),
            stores.trackers.synced()
        );
    };
    setup.work(queue, 1, known, move |key| reconcile(context.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.trackers.wake(queue, |_, change| [change.key.clone()]);
    changes.vms.wake(queue, |stores, change| stores.trackers.keys_by_index(&machine_index(change.key)));
    changes.vmis.wake(queue, |stores, change| stores.trackers.keys_by_index(&machine_index(change.key)));
}

/// Sees to a tracker whose checkpoint somebody doubts.
async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("vmbackuptracker", &key, Box::pin(sync(&context, &key)).await)
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(tracker) = context.stores.trackers.get(key) else { return Ok(Next::Wait) };
    let status = tracker.status.clone().unwrap_or_default();
    let vmi = context.stores.vmis.get(&Key::new(key.namespace.as_str(), tracker.spec.source.name.as_str()));
    if status.latest_checkpoint.is_some() && vmi.as_ref().is_some_and(runs_untracked) {
        return forget(context, &tracker, "the machine runs untracked").await.map(|()| Next::Wait);
    }
    if status.checkpoint_redefinition_required != Some(true) {
        return Ok(Next::Wait);
    }
    let Some(checkpoint) = status.latest_checkpoint else {
        return change(context, &tracker, |status| status.checkpoint_redefinition_required = None).await;
    };
    let Some(vmi) = vmi.filter(is_tracked) else { return Ok(Next::Wait) };
    let why = match redefine(context, &vmi, &checkpoint).await {
        Ok(()) => None,
        Err(error) if is_gone(&error) => Some(Chain(&error).to_string()),
        Err(error) => return Err(error),
    };
    match why {
        None => change(context, &tracker, |status| status.checkpoint_redefinition_required = None).await,
        Some(why) => forget(context, &tracker, &why).await.map(|()| Next::Wait),
    }
}

fn is_tracked(vmi: &VirtualMachineInstance) -> bool {
    let known = vmi.status.as_ref().and_then(|status| status.changed_block_tracking.as_ref());
    known.is_some_and(|known| known.state == tracking::ENABLED)
}

/// The guest changes its disks, and nobody counts that.
fn runs_untracked(vmi: &VirtualMachineInstance) -> bool {
    let runs = vmi.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase::RUNNING);
    runs && !persistent_state::keeps_tracking(vmi)
}

/// Tells the launcher of `vmi` of a checkpoint.
pub(super) async fn redefine(
    context: &Context,
    vmi: &VirtualMachineInstance,
    checkpoint: &BackupCheckpoint,
) -> Result<(), Error> {
    subresource(context, vmi, "redefine-checkpoint", &json!(checkpoint)).await
}

/// The tracker's checkpoint is good for nothing: its next backup is a full one.
pub(super) async fn forget(context: &Context, tracker: &VirtualMachineBackupTracker, why: &str) -> Result<(), Error> {
    change(context, tracker, |status| {
        status.latest_checkpoint = None;
        status.checkpoint_redefinition_required = None;
    })
    .await?;
    let message =
        format!("What changed since the last backup is not known any more, the next one is a full one: {why}");
    context.recorder.warning(&reference(tracker), "CheckpointLost", message);
    Ok(())
}

/// The tracker's checkpoint is that of the backup that was `made`; the name of the one before it, if that is another.
pub(super) async fn advance(
    context: &Context,
    tracker: &VirtualMachineBackupTracker,
    made: &VirtualMachineInstanceBackupStatus,
) -> Result<Option<String>, Error> {
    let before = tracker.status.as_ref().and_then(|status| status.latest_checkpoint.as_ref()?.name.clone());
    if before == made.checkpoint_name {
        return Ok(None);
    }
    let volume = |name: &str| BackupVolumeInfo { volume_name: name.to_owned(), ..BackupVolumeInfo::default() };
    let latest = BackupCheckpoint {
        name: made.checkpoint_name.clone(),
        creation_time: made.start_timestamp.clone(),
        volumes: made.volumes.iter().map(|one| volume(&one.volume_name)).collect(),
    };
    change(context, tracker, |status| {
        status.latest_checkpoint = Some(latest);
        status.checkpoint_redefinition_required = None;
    })
    .await?;
    Ok(before)
}

async fn change(
    context: &Context,
    tracker: &VirtualMachineBackupTracker,
    change: impl FnOnce(&mut VirtualMachineBackupTrackerStatus),
) -> Result<Next, Error> {
    let old = tracker.status.clone().unwrap_or_default();
    let mut wanted = old.clone();
    change(&mut wanted);
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(Next::Wait) };
    let (namespace, name) = (tracker.namespace().unwrap_or_default(), tracker.name_any());
    let api: Api<VirtualMachineBackupTracker> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(tracker.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.trackers, tracker_indexes, ("virtualmachinebackuptracker", tracker))
        .map(|_| Next::Wait)
}
