//! What each side writes into a VMI's migrationState. Pure: time is an argument.

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState as State};
use domain::{MigrationMode, MigrationOutcome};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::text::{STATUS, brief};

use super::plan::{self, Leaving};
use super::uid;

/// Why a migration ended that somebody asked to end.
const ABORTED: &str = "Live migration aborted";

/// The state as the source should have it.
pub(crate) fn source(state: &State, known: &Leaving, now: Timestamp) -> State {
    let mut wanted = state.clone();
    if plan::ended(state) {
        return wanted;
    }
    let asked = state.abort_requested == Some(true);
    let Some(progress) = known.progress_of(state) else {
        if let Some(why) = &known.refused {
            failed(&mut wanted, why, now);
        } else if known.launcher_gone && state.start_timestamp.is_some() {
            if state.target_node_domain_ready_timestamp.is_some() {
                completed(&mut wanted, now);
            } else {
                failed(&mut wanted, "the launcher ended during the migration", now);
            }
        } else if asked && known.heard && !known.sent {
            wanted.abort_status = Some("Succeeded".to_owned());
            failed(&mut wanted, ABORTED, now);
        } else if plan::begins(state, known) {
            wanted.start_timestamp = Some(Time(now));
            wanted.mode = Some("PreCopy".to_owned());
        }
        return wanted;
    };
    wanted.start_timestamp.get_or_insert(Time(now));
    let mode = match progress.mode {
        MigrationMode::PreCopy => "PreCopy",
        MigrationMode::PostCopy => "PostCopy",
        MigrationMode::Paused => "Paused",
    };
    wanted.mode = Some(mode.to_owned());
    match &progress.outcome {
        None if asked => wanted.abort_status = Some("Aborting".to_owned()),
        None => {}
        Some(MigrationOutcome::Moved) => {
            if asked {
                wanted.abort_status = Some("Failed".to_owned());
            }
            completed(&mut wanted, now);
        }
        Some(MigrationOutcome::Aborted) => {
            wanted.abort_status = Some("Succeeded".to_owned());
            failed(&mut wanted, ABORTED, now);
        }
        Some(MigrationOutcome::Failed(why)) => {
            if asked {
                wanted.abort_status = Some("Succeeded".to_owned());
            }
            match &known.trouble {
                Some(trouble) => failed(&mut wanted, &format!("{trouble}; {why}"), now),
                None => failed(&mut wanted, why, now),
            }
        }
    }
    wanted
}

fn completed(state: &mut State, now: Timestamp) {
    state.completed = Some(true);
    state.failed = Some(false);
    state.end_timestamp = Some(Time(now));
}

/// QEMU, the other node's launcher and the guest may be quoted in it, and it is read on terminals.
fn legible(why: &str) -> String {
    brief(why, STATUS).into_owned()
}

/// As upstream has it, a migration that failed is also completed.
fn failed(state: &mut State, why: &str, now: Timestamp) {
    state.start_timestamp.get_or_insert(Time(now));
    state.completed = Some(true);
    state.failed = Some(true);
    state.failure_reason = Some(legible(why));
    state.end_timestamp = Some(Time(now));
}

/// What the target has to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Where this process listens for the migration's streams: address and port.
    pub listens: Option<(String, u16)>,
    /// UID of the pod the domain comes to.
    pub pod: String,
    /// The domain is here.
    pub arrived: bool,
    /// Why it cannot come here.
    pub unfit: Option<String>,
}

/// The state as the target should have it.
pub(crate) fn target(vmi: &VirtualMachineInstance, state: &State, known: &Ready, now: Timestamp) -> State {
    let mut wanted = state.clone();
    if plan::ended(state) && !plan::succeeded(state) {
        return wanted;
    }
    let mut mine = state.target_state.as_deref().cloned().unwrap_or_default();
    mine.node.clone_from(&state.target_node);
    mine.pod.clone_from(&state.target_pod);
    mine.migration_uid = Some(uid(state).to_owned());
    mine.virtual_machine_instance_uid.clone_from(&vmi.metadata.uid);
    if let Some((address, port)) = &known.listens {
        wanted.target_node_address = Some(address.clone());
        wanted.target_direct_migration_node_ports = [(port.to_string(), 0)].into();
        wanted.target_attachment_pod_uid = Some(known.pod.clone());
        mine.node_address = Some(address.clone());
        mine.direct_migration_node_ports.clone_from(&wanted.target_direct_migration_node_ports);
        mine.attachment_pod_uid = Some(known.pod.clone());
    }
    if let Some(why) = &known.unfit {
        // virt-controller concludes it, once the launcher has ended.
        wanted.failure_reason = Some(legible(why));
    }
    if known.arrived {
        wanted.target_node_domain_detected = Some(true);
        wanted.target_node_domain_ready_timestamp.get_or_insert(Time(now));
        mine.domain_detected = Some(true);
        mine.domain_ready_timestamp.clone_from(&wanted.target_node_domain_ready_timestamp);
        mine.domain_name.clone_from(&vmi.metadata.name);
        mine.domain_namespace.clone_from(&vmi.metadata.namespace);
    }
    wanted.target_state = Some(Box::new(mine));
    wanted
}

/// Whether the target may call the VMI its own: the source has said that the domain left, and it is here.
pub(crate) fn takes_over(state: &State, known: &Ready) -> bool {
    known.arrived && plan::succeeded(state)
}

#[cfg(test)]
mod tests {
    use domain::MigrationProgress;
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn state(more: Value) -> State {
        let mut state = json!({"migrationUid": "m", "sourceNode": "a", "targetNode": "b", "targetPod": "p"});
        state.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        serde_json::from_value(state).unwrap()
    }

    fn told(outcome: Option<MigrationOutcome>) -> Leaving {
        let progress = MigrationProgress { uid: "m".into(), outcome, ..MigrationProgress::default() };
        Leaving { heard: true, progress: Some(progress), ..Leaving::default() }
    }

    /// What the source adds to a state.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(before: Value, known: &Leaving, expect: Value) {
        let before = state(before);
        let after = json!(source(&before, known, now()));
        let before = json!(before);
        let mut added = after.as_object().cloned().unwrap();
        added.retain(|key, value| before.get(key) != Some(value) && !key.ends_with("imestamp"));
        assert_eq!(Value::Object(added), expect);
    }

    #[test]
    fn the_source_reports_its_end() {
        let running = json!({"mode": "PreCopy"});
        check(json!({}), &told(None), running.clone());
        check(json!({}), &Leaving { heard: true, ..Leaving::default() }, json!({}));
        let listens = || json!({"targetNodeAddress": "10.0.0.1"});
        check(listens(), &Leaving { heard: true, ..Leaving::default() }, running);
        let asked = || json!({"abortRequested": true});
        check(asked(), &Leaving { heard: true, sent: true, ..Leaving::default() }, json!({}));
        check(asked(), &told(None), json!({"mode": "PreCopy", "abortStatus": "Aborting"}));
        let moved = Some(MigrationOutcome::Moved);
        check(json!({}), &told(moved.clone()), json!({"mode": "PreCopy", "completed": true, "failed": false}));
        let late = json!({"mode": "PreCopy", "completed": true, "failed": false, "abortStatus": "Failed"});
        check(asked(), &told(moved), late);
        let aborted = json!({"completed": true, "failed": true, "failureReason": ABORTED, "abortStatus": "Succeeded"});
        check(asked(), &Leaving { heard: true, ..Leaving::default() }, aborted);
        let why = json!({"mode": "PreCopy", "completed": true, "failed": true, "failureReason": "lost; closed"});
        let failed = Leaving { trouble: Some("lost".into()), ..told(Some(MigrationOutcome::Failed("closed".into()))) };
        check(json!({}), &failed, why);
        check(json!({"failed": true}), &failed, json!({}));
        let refused = Leaving { heard: true, refused: Some("no".into()), ..Leaving::default() };
        check(json!({}), &refused, json!({"completed": true, "failed": true, "failureReason": "no"}));
        let evil = Leaving { heard: true, refused: Some("no\x1b[2J\u{202e}".into()), ..Leaving::default() };
        let shown = json!({"completed": true, "failed": true, "failureReason": "no\\u001b[2J\\u202e"});
        check(json!({}), &evil, shown);
    }

    #[test]
    fn a_launcher_that_ended_is_judged_by_the_target() {
        let gone = Leaving { launcher_gone: true, ..Leaving::default() };
        let started = json!({"startTimestamp": "2023-01-01T00:00:00Z"});
        let why = "the launcher ended during the migration";
        check(started.clone(), &gone, json!({"completed": true, "failed": true, "failureReason": why}));
        let mut there = started;
        there["targetNodeDomainReadyTimestamp"] = json!("2023-01-01T00:00:00Z");
        check(there, &gone, json!({"completed": true, "failed": false}));
    }

    #[test]
    fn the_target_reports_its_address_and_ports() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "n", "namespace": "ns", "uid": "u"}, "spec": {"domain": {"devices": {}}},
        }))
        .unwrap();
        let listens = Ready { listens: Some(("10.0.0.1".into(), 8187)), pod: "p-uid".into(), ..Ready::default() };
        let wanted = target(&vmi, &state(json!({})), &listens, now());
        assert_eq!(wanted.target_node_address.as_deref(), Some("10.0.0.1"));
        assert_eq!(json!(wanted.target_direct_migration_node_ports), json!({"8187": 0}));
        assert!(!takes_over(&wanted, &listens));
        let unfit = Ready { unfit: Some("too \rsmall".into()), ..listens.clone() };
        let refused = target(&vmi, &wanted, &unfit, now());
        assert_eq!((refused.failure_reason.as_deref(), refused.failed), (Some("too \\u000dsmall"), None));
        let arrived = Ready { arrived: true, ..listens };
        let wanted = target(&vmi, &wanted, &arrived, now());
        assert_eq!(wanted.target_node_domain_detected, Some(true));
        let mine = wanted.target_state.as_deref().unwrap();
        assert_eq!((mine.node.as_deref(), mine.domain_name.as_deref()), (Some("b"), Some("n")));
        assert!(!takes_over(&wanted, &arrived), "the source has not said so");
        assert!(takes_over(&State { completed: Some(true), ..wanted.clone() }, &arrived));
        assert!(!takes_over(&State { completed: Some(true), failed: Some(true), ..wanted }, &arrived));
    }
}
