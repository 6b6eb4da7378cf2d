//! What becomes of a VirtualMachineSnapshot, given its source and the volume snapshots that belong to it. Pure.
//!
//! ```text
//! (unset) --source locked--> InProgress --guest frozen, every volume cut--> Succeeded (guest thawed) --all usable--> ready
//!                                 `-- the deadline has passed --> Failed
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use api::kubevirt::constants::{condition, phase as vmi_phase};
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::snapshot::v1beta1::{
    Condition, SourceIndication, VirtualMachineSnapshot, VirtualMachineSnapshotContent, VirtualMachineSnapshotStatus,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use meta::conditions::set;

use meta::volume_snapshot::VolumeSnapshot;

/// Values of `status.phase`.
pub mod phase {
    /// Under way.
    pub const IN_PROGRESS: &str = "InProgress";
    /// Every volume is cut. Whether volumes can be made of them yet is in `readyToUse`.
    pub const SUCCEEDED: &str = "Succeeded";
    /// Given up.
    pub const FAILED: &str = "Failed";
}

/// How the state of the guest's memory and caches stands to what is on the disks.
pub mod indication {
    /// The guest ran.
    pub const ONLINE: &str = "Online";
    /// It had no agent: what it had not written yet is missing.
    pub const NO_GUEST_AGENT: &str = "NoGuestAgent";
    /// Its agent had all file systems written out first.
    pub const GUEST_AGENT: &str = "GuestAgent";
    /// Its agent let go before every volume was cut.
    pub const QUIESCE_TIMEOUT: &str = "QuiesceTimeout";
    /// It was paused.
    pub const PAUSED: &str = "Paused";
    /// A volume that could have been cut was not.
    pub const PARTIAL: &str = "PartialSnapshot";
}

/// What a guest's agent says when it could not hold the file systems long enough.
pub const FREEZE_LIMIT: &str = "fsfreeze is limited";
/// What keeps a machine that is being snapshotted.
pub const PROTECTION: &str = "snapshot.kubevirt.io/snapshot-source-protection";
/// Why a snapshot was given up.
pub const TOO_LATE: &str = "snapshot deadline exceeded";
/// How long a snapshot may take when nobody says.
const DEADLINE: Duration = Duration::from_secs(300);

/// What a snapshot finds its source as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// There is none.
    Missing,
    /// Somebody else has it.
    Taken(String),
    /// It can be locked.
    Free,
    /// It is ours.
    Ours,
}

/// The source of `snapshot`.
pub fn source(snapshot: &VirtualMachineSnapshot, vm: Option<&VirtualMachine>) -> Source {
    let Some(vm) = vm else { return Source::Missing };
    let status = vm.status.as_deref();
    if let Some(restore) = status.and_then(|status| status.restore_in_progress.as_ref()) {
        return Source::Taken(format!("restore {restore:?} in progress"));
    }
    let protected = vm.finalizers().iter().any(|held| held == PROTECTION);
    match status.and_then(|status| status.snapshot_in_progress.as_ref()) {
        Some(name) if *name != snapshot.name_any() => Source::Taken(format!("snapshot {name:?} in progress")),
        Some(_) if protected => Source::Ours,
        // What is on its way out cannot be kept.
        _ if vm.metadata.deletion_timestamp.is_some() => Source::Missing,
        _ => Source::Free,
    }
}

/// True when `vm` is locked for `snapshot`, or was about to be.
pub fn is_locked(snapshot: &VirtualMachineSnapshot, vm: &VirtualMachine) -> bool {
    let holder = vm.status.as_ref().and_then(|status| status.snapshot_in_progress.as_deref());
    holder == snapshot.metadata.name.as_deref() && holder.is_some()
}

/// When `snapshot` is given up.
pub fn deadline(snapshot: &VirtualMachineSnapshot) -> Option<Timestamp> {
    let created = snapshot.metadata.creation_timestamp.as_ref()?.0;
    let named = snapshot.spec.failure_deadline.as_deref().and_then(kit::duration::parse);
    // None at all is asked for by a deadline of nothing.
    let allowed = named.unwrap_or(DEADLINE);
    if allowed.is_zero() {
        return None;
    }
    created.checked_add(SignedDuration::try_from(allowed).ok()?).ok()
}

fn is_in(snapshot: &VirtualMachineSnapshot, phase: &str) -> bool {
    snapshot.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
}

/// True once every volume is cut.
pub fn has_succeeded(snapshot: &VirtualMachineSnapshot) -> bool {
    is_in(snapshot, phase::SUCCEEDED)
}

/// True when it was given up.
pub fn has_failed(snapshot: &VirtualMachineSnapshot) -> bool {
    is_in(snapshot, phase::FAILED)
}

/// Whether the guest runs, and whether its file systems can be frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// It runs.
    pub online: bool,
    /// It is paused.
    pub paused: bool,
    /// Its agent answers.
    pub agent: bool,
    /// Its file systems are held.
    pub frozen: bool,
}

impl Guest {
    /// What is known of `vmi`.
    pub fn of(vmi: Option<&VirtualMachineInstance>) -> Self {
        let status = vmi.and_then(|vmi| vmi.status.as_ref());
        let holds = |kind: &str| {
            let conditions = status.map(|status| status.conditions.as_slice());
            conditions.unwrap_or_default().iter().any(|known| known.type_ == kind && known.status == "True")
        };
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        Self {
            online: vmi.is_some() && !matches!(phase, vmi_phase::SUCCEEDED | vmi_phase::FAILED),
            paused: holds(condition::PAUSED),
            agent: holds(condition::AGENT_CONNECTED),
            frozen: status.and_then(|status| status.fs_freeze_status.as_deref()) == Some("frozen"),
        }
    }

    /// Its file systems can be written out first. A paused guest cannot hear.
    pub fn can_freeze(self) -> bool {
        self.online && self.agent && !self.paused
    }

    /// Adds to `status` what is to be said of a snapshot of it; nothing is, of one that is off.
    pub fn indicate(self, status: &mut VirtualMachineSnapshotStatus) {
        if !self.online {
            return indicate(status, BTreeSet::new());
        }
        let mut known: BTreeSet<String> = status.indications.iter().cloned().collect();
        known.insert(indication::ONLINE.to_owned());
        let error = status.error.as_ref().and_then(|error| error.message.as_deref()).unwrap_or_default();
        if self.can_freeze() && error.contains(FREEZE_LIMIT) {
            known.insert(indication::QUIESCE_TIMEOUT.to_owned());
        }
        let (how, not) = match (self.paused, self.agent) {
            (true, _) => (indication::PAUSED, None),
            // An agent that has the file systems held may be silent until it lets go of them.
            (false, false) if self.frozen => (indication::GUEST_AGENT, Some(indication::NO_GUEST_AGENT)),
            (false, true) => (indication::GUEST_AGENT, Some(indication::NO_GUEST_AGENT)),
            (false, false) => (indication::NO_GUEST_AGENT, Some(indication::GUEST_AGENT)),
        };
        known.insert(how.to_owned());
        not.map(|not| known.remove(not));
        indicate(status, known);
    }
}

/// Adds to `status` that a volume is missing which could have been cut.
pub fn indicate_partial(status: &mut VirtualMachineSnapshotStatus) {
    let mut known: BTreeSet<String> = status.indications.iter().cloned().collect();
    known.insert(indication::PARTIAL.to_owned());
    indicate(status, known);
}

fn indicate(status: &mut VirtualMachineSnapshotStatus, known: BTreeSet<String>) {
    let told = |one: &String| SourceIndication { indication: one.clone(), message: message(one).to_owned() };
    status.source_indications = known.iter().map(told).collect();
    status.indications = known.into_iter().collect();
}

/// What an indication means, as clients know it.
fn message(known: &str) -> &'static str {
    match known {
        indication::ONLINE => "Snapshot taken while the VM was running. Consistency depends on guest-agent quiescing.",
        indication::GUEST_AGENT => {
            "Guest agent was active and attempted to quiesce the filesystem for application consistency."
        }
        indication::NO_GUEST_AGENT => {
            "Guest agent was not available. Snapshot is crash-consistent and may not be application-consistent."
        }
        indication::QUIESCE_TIMEOUT => {
            "Guest agent quiesced the filesystem, but the freeze window timed out before completion. Snapshot is \
             crash-consistent and may not be application-consistent."
        }
        indication::PAUSED => {
            "Snapshot taken while the VM was paused. Snapshot is crash-consistent and may not be application-consistent."
        }
        indication::PARTIAL => {
            "Not all snapshotable volumes were included in the snapshot. Check status.snapshotVolumes for excluded \
             volumes and VM VolumeSnapshotStatus for details."
        }
        _ => "Unknown indication",
    }
}

/// How far the volume snapshots of a content are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Every volume was cut: the guest may go on writing.
    pub cut: bool,
    /// Volumes can be made of all of them.
    pub ready: bool,
    /// What is wrong.
    pub error: Option<String>,
    /// Those that were there and are not any more.
    pub gone: Vec<String>,
    /// The first volume snapshot that nobody has said anything of.
    pub unheard: Option<String>,
}

/// How far `content` is; `find` is its volume snapshots, by name.
pub fn progress(content: &VirtualMachineSnapshotContent, find: impl Fn(&str) -> Option<VolumeSnapshot>) -> Progress {
    let was_cut = content.status.as_ref().is_some_and(|status| status.creation_time.is_some());
    let mut out = Progress { cut: true, ready: true, ..Progress::default() };
    let names = content.spec.volume_backups.iter().filter_map(|backup| backup.volume_snapshot_name.as_deref());
    for name in names {
        let found = find(name);
        if found.is_none() && was_cut {
            out.gone.push(name.to_owned());
        }
        if found.as_ref().is_some_and(|snapshot| snapshot.status.is_none()) {
            out.unheard.get_or_insert_with(|| name.to_owned());
        }
        let found = found.and_then(|snapshot| snapshot.status).unwrap_or_default();
        out.cut &= found.creation_time.is_some();
        out.ready &= found.ready_to_use == Some(true);
        if let Some(error) = found.error.and_then(|error| error.message) {
            out.error.get_or_insert_with(|| format!("VolumeSnapshot {name} error: {error}"));
        }
    }
    if !out.gone.is_empty() {
        out.error = Some(format!("VolumeSnapshots ({}) missing", out.gone.join(",")));
    }
    // A volume that can be made of it says more than what went wrong on the way.
    if out.ready {
        out.error = None;
    }
    out
}

/// What `status` becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The source is not its own yet, for this reason.
    Waits(String),
    /// It is under way.
    Runs,
    /// It is under way, and nobody takes up what was asked for, which this says.
    Unheard(String),
    /// Every volume is cut.
    Done,
    /// It was given up.
    Failed,
}

/// Writes `outcome` into `status`, whose `readyToUse` and `error` say how the volumes are.
pub fn conclude(status: &mut VirtualMachineSnapshotStatus, outcome: &Outcome, now: Timestamp) {
    let (phase, progressing, why) = match outcome {
        Outcome::Waits(why) => (phase::IN_PROGRESS, "False", why.as_str()),
        Outcome::Runs => (phase::IN_PROGRESS, "True", "Source locked and operation in progress"),
        Outcome::Unheard(why) => (phase::IN_PROGRESS, "True", why.as_str()),
        Outcome::Done => (phase::SUCCEEDED, "False", "Operation complete"),
        Outcome::Failed => (phase::FAILED, "False", "Operation failed"),
    };
    status.phase = Some(phase.to_owned());
    let ready = *status.ready_to_use.get_or_insert(false);
    let (progressing, why) = if status.error.is_some() { ("False", "In error state") } else { (progressing, why) };
    let (now, list) = (Time(now), &mut status.conditions);
    say(list, "Progressing", progressing, why, &now);
    let (ready, usable) = if ready { ("True", "Ready") } else { ("False", "Not ready") };
    say(list, "Ready", ready, usable, &now);
    if *outcome == Outcome::Failed {
        say(list, "Failure", "True", TOO_LATE, &now);
    }
}

/// Conditions of these kinds have their message for a reason, too.
pub fn say(list: &mut Vec<Condition>, kind: &str, status: &str, words: &str, now: &Time) {
    set(list, kind, status, Some(words), Some(words), now);
}

#[cfg(test)]
mod tests;
