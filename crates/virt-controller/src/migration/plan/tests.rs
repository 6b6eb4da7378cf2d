//! Each state of a migration, and what is done about it.

use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T00:10:00Z";
const START: &str = "2026-01-01T00:09:00Z";

/// A case: what differs from a migration in its middle.
struct Case {
    phase: &'static str,
    cancelled: bool,
    vmi: Value,
    pods: Vec<Value>,
    source_lost: bool,
    target_lost: bool,
    target_hold: Option<&'static str>,
    failed_at: Option<&'static str>,
    rival: bool,
    turn: Turn,
    back_off: Option<Duration>,
    immovable: Option<String>,
    asked_at: &'static str,
}

fn case(phase: &'static str) -> Case {
    Case {
        phase,
        cancelled: false,
        vmi: json!({}),
        pods: vec![source("running")],
        source_lost: false,
        target_lost: false,
        target_hold: None,
        failed_at: None,
        rival: false,
        turn: Turn::Now,
        back_off: None,
        immovable: None,
        asked_at: START,
    }
}

impl Case {
    fn cancelled(mut self) -> Self {
        self.cancelled = true;
        self
    }

    fn vmi(mut self, vmi: Value) -> Self {
        self.vmi = vmi;
        self
    }

    fn state(self, state: Value) -> Self {
        let mut whole = json!({
            "migrationUid": "job", "sourceNode": "n1", "sourcePod": "a", "targetNode": "n2", "targetPod": "b",
        });
        merge(&mut whole, state);
        let labels = json!({ "kubevirt.io/migrationTargetNodeName": "n2" });
        self.vmi(json!({ "metadata": { "labels": labels }, "status": { "migrationState": whole } }))
    }

    fn on(mut self, node: &str) -> Self {
        self.vmi["status"]["nodeName"] = json!(node);
        self
    }

    fn pods(mut self, pods: &[Value]) -> Self {
        self.pods = pods.to_vec();
        self
    }

    fn plan(&self) -> Plan {
        let mut migration = json!({
            "metadata": { "name": "move", "namespace": "ns", "uid": "job", "finalizers": [finalizer::MIGRATION],
                "creationTimestamp": self.asked_at },
            "spec": { "vmiName": "vm" }, "status": { "phase": self.phase },
        });
        if let Some(at) = self.failed_at {
            migration["status"]["phaseTransitionTimestamps"] =
                json!([{ "phase": "Failed", "phaseTransitionTimestamp": at }]);
        }
        if self.cancelled {
            migration["metadata"]["deletionTimestamp"] = json!(NOW);
        }
        let mut vmi = json!({
            "metadata": { "name": "vm", "namespace": "ns", "uid": "vmi" },
            "status": { "phase": "Running", "nodeName": "n1" },
        });
        merge(&mut vmi, self.vmi.clone());
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        let pods: Vec<Pod> = self.pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
        plan(&View {
            outdated: false,
            migration: &serde_json::from_value(migration).unwrap(),
            vmi: Some(&vmi),
            pods: &pods,
            source_lost: self.source_lost,
            target_lost: self.target_lost,
            target_hold: self.target_hold.map(str::to_owned),
            rival: self.rival,
            turn: self.turn,
            back_off: self.back_off,
            immovable: self.immovable.clone(),
            patience: SignedDuration::from_secs(150),
            now: NOW.parse().unwrap(),
        })
    }

    /// Phases entered and steps taken.
    #[track_caller]
    fn expect(&self, phases: &[&str], steps: &[Step]) -> Plan {
        let plan = self.plan();
        assert_eq!((plan.phases.as_slice(), plan.steps.as_slice()), (phases, steps));
        plan
    }

    #[track_caller]
    fn fails(&self, why: &str, steps: &[Step]) {
        let plan = self.expect(&["Failed"], steps);
        assert_eq!(plan.remarks, [Remark::Warning("FailedMigration", why.to_owned())]);
    }
}

fn merge(to: &mut Value, from: Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                merge(to.entry(key).or_insert(Value::Null), value);
            }
        }
        (to, from) => *to = from,
    }
}

fn pod(name: &str, node: &str, state: &str, job: Option<&str>) -> Value {
    let state = match state {
        "ended" => json!({ "terminated": { "exitCode": 0, "finishedAt": START } }),
        other => json!({ (other): {} }),
    };
    json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "creationTimestamp": START,
            "labels": { "kubevirt.io/migrationJobUID": job },
        },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "containerStatuses": [
            { "name": "compute", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state },
        ] },
    })
}

fn source(state: &str) -> Value {
    let mut pod = pod("a", "n1", state, None);
    pod["metadata"]["labels"] = json!({});
    pod
}

fn target(state: &str) -> Value {
    pod("b", "n2", state, Some("job"))
}

fn pending() -> Value {
    let mut pod = pod("b", "", "waiting", Some("job"));
    pod["status"] = json!({ "phase": "Pending" });
    pod
}

fn delete(name: &str, why: &str) -> Step {
    Step::Cleanup(Cleanup::DeletePod {
        name: name.to_owned(),
        why: format!("migration pod ns/{name} is deleted: {why}"),
    })
}

fn unwanted() -> Step {
    delete("b", "the guest was not moved into it")
}

#[test]
fn from_nothing_to_running() {
    case("").expect(&["Pending"], &[Step::CreatePod]);
    case("Pending").expect(&[], &[Step::CreatePod]);
    let both = |state: &str| [source("running"), target(state)];
    case("Pending").pods(&both("waiting")).expect(&["Scheduling"], &[]);
    case("Pending").pods(&both("running")).expect(&["Scheduling", "Scheduled"], &[Step::HandOver]);
    case("Scheduled").pods(&both("running")).state(json!({})).expect(&["PreparingTarget"], &[]);
    let ready = json!({ "targetNodeAddress": "10.0.0.2" });
    case("PreparingTarget").pods(&both("running")).state(ready).expect(&["TargetReady"], &[]);
    let started = json!({ "targetNodeAddress": "10.0.0.2", "startTimestamp": START });
    case("TargetReady").pods(&both("running")).state(started.clone()).expect(&["Running"], &[]);
    case("Running").pods(&both("running")).state(started).expect(&[], &[]);
}

#[test]
fn a_disk_that_cannot_be_copied_is_said_before_anything_is_made() {
    let plan = Case { immovable: Some("of that".to_owned()), ..case("Pending") }.expect(&["Failed"], &[]);
    assert_eq!(plan.remarks, [Remark::Warning("FailedMigration", "Migration failed because of that".to_owned())]);
}

#[test]
fn nothing_starts_out_of_turn() {
    let waits = |case: Case| case.expect(&[], &[]).again;
    assert_eq!(waits(Case { turn: Turn::Cluster, ..case("Pending") }), Some(TURN));
    let reason = |case: Case| case.plan().waits.map(|waits| waits.reason);
    assert_eq!(reason(Case { turn: Turn::Cluster, ..case("Pending") }), Some("ClusterLimit"));
    assert_eq!(reason(Case { turn: Turn::Node, ..case("Pending") }), Some("NodeLimit"));
    assert_eq!(reason(Case { back_off: Some(TURN), ..case("Pending") }), Some("BackOff"));
    assert_eq!(reason(case("Pending")), None);
    assert_eq!(waits(Case { turn: Turn::Node, ..case("Pending") }), Some(TURN));
    let held = Some(Duration::from_secs(40));
    assert_eq!(waits(Case { back_off: held, ..case("Pending") }), held);
    assert_eq!(waits(case("Pending").vmi(json!({ "status": { "phase": "Scheduled" } }))), Some(TURN));
    // What an earlier migration left is cleared up first.
    assert_eq!(waits(case("Pending").pods(&[source("running"), pod("z", "n3", "running", Some("old"))])), Some(TURN));
    case("Pending").pods(&[source("running"), pod("z", "n3", "ended", Some("old"))]).expect(&[], &[Step::CreatePod]);
    let called = json!({ "metadata": { "labels": { "kubevirt.io/migrationTargetNodeName": "n2" } } });
    assert_eq!(waits(case("Pending").vmi(called)), Some(TURN));
    assert_eq!(
        waits(case("Pending").vmi(json!({ "status": { "migrationState": { "migrationUid": "old" } } }))),
        Some(TURN)
    );
}

#[test]
fn one_guest_one_migration() {
    let why = "VMI is not eligible for migration because another migration job is in progress.";
    Case { rival: true, ..case("") }.fails(why, &[]);
    Case { rival: true, ..case("Pending") }.fails(why, &[]);
}

#[test]
fn success_is_a_guest_taken_over() {
    let moved = json!({ "startTimestamp": START, "completed": true, "endTimestamp": NOW });
    let both = [source("ended"), target("running")];
    case("Running").pods(&both).state(moved.clone()).expect(&[], &[]);
    let end = [delete("a", "the guest was moved out of it"), Step::Cleanup(Cleanup::Unlabel)];
    let plan = case("Running").pods(&both).state(moved.clone()).on("n2").expect(&["Succeeded"], &end);
    let said = "Source node reported migration succeeded".to_owned();
    assert_eq!(plan.remarks, [Remark::Normal("SuccessfulMigration", said)]);
    // However late this is seen.
    let phases = ["PreparingTarget", "TargetReady", "Running", "Succeeded"];
    case("Scheduled").pods(&both).state(moved.clone()).on("n2").expect(&phases, &end);
    // Nor does it matter that somebody would have liked to cancel it.
    case("Running").cancelled().pods(&both).state(moved.clone()).on("n2").expect(&["Succeeded"], &end);
    case("Succeeded").pods(&both).state(moved.clone()).on("n2").expect(&[], &end);
    let settled = json!({ "metadata": { "labels": null }, "status": { "nodeName": "n2" } });
    let mut done = case("Succeeded").pods(&[target("running")]).state(moved);
    merge(&mut done.vmi, settled);
    done.expect(&[], &[Step::Release]);
}

#[test]
fn cancelled_before_the_hand_over() {
    let why = "Migration failed due to being canceled";
    case("").cancelled().fails(why, &[]);
    case("Pending").cancelled().fails(why, &[]);
    case("Scheduling").cancelled().pods(&[source("running"), pending()]).fails(why, &[unwanted()]);
    case("Scheduled").cancelled().pods(&[source("running"), target("running")]).fails(why, &[unwanted()]);
    assert!(case("Pending").cancelled().plan().abort_requested);
}

#[test]
fn cancelled_after_the_hand_over() {
    let both = [source("running"), target("running")];
    let conclude = Step::Cleanup(Cleanup::Conclude { reason: "the migration was canceled" });
    case("PreparingTarget").cancelled().pods(&both).state(json!({})).expect(&[], &[conclude]);
    let started = json!({ "startTimestamp": START, "targetNodeAddress": "x" });
    case("Running").cancelled().pods(&both).state(started).expect(&[], &[Step::Cleanup(Cleanup::Abort)]);
    let asked = json!({ "startTimestamp": START, "targetNodeAddress": "x", "abortRequested": true });
    case("Running").cancelled().pods(&both).state(asked).expect(&[], &[]);
    let over = json!({ "startTimestamp": START, "completed": true, "failed": true });
    let end = [unwanted(), Step::Cleanup(Cleanup::Unlabel)];
    case("Running").cancelled().pods(&both).state(over.clone()).fails("Migration failed due to being canceled", &end);
    case("Failed").cancelled().pods(&both).state(over.clone()).expect(&[], &end);
    let mut settled = case("Failed").cancelled().state(over);
    settled.vmi["metadata"]["labels"] = json!(null);
    settled.expect(&[], &[Step::Release]);
}

#[test]
fn the_source_reports_a_failure() {
    let failed = json!({ "startTimestamp": START, "completed": true, "failed": true, "failureReason": "no route" });
    let both = [source("running"), target("running")];
    let end = [unwanted(), Step::Cleanup(Cleanup::Unlabel)];
    case("Running").pods(&both).state(failed).fails("source node reported migration failed", &end);
}

#[test]
fn the_target_dies() {
    let down = "Migration failed because target pod shutdown during migration";
    case("Scheduling").pods(&[source("running"), target("ended")]).fails(down, &[unwanted()]);
    let both = [source("running"), target("ended")];
    let conclude = Step::Cleanup(Cleanup::Conclude { reason: "Target pod is down" });
    case("PreparingTarget").pods(&both).state(json!({})).fails(down, std::slice::from_ref(&conclude));
    case("Failed").pods(&both).state(json!({})).expect(&[], &[conclude]);
    // Once the source has begun, only the source can tell how it ended.
    let started = json!({ "startTimestamp": START });
    case("Running").pods(&both).state(started).fails(down, &[Step::Cleanup(Cleanup::Abort)]);
    let gone = "Migration target pod was removed during active migration.";
    case("Scheduling").fails(gone, &[]);
    case("Running").state(json!({ "startTimestamp": START })).fails(gone, &[Step::Cleanup(Cleanup::Abort)]);
}

#[test]
fn the_targets_node_is_lost() {
    let both = [source("running"), target("running")];
    let lost = |case: Case| Case { target_lost: true, ..case };
    let why = "Migration failed because the target node does not answer";
    lost(case("Scheduling").pods(&both)).fails(why, &[unwanted()]);
    let conclude = Step::Cleanup(Cleanup::Conclude { reason: "the migration was given up" });
    lost(case("PreparingTarget").pods(&both).state(json!({}))).fails(why, &[conclude]);
    let started = json!({ "startTimestamp": START });
    lost(case("Running").pods(&both).state(started)).fails(why, &[Step::Cleanup(Cleanup::Abort)]);
    // A guest that is there already is not called back.
    let ready = json!({ "startTimestamp": START, "targetNodeDomainReadyTimestamp": START });
    lost(case("Running").pods(&both).state(ready)).expect(&[], &[]);
}

#[test]
fn a_source_that_waits_for_a_lost_target_is_told() {
    let both = [source("running"), target("running")];
    let asked = || json!({ "startTimestamp": START, "abortRequested": true });
    let failed = |pods: &[Value], state: Value| case("Failed").pods(pods).state(state);
    let lost = |case: Case| Case { target_lost: true, ..case };
    lost(failed(&both, asked())).expect(&[], &[Step::Fence]);
    // It is given time to answer by itself.
    let recent = Case { failed_at: Some("2026-01-01T00:09:57Z"), ..lost(failed(&both, asked())) };
    assert_eq!(recent.expect(&[], &[]).again, Some(Duration::from_secs(7)));
    let held = Case { target_hold: Some("volume data"), ..lost(failed(&both, asked())) };
    let plan = held.expect(&[], &[]);
    let said = Remark::Warning("MigrationTargetUnresponsive", "volume data".to_owned());
    assert_eq!((plan.remarks, plan.again), (vec![said], Some(Duration::from_secs(15))));
    // A node that answers says itself how it is; but not of a pod that has ended or is gone.
    failed(&both, asked()).expect(&[], &[]);
    failed(&[source("running"), target("ended")], asked()).expect(&[], &[Step::Fence]);
    failed(&[source("running")], asked()).expect(&[], &[Step::Fence]);
    // Told once; and not of a guest that is there.
    let mut told = lost(failed(&both, asked()));
    told.vmi["metadata"]["annotations"] = json!({ (annotation::MIGRATION_TARGET_FENCED): "job" });
    told.expect(&[], &[]);
    let arrived = json!({ "startTimestamp": START, "abortRequested": true, "targetNodeDomainReadyTimestamp": START });
    lost(failed(&both, arrived)).expect(&[], &[]);
}

#[test]
fn the_source_ends_without_a_word() {
    let ready = json!({ "startTimestamp": START, "targetNodeDomainReadyTimestamp": START });
    let finish = [Step::Finish];
    case("Running").pods(&[source("ended"), target("running")]).state(ready.clone()).expect(&[], &finish);
    case("Running").pods(&[target("running")]).state(ready.clone()).expect(&[], &finish);
    case("Running").pods(&[source("running"), target("running")]).state(ready.clone()).expect(&[], &[]);
    let lost = case("Running").pods(&[source("running"), target("running")]).state(ready.clone());
    Case { source_lost: true, ..lost }.expect(&[], &finish);
    let mut recent = source("ended");
    recent["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!("2026-01-01T00:09:57Z");
    let plan = case("Running").pods(&[recent, target("running")]).state(ready).expect(&[], &[]);
    assert_eq!(plan.again, Some(Duration::from_secs(7)));
    let unready = json!({ "startTimestamp": START });
    case("Running").pods(&[source("ended"), target("running")]).state(unready).expect(&[], &[]);
}

#[test]
fn the_guest_ends() {
    let why = "Migration failed vmi shutdown during migration.";
    let ended = || json!({ "status": { "phase": "Succeeded" } });
    case("Pending").vmi(ended()).fails(why, &[]);
    let both = [source("ended"), target("running")];
    let mut running = case("Running").pods(&both).state(json!({ "startTimestamp": START }));
    merge(&mut running.vmi, ended());
    running.fails(why, &[unwanted()]);
    case("Scheduling")
        .pods(&[source("running"), pending()])
        .vmi(json!({ "metadata": { "deletionTimestamp": NOW } }))
        .fails(why, &[unwanted()]);
    // A guest that was moved and ended before anybody looked was moved.
    let moved = json!({ "startTimestamp": START, "completed": true });
    let mut ended_there = case("Running").pods(&both).state(moved);
    merge(&mut ended_there.vmi, ended());
    ended_there.expect(&["Succeeded"], &[unwanted()]);
}

#[test]
fn somebody_else_wrote_the_guest() {
    let both = [source("running"), target("running")];
    let cleared = "VMI's migration state was cleared during the active migration.";
    case("Running").pods(&both).fails(cleared, &[unwanted()]);
    let other = json!({ "status": { "migrationState": { "migrationUid": "other", "completed": true } } });
    let taken = "VMI's migration state was taken over by another migration job during active migration.";
    case("TargetReady").pods(&both).vmi(other).fails(taken, &[unwanted()]);
}

#[test]
fn a_target_pod_that_does_not_start() {
    let both = [source("running"), pending()];
    let again = case("Scheduling").pods(&both).expect(&[], &[]).again;
    assert_eq!(again, Some(Duration::from_secs(840)));
    let mut stuck = pending();
    let nowhere =
        json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes" }]);
    stuck["status"]["conditions"] = nowhere;
    let plan = case("Scheduling").pods(&[source("running"), stuck.clone()]).expect(&[], &[]);
    assert_eq!(plan.again, Some(Duration::from_secs(240)));
    let said = "Migration target pod for VMI [ns/vm] is currently unschedulable.".to_owned();
    assert_eq!(plan.remarks, [Remark::Warning("migrationTargetPodUnschedulable", said)]);
    let waits = plan.waits.map(|waits| (waits.reason, waits.message));
    assert_eq!(waits, Some(("NoNode", "no other node takes the guest: 0/2 nodes".to_owned())));
    stuck["metadata"]["creationTimestamp"] = json!("2026-01-01T00:05:00Z");
    let why = "unschedulable pod ns/b timeout period exceeded".to_owned();
    case("Scheduling")
        .pods(&[source("running"), stuck])
        .expect(&[], &[Step::Cleanup(Cleanup::DeletePod { name: "b".into(), why })]);
    let mut slow = pending();
    slow["metadata"]["creationTimestamp"] = json!("2025-12-31T23:55:00Z");
    let why = "pending pod ns/b timeout period exceeded".to_owned();
    case("Scheduling")
        .pods(&[source("running"), slow])
        .expect(&[], &[Step::Cleanup(Cleanup::DeletePod { name: "b".into(), why })]);
}

#[test]
fn a_guest_that_is_gone() {
    let migration = |held: bool, deleting: bool| {
        let mut migration = json!({ "metadata": { "name": "move", "uid": "job" }, "spec": { "vmiName": "vm" } });
        if held {
            migration["metadata"]["finalizers"] = json!([finalizer::MIGRATION]);
        }
        if deleting {
            migration["metadata"]["deletionTimestamp"] = json!(NOW);
        }
        let migration = serde_json::from_value(migration).unwrap();
        let view = View {
            migration: &migration,
            vmi: None,
            pods: &[],
            source_lost: false,
            target_lost: false,
            target_hold: None,
            rival: false,
            outdated: false,
            turn: Turn::Now,
            back_off: None,
            immovable: None,
            patience: SignedDuration::ZERO,
            now: NOW.parse().unwrap(),
        };
        plan(&view).steps
    };
    assert_eq!(migration(true, false), [Step::Release, Step::Delete]);
    assert_eq!(migration(false, false), [Step::Delete]);
    assert_eq!(migration(true, true), [Step::Release]);
}

#[test]
fn a_backup_that_has_the_guest_is_waited_for() {
    let tracking = json!({ "state": "Enabled", "backupStatus": { "backupName": "nightly" } });
    let busy = case("Pending").vmi(json!({ "status": { "changedBlockTracking": tracking } }));
    let waits = busy.expect(&[], &[]).waits.unwrap();
    assert_eq!(waits.reason, "UtilityVolumes");
    assert_eq!(waits.message, "backup nightly of the guest runs: the guest moves once that is done");
}

#[test]
fn claims_of_the_launcher_are_waited_for_and_not_for_ever() {
    let busy = |asked_at| {
        let volumes = json!([{ "name": "dump", "claimName": "memory", "type": "MemoryDump" }]);
        Case { asked_at, ..case("Pending") }.vmi(json!({ "spec": { "utilityVolumes": volumes } }))
    };
    let waits = busy(START).expect(&[], &[]);
    assert_eq!(waits.waits.map(|waits| waits.reason), Some("UtilityVolumes"));
    let said = "the launcher writes to PVC memory (MemoryDump): the guest moves once that is done".to_owned();
    assert_eq!(waits.remarks, [Remark::Warning("UtilityVolumeMigrationPending", said)]);
    let failed = busy("2026-01-01T00:07:00Z").expect(&["Failed"], &[]);
    let why = "Migration failed because utility volume dump (PVC memory) was not detached within 150 seconds \
               (utilityVolumesTimeout)";
    assert_eq!(failed.remarks, [Remark::Warning("FailedMigration", why.to_owned())]);
}
