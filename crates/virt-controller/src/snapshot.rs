//! VirtualMachineSnapshot: what a machine is, and what is on its disks, at one moment.
//!
//! The source is locked by a field of its status, the guest's agent writes out the file systems and holds them, each volume is
//! cut by its CSI driver, and the guest goes on. What was cut is listed in a VirtualMachineSnapshotContent, which owns the
//! volume snapshots. The snapshot has succeeded once every volume is cut; it says for as long as it is there whether volumes
//! can be made of it.

mod content;
pub(crate) mod metrics;
pub mod plan;
mod source;
mod volumes;

use std::time::Duration;

use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::{
    Error as Trouble, SnapshotVolumesLists, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
    VirtualMachineSnapshotStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::queue::{Next, Queue};
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use meta::volume_snapshot::VolumeSnapshot;
use plan::{Outcome, Source};

use crate::context::Context;
use crate::error::{self, Error};
use crate::facts::copies::{of_content, snapshot_indexes, source_index};
use crate::setup::Setup;
use crate::stores::{Changes, Stores, index_values};
use crate::{patch, write};

pub use content::name as content_name;

pub(crate) use content::find as find_content;
pub(crate) use volumes::state_volume;

/// What keeps a snapshot until its content has been seen to.
pub const FINALIZER: &str = "snapshot.kubevirt.io/vmsnapshot-protection";
const RETAIN: &str = "Retain";
/// How long a volume snapshot is given until somebody says something of it.
const UNHEARD: Duration = Duration::from_secs(10);
/// Between two looks at what nobody tells of.
const SOON: Duration = Duration::from_secs(1);
/// Before a guest that could not hold its file systems is asked again.
const RELUCTANT: Duration = Duration::from_secs(5);

/// Has snapshots looked after.
pub(crate) fn register(setup: &mut Setup) {
    let (context, queue) = (setup.context.clone(), Queue::default());
    wakes(&mut setup.changes, &queue);
    let stores = context.stores.clone();
    let known = async move {
        tokio::join!(
            stores.vms.synced(),
            stores.vmis.synced(),
            stores.claims.synced(),
            stores.data_volumes.synced(),
            // The guest is held while volume snapshots are made that are missing.
            stores.volume_snapshots.synced(),
            stores.snapshots.synced()
        );
    };
    setup.work(queue, 2, known, move |key| reconcile(context.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.snapshots.wake(queue, |_, change| [change.key.clone()]);
    changes.volume_snapshots.wake(queue, |stores, change| {
        index_values(change)
            .filter_map(|word| of_content(word))
            .flat_map(|of| with_content(stores, of))
            .collect::<Vec<_>>()
    });
    changes.vms.wake(queue, |stores, change| of_machine(stores, change.key));
    changes.vmis.wake(queue, |stores, change| of_machine(stores, change.key));
}

/// Snapshots that may wait for what has changed of the machine.
fn of_machine(stores: &Stores, vm: &Key) -> Vec<Key> {
    stores.snapshots.keys_by_index(&source_index(vm))
}

/// The snapshot of this UID.
fn with_content(stores: &Stores, (namespace, uid): (&str, &str)) -> Vec<Key> {
    let is_it = |key: &Key| {
        let found = stores.snapshots.get(key);
        key.namespace == namespace && found.and_then(|found| found.uid()).as_deref() == Some(uid)
    };
    stores.snapshots.keys().into_iter().filter(is_it).collect()
}

/// Brings one snapshot a step further.
async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("vmsnapshot", &key, Box::pin(sync(&context, &key)).await)
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(snapshot) = context.stores.snapshots.get(key) else { return Ok(Next::Wait) };
    let vm_key = Key::new(key.namespace.as_str(), snapshot.spec.source.name.as_str());
    let vm = context.stores.vms.get(&vm_key);
    if snapshot.metadata.deletion_timestamp.is_some() {
        return forget(context, &snapshot, vm.as_ref()).await;
    }
    if !snapshot.finalizers().iter().any(|held| held == FINALIZER) {
        let mut finalizers = snapshot.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        write::finalizers(&context.client, ("virtualmachinesnapshot", &snapshot), &finalizers).await?;
        return Ok(Next::Wait);
    }
    if plan::has_failed(&snapshot) {
        content::release(context, &snapshot, keeps(&snapshot)).await?;
        source::unlock(context, &snapshot, vm.as_ref()).await?;
        return Ok(Next::Wait);
    }
    let now = clock::now();
    let mut status = snapshot.status.as_deref().cloned().unwrap_or_default();
    if plan::has_succeeded(&snapshot) {
        source::unlock(context, &snapshot, vm.as_ref()).await?;
        if let Some(content) = content::find(context, &snapshot).await? {
            look(context, &snapshot, &content, &mut status, now).await?;
        }
        plan::conclude(&mut status, &Outcome::Done, clock::seconds(now));
        write_status(context, &snapshot, status).await?;
        return Ok(Next::Wait);
    }
    let (outcome, next) = match advance(context, &snapshot, vm.as_ref(), &mut status, now).await {
        Ok(turn) => turn,
        Err(error) if error.is_conflict() => return Err(error),
        Err(error) => {
            tracing::warn!(vmsnapshot = %key, error = %Chain(&error), "no step further, and will be tried again");
            (Outcome::Runs, Next::After(SOON))
        }
    };
    let (outcome, next) = match (outcome, plan::deadline(&snapshot)) {
        (Outcome::Runs | Outcome::Unheard(_) | Outcome::Waits(_), Some(deadline)) if deadline <= now => {
            source::thaw(context, &snapshot).await;
            content::release(context, &snapshot, keeps(&snapshot)).await?;
            (Outcome::Failed, Next::Wait)
        }
        (outcome @ (Outcome::Runs | Outcome::Unheard(_) | Outcome::Waits(_)), Some(deadline)) => {
            let left = Duration::try_from(deadline.duration_since(now)).unwrap_or(SOON);
            let next = if let Next::After(sooner) = next { Next::After(left.min(sooner)) } else { Next::After(left) };
            (outcome, next)
        }
        (outcome, _) => (outcome, next),
    };
    plan::conclude(&mut status, &outcome, clock::seconds(now));
    write_status(context, &snapshot, status).await?;
    match &outcome {
        Outcome::Failed => {
            let about = crate::context::reference(&snapshot);
            context.recorder.warning(&about, "VirtualMachineSnapshotFailed", plan::TOO_LATE);
            source::unlock(context, &snapshot, vm.as_ref()).await?;
        }
        Outcome::Done => {
            // As it was locked just now, if it was.
            source::unlock(context, &snapshot, context.stores.vms.get(&vm_key).as_ref()).await?;
        }
        Outcome::Runs | Outcome::Unheard(_) | Outcome::Waits(_) => {}
    }
    Ok(next)
}

fn keeps(snapshot: &VirtualMachineSnapshot) -> bool {
    snapshot.spec.deletion_policy.as_deref() == Some(RETAIN)
}

async fn advance(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    vm: Option<&VirtualMachine>,
    status: &mut VirtualMachineSnapshotStatus,
    now: Timestamp,
) -> Result<(Outcome, Next), Error> {
    let waits = |why: String, next: Next| Ok((Outcome::Waits(why), next));
    let found = plan::source(snapshot, vm);
    let (vm, used) = match (&found, vm) {
        (Source::Missing, _) | (_, None) => return waits("Source does not exist".to_owned(), Next::Wait),
        (Source::Taken(by), _) => return waits(format!("Source not locked {by}"), Next::Wait),
        (Source::Ours, Some(vm)) => (vm.clone(), None),
        (Source::Free, Some(vm)) => {
            let used = volumes::used(context, vm).await?;
            if let Some(why) = source::obstacle(context, vm, &used).await? {
                return waits(format!("Source not locked {why}"), Next::After(SOON));
            }
            (source::lock(context, snapshot, vm).await?, Some(used))
        }
    };
    status.source_uid = vm.uid();
    let content = match content::find(context, snapshot).await? {
        Some(content) => content,
        None => {
            let used = match used {
                Some(used) => used,
                None => volumes::used(context, &vm).await?,
            };
            let content = volumes::content(context, snapshot, &vm, used).await?;
            content::create(context, snapshot, &content).await?
        }
    };
    status.virtual_machine_snapshot_content_name = content.metadata.name.clone();
    let guest = source::guest(context, snapshot);
    guest.indicate(status);
    let namespace = snapshot.namespace().unwrap_or_default();
    let missing: Vec<VolumeSnapshot> = volumes::wanted(&content)
        .into_iter()
        .filter(|wanted| !context.stores.volume_snapshots.contains(&Key::new(namespace.as_str(), wanted.name_any())))
        .collect();
    if !missing.is_empty() && guest.can_freeze() && !guest.frozen {
        status.error = source::freeze(context, snapshot).await.map(|why| trouble(status, why, now));
        if status.error.is_some() {
            status.ready_to_use = Some(false);
            return Ok((Outcome::Runs, Next::After(RELUCTANT)));
        }
    }
    for wanted in &missing {
        content::cut(context, &content, wanted).await?;
    }
    let progress = of_volumes(context, &content);
    let was_cut = content.status.as_ref().is_some_and(|status| status.creation_time.is_some());
    if progress.cut
        && !was_cut
        && !content.spec.volume_backups.is_empty()
        && let Some(why) = source::thaw(context, snapshot).await
    {
        // They were not held until the last volume was cut; the agent says so once.
        status.error = Some(trouble(status, why, now));
        guest.indicate(status);
        return Ok((Outcome::Runs, Next::After(RELUCTANT)));
    }
    look(context, snapshot, &content, status, now).await?;
    if status.creation_time.is_none() {
        let since = content.metadata.creation_timestamp.as_ref().map(|since| since.0);
        let waited = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok()).unwrap_or_default();
        return Ok(match progress.unheard {
            Some(name) if waited >= UNHEARD => (Outcome::Unheard(unheard(&namespace, &name)), Next::Wait),
            Some(_) => (Outcome::Runs, Next::After(UNHEARD.saturating_sub(waited))),
            None => (Outcome::Runs, Next::Wait),
        });
    }
    let (lists, partial) = lists(&vm, &content);
    status.snapshot_volumes = Some(lists);
    if partial {
        plan::indicate_partial(status);
    }
    Ok((Outcome::Done, Next::Wait))
}

/// `why`, since it was first said in `status`.
fn trouble(status: &VirtualMachineSnapshotStatus, why: String, now: Timestamp) -> Trouble {
    let before = status.error.as_ref().filter(|error| error.message.as_ref() == Some(&why));
    let since = before.and_then(|error| error.time.clone());
    Trouble { message: Some(why), time: Some(since.unwrap_or_else(|| Time(clock::seconds(now)))) }
}

fn of_volumes(context: &Context, content: &VirtualMachineSnapshotContent) -> plan::Progress {
    let namespace = content.namespace().unwrap_or_default();
    plan::progress(content, |name| context.stores.volume_snapshots.get(&Key::new(namespace.as_str(), name)))
}

/// Says in `content` and in `status` how far the volumes are.
async fn look(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    content: &VirtualMachineSnapshotContent,
    status: &mut VirtualMachineSnapshotStatus,
    now: Timestamp,
) -> Result<(), Error> {
    let told = content::tell(context, content, &of_volumes(context, content), now).await?;
    tracing::debug!(vmsnapshot = %snapshot.name_any(), ready = ?told.ready_to_use, "volumes looked at");
    status.creation_time = told.creation_time;
    status.ready_to_use = told.ready_to_use;
    status.error = told.error;
    Ok(())
}

/// What is said of a volume snapshot that no controller has taken up.
fn unheard(namespace: &str, name: &str) -> String {
    format!(
        "VolumeSnapshot {namespace}/{name} is not being made: nothing has answered to it; install the cluster's snapshot controller, or see \
         whether it and the driver's csi-snapshotter run"
    )
}

/// Which of the machine's volumes are in `content` and which not; and whether one is missing that lies on a claim.
fn lists(vm: &VirtualMachine, content: &VirtualMachineSnapshotContent) -> (SnapshotVolumesLists, bool) {
    let taken = |name: &str| {
        let backup = content.spec.volume_backups.iter().find(|backup| backup.volume_name == name);
        backup.is_some_and(|backup| backup.volume_snapshot_name.is_some())
    };
    let spec = vm.spec.template.spec.as_deref();
    let volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
    let partial = volumes.clone().any(|volume| volume.kept_claim().is_some() && !taken(&volume.name));
    let names = volumes.map(|volume| volume.name.clone());
    let (mut included_volumes, excluded_volumes): (Vec<String>, Vec<String>) = names.partition(|name| taken(name));
    included_volumes.extend(Some(state_volume(&vm.name_any())).filter(|name| taken(name)));
    (SnapshotVolumesLists { excluded_volumes, included_volumes }, partial)
}

async fn write_status(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    wanted: VirtualMachineSnapshotStatus,
) -> Result<(), Error> {
    let old = snapshot.status.as_deref().cloned().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let (namespace, name) = (snapshot.namespace().unwrap_or_default(), snapshot.name_any());
    let api: Api<VirtualMachineSnapshot> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(snapshot.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.snapshots, snapshot_indexes, ("virtualmachinesnapshot", snapshot)).map(drop)
}

/// Sees to what a deleted snapshot leaves.
async fn forget(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    vm: Option<&VirtualMachine>,
) -> Result<Next, Error> {
    if !snapshot.finalizers().iter().any(|held| held == FINALIZER) {
        return Ok(Next::Wait);
    }
    if vm.is_some_and(|vm| plan::is_locked(snapshot, vm)) && !plan::has_succeeded(snapshot) {
        source::thaw(context, snapshot).await;
    }
    content::release(context, snapshot, keeps(snapshot)).await?;
    source::unlock(context, snapshot, vm).await?;
    let kept: Vec<String> = snapshot.finalizers().iter().filter(|held| *held != FINALIZER).cloned().collect();
    write::finalizers(&context.client, ("virtualmachinesnapshot", snapshot), &kept).await?;
    Ok(Next::Wait)
}
