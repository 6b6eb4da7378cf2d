//! What a VolumeSnapshot needs next, case by case.

use serde_json::{Value, json};

use super::*;

const UID: &str = "u1";

fn snapshot(more: &Value) -> VolumeSnapshot {
    let mut value = json!({"metadata": {"name": "s", "namespace": "n", "uid": UID, "finalizers": [AS_SOURCE, BOUND]},
        "spec": {"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "k"}});
    merge(&mut value, more);
    serde_json::from_value(value).unwrap()
}

fn merge(value: &mut Value, more: &Value) {
    match (value, more) {
        (Value::Object(map), Value::Object(more)) => {
            for (key, more) in more {
                merge(map.entry(key.as_str()).or_insert(Value::Null), more);
            }
        }
        (value, more) => *value = more.clone(),
    }
}

fn content(more: &Value) -> VolumeSnapshotContent {
    let mut value = json!({"metadata": {"name": "snapcontent-u1"}, "spec": {"deletionPolicy": "Delete", "driver": "d",
        "source": {"volumeHandle": "h"}, "volumeSnapshotRef": {"namespace": "n", "name": "s", "uid": UID}}});
    merge(&mut value, more);
    serde_json::from_value(value).unwrap()
}

fn class(name: &str, driver: &str, default: bool) -> Arc<VolumeSnapshotClass> {
    let value = json!({"metadata": {"name": name, "annotations": {DEFAULT_CLASS: default.to_string()}},
        "driver": driver, "deletionPolicy": "Delete"});
    Arc::new(serde_json::from_value(value).unwrap())
}

fn claim(more: &Value) -> PersistentVolumeClaim {
    let mut value = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u2", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
    merge(&mut value, more);
    serde_json::from_value(value).unwrap()
}

fn volume(source: &Value) -> PersistentVolume {
    let mut value =
        json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "n", "name": "c", "uid": "u2"}}});
    merge(&mut value["spec"], source);
    serde_json::from_value(value).unwrap()
}

fn word(step: &Step) -> String {
    match step {
        Step::Fail { reason, message } => format!("{reason}: {message}"),
        Step::Finalizers(list) => format!("finalizers {}", list.len()),
        Step::TakeClass(name) => format!("class {name}"),
        Step::Make(content) => format!("make {}", content.name_any()),
        Step::Say(status) => format!("say {}", serde_json::to_value(status).unwrap()),
        other => format!("{other:?}"),
    }
}

#[track_caller]
fn check(snapshot: &VolumeSnapshot, world: &World<'_>, expect: &str) {
    assert_eq!(word(&step(snapshot, world)), expect);
}

fn world(content: &VolumeSnapshotContent) -> World<'_> {
    World { content: Some(content), ..NOTHING }
}

const NOTHING: World<'_> = World { content: None, classes: &[], claim: None, volume: None, in_use: false };

#[test]
fn a_snapshot_of_a_claim_comes_to_its_content() {
    let csi = volume(&json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    let (free, held) = (claim(&json!({})), claim(&json!({"metadata": {"finalizers": [CLAIM]}})));
    let classes = [class("k", "d", true), class("other", "e", true), class("x", "x", false)];
    let world = World { classes: &classes, claim: Some(&free), volume: Some(&csi), ..NOTHING };
    check(&snapshot(&json!({"metadata": {"finalizers": ["x"]}})), &world, "finalizers 2");
    check(&snapshot(&json!({"spec": {"volumeSnapshotClassName": null}})), &world, "class k");
    check(&snapshot(&json!({})), &world, "HoldClaim");
    let world = World { claim: Some(&held), ..world };
    check(&snapshot(&json!({})), &world, "make snapcontent-u1");
    let Step::Make(made) = step(&snapshot(&json!({})), &world) else { panic!("no content is made") };
    let made = serde_json::to_value(&made).unwrap();
    assert_eq!(made["spec"]["source"], json!({"volumeHandle": "h"}));
    assert_eq!(made["spec"]["sourceVolumeMode"], "Filesystem");
    assert_eq!(made["spec"]["volumeSnapshotRef"]["uid"], UID);
}

#[test]
fn obstacles_to_a_snapshot_are_named() {
    let csi = volume(&json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    let local = volume(&json!({"hostPath": {"path": "/p"}}));
    let (bound, open) =
        (claim(&json!({})), claim(&json!({"spec": {"volumeName": null}, "status": {"phase": "Pending"}})));
    let leaving = claim(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let (classes, twice, foreign) =
        ([class("k", "d", false)], [class("a", "d", true), class("b", "d", true)], [class("k", "e", false)]);
    let unclassed = snapshot(&json!({"spec": {"volumeSnapshotClassName": null}}));
    let default = "SetDefaultSnapshotClassFailed: Failed to set default snapshot class with error";
    let world = World { classes: &classes, claim: Some(&bound), volume: Some(&csi), ..NOTHING };
    check(&unclassed, &world, &format!("{default} cannot find default snapshot class"));
    check(&unclassed, &World { classes: &twice, ..world }, &format!("{default} 2 default snapshot classes were found"));
    let absent = "failed to retrieve PVC c from the lister: persistentvolumeclaim \"c\" not found";
    check(&unclassed, &World { claim: None, ..world }, &format!("{default} {absent}"));
    check(
        &snapshot(&json!({})),
        &World { classes: &[], ..world },
        "GetSnapshotClassFailed: Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io \"k\" not found",
    );
    let made = |world: World<'_>, why: &str| {
        let all = "SnapshotContentCreationFailed: Failed to create snapshot content with error failed to get input parameters to create snapshot s:";
        check(&snapshot(&json!({})), &world, &format!("{all} {why:?}"));
    };
    made(
        World { claim: Some(&open), ..world },
        "the PVC c is not yet bound to a PV, will not attempt to take a snapshot",
    );
    made(World { claim: Some(&leaving), ..world }, "cannot snapshot PVC c because it is being deleted");
    made(World { volume: Some(&local), ..world }, "snapshotting non-CSI volumes is not supported, snapshot of v");
    made(World { classes: &foreign, ..world }, "snapshot class k is of driver e, and volume v of d");
}

#[test]
fn a_snapshot_says_what_its_content_says() {
    let ready = content(&json!({"status": {"snapshotHandle": "x", "readyToUse": true, "restoreSize": 1 << 30,
        "creationTime": 1_767_225_600_000_000_000_i64}}));
    let world = World { content: Some(&ready), ..NOTHING };
    let said = json!({"boundVolumeSnapshotContentName": "snapcontent-u1", "creationTime": "2026-01-01T00:00:00Z",
        "readyToUse": true, "restoreSize": "1Gi"});
    check(&snapshot(&json!({})), &world, &format!("say {said}"));
    check(&snapshot(&json!({ "status": said })), &world, "Rest");
    let failed = content(&json!({"status": {"error": {"message": "no room"}}}));
    let Step::Say(status) = step(&snapshot(&json!({})), &World { content: Some(&failed), ..NOTHING }) else {
        panic!("nothing is said")
    };
    assert_eq!((status.ready_to_use, status.error.unwrap().message.as_deref()), (Some(false), Some("no room")));
    check(&snapshot(&json!({ "status": said })), &NOTHING, "SnapshotContentMissing: VolumeSnapshotContent is missing");
}

#[test]
fn contents_that_were_there_before() {
    let of = json!({"spec": {"source": {"persistentVolumeClaimName": null, "volumeSnapshotContentName": "e"}}});
    let existing = json!({"metadata": {"name": "e"}, "spec": {"source": {"volumeHandle": null, "snapshotHandle": "x"}, "volumeSnapshotRef": {"uid": ""}}});
    check(&snapshot(&of), &NOTHING, "SnapshotContentMissing: VolumeSnapshotContent is missing");
    check(&snapshot(&of), &world(&content(&existing)), "Bind");
    let mut other = existing;
    merge(&mut other, &json!({"spec": {"volumeSnapshotRef": {"uid": "u9"}}}));
    let why = "SnapshotContentMisbound: VolumeSnapshotContent [e] is bound to a different snapshot";
    check(&snapshot(&of), &world(&content(&other)), why);
    let why = "SnapshotContentMismatch: VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
    check(&snapshot(&of), &world(&content(&json!({"metadata": {"name": "e"}}))), why);
}

#[test]
fn a_deleted_snapshot_takes_its_content_as_the_policy_says() {
    let leaving = snapshot(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let marked = json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}});
    check(&leaving, &World { in_use: true, ..NOTHING }, "Pending");
    check(&leaving, &world(&content(&json!({}))), "Mark");
    check(&leaving, &world(&content(&marked)), "DeleteContent");
    let mut going = marked.clone();
    merge(&mut going, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    check(&leaving, &world(&content(&going)), "Rest");
    let mut kept = marked;
    merge(&mut kept, &json!({"spec": {"deletionPolicy": "Retain"}}));
    check(&leaving, &world(&content(&kept)), "finalizers 0");
    check(&leaving, &NOTHING, "finalizers 0");
    check(
        &snapshot(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}})),
        &NOTHING,
        "Rest",
    );
}
