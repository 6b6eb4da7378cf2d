//! Backups, step by step.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::*;

pub(super) const MADE: &str = "2026-01-31T13:59:59Z";
const WORDS: &str = "Backup is aborting";

pub(super) fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(super) fn backup(more: Value) -> VirtualMachineBackup {
    let mut value = json!({
        "metadata": { "name": "b", "namespace": "ns", "uid": "u", "creationTimestamp": MADE },
        "spec": { "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" }, "pvcName": "out" },
    });
    json_patch::merge(&mut value, &more);
    of(value)
}

pub(super) fn vmi(tracking: Value, more: Value) -> VirtualMachineInstance {
    let mut value = json!({
        "metadata": { "name": "vm", "namespace": "ns" },
        "status": { "phase": "Running", "changedBlockTracking": tracking },
    });
    json_patch::merge(&mut value, &more);
    of(value)
}

fn tracker(checkpoint: Value) -> VirtualMachineBackupTracker {
    of(json!({
        "metadata": { "name": "t", "namespace": "ns" },
        "spec": { "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" } },
        "status": { "latestCheckpoint": checkpoint },
    }))
}

pub(super) fn claim(mode: &str) -> PersistentVolumeClaim {
    of(json!({ "metadata": { "name": "out" }, "spec": { "volumeMode": mode } }))
}

/// Two claims that are devices, and one that is not; one of the devices is newer than any checkpoint.
static DEVICES: LazyLock<Claims> = LazyLock::new(|| {
    let claim = |name: &str, mode: &str, made: &str| {
        let metadata = json!({ "name": name, "creationTimestamp": made });
        (name.to_owned(), of(json!({ "metadata": metadata, "spec": { "volumeMode": mode } })))
    };
    let (before, after) = ("2026-01-30T00:00:00Z", "2026-02-01T00:00:00Z");
    [claim("old", "Block", before), claim("new", "Block", after), claim("file", "Filesystem", after)].into()
});

pub(super) fn lock(more: Value) -> Value {
    let mut value = json!({ "state": "Enabled", "backupStatus": { "backupName": "b", "startTimestamp": MADE } });
    json_patch::merge(&mut value["backupStatus"], &more);
    value
}

/// The claim on its way to the launcher, or there.
pub(super) fn attached(phase: &str) -> Value {
    let name = volume(&backup(json!({})));
    json!({
        "spec": { "utilityVolumes": [{ "name": name, "claimName": "out" }] },
        "status": { "volumeStatus": [{ "name": name, "target": "", "phase": phase, "hotplugVolume": {} }] },
    })
}

/// Nothing but the backup, some minutes after it was made.
pub(super) fn seen(backup: &VirtualMachineBackup) -> View<'_> {
    let now = "2026-01-31T14:10:00Z".parse().unwrap();
    let (claims, export) = (&*DEVICES, None);
    View { backup, tracker: None, machine_exists: true, vmi: None, claim: None, claims, export, held: true, now }
}

#[track_caller]
fn check(
    backup: &VirtualMachineBackup,
    tracker: Option<&VirtualMachineBackupTracker>,
    vmi: Option<&VirtualMachineInstance>,
    expect: &Step,
) {
    let claim = claim("Filesystem");
    let view = View { tracker, vmi, claim: Some(&claim), ..seen(backup) };
    assert_eq!(next(&view), *expect);
}

fn waits(why: &str) -> Step {
    Step::Say(Outcome::Waits(why.to_owned()))
}

#[test]
fn a_backup_waits_until_it_can_begin() {
    let new = backup(json!({}));
    let view = View { machine_exists: false, held: false, ..seen(&new) };
    assert_eq!(next(&view), Step::Hold);
    assert_eq!(next(&View { held: true, ..view }), waits("VM ns/vm doesnt exist"));
    check(&new, None, None, &waits("vm vm is not running, cannot do backup"));
    let none = || json!({});
    let untracked = vmi(json!({ "state": "Initializing" }), none());
    check(&new, None, Some(&untracked), &waits("vm vm has no ChangedBlockTracking, cannot start backup"));
    let other = vmi(json!({ "state": "Enabled", "backupStatus": { "backupName": "c" } }), none());
    check(&new, None, Some(&other), &waits("Another backup c is already in progress"));
    let enabled = || json!({ "state": "Enabled" });
    let moving = vmi(enabled(), json!({ "status": { "migrationState": { "migrationUid": "m" } } }));
    check(&new, None, Some(&moving), &waits("vm vm is being migrated, the backup begins afterwards"));
    let ready = vmi(enabled(), none());
    check(&new, None, Some(&ready), &Step::Lock);
    let device = claim("Block");
    let view = View { vmi: Some(&ready), claim: Some(&device), ..seen(&new) };
    assert!(matches!(next(&view), Step::Say(Outcome::Failed { reason: "Failed", .. })));
    assert_eq!(next(&View { claim: None, ..view }), waits("PVC out does not exist"));
    let source = json!({ "apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackupTracker", "name": "t" });
    let tracked = backup(json!({ "spec": { "source": source } }));
    check(&tracked, None, Some(&ready), &waits("BackupTracker t does not exist"));
    let mut stale = tracker(json!({ "name": "c" }));
    stale.status.as_mut().unwrap().checkpoint_redefinition_required = Some(true);
    check(&tracked, Some(&stale), Some(&ready), &waits("Waiting for checkpoint redefinition on tracker t"));
}

#[test]
fn a_backup_begins_when_its_claim_is_there() {
    let new = backup(json!({}));
    check(&new, None, Some(&vmi(lock(json!({})), json!({}))), &Step::Attach);
    let coming = vmi(lock(json!({})), attached("AttachedToNode"));
    check(&new, None, Some(&coming), &waits("PVC out is being attached to the launcher"));
    let there = vmi(lock(json!({})), attached("MountedToPod"));
    check(&new, None, Some(&there), &Step::Start { since: None });
    let source = json!({ "apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackupTracker", "name": "t" });
    let tracked = |more: Value| {
        let mut spec = json!({ "spec": { "source": source } });
        json_patch::merge(&mut spec, &more);
        backup(spec)
    };
    let latest = json!({ "name": "c", "creationTime": MADE });
    let since = Some(of(latest.clone()));
    check(&tracked(json!({})), Some(&tracker(json!(null))), Some(&there), &Step::Start { since: None });
    check(&tracked(json!({})), Some(&tracker(latest.clone())), Some(&there), &Step::Start { since });
    let forced = tracked(json!({ "spec": { "forceFullBackup": true } }));
    check(&forced, Some(&tracker(latest)), Some(&there), &Step::Start { since: None });
}

#[test]
fn a_device_that_is_newer_than_the_checkpoint_is_backed_up_whole() {
    let source = json!({ "apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackupTracker", "name": "t" });
    let tracked = backup(json!({ "spec": { "source": source } }));
    let latest = json!({ "name": "c", "creationTime": MADE, "volumes": [{ "volumeName": "data" }] });
    #[track_caller]
    fn on(backup: &VirtualMachineBackup, latest: &Value, claim: &str, since: bool) {
        let mut there = attached("MountedToPod");
        there["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
        let since = since.then(|| of(latest.clone()));
        check(backup, Some(&tracker(latest.clone())), Some(&vmi(lock(json!({})), there)), &Step::Start { since });
    }
    on(&tracked, &latest, "old", true);
    on(&tracked, &latest, "new", false);
    on(&tracked, &latest, "file", true);
}

#[test]
fn a_backup_ends_and_lets_go() {
    let runs = json!({ "status": { "type": "Full" } });
    let begun = || json!({ "checkpointName": "b-1" });
    check(&backup(runs.clone()), None, Some(&vmi(lock(begun()), attached("MountedToPod"))), &Step::Wait);
    let mut failed = begun();
    json_patch::merge(
        &mut failed,
        &json!({ "completed": true, "failed": true, "backupMsg": "No space left on device" }),
    );
    let why = Outcome::Failed { reason: "Failed", why: "No space left on device".to_owned() };
    let instance = vmi(lock(failed), attached("MountedToPod"));
    check(&backup(runs.clone()), None, Some(&instance), &Step::Conclude(why.clone()));
    let lost = |why: &str| Step::Say(Outcome::Failed { reason: "SourceLost", why: why.to_owned() });
    check(&backup(runs.clone()), None, None, &lost("VMI was deleted during backup"));
    check(
        &backup(runs),
        None,
        Some(&vmi(json!({ "state": "Enabled" }), json!({}))),
        &lost("VMI backup status was lost"),
    );
    let mut status = VirtualMachineBackupStatus::default();
    enter(&mut status, &why, &of(json!(MADE)));
    let over = backup(json!({ "status": status }));
    assert!(is_over(&over));
    check(&over, None, Some(&instance), &Step::Detach);
    let leaving = json!({ "status": attached("Detaching")["status"] });
    check(&over, None, Some(&vmi(lock(begun()), leaving)), &Step::Wait);
    check(&over, None, Some(&vmi(lock(begun()), json!({}))), &Step::Unlock);
    check(&over, None, Some(&vmi(json!({ "state": "Enabled" }), json!({}))), &Step::Wait);
}

#[test]
fn one_that_is_deleted_is_ended_first() {
    let deleted = |more: Value| {
        let mut value = json!({ "metadata": { "deletionTimestamp": MADE }, "status": { "type": "Full" } });
        json_patch::merge(&mut value, &more);
        backup(value)
    };
    let running = vmi(lock(json!({ "checkpointName": "b-1" })), attached("MountedToPod"));
    check(&deleted(json!({})), None, Some(&running), &Step::Say(Outcome::Aborting(WORDS)));
    let mut status = VirtualMachineBackupStatus::default();
    enter(&mut status, &Outcome::Aborting(WORDS), &of(json!(MADE)));
    check(&deleted(json!({ "status": status })), None, Some(&running), &Step::Abort);
    let ended = vmi(lock(json!({ "checkpointName": "b-1", "completed": true, "failed": true })), json!({}));
    check(&deleted(json!({})), None, Some(&ended), &Step::Unlock);
    check(&deleted(json!({})), None, None, &Step::Release);
}

#[test]
fn conditions_follow_the_outcome() {
    let mut status = VirtualMachineBackupStatus::default();
    let (before, after) = (of::<Time>(json!(MADE)), of::<Time>(json!("2026-01-31T14:00:00Z")));
    let reasons = |status: &VirtualMachineBackupStatus| {
        let all = status.conditions.iter();
        all.map(|one| format!("{}={} {}", one.type_, one.status, one.reason)).collect::<Vec<_>>().join(", ")
    };
    enter(&mut status, &Outcome::Waits("x".to_owned()), &before);
    assert_eq!(reasons(&status), "Progressing=False Initializing, Done=False Initializing");
    enter(&mut status, &Outcome::Runs { kind: FULL }, &after);
    assert_eq!(reasons(&status), "Progressing=True Initiated, Done=False Initiated");
    assert_eq!(status.conditions[1].last_transition_time, before, "it is as little done as before");
    let made =
        json!({ "checkpointName": "b-1", "quiesceStatus": "QuiesceFailed", "volumes": [{ "volumeName": "root" }] });
    let outcome = Outcome::Complete { made: Box::new(of(made)), warning: Some("no agent".to_owned()) };
    enter(&mut status, &outcome, &after);
    assert_eq!(
        reasons(&status),
        "Progressing=False CompletedWithWarning, Done=True CompletedWithWarning, \
         Complete=True CompletedWithWarning, Quiesced=False QuiesceFailed"
    );
    assert_eq!((status.type_.as_deref(), status.checkpoint_name.as_deref()), (Some(FULL), Some("b-1")));
    assert_eq!(status.included_volumes[0].volume_name, "root");
}
