//! What becomes of a VirtualMachineClone, given the objects it is about. Pure.
//!
//! ```text
//! (unset) --> SnapshotInProgress --> RestoreInProgress --> CreatingTargetVM --> Succeeded --claims bound--> (tidied up)
//!    |                `---------------------+--> Failed
//!    `-- waits while its source is not there, or cannot be snapshotted
//! ```

use api::clone::v1beta1::{VirtualMachineClone, VirtualMachineCloneStatus};
use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::{
    Condition, VirtualMachineRestore, VirtualMachineRestoreSpec, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
    VirtualMachineSnapshotSpec,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::ResourceExt;
use meta::conditions::set;
use sha2::{Digest, Sha256};

use super::patches::patches;
use crate::facts::persistent_state::is_kept;
use crate::snapshot;

/// Values of `status.phase`.
pub mod phase {
    /// The source is snapshotted, or its snapshot waited for.
    pub const SNAPSHOT: &str = "SnapshotInProgress";
    /// Volumes are made of the snapshot.
    pub const RESTORE: &str = "RestoreInProgress";
    /// The copy is made on them.
    pub const TARGET: &str = "CreatingTargetVM";
    /// The copy is there.
    pub const SUCCEEDED: &str = "Succeeded";
    /// Given up.
    pub const FAILED: &str = "Failed";
}

/// Reasons of events, which clients look for.
mod event {
    pub(super) const SOURCE_MISSING: &str = "SourceDoesNotExist";
    pub(super) const SOURCE_WITH_STATE: &str = "SourceVMWithBackendStorageInvalid";
    pub(super) const NOT_SNAPSHOTTABLE: &str = "VMVolumeSnapshotsInvalid";
    pub(super) const SNAPSHOT_CREATED: &str = "SnapshotCreated";
    pub(super) const SNAPSHOT_READY: &str = "SnapshotReady";
    pub(super) const SNAPSHOT_DELETED: &str = "SnapshotDeleted";
    pub(super) const SNAPSHOT_FAILED: &str = "SnapshotFailed";
    pub(super) const CONTENT_INVALID: &str = "SnapshotContentInvalid";
    pub(super) const RESTORE_CREATED: &str = "RestoreCreated";
    pub(super) const RESTORE_FAILED: &str = "RestoreCreationFailed";
    pub(super) const RESTORE_READY: &str = "RestoreReady";
    pub(super) const TARGET_CREATED: &str = "TargetVMCreated";
    pub(super) const BOUND: &str = "PVCBound";
}

/// The kind of machines.
pub const MACHINE: &str = "VirtualMachine";

/// What a clone is about, as far as it is there.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The machine that is its source.
    pub machine: Option<VirtualMachine>,
    /// The snapshot that is its source, or that it made.
    pub snapshot: Option<VirtualMachineSnapshot>,
    /// What that holds.
    pub content: Option<VirtualMachineSnapshotContent>,
    /// The restore that it made.
    pub restore: Option<VirtualMachineRestore>,
    /// The copy is there.
    pub target: bool,
    /// Every claim that was restored is bound.
    pub bound: bool,
}

/// What to do before the status is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing.
    None,
    /// Make this snapshot.
    Snapshot(Box<VirtualMachineSnapshot>),
    /// Make this restore.
    Restore(Box<VirtualMachineRestore>),
    /// Delete what is not needed any more: the restore, and the snapshot if it was made for the copy.
    TidyUp,
    /// Delete the clone: its copy is gone.
    Forget,
}

/// What to do and to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// To do.
    pub step: Step,
    /// The status afterwards.
    pub status: VirtualMachineCloneStatus,
    /// To tell once the step is done: normal or not, a reason and a sentence.
    pub event: Option<(bool, &'static str, String)>,
}

enum Turn {
    /// It goes on; the sentence says what it waits for, if somebody has said.
    Waits(Option<String>),
    /// It has not begun, for this reason.
    Pending(&'static str, String),
    /// It is given up.
    Failed(&'static str, String),
    /// It is a step further.
    Goes(&'static str, String),
}

/// What to do about `clone`.
pub fn plan(clone: &VirtualMachineClone, world: &World, now: Timestamp) -> Plan {
    let mut status = clone.status.as_deref().cloned().unwrap_or_default();
    let mut step = Step::None;
    let turn = match status.phase.as_deref().unwrap_or_default() {
        "" => begin(clone, world, &mut status, &mut step),
        phase::SNAPSHOT => snapshotting(clone, world, &mut status),
        phase::RESTORE => restoring(clone, world, &mut status, &mut step),
        phase::TARGET if world.target => {
            status.phase = Some(phase::SUCCEEDED.to_owned());
            status.creation_time = Some(Time(now));
            let target = status.target_name.clone().unwrap_or_default();
            Turn::Goes(event::TARGET_CREATED, format!("created target VM {target} for clone {}", clone.name_any()))
        }
        phase::TARGET => Turn::Waits(None),
        phase::SUCCEEDED => succeeded(clone, world, &mut status, &mut step),
        _ => return Plan { step, status, event: None },
    };
    let event = match &turn {
        Turn::Waits(_) => None,
        Turn::Pending(reason, why) | Turn::Failed(reason, why) => Some((false, *reason, why.clone())),
        Turn::Goes(reason, what) => Some((true, *reason, what.clone())),
    };
    conclude(&mut status, turn, now);
    Plan { step, status, event }
}

fn conclude(status: &mut VirtualMachineCloneStatus, turn: Turn, now: Timestamp) {
    let mut say = |progressing: (&str, &str), ready: (&str, &str), message: Option<&str>| {
        let time = Time(now);
        let list: &mut Vec<Condition> = &mut status.conditions;
        set(list, "Progressing", progressing.0, Some(progressing.1), message, &time);
        set(list, "Ready", ready.0, Some(ready.1), message, &time);
    };
    match turn {
        _ if status.phase.as_deref() == Some(phase::SUCCEEDED) => say(("False", "Ready"), ("True", "Ready"), None),
        Turn::Pending(_, why) => say(("False", "Pending"), ("False", &why), Some(&why)),
        Turn::Failed(_, why) => {
            say(("False", "Failed"), ("False", &why), Some(&why));
            status.phase = Some(phase::FAILED.to_owned());
        }
        Turn::Waits(why) => {
            say(("True", "Still processing"), ("False", "Still processing"), why.as_deref());
        }
        Turn::Goes(_, what) => say(("True", "Still processing"), ("False", "Still processing"), Some(&what)),
    }
}

/// The state of a TPM and the variables of EFI are the identity of their machine: no other gets them.
const WITH_STATE: &str = "Clone of source with backendstorage is not supported";

fn begin(clone: &VirtualMachineClone, world: &World, status: &mut VirtualMachineCloneStatus, step: &mut Step) -> Turn {
    let source = &clone.spec.source;
    let namespace = clone.namespace().unwrap_or_default();
    let missing = || {
        let why = format!("Source doesnt exist: {} {namespace}/{}", source.kind, source.name);
        Turn::Pending(event::SOURCE_MISSING, why)
    };
    if source.kind != MACHINE {
        if world.snapshot.is_none() {
            return missing();
        }
        status.phase = Some(phase::SNAPSHOT.to_owned());
        return snapshotting(clone, world, status);
    }
    let Some(machine) = &world.machine else { return missing() };
    if machine.spec.template.spec.as_deref().is_some_and(is_kept) {
        let why = format!("{WITH_STATE}: VM {namespace}/{}", source.name);
        return Turn::Failed(event::SOURCE_WITH_STATE, why);
    }
    let wrong = not_snapshottable(machine);
    if !wrong.is_empty() {
        return Turn::Pending(event::NOT_SNAPSHOTTABLE, wrong.join(", "));
    }
    let snapshot = snapshot_of(clone);
    let name = snapshot.name_any();
    *step = Step::Snapshot(Box::new(snapshot));
    status.phase = Some(phase::SNAPSHOT.to_owned());
    status.snapshot_name = Some(name.clone());
    Turn::Goes(event::SNAPSHOT_CREATED, format!("created snapshot {name} for clone {}", clone.name_any()))
}

fn not_snapshottable(machine: &VirtualMachine) -> Vec<String> {
    let volumes = machine.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    let known = machine.status.iter().flat_map(|status| &status.volume_snapshot_statuses);
    let of_claims = volumes.filter(|volume| volume.own_claim().is_some());
    let judged = of_claims.filter_map(|volume| {
        let name = &volume.name;
        match known.clone().find(|known| known.name == *name) {
            Some(known) if known.enabled => None,
            Some(_) => Some(format!("Virtual Machine volume {name} does not support snapshots")),
            None => Some(format!("Virtual Machine volume {name} snapshot support unknown")),
        }
    });
    judged.collect()
}

/// The name of the snapshot that is restored.
pub fn snapshot_name(clone: &VirtualMachineClone) -> Option<&str> {
    if clone.spec.source.kind != MACHINE {
        return Some(&clone.spec.source.name);
    }
    clone.status.as_ref().and_then(|status| status.snapshot_name.as_deref())
}

fn snapshotting(clone: &VirtualMachineClone, world: &World, status: &mut VirtualMachineCloneStatus) -> Turn {
    let own = status.snapshot_name.clone().unwrap_or_default();
    let name = snapshot_name(clone).unwrap_or(&own);
    let Some(found) = &world.snapshot else {
        return Turn::Failed(event::SNAPSHOT_DELETED, format!("snapshot {name} does not exist anymore"));
    };
    let said = found.status.as_ref();
    if said.and_then(|said| said.ready_to_use) != Some(true) {
        if snapshot::plan::has_failed(found) {
            let conditions = said.map(|said| said.conditions.as_slice()).unwrap_or_default();
            let why = message(conditions, "Failure").unwrap_or_default();
            return Turn::Failed(event::SNAPSHOT_FAILED, format!("snapshot {name} failed: {why}"));
        }
        return Turn::Waits(said.and_then(|said| message(&said.conditions, "Progressing")));
    }
    if let Err(why) = usable(found, world.content.as_ref()) {
        return Turn::Failed(event::CONTENT_INVALID, why);
    }
    status.phase = Some(phase::RESTORE.to_owned());
    Turn::Goes(event::SNAPSHOT_READY, format!("snapshot {name} for clone {} is ready to use", clone.name_any()))
}

/// The message of a condition.
fn message(conditions: &[Condition], kind: &str) -> Option<String> {
    conditions.iter().find(|condition| condition.type_ == kind)?.message.clone()
}

/// Whether a machine can be made of what a snapshot holds.
fn usable(snapshot: &VirtualMachineSnapshot, content: Option<&VirtualMachineSnapshotContent>) -> Result<(), String> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let Some(content) = content else {
        let name = snapshot::content_name(snapshot);
        return Err(format!("snapshot content {name} in namespace {namespace} does not exist"));
    };
    let machine = content.spec.source.virtual_machine.as_ref().and_then(|machine| machine.spec.as_deref());
    let spec = machine.and_then(|machine| machine.template.spec.as_deref());
    if spec.is_some_and(is_kept) {
        return Err(format!("{WITH_STATE}: snapshot {namespace}/{}", snapshot.name_any()));
    }
    let backed_up = |name: &str| content.spec.volume_backups.iter().any(|backup| backup.volume_name == name);
    let volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
    let of_claims = volumes.filter(|volume| volume.own_claim().is_some());
    let lost = of_claims.filter(|volume| !backed_up(&volume.name));
    let lost: Vec<String> = lost
        .map(|volume| format!("volume {} is not backed up in snapshot {}", volume.name, snapshot.name_any()))
        .collect();
    if lost.is_empty() { Ok(()) } else { Err(lost.join(", ")) }
}

fn restoring(
    clone: &VirtualMachineClone,
    world: &World,
    status: &mut VirtualMachineCloneStatus,
    step: &mut Step,
) -> Turn {
    if let Some(name) = status.restore_name.clone() {
        return restored(clone, world, status, &name);
    }
    let name = snapshot_name(clone).unwrap_or_default();
    let Some(found) = &world.snapshot else {
        return Turn::Failed(event::SNAPSHOT_DELETED, format!("snapshot {name} does not exist anymore"));
    };
    if let Err(why) = usable(found, world.content.as_ref()) {
        return Turn::Failed(event::CONTENT_INVALID, why);
    }
    let Some(restore) = world.content.as_ref().and_then(|content| restore_of(clone, name, content)) else {
        return Turn::Failed(event::CONTENT_INVALID, format!("snapshot {name} holds no virtual machine"));
    };
    let restore_name = restore.name_any();
    *step = Step::Restore(Box::new(restore));
    status.restore_name = Some(restore_name.clone());
    Turn::Goes(event::RESTORE_CREATED, format!("created restore {restore_name} for clone {}", clone.name_any()))
}

fn restored(clone: &VirtualMachineClone, world: &World, status: &mut VirtualMachineCloneStatus, name: &str) -> Turn {
    let Some(restore) = &world.restore else {
        return Turn::Failed(event::RESTORE_FAILED, format!("restore {name} does not exist anymore"));
    };
    let said = restore.status.clone().unwrap_or_default();
    if let Some(why) = message(&said.conditions, "Failure") {
        return Turn::Failed(event::RESTORE_FAILED, format!("restore {name} failed: {why}"));
    }
    if said.complete != Some(true) {
        return Turn::Waits(message(&said.conditions, "Progressing"));
    }
    status.phase = Some(phase::TARGET.to_owned());
    status.target_name = Some(restore.spec.target.name.clone());
    Turn::Goes(event::RESTORE_READY, format!("restore {name} for clone {} is ready to use", clone.name_any()))
}

fn succeeded(
    clone: &VirtualMachineClone,
    world: &World,
    status: &mut VirtualMachineCloneStatus,
    step: &mut Step,
) -> Turn {
    if !world.target {
        *step = Step::Forget;
        return Turn::Waits(None);
    }
    if status.restore_name.is_none() || !world.bound {
        return Turn::Waits(None);
    }
    *step = Step::TidyUp;
    (status.snapshot_name, status.restore_name) = (None, None);
    Turn::Goes(event::BOUND, format!("all PVC for clone {} are bound", clone.name_any()))
}

/// The name of the copy: the one that is given, else one that nobody else has.
pub fn target_name(clone: &VirtualMachineClone) -> String {
    let given = clone.spec.target.as_ref().map(|target| target.name.clone()).filter(|name| !name.is_empty());
    given.unwrap_or_else(|| {
        let digest = Sha256::digest(clone.uid().unwrap_or_default());
        let suffix: String = digest.iter().take(3).map(|byte| format!("{byte:02x}")).collect();
        format!("clone-{}-{}", clone.spec.source.name, &suffix[..5])
    })
}

/// What goes with `clone`.
fn owned(clone: &VirtualMachineClone, prefix: &str) -> ObjectMeta {
    let uid = clone.uid().unwrap_or_default();
    ObjectMeta {
        name: Some(format!("{prefix}-{uid}")),
        namespace: clone.namespace(),
        owner_references: Some(vec![OwnerReference {
            api_version: "clone.kubevirt.io/v1beta1".to_owned(),
            kind: "VirtualMachineClone".to_owned(),
            name: clone.name_any(),
            uid,
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..Default::default()
    }
}

fn snapshot_of(clone: &VirtualMachineClone) -> VirtualMachineSnapshot {
    VirtualMachineSnapshot {
        metadata: owned(clone, "tmp-snapshot"),
        spec: VirtualMachineSnapshotSpec {
            source: machine_called(clone.spec.source.name.clone()),
            ..Default::default()
        },
        ..Default::default()
    }
}

fn machine_called(name: String) -> TypedLocalObjectReference {
    TypedLocalObjectReference { api_group: Some("kubevirt.io".to_owned()), kind: MACHINE.to_owned(), name }
}

fn restore_of(
    clone: &VirtualMachineClone,
    snapshot: &str,
    content: &VirtualMachineSnapshotContent,
) -> Option<VirtualMachineRestore> {
    let machine = content.spec.source.virtual_machine.as_deref()?;
    let metadata = machine.metadata.clone().unwrap_or_default();
    Some(VirtualMachineRestore {
        metadata: owned(clone, "tmp-restore"),
        spec: VirtualMachineRestoreSpec {
            target: machine_called(target_name(clone)),
            virtual_machine_snapshot_name: snapshot.to_owned(),
            patches: patches(&metadata, machine.spec.as_deref()?, &clone.spec),
            volume_restore_policy: clone.spec.volume_name_policy.clone(),
            ..Default::default()
        },
        ..Default::default()
    })
}

#[cfg(test)]
mod tests;
