//! VirtualMachineBackup: what is on a running machine's disks at one moment, written to a claim while the guest goes on.
//!
//! ```text
//! held -> the instance is locked for it -> its claim comes to the launcher -> Start -> (launcher: Completed)
//!      -> the tracker knows the new checkpoint -> Complete -> the claim goes, the lock goes
//! ```
//! One that is pulled (mode Pull) is served between Start and Completed: QEMU serves it over NBD, an export of the backup's own
//! shows it, and it ends with its time or its object.
//!
//! The lock is the backup's name in the instance's status. Everything is done anew after a restart of this controller: what
//! is there is not made twice, and the launcher knows a backup by its name and its start.

pub mod plan;
pub mod tracker;

use api::backup::v1alpha1::{
    BackupCheckpoint, BackupOptions, VirtualMachineBackup, VirtualMachineBackupStatus, VirtualMachineBackupTracker,
};
use api::export::v1::VirtualMachineExport;
use api::kubevirt::v1::{UtilityVolume, VirtualMachineInstance};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::queue::{Next, Queue};
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use plan::{Outcome, Step, View, pull};
use serde_json::{Value, json};

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::copies::{backup_indexes, is_tracked, machine_index, tracker_index};
use crate::facts::index::{claim_index, vmi_indexes};
use crate::setup::Setup;
use crate::stores::{Changes, Stores};
use crate::{patch, write};

/// What keeps a backup until it has been seen to.
pub const FINALIZER: &str = "backup.kubevirt.io/vmbackup-protection";
const KIND: &str = "virtualmachinebackup";
/// Where the launcher has volumes of its own.
const VOLUMES: &str = "/var/run/kubevirt/hotplug-disks";
/// The status code that says that a checkpoint is not what it should be.
const GONE: u16 = 410;

/// Has backups looked after.
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
    setup.work(queue, 2, known, move |key| reconcile(context.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.backups.wake(queue, |_, change| [change.key.clone()]);
    changes.trackers.wake(queue, |stores, change| stores.backups.keys_by_index(&tracker_index(change.key)));
    changes.vms.wake(queue, |stores, change| of_machine(stores, change.key));
    changes.vmis.wake(queue, |stores, change| of_machine(stores, change.key));
    changes.claims.wake(queue, |stores, change| {
        stores.backups.keys_by_index(&claim_index(&change.key.namespace, &change.key.name))
    });
    // A backup and the export that shows it share their name.
    changes.exports.wake(queue, |stores, change| stores.backups.contains(change.key).then(|| change.key.clone()));
}

/// Backups that may wait for what has changed of the machine.
fn of_machine(stores: &Stores, machine: &Key) -> Vec<Key> {
    let word = machine_index(machine);
    let trackers = stores.trackers.keys_by_index(&word).into_iter();
    let tracked = trackers.flat_map(|tracker| stores.backups.keys_by_index(&tracker_index(&tracker)));
    stores.backups.keys_by_index(&word).into_iter().chain(tracked).collect()
}

/// Brings one backup a step further.
async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("vmbackup", &key, Box::pin(sync(&context, &key)).await)
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(backup) = context.stores.backups.get(key) else { return Ok(Next::Wait) };
    let in_namespace = |name: &str| Key::new(key.namespace.as_str(), name);
    let source = backup.spec.source.name.as_str();
    let tracker = if is_tracked(&backup) { context.stores.trackers.get(&in_namespace(source)) } else { None };
    let machine = match (&tracker, is_tracked(&backup)) {
        (Some(tracker), _) => Some(in_namespace(&tracker.spec.source.name)),
        (None, true) => None,
        (None, false) => Some(in_namespace(source)),
    };
    let vmi = machine.as_ref().and_then(|machine| context.stores.vmis.get(machine));
    let claim = backup.spec.pvc_name.as_deref().and_then(|claim| context.stores.claims.get(&in_namespace(claim)));
    let claims = vmi.as_ref().map(|vmi| context.claims_of(vmi)).unwrap_or_default();
    let (export, now) = (context.stores.exports.get(key), clock::now());
    let view = View {
        backup: &backup,
        tracker: tracker.as_ref(),
        machine_exists: machine.as_ref().is_some_and(|machine| context.stores.vms.contains(machine)),
        vmi: vmi.as_ref(),
        claim: claim.as_ref(),
        claims: &claims,
        export: export.as_ref().filter(|_| pull::is_pulled(&backup)),
        held: backup.finalizers().iter().any(|held| held == FINALIZER),
        now,
    };
    let step = plan::next(&view);
    let next = execute(context, &backup, tracker.as_ref(), vmi.as_ref(), step).await?;
    let timed = pull::is_pulled(&backup) && !plan::is_over(&backup);
    // Nobody tells that its time is over.
    Ok(match (next, pull::left(&backup, now).filter(|_| timed)) {
        (Next::Wait, Some(left)) => Next::After(left),
        (next, _) => next,
    })
}

async fn execute(
    context: &Context,
    backup: &VirtualMachineBackup,
    tracker: Option<&VirtualMachineBackupTracker>,
    vmi: Option<&VirtualMachineInstance>,
    step: Step,
) -> Result<Next, Error> {
    match (step, vmi) {
        (Step::Hold, _) => {
            let held: Vec<String> = backup.finalizers().iter().cloned().chain([FINALIZER.to_owned()]).collect();
            write::finalizers(&context.client, (KIND, backup), &held).await?;
        }
        (Step::Release, _) => {
            let kept: Vec<String> = backup.finalizers().iter().filter(|held| *held != FINALIZER).cloned().collect();
            write::finalizers(&context.client, (KIND, backup), &kept).await?;
        }
        (Step::Say(outcome), _) => say(context, backup, &outcome).await?,
        (Step::Lock, Some(vmi)) => {
            let lock = json!({ "backupName": backup.name_any(), "startTimestamp": backup.creation_timestamp() });
            set_lock(context, vmi, &lock).await?;
        }
        (Step::Unlock, Some(vmi)) => set_lock(context, vmi, &Value::Null).await?,
        (Step::Attach, Some(vmi)) => {
            let mut volumes = vmi.spec.utility_volumes.clone();
            volumes.push(UtilityVolume {
                name: plan::volume(backup),
                claim_name: backup.spec.pvc_name.clone().unwrap_or_default(),
                read_only: None,
                type_: Some("Backup".to_owned()),
            });
            set_volumes(context, vmi, &volumes).await?;
        }
        (Step::Detach, Some(vmi)) => {
            let (mut volumes, own) = (vmi.spec.utility_volumes.clone(), plan::volume(backup));
            volumes.retain(|volume| volume.name != own);
            set_volumes(context, vmi, &volumes).await?;
        }
        (Step::Serve, _) => serve(context, backup).await?,
        (Step::Withdraw, _) => withdraw(context, backup).await?,
        (Step::Start { since }, Some(vmi)) => return start(context, backup, tracker, vmi, since).await,
        (Step::Abort, Some(vmi)) => ask(context, vmi, &options(backup, "Abort", None)).await?,
        (Step::Conclude(outcome), Some(vmi)) => {
            let kept = tracker.filter(|_| !matches!(outcome, Outcome::Failed { .. }));
            conclude(context, backup, kept, vmi).await?;
            say(context, backup, &outcome).await?;
        }
        (Step::Wait, _) | (_, None) => {}
    }
    Ok(Next::Wait)
}

/// Has the launcher begin. A checkpoint that it does not know is made known to it; one that cannot be relied on any more is
/// forgotten, and the backup is a full one.
async fn start(
    context: &Context,
    backup: &VirtualMachineBackup,
    tracker: Option<&VirtualMachineBackupTracker>,
    vmi: &VirtualMachineInstance,
    since: Option<BackupCheckpoint>,
) -> Result<Next, Error> {
    let name = since.as_ref().and_then(|since| since.name.clone());
    let asked = ask(context, vmi, &options(backup, "Start", name.clone())).await;
    let gone = asked.as_ref().err().is_some_and(is_gone);
    match (&since, tracker) {
        (Some(since), Some(tracker)) if gone => {
            let why = match tracker::redefine(context, vmi, since).await {
                Ok(()) => None,
                Err(error) if is_gone(&error) => Some(Chain(&error).to_string()),
                Err(error) => return Err(error),
            };
            if let Some(why) = why {
                tracker::forget(context, tracker, &why).await?;
                return Ok(Next::Retry);
            }
            ask(context, vmi, &options(backup, "Start", name)).await?;
        }
        _ => asked?,
    }
    let kind = if since.is_some() { plan::INCREMENTAL } else { plan::FULL };
    say(context, backup, &Outcome::Runs { kind }).await?;
    context.recorder.normal(&reference(backup), "VirtualMachineBackupInitiated", "Backup is in progress");
    Ok(Next::Wait)
}

/// Makes the export that shows it.
async fn serve(context: &Context, backup: &VirtualMachineBackup) -> Result<(), Error> {
    let Some(left) = pull::left(backup, clock::now()) else { return Ok(()) };
    let (namespace, name) = (backup.namespace().unwrap_or_default(), backup.name_any());
    let api: Api<VirtualMachineExport> = Api::namespaced(context.client.clone(), &namespace);
    match api.create(&PostParams::default(), &pull::export(backup, left)).await {
        // It is seen in a moment.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
        made => made.map(drop).map_err(Error::api("create", "virtualmachineexport", &namespace, &name)),
    }
}

/// Removes the export that shows it.
async fn withdraw(context: &Context, backup: &VirtualMachineBackup) -> Result<(), Error> {
    let (namespace, name) = (backup.namespace().unwrap_or_default(), backup.name_any());
    let own = context.stores.exports.get(&Key::new(namespace.as_str(), name.as_str()));
    let this = Preconditions { uid: own.and_then(|own| own.uid()), resource_version: None };
    let api: Api<VirtualMachineExport> = Api::namespaced(context.client.clone(), &namespace);
    match api.delete(&name, &DeleteParams { preconditions: Some(this), ..DeleteParams::default() }).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        gone => gone.map(drop).map_err(Error::api("delete", "virtualmachineexport", &namespace, &name)),
    }
}

/// The launcher has done its part: the checkpoint is the tracker's, if there is one that is to go on from it, and the one before
/// is of no use any more.
async fn conclude(
    context: &Context,
    backup: &VirtualMachineBackup,
    tracker: Option<&VirtualMachineBackupTracker>,
    vmi: &VirtualMachineInstance,
) -> Result<(), Error> {
    let Some(made) = plan::told(backup, vmi).filter(|made| made.failed != Some(true)) else { return Ok(()) };
    let Some(checkpoint) = made.checkpoint_name.clone() else { return Ok(()) };
    let old = match tracker {
        Some(tracker) => tracker::advance(context, tracker, made).await?,
        // Nobody will ask for what changed since this one.
        None => Some(checkpoint),
    };
    let Some(old) = old else { return Ok(()) };
    if let Err(error) = ask(context, vmi, &options(backup, "Forget", Some(old))).await {
        tracing::info!(backup = backup.name_any(), error = %Chain(&error), "a checkpoint of no use is left");
    }
    Ok(())
}

fn options(backup: &VirtualMachineBackup, command: &str, checkpoint: Option<String>) -> Value {
    let options = BackupOptions {
        backup_name: Some(backup.name_any()),
        backup_start_time: backup.creation_timestamp(),
        cmd: Some(command.to_owned()),
        mode: backup.spec.mode.clone().or_else(|| Some(plan::PUSH.to_owned())),
        incremental: checkpoint,
        skip_quiesce: backup.spec.skip_quiesce,
        target_path: Some(format!("{VOLUMES}/{}", plan::volume(backup))),
        ..BackupOptions::default()
    };
    json!(options)
}

async fn ask(context: &Context, vmi: &VirtualMachineInstance, options: &Value) -> Result<(), Error> {
    subresource(context, vmi, "backup", options).await
}

/// A request to a subresource of an instance.
pub(crate) async fn subresource(
    context: &Context,
    vmi: &VirtualMachineInstance,
    verb: &'static str,
    body: &Value,
) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let path =
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{verb}");
    let request = http::Request::put(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).map_err(Error::setup("make a request"))?;
    let answer = context.client.request_text(request).await;
    answer.map(drop).map_err(Error::api(verb, "virtualmachineinstance", &namespace, &name))
}

/// The checkpoint that was asked for is not there any more.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == GONE))
}

async fn set_lock(context: &Context, vmi: &VirtualMachineInstance, lock: &Value) -> Result<(), Error> {
    let patch = json!({ "status": { "changedBlockTracking": { "backupStatus": lock } } });
    patch_instance(context, vmi, patch).await
}

/// Sets the utility volumes of `vmi`, as it was read.
pub(crate) async fn set_volumes(
    context: &Context,
    vmi: &VirtualMachineInstance,
    volumes: &[UtilityVolume],
) -> Result<(), Error> {
    patch_instance(context, vmi, json!({ "spec": { "utilityVolumes": volumes } })).await
}

async fn patch_instance(context: &Context, vmi: &VirtualMachineInstance, mut patch: Value) -> Result<(), Error> {
    patch["metadata"] = json!({ "resourceVersion": vmi.metadata.resource_version });
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let answer = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.vmis, vmi_indexes, ("virtualmachineinstance", vmi)).map(drop)
}

async fn say(context: &Context, backup: &VirtualMachineBackup, outcome: &Outcome) -> Result<(), Error> {
    let old = backup.status.as_deref().cloned().unwrap_or_default();
    let mut wanted = old.clone();
    plan::enter(&mut wanted, outcome, &Time(clock::seconds(clock::now())));
    if !write_status(context, backup, &old, &wanted).await? {
        return Ok(());
    }
    let about = reference(backup);
    match outcome {
        Outcome::Complete { warning: None, .. } => {
            let message = "Successfully completed VirtualMachineBackup";
            context.recorder.normal(&about, "VirtualMachineBackupCompletedSuccessfully", message);
        }
        Outcome::Complete { warning: Some(why), .. } => {
            let message = format!("Completed VirtualMachineBackup, warning: {why}");
            context.recorder.warning(&about, "VirtualMachineBackupCompletedWithWarning", message);
        }
        Outcome::Failed { why, .. } => {
            let message = format!("Backup has failed: {why}");
            context.recorder.warning(&about, "VirtualMachineBackupFailed", message);
        }
        Outcome::Waits(_)
        | Outcome::Runs { .. }
        | Outcome::Preparing { .. }
        | Outcome::Served { .. }
        | Outcome::Aborting(_) => {}
    }
    Ok(())
}

/// False when there was nothing to write.
async fn write_status(
    context: &Context,
    backup: &VirtualMachineBackup,
    old: &VirtualMachineBackupStatus,
    wanted: &VirtualMachineBackupStatus,
) -> Result<bool, Error> {
    let Some(changed) = patch::changed(old, wanted) else { return Ok(false) };
    let (namespace, name) = (backup.namespace().unwrap_or_default(), backup.name_any());
    let api: Api<VirtualMachineBackup> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(backup.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.backups, backup_indexes, (KIND, backup))
}
