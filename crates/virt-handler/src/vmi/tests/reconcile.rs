//! What becomes of a VMI, by what its launcher tells and does.

use std::time::Duration;

use domain::{CredentialsOutcome, DeviceKind, GuestFacts, LiveDevice, MigrationOutcome, MigrationProgress};
use kit::store::Key;
use kube::api::DeleteParams;
use rpc::launcher::DomainState;
use serde_json::{Value, json};

use super::fake_launcher::Answer;
use super::test_node::{NAMESPACE, TestNode, find, pass, scheduled, until};

fn state(status: &str, reason: &str) -> DomainState {
    DomainState { status: status.into(), reason: reason.into(), ..DomainState::default() }
}

fn running() -> DomainState {
    state("Running", "")
}

#[tokio::test(start_paused = true)]
async fn a_vmi_becomes_running_and_its_status_follows_the_launchers_states() {
    let node = TestNode::start("follows").await;
    let launcher = node.guest("vm", 1).await;
    until("the VMI is handed over", || !launcher.calls("sync").is_empty()).await;
    assert!(launcher.calls("sync")[0].request.contains("vm"));
    assert_eq!(node.vmi("vm").await["status"]["phase"], "Scheduled", "nothing runs yet");

    launcher.tell(running());
    let vmi = node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    assert_eq!(vmi["status"]["phaseTransitionTimestamps"][0]["phase"], "Running");
    node.until_condition("vm", "LiveMigratable", true).await;

    launcher.tell(DomainState { agent_connected: true, ..state("Paused", "PausedUser") });
    let paused = node.until_condition("vm", "Paused", true).await;
    assert_eq!((&paused["status"], &paused["reason"]), (&json!("True"), &json!("PausedByUser")));
    node.until_condition("vm", "AgentConnected", true).await;
    launcher.tell(state("Paused", "PausedIOError"));
    node.until("vm", |vmi| vmi.to_string().contains("PausedIOError")).await;
    node.until_condition("vm", "AgentConnected", false).await;
    launcher.tell(running());
    node.until_condition("vm", "Paused", false).await;

    launcher.tell(state("Shutoff", "Shutdown"));
    node.until("vm", |vmi| vmi["status"]["phase"] == "Succeeded").await;
    let events = node.until_event("vm", "Stopped").await;
    for reason in ["Created", "Started", "Stopped"] {
        assert_eq!(events.iter().filter(|event| *event == reason).count(), 1, "{reason} in {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_crash_and_a_final_refusal_fail_the_vmi_with_a_reason() {
    let node = TestNode::start("fails").await;
    let (crashed, refused) = (node.guest("crashed", 1).await, node.guest("refused", 2).await);
    crashed.tell(running());
    node.until("crashed", |vmi| vmi["status"]["phase"] == "Running").await;
    crashed.tell(state("Crashed", "Panicked"));
    refused.tell(DomainState { terminal: true, sync_error: "not an image".into(), ..DomainState::default() });
    for (name, why) in [("crashed", "the guest crashed"), ("refused", "not an image")] {
        let vmi = node.until(name, |vmi| vmi["status"]["phase"] == "Failed").await;
        assert_eq!(vmi["status"]["reason"], why);
    }
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_dies_fails_its_own_guest_alone() {
    let node = TestNode::start("dies").await;
    let (mut dies, lives) = (node.guest("dies", 1).await, node.guest("lives", 2).await);
    for (name, launcher) in [("dies", &dies), ("lives", &lives)] {
        launcher.tell(running());
        node.until(name, |vmi| vmi["status"]["phase"] == "Running").await;
    }
    dies.die();
    let vmi = node.until("dies", |vmi| vmi["status"]["phase"] == "Failed").await;
    assert_eq!(vmi["status"]["reason"], "the launcher ended while the guest ran");
    lives.tell(state("Paused", "PausedUser"));
    node.until_condition("lives", "Paused", true).await;
    assert_eq!(node.vmi("lives").await["status"]["phase"], "Running");
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_does_not_answer_is_waited_for_by_its_own_guest_and_not_for_ever() {
    let node = TestNode::start("silent-launcher").await;
    let silent = node.launcher(1);
    silent.answer("sync", Answer::Never);
    node.create("silent", scheduled(&silent)).await;
    until("the VMI is handed over", || !silent.calls("sync").is_empty()).await;

    let other = node.guest("other", 2).await;
    other.tell(running());
    node.until("other", |vmi| vmi["status"]["phase"] == "Running").await;
    assert_eq!(silent.calls("sync").len(), 1, "it is still waited for");

    let began = silent.calls("sync")[0].at;
    let told = node.until_condition("silent", "Synchronized", true).await;
    assert_eq!(told["status"], "False");
    assert!((Duration::from_secs(119)..Duration::from_secs(130)).contains(&began.elapsed()), "{:?}", began.elapsed());
    silent.accept("sync");
    node.until_condition("silent", "Synchronized", false).await;
    assert!(silent.calls("sync").len() > 1, "it is asked again");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_vmi_is_shut_down_and_after_its_grace_period_ended() {
    let node = TestNode::start("deleted").await;
    let launcher = node.launcher(1);
    let mut vmi = scheduled(&launcher);
    vmi["metadata"]["finalizers"] = json!(["kubevirt.io/virtualMachineControllerFinalize"]);
    vmi["spec"]["terminationGracePeriodSeconds"] = json!(20);
    node.create("vm", vmi).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;

    node.vmis.delete("vm", &DeleteParams::default()).await.unwrap();
    until("the guest is asked to shut down", || !launcher.calls("shutdown").is_empty()).await;
    until("the guest is ended", || !launcher.calls("kill").is_empty()).await;
    let (asked, ended) = (&launcher.calls("shutdown")[0], &launcher.calls("kill")[0]);
    let grace = ended.at - asked.at;
    assert!((Duration::from_secs(19)..Duration::from_secs(24)).contains(&grace), "{grace:?}");
    assert_eq!(launcher.calls("shutdown").len(), 1, "the button is pressed once");

    launcher.tell(state("Shutoff", "Destroyed"));
    let vmi = node.until("vm", |vmi| vmi["status"]["phase"] == "Failed").await;
    assert_eq!(vmi["status"]["reason"], "the guest did not shut down in its grace period and was ended");
    node.until_event("vm", "ShuttingDown").await;
}

#[tokio::test(start_paused = true)]
async fn the_guest_of_an_earlier_vmi_of_the_name_is_ended_before_the_new_one_is_handed_over() {
    let node = TestNode::start("uid").await;
    let old = node.guest("vm", 1).await;
    old.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;

    // What a watch brings that was cut off meanwhile: another object under the name.
    let new = node.launcher(2);
    let mut another = node.vmis.get("vm").await.unwrap();
    another.metadata.uid = Some("another".to_owned());
    let status = another.status.as_mut().unwrap();
    status.phase = Some("Scheduled".to_owned());
    status.active_pods = [(new.pod.clone(), "node1".to_owned())].into();
    node.context.vmis.put(&another, Vec::new());
    old.answer("kill", Answer::Refused("busy"));
    node.context.queue.add(Key::new(NAMESPACE, "vm"));
    until("the old guest is told to end twice", || old.calls("kill").len() > 1).await;
    assert!(new.calls("sync").is_empty(), "the old guest has not been ended");
    old.accept("kill");
    until("the new one is handed over", || !new.calls("sync").is_empty()).await;
    let ended = old.calls("kill").last().unwrap().at;
    assert!(ended <= new.calls("sync")[0].at);
}

#[tokio::test(start_paused = true)]
async fn a_vmi_that_is_gone_has_its_guest_ended() {
    let node = TestNode::start("gone").await;
    let launcher = node.guest("vm", 1).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    node.vmis.delete("vm", &DeleteParams::default()).await.unwrap();
    until("the guest is ended", || !launcher.calls("kill").is_empty()).await;
    until("it is forgotten", || node.context.guest(&Key::new(NAMESPACE, "vm")).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_hand_over_is_a_condition_until_it_is_accepted() {
    let node = TestNode::start("refused").await;
    let launcher = node.launcher(1);
    launcher.answer("sync", Answer::Refused("volume root: there is no such disk"));
    node.create("vm", scheduled(&launcher)).await;
    let told = node.until_condition("vm", "Synchronized", true).await;
    assert_eq!((&told["status"], &told["message"]), (&json!("False"), &json!("volume root: there is no such disk")));
    until("it is tried again", || launcher.calls("sync").len() > 3).await;
    let events = node.until_event("vm", "SyncFailed").await;
    assert_eq!(events.iter().filter(|event| *event == "SyncFailed").count(), 1, "{events:?}");
    launcher.accept("sync");
    node.until_condition("vm", "Synchronized", false).await;

    // What the launcher says of the domain itself, likewise.
    launcher.tell(DomainState { sync_error: "the disk is locked".into(), ..DomainState::default() });
    let told = node.until_condition("vm", "Synchronized", true).await;
    assert_eq!(told["message"], "the disk is locked");
    launcher.tell(running());
    node.until_condition("vm", "Synchronized", false).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_when_nothing_changed() {
    let node = TestNode::start("quiet").await;
    let launcher = node.guest("vm", 1).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    pass(Duration::from_secs(2)).await;
    let before = (node.vmi("vm").await["metadata"]["resourceVersion"].clone(), launcher.calls("sync").len());
    for sequence in 1..20 {
        launcher.tell(DomainState { sequence, ..running() });
        node.context.queue.add(Key::new(NAMESPACE, "vm"));
        pass(Duration::from_secs(1)).await;
    }
    let after = (node.vmi("vm").await["metadata"]["resourceVersion"].clone(), launcher.calls("sync").len());
    assert_eq!(after, before);
}

#[tokio::test(start_paused = true)]
async fn a_changed_vmi_is_handed_over_again() {
    let node = TestNode::start("changed").await;
    let launcher = node.guest("vm", 1).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    let names_it = || launcher.calls("sync").last().unwrap().request.contains("terminationGracePeriodSeconds");
    assert!(!names_it());
    node.patch("vm", json!({ "spec": { "terminationGracePeriodSeconds": 5 } })).await;
    until("the new generation is handed over", names_it).await;
}

#[tokio::test(start_paused = true)]
async fn a_status_write_hands_nothing_over() {
    let node = TestNode::start("status").await;
    let launcher = node.guest("vm", 1).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    pass(Duration::from_secs(2)).await;
    let generation = async || node.vmi("vm").await["metadata"]["generation"].as_i64().unwrap();
    let (before, first) = (launcher.calls("sync").len(), generation().await);
    assert_eq!(before, 1);

    // virt-handler's own, of what the launcher tells, and somebody else's.
    launcher.tell(state("Paused", "PausedUser"));
    node.until_condition("vm", "Paused", true).await;
    launcher.tell(running());
    node.until_condition("vm", "Paused", false).await;
    node.patch("vm", json!({ "status": { "launcherContainerImageVersion": "new" } })).await;
    node.patch("vm", json!({ "metadata": { "annotations": { "kubevirt.io/other": "new" } } })).await;
    pass(Duration::from_secs(5)).await;
    assert!(generation().await > first, "a write of the status raises the generation");
    assert_eq!(launcher.calls("sync").len(), before);

    // What the launcher acts on is in the status, too.
    node.patch("vm", json!({ "status": { "changedBlockTracking": { "state": "Initializing" } } })).await;
    until("the tracking of changes is handed over", || launcher.calls("sync").len() > before).await;
}

#[tokio::test(start_paused = true)]
async fn the_kubevirt_object_is_listed_once_for_all_hand_overs() {
    let node = TestNode::start("settings").await;
    let launchers = [node.guest("one", 1).await, node.guest("two", 2).await];
    for (name, launcher) in ["one", "two"].into_iter().zip(&launchers) {
        launcher.tell(running());
        node.until(name, |vmi| vmi["status"]["phase"] == "Running").await;
        node.patch(name, json!({ "spec": { "terminationGracePeriodSeconds": 5 } })).await;
        until("the VMI is handed over again", || launcher.calls("sync").len() > 1).await;
    }
    let requests = node.requests();
    let of_kubevirts = |request: &&String| request.contains("/kubevirts?");
    let lists: Vec<_> =
        requests.iter().filter(of_kubevirts).filter(|request| !request.contains("watch=true")).collect();
    assert_eq!(lists.len(), 1, "{requests:#?}");
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_credentials_is_a_condition_and_told_once_per_change() {
    let node = TestNode::start("credentials").await;
    let launcher = node.guest("vm", 1).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    assert!(find(&node.vmi("vm").await, "AccessCredentialsSynchronized").is_none(), "nothing was given yet");
    let outcome = |succeeded: bool, message: &str| {
        let outcome = CredentialsOutcome { succeeded, message: message.to_owned() };
        DomainState { credentials: serde_json::to_string(&outcome).unwrap(), agent_connected: true, ..running() }
    };
    launcher.tell(outcome(false, "no user eve\u{1b}[2J"));
    node.until_event("vm", "AccessCredentialsSyncFailed").await;
    let said = node.until_condition("vm", "AccessCredentialsSynchronized", true).await;
    assert_eq!((&said["status"], &said["message"]), (&json!("False"), &json!("no user eve\\u001b[2J")));
    launcher.tell(outcome(true, ""));
    node.until_event("vm", "AccessCredentialsSyncSuccess").await;
    let said = node.until_condition("vm", "AccessCredentialsSynchronized", true).await;
    assert_eq!((&said["status"], &said["message"]), (&json!("True"), &Value::Null));
    // More of the same, beside something else.
    launcher.tell(DomainState { agent_connected: false, ..outcome(true, "") });
    node.until_condition("vm", "AgentConnected", false).await;
    pass(Duration::from_secs(5)).await;
    let events = node.until_event("vm", "AccessCredentialsSyncSuccess").await;
    let told = events.iter().filter(|reason| reason.starts_with("AccessCredentials")).count();
    assert_eq!(told, 2, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_to_leave_is_asked_for_until_the_guest_lets_go() {
    let node = TestNode::start("unplug").await;
    let launcher = node.guest("vm", 1).await;
    let device = LiveDevice {
        kind: DeviceKind::Disk,
        name: "data".into(),
        target: "sda".into(),
        source: "/hotplug/data".into(),
        ..LiveDevice::default()
    };
    let facts = GuestFacts { devices: vec![device], ..GuestFacts::default() };
    launcher.tell(DomainState { guest: serde_json::to_string(&facts).unwrap(), ..running() });
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    pass(Duration::from_secs(2)).await;
    let before = launcher.calls("sync").len();
    until("the guest is asked again", || launcher.calls("sync").len() > before + 2).await;
    let calls = &launcher.calls("sync")[before..];
    assert!(calls[2].at - calls[1].at >= Duration::from_secs(4), "it is left some time");
    launcher.tell(running());
    pass(Duration::from_secs(2)).await;
    let before = launcher.calls("sync").len();
    pass(Duration::from_secs(20)).await;
    assert_eq!(launcher.calls("sync").len(), before);
}

#[tokio::test(start_paused = true)]
async fn a_hotplugged_disk_without_its_attachment_pod_is_told_after_a_while() {
    let node = TestNode::start("hotplug").await;
    let launcher = node.launcher(1);
    let mut vmi = scheduled(&launcher);
    vmi["spec"] = json!({
        "domain": { "devices": { "disks": [{ "name": "data", "disk": { "bus": "scsi" } }] } },
        "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data", "hotpluggable": true } }],
    });
    vmi["status"]["volumeStatus"] = json!([{
        "name": "data", "target": "", "phase": "AttachedToNode",
        "hotplugVolume": { "attachPodName": "hp", "attachPodUID": "00000000-0000-4000-8000-0000000000ff" },
        "persistentVolumeClaimInfo": { "capacity": { "storage": "1Gi" }, "volumeMode": "Filesystem" },
    }]);
    node.create("vm", vmi).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    let began = tokio::time::Instant::now();
    let told = node.until_condition("vm", "Synchronized", true).await;
    assert!(began.elapsed() >= Duration::from_secs(15), "it may pass by itself");
    assert!(told["message"].as_str().unwrap().contains("volume data: no process of its attachment pod"), "{told}");
    // The claim is given up.
    node.patch("vm", json!({ "spec": { "domain": { "devices": { "disks": [] } }, "volumes": [] } })).await;
    node.until_condition("vm", "Synchronized", false).await;
}

#[tokio::test(start_paused = true)]
async fn the_source_of_a_migration_begins_sends_and_concludes() {
    let node = TestNode::start("source").await;
    let launcher = node.guest("vm", 1).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    let migration = json!({
        "migrationUid": "m", "sourceNode": "node1", "targetNode": "node2", "targetNodeAddress": "192.0.2.2",
    });
    node.patch("vm", json!({ "status": { "migrationState": migration } })).await;
    let vmi = node.until("vm", |vmi| !vmi["status"]["migrationState"]["startTimestamp"].is_null()).await;
    assert_eq!(vmi["status"]["migrationState"]["mode"], "PreCopy");
    until("the launcher is told to migrate", || !launcher.calls("migrate").is_empty()).await;
    assert_eq!(launcher.calls("migrate").len(), 1);

    node.patch("vm", json!({ "status": { "migrationState": { "abortRequested": true } } })).await;
    until("the launcher is told to end it", || !launcher.calls("abort_migration").is_empty()).await;
    let outcome = Some(MigrationOutcome::Aborted);
    let progress = MigrationProgress { uid: "m".into(), outcome, ..MigrationProgress::default() };
    launcher.tell(DomainState { migration: serde_json::to_string(&progress).unwrap(), ..running() });
    let vmi = node.until("vm", |vmi| vmi["status"]["migrationState"]["failed"] == true).await;
    assert_eq!(vmi["status"]["migrationState"]["abortStatus"], "Succeeded");
    assert_eq!(vmi["status"]["phase"], "Running", "the guest stays");
    assert_eq!(launcher.calls("abort_migration").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_has_moved_is_the_other_nodes() {
    let node = TestNode::start("moved").await;
    let launcher = node.guest("vm", 1).await;
    launcher.tell(running());
    node.until("vm", |vmi| vmi["status"]["phase"] == "Running").await;
    let migration = json!({
        "migrationUid": "m", "sourceNode": "node1", "targetNode": "node2", "targetNodeAddress": "192.0.2.2",
    });
    node.patch("vm", json!({ "status": { "migrationState": migration } })).await;
    until("the launcher is told to migrate", || !launcher.calls("migrate").is_empty()).await;
    let outcome = Some(MigrationOutcome::Moved);
    let progress = MigrationProgress { uid: "m".into(), outcome, ..MigrationProgress::default() };
    let migration = serde_json::to_string(&progress).unwrap();
    launcher.tell(DomainState { migration, ..state("Shutoff", "Migrated") });
    let vmi = node.until("vm", |vmi| vmi["status"]["migrationState"]["completed"] == true).await;
    assert_eq!(
        (&vmi["status"]["migrationState"]["failed"], &vmi["status"]["phase"]),
        (&json!(false), &json!("Running"))
    );
    until("it is let go of", || node.context.guest(&Key::new(NAMESPACE, "vm")).is_none()).await;
    assert!(launcher.calls("kill").is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_target_of_a_migration_makes_ready_and_takes_the_vmi_over() {
    let node = TestNode::start("target").await;
    let launcher = node.launcher(1);
    let mut vmi = scheduled(&launcher);
    vmi["metadata"]["labels"] =
        json!({ "kubevirt.io/nodeName": "node2", "kubevirt.io/migrationTargetNodeName": "node1" });
    vmi["status"]["phase"] = json!("Running");
    vmi["status"]["nodeName"] = json!("node2");
    vmi["status"]["migrationState"] = json!({ "migrationUid": "m", "sourceNode": "node2", "targetNode": "node1" });
    node.create("vm", vmi).await;
    let vmi = node.until("vm", |vmi| !vmi["status"]["migrationState"]["targetNodeAddress"].is_null()).await;
    assert_eq!(vmi["status"]["migrationState"]["targetNodeAddress"], "192.0.2.1");
    assert_eq!((launcher.calls("expect").len(), launcher.calls("sync").len()), (1, 0));

    launcher.tell(running());
    node.until("vm", |vmi| !vmi["status"]["migrationState"]["targetNodeDomainReadyTimestamp"].is_null()).await;
    assert_eq!(node.vmi("vm").await["status"]["nodeName"], "node2", "the source has not said that it left");
    node.patch("vm", json!({ "status": { "migrationState": { "completed": true, "failed": false } } })).await;
    let vmi = node.until("vm", |vmi| vmi["status"]["nodeName"] == "node1").await;
    assert_eq!(vmi["metadata"]["labels"]["kubevirt.io/nodeName"], "node1");
    assert_eq!(vmi["status"]["phase"], "Running");
    until("the guest is this node's", || !launcher.calls("sync").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn the_target_of_a_failed_migration_turns_its_launcher_away() {
    let node = TestNode::start("turned-away").await;
    let launcher = node.launcher(1);
    let mut vmi = scheduled(&launcher);
    vmi["metadata"]["labels"] =
        json!({ "kubevirt.io/nodeName": "node2", "kubevirt.io/migrationTargetNodeName": "node1" });
    vmi["status"]["phase"] = json!("Running");
    vmi["status"]["nodeName"] = json!("node2");
    vmi["status"]["migrationState"] = json!({ "migrationUid": "m", "sourceNode": "node2", "targetNode": "node1" });
    node.create("vm", vmi).await;
    node.until("vm", |vmi| !vmi["status"]["migrationState"]["targetNodeAddress"].is_null()).await;
    node.patch("vm", json!({ "status": { "migrationState": { "completed": true, "failed": true } } })).await;
    until("the launcher is ended", || !launcher.calls("kill").is_empty()).await;
    pass(Duration::from_secs(5)).await;
    assert_eq!(launcher.calls("kill").len(), 1);
    assert_eq!(node.vmi("vm").await["status"]["nodeName"], "node2");
}
