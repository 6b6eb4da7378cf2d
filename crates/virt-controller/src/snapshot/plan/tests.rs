//! Snapshots, decided.

use serde_json::{Value, json};

use super::*;

fn snapshot(deadline: Option<&str>) -> VirtualMachineSnapshot {
    serde_json::from_value(json!({
        "metadata": { "name": "s", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "source": { "kind": "VirtualMachine", "name": "vm" }, "failureDeadline": deadline },
    }))
    .unwrap()
}

#[test]
fn a_snapshot_has_its_source_to_itself() {
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(metadata: Value, status: Value, expect: Source) {
        let vm = json!({ "metadata": metadata, "spec": { "template": {} }, "status": status });
        assert_eq!(source(&snapshot(None), Some(&serde_json::from_value(vm).unwrap())), expect);
    }
    assert_eq!(source(&snapshot(None), None), Source::Missing);
    let plain = || json!({ "name": "vm" });
    let kept = || json!({ "name": "vm", "finalizers": [PROTECTION] });
    let leaving = || json!({ "name": "vm", "deletionTimestamp": "2026-01-01T00:00:00Z" });
    check(plain(), json!({}), Source::Free);
    check(leaving(), json!({}), Source::Missing);
    // Whoever was interrupted between the two steps takes both again.
    check(plain(), json!({ "snapshotInProgress": "s" }), Source::Free);
    check(kept(), json!({ "snapshotInProgress": "s" }), Source::Ours);
    check(plain(), json!({ "snapshotInProgress": "t" }), Source::Taken("snapshot \"t\" in progress".into()));
    check(plain(), json!({ "restoreInProgress": "r" }), Source::Taken("restore \"r\" in progress".into()));
}

#[test]
fn deadlines() {
    let at = |text: Option<&str>| deadline(&snapshot(text)).map(|at| at.to_string());
    assert_eq!(at(None).as_deref(), Some("2026-01-01T00:05:00Z"));
    assert_eq!(at(Some("1m30s")).as_deref(), Some("2026-01-01T00:01:30Z"));
    assert_eq!(at(Some("0s")), None);
}

#[test]
fn indications_follow_the_state_of_the_guest() {
    #[track_caller]
    fn check(guest: (bool, bool, bool), error: Option<&str>, expect: &[&str]) {
        let (online, paused, agent) = guest;
        let error = error.map(|text| json!({ "message": text }));
        let mut status = serde_json::from_value(json!({ "indications": [], "error": error })).unwrap();
        Guest { online, paused, agent, frozen: false }.indicate(&mut status);
        assert_eq!(status.indications, expect);
        let told: Vec<&str> = status.source_indications.iter().map(|one| one.indication.as_str()).collect();
        assert_eq!(told, expect);
        assert!(status.source_indications.iter().all(|one| one.message.ends_with('.')));
    }
    check((false, false, false), None, &[]);
    check((true, false, false), None, &["NoGuestAgent", "Online"]);
    check((true, false, true), None, &["GuestAgent", "Online"]);
    check((true, true, true), None, &["Online", "Paused"]);
    // The agent came, or went, since it was looked at before.
    let mut status = serde_json::from_value(json!({ "indications": [] })).unwrap();
    for (agent, frozen, expect) in [
        (false, false, "NoGuestAgent"),
        (true, false, "GuestAgent"),
        (false, true, "GuestAgent"),
        (false, false, "NoGuestAgent"),
    ] {
        Guest { online: true, paused: false, agent, frozen }.indicate(&mut status);
        let mut expect = [expect, "Online"];
        expect.sort_unstable();
        assert_eq!(status.indications, expect);
        assert!(status.source_indications.iter().map(|one| one.indication.as_str()).eq(expect));
    }
    check((true, false, true), Some("fsfreeze is limited to 10s"), &["GuestAgent", "Online", "QuiesceTimeout"]);
}

#[test]
fn a_content_is_cut_and_then_ready() {
    let at = "2026-01-01T00:00:00Z";
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(was_cut: bool, a: Value, b: Value, (cut, ready): (bool, bool), error: Option<&str>) {
        let backup =
            |name: &str| json!({ "volumeName": name, "persistentVolumeClaim": {}, "volumeSnapshotName": name });
        let content = json!({
            "spec": { "source": {}, "volumeBackups": [backup("a"), backup("b")] },
            "status": { "creationTime": was_cut.then_some("2026-01-01T00:00:00Z") },
        });
        let content: VirtualMachineSnapshotContent = serde_json::from_value(content).unwrap();
        let find = |name: &str| {
            let status = if name == "a" { &a } else { &b };
            if status.is_null() {
                return None;
            }
            serde_json::from_value(json!({ "metadata": { "name": name }, "status": status })).ok()
        };
        let found = progress(&content, find);
        assert_eq!((found.cut, found.ready, found.error.as_deref()), (cut, ready, error));
    }
    let done = || json!({ "creationTime": at, "readyToUse": true });
    let bad = || json!({ "creationTime": at, "readyToUse": false, "error": { "message": "no room" } });
    check(false, json!({}), done(), (false, false), None);
    check(false, Value::Null, done(), (false, false), None);
    check(false, json!({ "creationTime": at }), done(), (true, false), None);
    check(false, done(), done(), (true, true), None);
    check(true, done(), Value::Null, (false, false), Some("VolumeSnapshots (b) missing"));
    check(true, bad(), done(), (true, false), Some("VolumeSnapshot a error: no room"));
    // One that can be used is not spoilt by what went wrong before.
    let mended = json!({ "creationTime": at, "readyToUse": true, "error": { "message": "bad stuff" } });
    check(true, mended, done(), (true, true), None);
}

#[test]
fn phase_and_conditions_follow_the_outcome() {
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(status: Value, outcome: Outcome, expect: &[&str]) {
        let mut status: VirtualMachineSnapshotStatus = serde_json::from_value(status).unwrap();
        conclude(&mut status, &outcome, Timestamp::UNIX_EPOCH);
        let told = |c: &Condition| format!("{} {}: {}", c.type_, c.status, c.reason.as_deref().unwrap_or_default());
        let told = status.phase.iter().cloned().chain(status.conditions.iter().map(told));
        assert_eq!(told.collect::<Vec<_>>(), expect);
    }
    let waits = Outcome::Waits("Source does not exist".into());
    let not_ready = "Ready False: Not ready";
    check(json!({}), waits, &["InProgress", "Progressing False: Source does not exist", not_ready]);
    let runs = "Progressing True: Source locked and operation in progress";
    let why = "nobody makes it".to_owned();
    check(json!({}), Outcome::Unheard(why), &["InProgress", "Progressing True: nobody makes it", not_ready]);
    check(json!({}), Outcome::Runs, &["InProgress", runs, not_ready]);
    let error = json!({ "error": { "message": "m" } });
    check(error, Outcome::Runs, &["InProgress", "Progressing False: In error state", not_ready]);
    let complete = "Progressing False: Operation complete";
    check(json!({}), Outcome::Done, &["Succeeded", complete, not_ready]);
    check(json!({ "readyToUse": true }), Outcome::Done, &["Succeeded", complete, "Ready True: Ready"]);
    let failed = "Failure True: snapshot deadline exceeded";
    check(json!({}), Outcome::Failed, &["Failed", "Progressing False: Operation failed", not_ready, failed]);
}
