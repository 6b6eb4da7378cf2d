//! VirtualMachineRestore: a machine becomes what a snapshot of it, or of another, has kept.
//!
//! The target is locked by a field of its status, and does not start while it is. Its claims are made anew out of the volume
//! snapshots, its specification is replaced by the one that was kept, on those claims; the claims that it had before stay, but
//! for those of data volumes that it had made itself.

mod networks;
pub mod plan;
mod volumes;

use std::time::Duration;

use api::kubevirt::constants::run_strategy;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineRestoreStatus, VirtualMachineSnapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::queue::{Next, Queue};
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use plan::Refused;
use serde_json::{Value, json};
use volumes::Made;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::copies::{restore_indexes, snapshot_index, source_index};
use crate::facts::index::{claim_index, vm_indexes};
use crate::facts::{data_volumes, machine};
use crate::revisions;
use crate::setup::Setup;
use crate::snapshot;
use crate::snapshot::plan::say;
use crate::stores::Changes;
use crate::vm::plan as running;
use crate::{patch, write};

/// What keeps a restore until its target is free again.
pub const FINALIZER: &str = "snapshot.kubevirt.io/vmrestore-protection";
/// How long a target that runs is waited for when nobody says otherwise.
const GRACE: jiff::SignedDuration = jiff::SignedDuration::from_secs(300);
/// Between two looks at what nobody tells of.
const SOON: Duration = Duration::from_secs(1);

/// Why a target is waited for, as clients know it.
mod constants {
    pub(super) const STOP: &str =
        "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore";
    pub(super) const STOP_IN_TIME: &str = "Waiting for target VM to be powered off. Please stop the restore target to \
                                           proceed with restore, or the operation will fail after 5m0s";
    pub(super) const STOPPING: &str = "Automatically stopping restore target for restore operation";
    pub(super) const RUNS: &str = "Restore target VMI must be powered off before restore operation";
    pub(super) const TOO_LATE: &str = "Restore target failed to be ready within 5m0s. Please power off the target VM \
                                       before attempting restore";
    pub(super) const STATE: &str =
        "Restore to a different VM is not supported when snapshotted VM has backend storage (persistent TPM or EFI)";
    pub(super) const ANOTHER: &str =
        "restore source and restore target are different but restore target already exists";
    /// What the event says meanwhile.
    pub(super) const STILL_THERE: &str =
        "Restore target VMI still exists, please stop the restore target to proceed with restore";
}

/// Values of `spec.targetReadinessPolicy`.
mod readiness {
    pub(super) const STOP: &str = "StopTarget";
    pub(super) const FAIL: &str = "FailImmediate";
    pub(super) const FOR_EVER: &str = "WaitEventually";
}

/// Has restores looked after.
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
            stores.storage_classes.synced(),
            // They say how large the claims are to be.
            stores.volume_snapshots.synced(),
            stores.snapshots.synced(),
            stores.restores.synced()
        );
    };
    setup.work(queue, 2, known, move |key| reconcile(context.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.restores.wake(queue, |_, change| [change.key.clone()]);
    changes.snapshots.wake(queue, |stores, change| stores.restores.keys_by_index(&snapshot_index(change.key)));
    changes.vms.wake(queue, |stores, change| stores.restores.keys_by_index(&source_index(change.key)));
    changes.vmis.wake(queue, |stores, change| stores.restores.keys_by_index(&source_index(change.key)));
    changes.claims.wake(queue, |stores, change| {
        stores.restores.keys_by_index(&claim_index(&change.key.namespace, &change.key.name))
    });
}

/// Brings one restore a step further.
async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("vmrestore", &key, Box::pin(sync(&context, &key)).await)
}

/// What a pass came to.
enum Outcome {
    /// Something that others do is waited for.
    Waits(String),
    /// It goes on: what is being done, and what is waited for meanwhile.
    Goes(&'static str, &'static str),
    /// Something went wrong, and is tried again.
    Errs(String),
    /// It is done.
    Done,
    /// The target ran for too long, or ran at all.
    NotReady(&'static str),
    /// It cannot be done.
    Failed(String),
}

const NEW_CLAIMS: Outcome = Outcome::Goes("Creating new PVCs", "Waiting for new PVCs");
const NEW_SPEC: Outcome = Outcome::Goes("Updating target spec", "Waiting for target update");

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(mut restore) = context.stores.restores.get(key) else { return Ok(Next::Wait) };
    let target = context.stores.vms.get(&Key::new(key.namespace.as_str(), restore.spec.target.name.as_str()));
    let ours = target.as_ref().filter(|vm| locked_by(vm).is_some_and(|name| *name == restore.name_any()));
    let held = restore.finalizers().iter().any(|held| held == FINALIZER);
    if restore.metadata.deletion_timestamp.is_some() {
        if let Some(vm) = ours {
            give_back(context, vm).await?;
        }
        let kept: Vec<String> = restore.finalizers().iter().filter(|held| *held != FINALIZER).cloned().collect();
        if held {
            write::finalizers(&context.client, ("virtualmachinerestore", &restore), &kept).await?;
        }
        return Ok(Next::Wait);
    }
    let mut status = restore.status.clone().unwrap_or_default();
    let over = status.complete == Some(true) || status.conditions.iter().any(|c| c.type_ == "Failure");
    if over {
        if let Some(vm) = ours {
            give_back(context, vm).await?;
        }
        return Ok(Next::Wait);
    }
    if !held {
        hold(context, &restore, target.as_ref()).await?;
        return Ok(Next::Wait);
    }
    let (outcome, next, error) = match advance(context, &mut restore, target.as_ref(), &mut status).await {
        Ok((outcome, next)) => (outcome, next, None),
        Err(error) if error.is_conflict() => return Err(error),
        Err(error) => (Outcome::Errs(Chain(&error).to_string()), Next::Wait, Some(error)),
    };
    let now = Time(clock::seconds(clock::now()));
    conclude(&mut status, &outcome, &now);
    tell(context, &restore, &outcome);
    write_status(context, &restore, status).await?;
    error.map_or(Ok(next), Err)
}

/// Says in `status` what a pass came to.
fn conclude(status: &mut VirtualMachineRestoreStatus, outcome: &Outcome, now: &Time) {
    let (progressing, doing, ready, waiting) = match outcome {
        Outcome::Goes(doing, waiting) => ("True", *doing, "False", *waiting),
        Outcome::Waits(why) | Outcome::Errs(why) | Outcome::Failed(why) => {
            ("False", why.as_str(), "False", why.as_str())
        }
        Outcome::NotReady(why) => ("False", *why, "False", *why),
        Outcome::Done => ("False", "Operation complete", "True", "Operation complete"),
    };
    let done = matches!(outcome, Outcome::Done);
    status.complete = Some(done);
    status.restore_time = done.then(|| now.clone());
    say(&mut status.conditions, "Progressing", progressing, doing, now);
    say(&mut status.conditions, "Ready", ready, waiting, now);
    if matches!(outcome, Outcome::NotReady(_) | Outcome::Failed(_)) {
        say(&mut status.conditions, "Failure", "True", doing, now);
    }
}

/// Records what a pass came to.
fn tell(context: &Context, restore: &VirtualMachineRestore, outcome: &Outcome) {
    let about = reference(restore);
    match outcome {
        Outcome::Waits(_) | Outcome::Goes(..) => {}
        Outcome::Done => {
            let message = format!("Successfully completed VirtualMachineRestore {}", restore.name_any());
            context.recorder.normal(&about, "VirtualMachineRestoreComplete", message);
        }
        Outcome::NotReady(why) => {
            context.recorder.warning(&about, "Operation failed", format!("VirtualMachineRestore failed {why}"));
        }
        Outcome::Errs(why) | Outcome::Failed(why) => {
            let message = format!("VirtualMachineRestore encountered error {why}");
            context.recorder.warning(&about, "VirtualMachineRestoreError", message);
        }
    }
}

fn locked_by(vm: &VirtualMachine) -> Option<&String> {
    vm.status.as_ref()?.restore_in_progress.as_ref()
}

async fn advance(
    context: &Context,
    restore: &mut VirtualMachineRestore,
    target: Option<&VirtualMachine>,
    status: &mut VirtualMachineRestoreStatus,
) -> Result<(Outcome, Next), Error> {
    let namespace = restore.namespace().unwrap_or_default();
    let turn = |outcome: Outcome| Ok((outcome, Next::Wait));
    let restored = target.is_some_and(|vm| vm.annotations().get(plan::LAST) == Some(&plan::mark(restore)));
    let key = Key::new(namespace.as_str(), restore.spec.virtual_machine_snapshot_name.as_str());
    let source = context.stores.snapshots.get(&key);
    if let Some(vm) = target.filter(|_| !restored) {
        if source.as_ref().is_some_and(|source| is_another(vm, source)) {
            return turn(Outcome::Failed(constants::ANOTHER.to_owned()));
        }
        if let Some(turn) = at_rest(context, restore, vm).await? {
            return Ok(turn);
        }
    }
    let Some(source) = source else {
        return turn(Outcome::Errs(format!("VMSnapshot {key} does not exist")));
    };
    if snapshot::plan::has_failed(&source) {
        return turn(Outcome::Failed(format!("VMSnapshot {key} failed and is invalid to use")));
    }
    if source.status.as_ref().and_then(|status| status.ready_to_use) != Some(true) {
        return turn(Outcome::Errs(format!("VMSnapshot {key} not ready")));
    }
    let Some(content) = snapshot::find_content(context, &source).await? else {
        let name = snapshot::content_name(&source);
        return turn(Outcome::Failed(format!("VMSnapshotContent {namespace}/{name} does not exist")));
    };
    if plan::has_state(&content) && target.is_none_or(|vm| is_another(vm, &source)) {
        return turn(Outcome::Failed(constants::STATE.to_owned()));
    }
    if let Some(vm) = target.filter(|_| !restored)
        && let Some(turn) = take(context, restore, vm).await?
    {
        return Ok(turn);
    }
    let mut wanted = match plan::machine(restore, &content, target) {
        Ok(wanted) => wanted,
        Err(Refused(why)) => return turn(Outcome::Failed(why)),
    };
    let of = plan::source_name(&content).and_then(|name| context.stores.vms.get(&Key::new(namespace.as_str(), name)));
    let held: Vec<&VirtualMachine> = target.into_iter().chain(&of).collect();
    if let Some(why) = networks::refusal(context, &wanted, &held, &namespace).await? {
        return turn(Outcome::Failed(why));
    }
    status.restores = plan::volumes(restore, &content);
    match volumes::claims(context, restore, target, &content).await? {
        Made::All => {}
        Made::Waits => return Ok((NEW_CLAIMS, Next::After(SOON))),
        Made::Refused(why) => return turn(Outcome::Failed(why)),
    }
    revisions::give(context, restore, &source, &mut wanted).await?;
    let vm = match target {
        Some(vm) if restored => vm.clone(),
        Some(vm) => {
            let outdated = outdated(vm, &wanted);
            if status.deleted_data_volumes != outdated {
                // What is to be deleted is not known any more once the machine has changed.
                status.deleted_data_volumes = outdated;
                return Ok((NEW_SPEC, Next::After(SOON)));
            }
            replace(context, vm, &wanted).await?
        }
        None => create(context, &wanted).await?,
    };
    if restore.owner_references().is_empty() {
        *restore = hold(context, restore, Some(&vm)).await?;
    }
    volumes::hand_over(context, &vm, restore, &content).await?;
    revisions::hand_over(context, restore, &vm).await?;
    for data in &status.deleted_data_volumes {
        volumes::delete_data_volume(context, &namespace, data).await?;
    }
    // Whoever sees that it is done may start it.
    if locked_by(&vm).is_some_and(|name| *name == restore.name_any()) {
        give_back(context, &vm).await?;
    }
    turn(Outcome::Done)
}

/// True when `vm` is not the machine that was snapshotted: then it is not overwritten.
fn is_another(vm: &VirtualMachine, source: &VirtualMachineSnapshot) -> bool {
    let uid = source.status.as_ref().and_then(|status| status.source_uid.clone());
    uid.is_some() && uid != vm.uid()
}

/// Sees that the target does not run; what is waited for, if it does. It can be stopped only as long as nobody holds it.
async fn at_rest(
    context: &Context,
    restore: &VirtualMachineRestore,
    vm: &VirtualMachine,
) -> Result<Option<(Outcome, Next)>, Error> {
    if !context.stores.vmis.contains(&Key::of(vm)) {
        return Ok(None);
    }
    if locked_by(vm).is_some_and(|name| *name == restore.name_any()) {
        set_lock(context, vm, Value::Null).await?;
    }
    let about = reference(restore);
    let tell = |words: &str| context.recorder.warning(&about, "RestoreTargetNotReady", words);
    let waits = |words: &str| Outcome::Waits(words.to_owned());
    Ok(Some(match restore.spec.target_readiness_policy.as_deref() {
        Some(readiness::FAIL) => (Outcome::NotReady(constants::RUNS), Next::Wait),
        Some(readiness::FOR_EVER) => {
            tell(constants::STILL_THERE);
            (waits(constants::STOP), Next::Wait)
        }
        Some(readiness::STOP) => {
            tell(constants::STOPPING);
            stop(context, vm).await?;
            (waits(constants::STOPPING), Next::Wait)
        }
        _ => {
            let since = restore.metadata.creation_timestamp.as_ref().map_or(clock::now(), |at| at.0);
            let left = GRACE - clock::now().duration_since(since);
            match Duration::try_from(left) {
                Ok(left) if !left.is_zero() => {
                    tell(constants::STILL_THERE);
                    (waits(constants::STOP_IN_TIME), Next::After(left))
                }
                _ => (Outcome::NotReady(constants::TOO_LATE), Next::Wait),
            }
        }
    }))
}

/// Makes the target ours: it does not start any more. What is waited for, if somebody else has it.
async fn take(
    context: &Context,
    restore: &VirtualMachineRestore,
    vm: &VirtualMachine,
) -> Result<Option<(Outcome, Next)>, Error> {
    let status = vm.status.as_deref();
    if let Some(other) = status.and_then(|status| status.snapshot_in_progress.as_ref()) {
        return Ok(Some((Outcome::Waits(format!("vm snapshot {other} in progress")), Next::Wait)));
    }
    match locked_by(vm) {
        Some(other) if *other != restore.name_any() => {
            return Ok(Some((Outcome::Errs(format!("vm restore {other} in progress")), Next::Wait)));
        }
        Some(_) => {}
        None => {
            set_lock(context, vm, json!(restore.name_any())).await?;
            // It may have been started before it was known to be held.
            let Key { namespace, name } = Key::of(vm);
            let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
            let started = api.get_opt(&name).await;
            if started.map_err(Error::api("read", "virtualmachineinstance", &namespace, &name))?.is_some() {
                return Ok(Some((Outcome::Waits(constants::STOP.to_owned()), Next::After(SOON))));
            }
        }
    }
    Ok(None)
}

/// What `virtctl stop` does.
async fn stop(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let stopped = match machine::strategy(vm) {
        run_strategy::HALTED => return Ok(()),
        run_strategy::ALWAYS => {
            let spec = if vm.spec.running.is_some() {
                json!({ "running": false })
            } else {
                json!({ "runStrategy": run_strategy::HALTED })
            };
            api.patch(&name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
        }
        _ => {
            let vmi = context.stores.vmis.get(&Key::new(namespace.as_str(), name.as_str()));
            let Some(uid) = vmi.and_then(|vmi| vmi.uid()) else { return Ok(()) };
            let requests = json!({ "stateChangeRequests": [{ "action": running::STOP, "uid": uid }] });
            let patch = patch::status(vm.metadata.resource_version.as_deref(), &requests);
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await
        }
    };
    stopped.map(drop).map_err(Error::api("stop", "virtualmachine", &namespace, &name))
}

/// Keeps the restore until its target is free again, and has it go with the target.
async fn hold(
    context: &Context,
    restore: &VirtualMachineRestore,
    target: Option<&VirtualMachine>,
) -> Result<VirtualMachineRestore, Error> {
    let mut finalizers = restore.finalizers().to_vec();
    if !finalizers.iter().any(|held| held == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let mut metadata = json!({ "resourceVersion": restore.resource_version(), "finalizers": finalizers });
    if let Some(vm) = target.filter(|_| restore.owner_references().is_empty()) {
        metadata["ownerReferences"] = json!([volumes::owner(vm)]);
    }
    let (namespace, name) = (restore.namespace().unwrap_or_default(), restore.name_any());
    let api: Api<VirtualMachineRestore> = Api::namespaced(context.client.clone(), &namespace);
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let written = api.patch(&name, &PatchParams::default(), &patch).await;
    written.map_err(Error::api("hold", "virtualmachinerestore", &namespace, &name))
}

/// The data volumes that `vm` made itself and that `wanted` has no use for.
fn outdated(vm: &VirtualMachine, wanted: &VirtualMachine) -> Vec<String> {
    let templates = vm.spec.data_volume_templates.iter();
    let names = templates.filter_map(|template| template.metadata.as_ref()?.name.clone());
    names.filter(|name| !data_volumes::names(wanted).any(|kept| kept == name)).collect()
}

async fn replace(context: &Context, vm: &VirtualMachine, wanted: &VirtualMachine) -> Result<VirtualMachine, Error> {
    // A merge would keep what the snapshot did not have.
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let current = api.get(&name).await.map_err(Error::api("read", "virtualmachine", &namespace, &name))?;
    let mut new = current.clone();
    new.spec = wanted.spec.clone();
    new.metadata.annotations.clone_from(&wanted.metadata.annotations);
    new.metadata.labels.clone_from(&wanted.metadata.labels);
    let written = api.replace(&name, &PostParams::default(), &new).await;
    written.map_err(Error::api("restore", "virtualmachine", &namespace, &name))
}

async fn create(context: &Context, wanted: &VirtualMachine) -> Result<VirtualMachine, Error> {
    let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let made = api.create(&PostParams::default(), wanted).await;
    made.map_err(Error::api("create", "virtualmachine", &namespace, &name))
}

async fn set_lock(context: &Context, vm: &VirtualMachine, holder: Value) -> Result<(), Error> {
    write_vm_status(context, vm, &json!({ "restoreInProgress": holder })).await
}

/// Lets go of the target, whose memory was dumped when it was another.
async fn give_back(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    write_vm_status(context, vm, &json!({ "restoreInProgress": null, "memoryDumpRequest": null })).await
}

async fn write_vm_status(context: &Context, vm: &VirtualMachine, status: &Value) -> Result<(), Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let patch = patch::status(vm.metadata.resource_version.as_deref(), status);
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let written = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    let mut written = written.map_err(Error::api("lock", "virtualmachine", &namespace, &name))?;
    written.metadata.managed_fields = None;
    let words = vm_indexes(&written);
    context.stores.vms.put(&written, words);
    Ok(())
}

async fn write_status(
    context: &Context,
    restore: &VirtualMachineRestore,
    wanted: VirtualMachineRestoreStatus,
) -> Result<(), Error> {
    let old = restore.status.clone().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let (namespace, name) = (restore.namespace().unwrap_or_default(), restore.name_any());
    let api: Api<VirtualMachineRestore> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(restore.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.restores, restore_indexes, ("virtualmachinerestore", restore)).map(drop)
}
