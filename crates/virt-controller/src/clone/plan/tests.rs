//! A clone goes from phase to phase, waits, and fails.

use serde_json::{Value, json};

use super::*;

fn clone(status: Value) -> VirtualMachineClone {
    serde_json::from_value(json!({
        "metadata": { "name": "copy", "namespace": "ns", "uid": "u" },
        "spec": {
            "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
            "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "twin" },
            "volumeNamePolicy": "PrefixTargetName",
        },
        "status": status,
    }))
    .unwrap()
}

fn machine(domain: Value, enabled: Option<bool>) -> Value {
    let spec = json!({
        "domain": domain,
        "volumes": [
            { "name": "root", "persistentVolumeClaim": { "claimName": "data" } },
            { "name": "seed", "cloudInitNoCloud": { "userData": "x" } },
        ],
    });
    let known: Vec<Value> = enabled.into_iter().map(|on| json!({ "name": "root", "enabled": on })).collect();
    json!({
        "metadata": { "name": "vm", "labels": { "a": "b" } },
        "spec": { "template": { "spec": spec } }, "status": { "volumeSnapshotStatuses": known },
    })
}

fn content(backups: &[&str]) -> Value {
    let machine = machine(json!({ "devices": {} }), None);
    let backups: Vec<Value> = backups
        .iter()
        .map(|name| json!({ "volumeName": name, "persistentVolumeClaim": {}, "volumeSnapshotName": name }))
        .collect();
    json!({ "spec": { "source": { "virtualMachine": machine }, "volumeBackups": backups } })
}

/// The phase, what is done, and what is told.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check(clone: VirtualMachineClone, world: Value, expect: (&str, &str, &str)) -> Plan {
    let of = |key: &str| world.get(key).cloned().unwrap_or(Value::Null);
    let world = World {
        machine: serde_json::from_value(of("machine")).unwrap(),
        snapshot: serde_json::from_value(of("snapshot")).unwrap(),
        content: serde_json::from_value(of("content")).unwrap(),
        restore: serde_json::from_value(of("restore")).unwrap(),
        target: of("target") == true,
        bound: of("bound") == true,
    };
    let plan = plan(&clone, &world, Timestamp::UNIX_EPOCH);
    let step = match &plan.step {
        Step::None => "",
        Step::Snapshot(_) => "snapshot",
        Step::Restore(_) => "restore",
        Step::TidyUp => "tidy up",
        Step::Forget => "forget",
    };
    let told = plan.event.as_ref().map(|(_, reason, what)| format!("{reason}: {what}")).unwrap_or_default();
    assert_eq!((plan.status.phase.as_deref().unwrap_or_default(), step, told.as_str()), expect);
    plan
}

fn said(plan: &Plan, kind: &str) -> (String, String) {
    let found = plan.status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone().unwrap_or_default())
}

#[test]
fn from_source_to_copy() {
    let ready = || json!({ "metadata": { "name": "s", "namespace": "ns" }, "status": { "readyToUse": true } });
    let bare = || json!({ "devices": {} });
    let plan = check(
        clone(json!({})),
        json!({ "machine": machine(bare(), Some(true)) }),
        ("SnapshotInProgress", "snapshot", "SnapshotCreated: created snapshot tmp-snapshot-u for clone copy"),
    );
    assert_eq!(said(&plan, "Progressing"), ("True".into(), "Still processing".into()));
    let Step::Snapshot(snapshot) = plan.step else { unreachable!() };
    assert_eq!((snapshot.spec.source.name.as_str(), snapshot.owner_references()[0].uid.as_str()), ("vm", "u"));

    let taking = || json!({ "phase": "SnapshotInProgress", "snapshotName": "s" });
    let busy = json!({ "status": { "readyToUse": false } });
    check(clone(taking()), json!({ "snapshot": busy }), ("SnapshotInProgress", "", ""));
    check(
        clone(taking()),
        json!({ "snapshot": ready(), "content": content(&["root"]) }),
        ("RestoreInProgress", "", "SnapshotReady: snapshot s for clone copy is ready to use"),
    );

    let plan = check(
        clone(json!({ "phase": "RestoreInProgress", "snapshotName": "s" })),
        json!({ "snapshot": ready(), "content": content(&["root"]) }),
        ("RestoreInProgress", "restore", "RestoreCreated: created restore tmp-restore-u for clone copy"),
    );
    let Step::Restore(restore) = plan.step else { unreachable!() };
    assert_eq!(restore.spec.target.name, "twin");
    assert_eq!(restore.spec.volume_restore_policy.as_deref(), Some("PrefixTargetName"));

    let restoring = || json!({ "phase": "RestoreInProgress", "snapshotName": "s", "restoreName": "r" });
    let restore = |status: Value| json!({ "spec": { "target": { "name": "twin" } }, "status": status });
    check(clone(restoring()), json!({ "restore": restore(json!({})) }), ("RestoreInProgress", "", ""));
    let plan = check(
        clone(restoring()),
        json!({ "restore": restore(json!({ "complete": true })) }),
        ("CreatingTargetVM", "", "RestoreReady: restore r for clone copy is ready to use"),
    );
    assert_eq!(plan.status.target_name.as_deref(), Some("twin"));

    let creating =
        || json!({ "phase": "CreatingTargetVM", "snapshotName": "s", "restoreName": "r", "targetName": "twin" });
    let plan = check(
        clone(creating()),
        json!({ "target": true }),
        ("Succeeded", "", "TargetVMCreated: created target VM twin for clone copy"),
    );
    assert_eq!(said(&plan, "Ready"), ("True".into(), "Ready".into()));
    assert_eq!(said(&plan, "Progressing"), ("False".into(), "Ready".into()));

    let mut done = creating();
    done["phase"] = json!("Succeeded");
    check(clone(done.clone()), json!({ "target": true }), ("Succeeded", "", ""));
    let plan = check(
        clone(done.clone()),
        json!({ "target": true, "bound": true }),
        ("Succeeded", "tidy up", "PVCBound: all PVC for clone copy are bound"),
    );
    assert_eq!((plan.status.snapshot_name, plan.status.restore_name), (None, None));
    check(clone(done), json!({}), ("Succeeded", "forget", ""));
}

#[test]
fn a_clone_waits_for_its_source_and_names_it() {
    let missing = "SourceDoesNotExist: Source doesnt exist: VirtualMachine ns/vm";
    let plan = check(clone(json!({})), json!({}), ("", "", missing));
    assert_eq!(said(&plan, "Progressing"), ("False".into(), "Pending".into()));
    assert_eq!(said(&plan, "Ready").1, "Source doesnt exist: VirtualMachine ns/vm");
    let bare = || json!({ "devices": {} });
    let unknown = "VMVolumeSnapshotsInvalid: Virtual Machine volume root snapshot support unknown";
    check(clone(json!({})), json!({ "machine": machine(bare(), None) }), ("", "", unknown));
    let none = "VMVolumeSnapshotsInvalid: Virtual Machine volume root does not support snapshots";
    check(clone(json!({})), json!({ "machine": machine(bare(), Some(false)) }), ("", "", none));
}

#[test]
fn permanent_errors_fail_a_clone() {
    let tpm = json!({ "devices": { "tpm": { "persistent": true } } });
    let stateful = "SourceVMWithBackendStorageInvalid: Clone of source with backendstorage is not supported: VM ns/vm";
    let plan = check(clone(json!({})), json!({ "machine": machine(tpm, Some(true)) }), ("Failed", "", stateful));
    assert_eq!(said(&plan, "Progressing"), ("False".into(), "Failed".into()));
    let taking = || json!({ "phase": "SnapshotInProgress", "snapshotName": "s" });
    let gone = "SnapshotDeleted: snapshot s does not exist anymore";
    check(clone(taking()), json!({}), ("Failed", "", gone));
    let ready = || json!({ "metadata": { "name": "s", "namespace": "ns" }, "status": { "readyToUse": true } });
    let lost = "SnapshotContentInvalid: volume root is not backed up in snapshot s";
    check(clone(taking()), json!({ "snapshot": ready(), "content": content(&[]) }), ("Failed", "", lost));
    let late = json!([{ "type": "Failure", "status": "True", "message": "snapshot deadline exceeded" }]);
    let late = json!({ "snapshot": { "status": { "phase": "Failed", "conditions": late } } });
    check(clone(taking()), late, ("Failed", "", "SnapshotFailed: snapshot s failed: snapshot deadline exceeded"));
    let restoring = json!({ "phase": "RestoreInProgress", "restoreName": "r" });
    let taken = json!([{ "type": "Failure", "status": "True", "message": "it is taken" }]);
    let taken = json!({ "restore": { "status": { "conditions": taken } } });
    check(clone(restoring), taken, ("Failed", "", "RestoreCreationFailed: restore r failed: it is taken"));
}

#[test]
fn a_copy_without_a_name_gets_one() {
    let mut nameless = clone(json!({}));
    nameless.spec.target = None;
    let name = target_name(&nameless);
    assert!(name.starts_with("clone-vm-") && name.len() == "clone-vm-".len() + 5, "{name}");
}
