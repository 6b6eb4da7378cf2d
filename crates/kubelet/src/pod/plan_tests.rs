//! Plans by data: a pod, what runs, and the steps that follow.

use serde_json::{Value, json};

use super::*;
use crate::pod::observed::{Exit, Sandbox};

const NOW: i64 = 10_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// `a` (running), `a=0@9990` (exited with 0 at 9990), `a#2=1@9999` (third attempt), `a?` (created).
fn instance(text: &str) -> Instance {
    let (name, state) = match text.split_once('=') {
        Some((name, exit)) => {
            let (code, finished) = exit.split_once('@').unwrap();
            let finished: i64 = finished.parse().unwrap();
            let exit = Exit {
                code: code.parse().unwrap(),
                started: at(finished - 1),
                finished: at(finished),
                ..Default::default()
            };
            (name, State::Exited(exit))
        }
        None => match text.strip_suffix('?') {
            Some(name) => (name, State::Created),
            None => (text, State::Running { started: at(NOW - 5) }),
        },
    };
    let (name, attempt) = name.split_once('#').map_or((name, 0), |(name, attempt)| (name, attempt.parse().unwrap()));
    Instance {
        id: format!("{name}{attempt}"),
        name: name.to_owned(),
        attempt,
        sandbox: "s0".to_owned(),
        image: String::new(),
        image_ref: String::new(),
        state,
        termination_log: None,
        log_path: String::new(),
    }
}

fn observed(instances: &[&str], sandbox: Option<bool>) -> Observed {
    let sandboxes =
        sandbox.map(|ready| Sandbox { id: "s0".into(), attempt: 0, ready, created: at(1), ips: Vec::new() });
    let mut containers: Vec<_> = instances.iter().map(|text| instance(text)).collect();
    containers.sort_by_key(|container| std::cmp::Reverse(container.attempt));
    Observed { sandboxes: sandboxes.into_iter().collect(), containers }
}

/// Everything is there for containers to start.
fn ready() -> Facts {
    let pulled = ["a", "b", "i", "j", "s"].map(str::to_owned).into();
    Facts { volumes_ready: true, networks: Some(String::new()), pulled, ..Default::default() }
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec})).unwrap()
}

fn two() -> Value {
    json!({"containers": [{"name": "a"}, {"name": "b"}]})
}

#[track_caller]
fn check(spec: Value, observed: &Observed, facts: &Facts, expect: &[&str]) -> Plan {
    let plan = plan(&pod(spec), observed, facts, at(NOW));
    let mut keys: Vec<String> = plan.steps.iter().map(Step::key).collect();
    keys.sort();
    let mut expect: Vec<String> = expect.iter().map(|key| (*key).to_owned()).collect();
    expect.sort();
    assert_eq!(keys, expect);
    plan
}

#[test]
fn everything_begins_at_once() {
    check(two(), &observed(&[], None), &Facts::default(), &["volumes", "sandbox", "pull:a", "pull:b"]);
}

#[test]
fn containers_start_together_when_all_is_there() {
    check(two(), &observed(&[], Some(true)), &ready(), &["start:a", "start:b"]);
    let no_volumes = Facts { volumes_ready: false, ..ready() };
    check(two(), &observed(&[], Some(true)), &no_volumes, &["volumes"]);
    check(two(), &observed(&["a"], Some(true)), &ready(), &["start:b"]);
    check(two(), &observed(&["a", "b"], Some(true)), &ready(), &[]);
}

#[test]
fn running_operations_are_not_started_again() {
    let busy = Facts { busy: ["sandbox", "pull:a"].map(str::to_owned).into(), ..Default::default() };
    check(two(), &observed(&[], None), &busy, &["volumes", "pull:b"]);
}

#[test]
fn failed_operations_back_off() {
    let hold = Facts { hold: [("sandbox".to_owned(), at(NOW + 7))].into(), ..ready() };
    let plan = check(two(), &observed(&[], None), &hold, &[]);
    assert_eq!(plan.wake, Some(at(NOW + 7)));
}

fn with_inits() -> Value {
    json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}]})
}

#[test]
fn init_containers_go_one_by_one_and_sidecars_stay() {
    check(with_inits(), &observed(&[], Some(true)), &ready(), &["start:i"]);
    check(with_inits(), &observed(&["i"], Some(true)), &ready(), &[]);
    check(with_inits(), &observed(&["i=0@9990"], Some(true)), &ready(), &["start:s"]);
    check(with_inits(), &observed(&["i=0@9990", "s"], Some(true)), &ready(), &["start:j"]);
    check(with_inits(), &observed(&["i=0@9990", "s", "j=0@9999"], Some(true)), &ready(), &["start:a"]);
    check(with_inits(), &observed(&["i=0@9990", "s=1@9000", "j=0@9999", "a"], Some(true)), &ready(), &["start:s"]);
}

#[test]
fn a_failed_init_container_is_tried_again_unless_never() {
    check(with_inits(), &observed(&["i=1@9990"], Some(true)), &ready(), &["start:i"]);
    let mut never = with_inits();
    never["restartPolicy"] = "Never".into();
    check(never, &observed(&["i=1@9990"], Some(true)), &ready(), &["stop-sandbox:s0"]);
}

#[test]
fn restarts_follow_the_policy_and_the_back_off() {
    let one = |policy: &str| json!({"containers": [{"name": "a"}], "restartPolicy": policy});
    check(one("Always"), &observed(&["a=0@9999"], Some(true)), &ready(), &["start:a"]);
    check(one("OnFailure"), &observed(&["a=1@9999"], Some(true)), &ready(), &["start:a"]);
    check(one("OnFailure"), &observed(&["a=0@9999"], Some(true)), &ready(), &["stop-sandbox:s0"]);
    check(one("Never"), &observed(&["a=1@9999"], Some(true)), &ready(), &["stop-sandbox:s0"]);
    let crashed = Facts { crashes: [("a".to_owned(), (Duration::from_secs(20), at(0)))].into(), ..ready() };
    let plan = check(one("Always"), &observed(&["a#2=1@9990"], Some(true)), &crashed, &[]);
    assert_eq!(plan.wake, Some(at(NOW + 10)));
    assert_eq!(plan.crash_loops.get("a"), Some(&Duration::from_secs(20)));
    check(one("Always"), &observed(&["a#2=1@9979"], Some(true)), &crashed, &["start:a"]);
}

#[test]
fn back_off_doubles_up_to_five_minutes() {
    let mut known: Option<(Duration, Timestamp)> = None;
    let mut delays = Vec::new();
    for _ in 0..7 {
        let next = next_crash_delay(known.as_ref(), Some(Duration::from_secs(1)));
        delays.push(next.as_secs());
        known = Some((next, at(0)));
    }
    assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(next_crash_delay(known.as_ref(), Some(Duration::from_secs(700))).as_secs(), 10);
}

#[test]
fn a_restart_under_way_is_no_back_off() {
    let one = json!({"containers": [{"name": "a"}]});
    let crashes = BTreeMap::from([("a".to_owned(), (Duration::from_secs(10), at(NOW)))]);
    let facts = Facts { crashes: crashes.clone(), busy: ["start:a".to_owned()].into(), ..ready() };
    let plan = check(one.clone(), &observed(&["a=1@9999"], Some(true)), &facts, &[]);
    assert_eq!(plan.crash_loops, BTreeMap::new());
    let plan = check(one, &observed(&["a=1@9999"], Some(true)), &Facts { crashes, ..ready() }, &[]);
    assert_eq!(plan.crash_loops.keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_container_that_fails_its_liveness_is_stopped() {
    let doomed = Probed { doomed: Some(Doom { reason: "why".into(), grace: None }), ..Default::default() };
    let facts = Facts { probes: [("a0".to_owned(), doomed)].into(), ..ready() };
    let plan = check(two(), &observed(&["a", "b"], Some(true)), &facts, &["stop:a0"]);
    assert!(matches!(&plan.steps[0], Step::Stop { grace: 30, reason, .. } if reason == "why"));
    let doomed = Probed { doomed: Some(Doom { reason: "why".into(), grace: Some(3) }), ..Default::default() };
    let facts = Facts { probes: [("a0".to_owned(), doomed)].into(), ..ready() };
    let plan = check(two(), &observed(&["a", "b"], Some(true)), &facts, &["stop:a0"]);
    assert!(matches!(&plan.steps[0], Step::Stop { grace: 3, .. }), "the probe's own grace is stronger");
}

#[test]
fn a_sidecar_has_started_when_its_hook_has_ended() {
    let mut spec = with_inits();
    for container in spec["initContainers"].as_array_mut().unwrap() {
        container["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    }
    let hooked = Facts { busy: ["start:s".to_owned()].into(), ..ready() };
    check(spec.clone(), &observed(&["i=0@1", "s"], Some(true)), &hooked, &[]);
    check(spec, &observed(&["i=0@1", "s"], Some(true)), &ready(), &["start:j"]);
}

#[test]
fn a_dead_sandbox_is_replaced() {
    check(two(), &observed(&["a", "b=0@9999"], Some(false)), &ready(), &["kill:a0"]);
    let dead = observed(&["a=255@9999", "b=255@9999"], Some(false));
    let plan = check(two(), &dead, &ready(), &["sandbox", "stop-sandbox:s0"]);
    assert!(plan.steps.contains(&Step::CreateSandbox { attempt: 1 }));
    let released = Facts { released: ["s0".to_owned()].into(), ..ready() };
    check(two(), &dead, &released, &["sandbox"]);
}

#[test]
fn a_container_left_created_is_made_anew() {
    let plan = check(two(), &observed(&["a?", "b"], Some(true)), &ready(), &["remove:a0", "start:a"]);
    assert!(plan.steps.contains(&Step::Start { name: "a".into(), attempt: 1, sandbox: "s0".into() }));
}

fn deleting(deadline: i64) -> Facts {
    Facts { stopping: Some(Stopping { deadline: at(deadline), deleted: true }), ..ready() }
}

#[test]
fn deletion_stops_containers_then_sidecars_then_everything() {
    let running = observed(&["i=0@1", "s", "j=0@1", "a"], Some(true));
    let plan = check(with_inits(), &running, &deleting(NOW + 30), &["stop:a0"]);
    assert_eq!(plan.wake, Some(at(NOW + 30)));
    check(with_inits(), &observed(&["s", "a=0@9999"], Some(true)), &deleting(NOW + 30), &["stop:s0"]);
    check(with_inits(), &observed(&["s=0@9999", "a=0@9999"], Some(true)), &deleting(NOW + 30), &["stop-sandbox:s0"]);
    check(with_inits(), &observed(&["s=0@9999", "a=0@9999"], Some(false)), &deleting(NOW + 30), &["clean"]);
    let cleaned = Facts { cleaned: Some(true), ..deleting(NOW + 30) };
    check(with_inits(), &observed(&[], None), &cleaned, &[]);
}

#[test]
fn when_the_grace_is_over_what_still_stops_is_killed() {
    let facts = Facts { busy: ["stop:a0".to_owned()].into(), ..deleting(NOW) };
    check(two(), &observed(&["a"], Some(true)), &facts, &["kill:a0"]);
    check(two(), &observed(&["a"], Some(true)), &Facts { busy: facts.busy, ..deleting(NOW + 1) }, &[]);
}

#[test]
fn deletion_waits_for_what_is_under_way() {
    for key in ["start:a", "sandbox", "volumes"] {
        let facts = Facts { busy: [key.to_owned()].into(), ..deleting(NOW + 30) };
        check(two(), &observed(&[], None), &facts, &[]);
    }
}

#[test]
fn an_ended_pod_gives_back_what_it_holds_and_keeps_its_containers() {
    let never = json!({"containers": [{"name": "a"}], "restartPolicy": "Never"});
    let plan = check(never.clone(), &observed(&["a=0@9999"], Some(false)), &ready(), &["clean"]);
    assert_eq!(plan.steps, [Step::CleanUp { all: false }]);
    let cleaned = Facts { cleaned: Some(false), ..ready() };
    check(never.clone(), &observed(&["a=0@9999"], Some(false)), &cleaned, &[]);
    let deleted = Facts { cleaned: Some(false), ..deleting(NOW) };
    let plan = check(never, &observed(&["a=0@9999"], Some(false)), &deleted, &["clean"]);
    assert_eq!(plan.steps, [Step::CleanUp { all: true }]);
}

#[test]
fn sizes_change_one_after_the_other() {
    let named = |name: &str| (name.to_owned(), format!("{name}0"));
    let with = |resize: Needs| Facts { resize, ..ready() };
    let both = observed(&["a", "b"], Some(true));
    check(two(), &both, &with(Needs { group: true, update: vec![named("a")], ..Needs::default() }), &["resize"]);
    // What is to start again ends first, whatever else there is to be done.
    let restart = Needs { group: true, update: vec![named("b")], restart: vec![named("a")], ..Needs::default() };
    check(two(), &both, &with(restart), &["stop:a0"]);
    // Then the others change, and it starts at once, whatever it ended with and however often it has crashed before.
    let ended = observed(&["a=0@9999", "b"], Some(true));
    let again = |group: bool| Needs { group, again: ["a0".to_owned()].into(), ..Needs::default() };
    let mut spec = two();
    spec["restartPolicy"] = "OnFailure".into();
    check(spec.clone(), &ended, &with(again(true)), &["resize"]);
    let crashed = Facts { crashes: [("a".to_owned(), (CRASH_MAX, at(0)))].into(), ..with(again(false)) };
    check(spec.clone(), &ended, &crashed, &["start:a"]);
    // A change that fails does not keep it down.
    let held = Facts { hold: [(RESIZE.to_owned(), at(NOW + 9))].into(), ..with(again(true)) };
    check(spec.clone(), &ended, &held, &["start:a"]);
    // Nor has the pod come to its end when all its containers start again.
    let all = observed(&["a=0@9999", "b=0@9999"], Some(true));
    assert!(!is_terminal(&pod(spec).spec.unwrap(), &all, &crashed));
    // Nothing changes in a pod that is being stopped, and its group goes when the last change is over.
    let stopping = Some(Stopping { deadline: at(NOW + 9), deleted: true });
    let dying = Facts { stopping, busy: [RESIZE.to_owned()].into(), ..with(again(true)) };
    check(two(), &observed(&["a=0@9999", "b=0@9999"], Some(true)), &dying, &[]);
}
