//! What is to be done next for a VirtualMachineBackup, and what its status says. Pure.

pub mod pull;

use api::backup::v1alpha1::{
    BackupCheckpoint, BackupVolumeInfo, VirtualMachineBackup, VirtualMachineBackupStatus, VirtualMachineBackupTracker,
};
use api::export::v1::VirtualMachineExport;
use api::kubevirt::constants::{phase, tracking};
use api::kubevirt::hotplug::phase as volume_phase;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceBackupStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use meta::conditions;

use crate::facts::claims::{self, Claims};
use crate::facts::copies::is_tracked;
use crate::facts::launcher::suffix;
use crate::facts::migration_state;

/// Values of `status.type`.
pub const FULL: &str = "Full";
/// What changed since a checkpoint.
pub const INCREMENTAL: &str = "Incremental";
/// The mode in which QEMU writes the backup into the claim.
pub const PUSH: &str = "Push";
/// The mode in which QEMU serves the backup to whoever pulls it; the claim holds what the guest overwrites meanwhile.
pub const PULL: &str = "Pull";

/// Types of conditions.
mod condition {
    pub(super) const PROGRESSING: &str = "Progressing";
    pub(super) const COMPLETE: &str = "Complete";
    pub(super) const FAILED: &str = "Failed";
    pub(super) const QUIESCED: &str = "Quiesced";
    /// How earlier clients learn that it is over, either way.
    pub(super) const DONE: &str = "Done";
    /// How earlier clients learn that a backup can be pulled.
    pub(super) const EXPORT_INITIATED: &str = "ExportInitiated";
    pub(super) const EXPORT_READY: &str = "ExportReady";
}

/// The reason of one that is being ended.
const ABORTING: &str = "Aborting";

/// What is known.
#[derive(Debug)]
pub struct View<'a> {
    /// The backup.
    pub backup: &'a VirtualMachineBackup,
    /// Its tracker, if it names one that exists.
    pub tracker: Option<&'a VirtualMachineBackupTracker>,
    /// Its machine exists.
    pub machine_exists: bool,
    /// The machine's instance.
    pub vmi: Option<&'a VirtualMachineInstance>,
    /// Where it is written.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// The claims of the instance.
    pub claims: &'a Claims,
    /// The export of its name, which is its own when it is pulled.
    pub export: Option<&'a VirtualMachineExport>,
    /// It is kept until it has been seen to.
    pub held: bool,
    /// The time.
    pub now: Timestamp,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: something will change.
    Wait,
    /// Keep it until it has been seen to.
    Hold,
    /// It has been seen to.
    Release,
    /// Write down how it is.
    Say(Outcome),
    /// Make the instance this backup's.
    Lock,
    /// Let others have it.
    Unlock,
    /// Bring the claim to the launcher.
    Attach,
    /// Take it away.
    Detach,
    /// Begin, from this checkpoint if there is one.
    Start {
        /// The tracker's latest.
        since: Option<BackupCheckpoint>,
    },
    /// Have it shown to whoever pulls it.
    Serve,
    /// Do not show it any more.
    Withdraw,
    /// End what runs.
    Abort,
    /// It has ended so.
    Conclude(Outcome),
}

/// How it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It waits for this.
    Waits(String),
    /// It is under way.
    Runs {
        /// What is in it.
        kind: &'static str,
    },
    /// It is served, and cannot be pulled yet.
    Preparing {
        /// What the launcher said.
        made: Box<VirtualMachineInstanceBackupStatus>,
        /// What it waits for.
        why: String,
    },
    /// It can be pulled.
    Served {
        /// What the server's certificate is checked by.
        cert: String,
        /// Its volumes, with where they are.
        volumes: Vec<BackupVolumeInfo>,
        /// The export's UID.
        export: String,
    },
    /// It is being ended, as this says.
    Aborting(&'static str),
    /// All is written, or was served for as long as it was to be.
    Complete {
        /// What the launcher said.
        made: Box<VirtualMachineInstanceBackupStatus>,
        /// What is not as it should be.
        warning: Option<String>,
    },
    /// It was not.
    Failed {
        /// A word for programs.
        reason: &'static str,
        /// Why.
        why: String,
    },
}

/// The volume by which the launcher has the claim.
pub fn volume(backup: &VirtualMachineBackup) -> String {
    format!("backup-{}", suffix(&backup.uid().unwrap_or_default()))
}

/// What the instance says of `backup`, if it is locked for it.
pub fn told<'a>(
    backup: &VirtualMachineBackup,
    vmi: &'a VirtualMachineInstance,
) -> Option<&'a VirtualMachineInstanceBackupStatus> {
    let known = vmi.status.as_ref()?.changed_block_tracking.as_ref()?.backup_status.as_deref()?;
    let ours = known.backup_name == backup.metadata.name && known.start_timestamp == backup.creation_timestamp();
    ours.then_some(known)
}

fn says<'a>(backup: &'a VirtualMachineBackup, kind: &str) -> Option<&'a str> {
    let conditions = backup.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().find(|known| known.type_ == kind).map(|known| known.status.as_str())
}

/// It is over, either way.
pub fn is_over(backup: &VirtualMachineBackup) -> bool {
    says(backup, condition::DONE) == Some("True")
}

/// It has begun.
fn has_begun(backup: &VirtualMachineBackup) -> bool {
    backup.status.as_ref().is_some_and(|status| status.type_.as_deref().is_some_and(|kind| !kind.is_empty()))
}

/// What to do next.
pub fn next(view: &View<'_>) -> Step {
    let backup = view.backup;
    let deleting = backup.metadata.deletion_timestamp.is_some();
    if deleting || is_over(backup) {
        return end(view, deleting);
    }
    if !view.held {
        return Step::Hold;
    }
    let waits = |why: String| Step::Say(Outcome::Waits(why));
    let failed = |reason, why: &str| Step::Say(Outcome::Failed { reason, why: why.to_owned() });
    let (namespace, source) = (backup.namespace().unwrap_or_default(), &backup.spec.source.name);
    if is_tracked(backup) && view.tracker.is_none() {
        return waits(format!("BackupTracker {source} does not exist"));
    }
    let machine = view.tracker.map_or(source, |tracker| &tracker.spec.source.name);
    if !view.machine_exists {
        return if has_begun(backup) {
            failed("SourceLost", "the VirtualMachine was deleted during backup")
        } else {
            waits(format!("VM {namespace}/{machine} doesnt exist"))
        };
    }
    let runs = |vmi: &&VirtualMachineInstance| {
        let status = vmi.status.as_ref();
        vmi.metadata.deletion_timestamp.is_none()
            && status.and_then(|status| status.phase.as_deref()) == Some(phase::RUNNING)
    };
    let Some(vmi) = view.vmi.filter(runs) else {
        return if has_begun(backup) {
            failed("SourceLost", "VMI was deleted during backup")
        } else {
            waits(format!("vm {machine} is not running, cannot do backup"))
        };
    };
    if let Some(told) = told(backup, vmi) {
        return locked(view, vmi, told);
    }
    if has_begun(backup) {
        return failed("SourceLost", "VMI backup status was lost");
    }
    if let Some(why) = obstacle(view, vmi, machine) {
        return why;
    }
    Step::Lock
}

/// Why the backup cannot begin yet, or never.
fn obstacle(view: &View<'_>, vmi: &VirtualMachineInstance, machine: &str) -> Option<Step> {
    let waits = |why: String| Some(Step::Say(Outcome::Waits(why)));
    let known = vmi.status.as_ref().and_then(|status| status.changed_block_tracking.as_ref());
    if known.is_none_or(|known| known.state != tracking::ENABLED) {
        return waits(format!("vm {machine} has no ChangedBlockTracking, cannot start backup"));
    }
    if let Some(other) = known.and_then(|known| known.backup_status.as_ref()) {
        let other = other.backup_name.as_deref().unwrap_or_default();
        return waits(format!("Another backup {other} is already in progress"));
    }
    if migration_state::of(vmi).is_some_and(|state| !migration_state::over(state)) {
        return waits(format!("vm {machine} is being migrated, the backup begins afterwards"));
    }
    let name = view.backup.spec.pvc_name.as_deref().unwrap_or_default();
    match view.claim {
        None => waits(format!("PVC {name} does not exist")),
        Some(claim) if claims::is_block(claim) => {
            let why = format!("PVC {name} has no file system: a backup is written to one with volumeMode Filesystem");
            Some(Step::Say(Outcome::Failed { reason: "Failed", why }))
        }
        Some(_) if pull::is_pulled(view.backup) && pull::left(view.backup, view.now).is_none() => {
            let why = "its ttlDuration was over before it could begin: make another one".to_owned();
            Some(Step::Say(Outcome::Failed { reason: "Failed", why }))
        }
        Some(_) if view.tracker.is_some_and(redefines) => {
            waits(format!("Waiting for checkpoint redefinition on tracker {}", view.backup.spec.source.name))
        }
        Some(_) => None,
    }
}

/// Somebody has yet to say whether the tracker's checkpoint is still good.
fn redefines(tracker: &VirtualMachineBackupTracker) -> bool {
    let status = tracker.status.as_ref();
    status.is_some_and(|status| {
        status.checkpoint_redefinition_required == Some(true) && status.latest_checkpoint.is_some()
    })
}

fn is_attached(backup: &VirtualMachineBackup, vmi: &VirtualMachineInstance) -> bool {
    let name = volume(backup);
    vmi.spec.utility_volumes.iter().any(|known| known.name == name)
}

/// How one that the launcher is done with has ended. What nobody could pull is no backup, and the next is not built on it.
fn conclusion(backup: &VirtualMachineBackup, told: &VirtualMachineInstanceBackupStatus) -> Step {
    let failed = |why: &str| Outcome::Failed { reason: "Failed", why: why.to_owned() };
    Step::Conclude(match told.failed {
        Some(true) => failed(told.backup_msg.as_deref().unwrap_or_default()),
        _ if pull::is_pulled(backup) && !pull::was_served(backup) => failed("it ended before it could be pulled"),
        _ => Outcome::Complete { made: Box::new(told.clone()), warning: told.backup_msg.clone() },
    })
}

/// Its end has been asked for.
fn aborting(backup: &VirtualMachineBackup) -> bool {
    let conditions = backup.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|known| known.reason == ABORTING)
}

/// The instance is this backup's.
fn locked(view: &View<'_>, vmi: &VirtualMachineInstance, told: &VirtualMachineInstanceBackupStatus) -> Step {
    let backup = view.backup;
    if told.completed == Some(true) {
        return conclusion(backup, told);
    }
    if !is_attached(backup, vmi) {
        return Step::Attach;
    }
    let name = volume(backup);
    let reached = api::kubevirt::hotplug::status(vmi, &name).and_then(|entry| entry.phase.as_deref());
    if reached != Some(volume_phase::MOUNTED_TO_POD) {
        let claim = backup.spec.pvc_name.as_deref().unwrap_or_default();
        return Step::Say(Outcome::Waits(format!("PVC {claim} is being attached to the launcher")));
    }
    // The launcher has begun, and this was not written down yet, or it has not.
    if told.checkpoint_name.is_some() && has_begun(backup) {
        return if pull::is_pulled(backup) { pull::serve(view, told) } else { Step::Wait };
    }
    let latest = view.tracker.and_then(|tracker| tracker.status.as_ref()?.latest_checkpoint.clone());
    let latest = latest.filter(|latest| latest.name.as_deref().is_some_and(|name| !name.is_empty()));
    let is_of_use = |latest: &BackupCheckpoint| {
        backup.spec.force_full_backup != Some(true) && !is_of_other_devices(latest, vmi, view.claims)
    };
    Step::Start { since: latest.filter(is_of_use) }
}

/// A device that a volume is on was made after the checkpoint: a layer that knows it only by its names cannot tell.
fn is_of_other_devices(checkpoint: &BackupCheckpoint, vmi: &VirtualMachineInstance, claims: &Claims) -> bool {
    let (Some(made), volumes) = (&checkpoint.creation_time, &checkpoint.volumes) else { return false };
    let used = claims::of(vmi).filter(|used| volumes.iter().any(|volume| volume.volume_name == used.volume));
    let devices = used.filter_map(|used| claims.get(used.claim)).filter(|claim| claims::is_block(claim));
    devices.filter_map(ResourceExt::creation_timestamp).any(|born| born.0 > made.0)
}

/// What is left to do for one that is over, or that is to go.
fn end(view: &View<'_>, deleting: bool) -> Step {
    let backup = view.backup;
    if view.export.is_some_and(|export| pull::is_own(export, backup) && export.metadata.deletion_timestamp.is_none()) {
        return Step::Withdraw;
    }
    if let Some(vmi) = view.vmi {
        let told = told(backup, vmi);
        let runs = told.is_some_and(|told| told.checkpoint_name.is_some() && told.completed != Some(true));
        let ended = vmi.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase::RUNNING);
        if runs && !is_over(backup) && !ended {
            return if aborting(backup) { Step::Abort } else { Step::Say(Outcome::Aborting("Backup is aborting")) };
        }
        // Deleting one that is pulled is how whoever pulled it says that they have all of it.
        if let Some(told) = told.filter(|told| told.completed == Some(true) && told.failed != Some(true))
            && !is_over(backup)
        {
            return conclusion(backup, told);
        }
        if is_attached(backup, vmi) {
            return Step::Detach;
        }
        // The launcher lets go of the claim before another backup may have the instance.
        if api::kubevirt::hotplug::status(vmi, &volume(backup)).is_some() && !ended {
            return Step::Wait;
        }
        if told.is_some() {
            return Step::Unlock;
        }
    }
    if deleting && view.held { Step::Release } else { Step::Wait }
}

/// Writes `outcome` into `status`.
pub fn enter(status: &mut VirtualMachineBackupStatus, outcome: &Outcome, now: &Time) {
    let mut say = |kind: &str, value: &str, reason: &str, message: &str| {
        conditions::set(&mut status.conditions, kind, value, Some(reason), Some(message), now);
    };
    match outcome {
        Outcome::Waits(why) => {
            say(condition::PROGRESSING, "False", "Initializing", why);
            say(condition::DONE, "False", "Initializing", "Backup is initializing");
        }
        Outcome::Runs { kind } => {
            say(condition::PROGRESSING, "True", "Initiated", "Backup is in progress");
            say(condition::DONE, "False", "Initiated", "Backup is in progress");
            status.type_ = Some((*kind).to_owned());
        }
        Outcome::Preparing { made, why } => {
            say(condition::PROGRESSING, "True", "PreparingExport", why);
            say(condition::DONE, "False", "PreparingExport", why);
            say(condition::EXPORT_INITIATED, "True", "PreparingExport", why);
            say(condition::EXPORT_READY, "False", "PreparingExport", why);
            if let Some((value, word)) = quiesced(made) {
                say(condition::QUIESCED, value, word, made.backup_msg.as_deref().unwrap_or_default());
            }
            status.checkpoint_name.clone_from(&made.checkpoint_name);
            status.included_volumes = included(made);
            pull::unlink(status);
        }
        Outcome::Served { cert, volumes, export } => {
            let why = "Backup export is ready to pull";
            say(condition::PROGRESSING, "True", "ExportReady", why);
            say(condition::DONE, "False", "ExportReady", why);
            say(condition::EXPORT_INITIATED, "True", "ExportReady", why);
            say(condition::EXPORT_READY, "True", "ExportReady", why);
            status.endpoint_cert = Some(cert.clone());
            status.included_volumes.clone_from(volumes);
            status.export_uid = Some(export.clone());
        }
        Outcome::Aborting(why) => say(condition::PROGRESSING, "True", ABORTING, why),
        Outcome::Complete { made, warning } => {
            let (reason, message) = match warning {
                None => ("Completed", "Successfully completed VirtualMachineBackup".to_owned()),
                Some(why) => ("CompletedWithWarning", format!("Completed VirtualMachineBackup, warning: {why}")),
            };
            say(condition::PROGRESSING, "False", reason, &message);
            say(condition::COMPLETE, "True", reason, &message);
            say(condition::DONE, "True", reason, &message);
            if let Some((value, word)) = quiesced(made) {
                say(condition::QUIESCED, value, word, warning.as_deref().unwrap_or_default());
            }
            status.checkpoint_name.clone_from(&made.checkpoint_name);
            status.included_volumes = included(made);
            withdrawn(status, reason, now);
        }
        Outcome::Failed { reason, why } => {
            let message = format!("Backup has failed: {why}");
            say(condition::PROGRESSING, "False", reason, &message);
            say(condition::FAILED, "True", reason, &message);
            say(condition::DONE, "True", reason, &message);
            withdrawn(status, reason, now);
        }
    }
}

/// Whether the guest's file systems stood still at the backup's moment, and the launcher's word for it.
fn quiesced(made: &VirtualMachineInstanceBackupStatus) -> Option<(&'static str, &str)> {
    let word = made.quiesce_status.as_deref().filter(|word| !word.is_empty())?;
    Some((if word == "QuiesceSucceeded" { "True" } else { "False" }, word))
}

fn included(made: &VirtualMachineInstanceBackupStatus) -> Vec<BackupVolumeInfo> {
    let volume = |name: &str| BackupVolumeInfo { volume_name: name.to_owned(), ..BackupVolumeInfo::default() };
    made.volumes.iter().map(|one| volume(&one.volume_name)).collect()
}

/// It cannot be pulled any more.
fn withdrawn(status: &mut VirtualMachineBackupStatus, reason: &str, now: &Time) {
    pull::unlink(status);
    if conditions::get(&status.conditions, condition::EXPORT_READY).is_some() {
        let why = Some("Backup is over");
        conditions::set(&mut status.conditions, condition::EXPORT_READY, "False", Some(reason), why, now);
    }
}

#[cfg(test)]
mod tests;
