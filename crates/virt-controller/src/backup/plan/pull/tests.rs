//! Backups that are pulled, step by step.

use serde_json::{Value, json};

use super::super::tests::{MADE, attached, backup, claim, lock, of, seen, vmi};
use super::super::{enter, is_over, next};
use super::*;

fn begun() -> Value {
    lock(json!({ "checkpointName": "b-1", "volumes": [{ "volumeName": "root" }] }))
}

/// A backup that is pulled, with this status.
fn pulled(status: Value) -> VirtualMachineBackup {
    backup(json!({ "spec": { "mode": "Pull", "tokenSecretRef": "t" }, "status": status }))
}

fn served() -> Value {
    json!({ "type": "Full", "includedVolumes": [{ "volumeName": "root" }], "exportUID": "e" })
}

/// The export as the backup makes it, with this status.
fn shown(status: Value) -> VirtualMachineExport {
    let mut export = export(&pulled(json!({})), Duration::from_secs(60));
    export.metadata.uid = Some("e".to_owned());
    export.status = of(status);
    export
}

fn link(host: &str, cert: &str) -> Value {
    let at = |endpoint: &str| json!({ "endpoint": endpoint, "url": format!("https://{host}/exports/root/{endpoint}") });
    json!({ "cert": cert, "backups": [{ "name": "root", "endpoints": [at("data"), at("map")] }] })
}

#[track_caller]
fn check(backup: &VirtualMachineBackup, told: Value, export: Option<&VirtualMachineExport>, expect: &Step) {
    let (claim, vmi) = (claim("Filesystem"), vmi(told, attached("MountedToPod")));
    let view = View { vmi: Some(&vmi), claim: Some(&claim), export, ..seen(backup) };
    assert_eq!(next(&view), *expect);
}

fn preparing(why: &str) -> Step {
    let told = begun()["backupStatus"].clone();
    Step::Say(Outcome::Preparing { made: Box::new(of(told)), why: why.to_owned() })
}

#[test]
fn one_that_has_begun_is_shown_by_an_export_of_its_own() {
    check(&pulled(json!({})), lock(json!({})), None, &Step::Start { since: None });
    check(&pulled(json!({ "type": "Full" })), begun(), None, &preparing(PREPARING));
    check(&pulled(served()), begun(), None, &Step::Serve);
    check(&pulled(served()), begun(), Some(&shown(Value::Null)), &preparing(PREPARING));
    let mut other = shown(Value::Null);
    other.metadata.owner_references = None;
    let why = "VirtualMachineExport b is there and belongs to something else: delete it";
    check(&pulled(served()), begun(), Some(&other), &preparing(why));
    let inside = json!({ "phase": "Ready", "links": { "internal": link("inside", "I") } });
    let outside =
        json!({ "phase": "Ready", "links": { "internal": link("inside", "I"), "external": link("out", "O") } });
    for (status, host, cert) in [(inside, "inside", "I"), (outside, "out", "O")] {
        let volumes = json!([{
            "volumeName": "root",
            "dataEndpoint": format!("https://{host}/exports/root/data"),
            "mapEndpoint": format!("https://{host}/exports/root/map"),
        }]);
        let outcome = Outcome::Served { cert: cert.to_owned(), volumes: of(volumes), export: "e".to_owned() };
        check(&pulled(served()), begun(), Some(&shown(status)), &Step::Say(outcome));
    }
    let export = export(&pulled(json!({})), Duration::from_secs(6590));
    assert_eq!(
        (export.spec.ttl_duration.as_deref(), export.spec.token_secret_ref.as_deref()),
        (Some("6590s"), Some("t"))
    );
    assert_eq!(export.spec.source.kind, "VirtualMachineBackup");
}

#[test]
fn it_ends_with_its_time_and_is_complete_then() {
    let now = "2026-01-31T14:10:00Z".parse().unwrap();
    assert_eq!(left(&pulled(json!({})), now), Some(Duration::from_secs(7200 - 601)));
    let mut short = pulled(served());
    short.spec.ttl_duration = Some("10m".to_owned());
    assert_eq!(left(&short, now), None);
    let why = "pull mode backup TTL has expired: Backup is aborting";
    check(&short, begun(), Some(&shown(Value::Null)), &Step::Say(Outcome::Aborting(why)));
    let mut status: VirtualMachineBackupStatus = of(served());
    enter(&mut status, &Outcome::Aborting(why), &of(json!(MADE)));
    short.status = Some(Box::new(status));
    check(&short, begun(), Some(&shown(Value::Null)), &Step::Abort);
    let mut ended = begun();
    ended["backupStatus"]["completed"] = json!(true);
    let complete = Outcome::Complete { made: Box::new(of(ended["backupStatus"].clone())), warning: None };
    check(&short, ended.clone(), Some(&shown(Value::Null)), &Step::Conclude(complete));

    // What nobody could pull is not what the next one builds on.
    let failed = |why: &str| Outcome::Failed { reason: "Failed", why: why.to_owned() };
    let never = pulled(json!({ "type": "Full" }));
    check(&never, ended, None, &Step::Conclude(failed("it ended before it could be pulled")));
    let mut late = pulled(Value::Null);
    late.spec.ttl_duration = Some("10m".to_owned());
    let why = "its ttlDuration was over before it could begin: make another one";
    check(&late, json!({ "state": "Enabled" }), None, &Step::Say(failed(why)));
}

#[test]
fn one_that_is_deleted_is_complete_before_it_goes() {
    let mut deleted = pulled(served());
    deleted.metadata.deletion_timestamp = of(json!(MADE));
    check(&deleted, begun(), Some(&shown(Value::Null)), &Step::Withdraw);
    check(&deleted, begun(), None, &Step::Say(Outcome::Aborting("Backup is aborting")));
    let mut ended = begun();
    ended["backupStatus"]["completed"] = json!(true);
    let complete = Outcome::Complete { made: Box::new(of(ended["backupStatus"].clone())), warning: None };
    check(&deleted, ended.clone(), None, &Step::Conclude(complete.clone()));
    let mut status: VirtualMachineBackupStatus = of(served());
    enter(&mut status, &complete, &of(json!(MADE)));
    deleted.status = Some(Box::new(status));
    check(&deleted, ended, None, &Step::Detach);
    // Somebody else's export is left alone.
    let mut other = shown(Value::Null);
    other.metadata.owner_references = None;
    check(&deleted, json!({ "state": "Enabled" }), Some(&other), &Step::Detach);
}

#[test]
fn the_status_leads_to_it_as_long_as_it_is_served() {
    let mut status: VirtualMachineBackupStatus = of(json!({ "type": "Full" }));
    let (at, later) = (of(json!(MADE)), of(json!("2026-01-31T14:00:00Z")));
    let reasons = |status: &VirtualMachineBackupStatus| {
        let all = status.conditions.iter();
        all.map(|one| format!("{}={} {}", one.type_, one.status, one.reason)).collect::<Vec<_>>().join(", ")
    };
    let made = of::<Told>(begun()["backupStatus"].clone());
    enter(&mut status, &Outcome::Preparing { made: Box::new(made.clone()), why: PREPARING.to_owned() }, &at);
    assert_eq!((status.checkpoint_name.as_deref(), status.included_volumes.len()), (Some("b-1"), 1));
    assert_eq!(
        reasons(&status),
        "Progressing=True PreparingExport, Done=False PreparingExport, \
         ExportInitiated=True PreparingExport, ExportReady=False PreparingExport"
    );
    let volumes = of(json!([{ "volumeName": "root", "dataEndpoint": "d", "mapEndpoint": "m" }]));
    enter(&mut status, &Outcome::Served { cert: "C".to_owned(), volumes, export: "e".to_owned() }, &at);
    assert_eq!((status.endpoint_cert.as_deref(), status.export_uid.as_deref()), (Some("C"), Some("e")));
    assert!(status.conditions.iter().any(|one| one.type_ == "ExportReady" && one.status == "True"));
    enter(&mut status, &Outcome::Complete { made: Box::new(made), warning: None }, &later);
    assert_eq!(status.endpoint_cert, None);
    assert_eq!(json!(status.included_volumes), json!([{ "volumeName": "root" }]));
    let ready = status.conditions.iter().find(|one| one.type_ == "ExportReady").unwrap();
    assert_eq!((ready.status.as_str(), &ready.last_transition_time), ("False", &later));
    assert!(is_over(&pulled(json!(status))));
}
