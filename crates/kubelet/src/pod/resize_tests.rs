//! Resizes by data: what is set aside, what containers have, and what is to be done.

use serde_json::{Value, json};

use super::*;
use crate::allocation::sizes;
use crate::pod::observed::{Exit, Instance, Sandbox, State};

fn container(name: &str, cpu: &str, memory: &str) -> Value {
    json!({"name": name, "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}, "limits": {"cpu": cpu, "memory": memory}}})
}

fn pod(containers: &[Value]) -> Pod {
    let spec = json!({"containers": containers});
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u", "generation": 2}, "spec": spec})).unwrap()
}

fn instance(name: &str, runs: bool) -> Instance {
    let state = if runs { State::Running { started: Default::default() } } else { State::Exited(Exit::default()) };
    Instance {
        id: format!("{name}0"),
        name: name.to_owned(),
        attempt: 0,
        sandbox: "s".into(),
        image: String::new(),
        image_ref: String::new(),
        state,
        termination_log: None,
        log_path: String::new(),
    }
}

/// A pod whose containers are to go from one size to another; `a` runs, as far as it is told.
struct Scene {
    before: Pod,
    after: Pod,
    grouped: bool,
    restarts: &'static [&'static str],
    runs: bool,
}

impl Scene {
    fn new(before: &[Value], after: &[Value]) -> Self {
        Scene { before: pod(before), after: pod(after), grouped: false, restarts: &[], runs: true }
    }

    fn record(&self) -> Record {
        Record {
            allocated: sizes(&self.after),
            applied: sizes(&self.before),
            grouped: Some(sizes(if self.grouped { &self.after } else { &self.before })),
            restarts: self.restarts.iter().map(|id| (*id).to_owned()).collect(),
            under_way: Some(2),
        }
    }

    /// `group +updated !restarted @again`
    #[track_caller]
    fn check(&self, expect: &str) {
        let sandbox = Sandbox { id: "s".into(), ready: true, ..Sandbox::default() };
        let observed =
            Observed { sandboxes: vec![sandbox], containers: vec![instance("a", self.runs), instance("b", true)] };
        let needs = needs(&self.after, &self.record(), &observed);
        let mut words = Vec::new();
        words.extend(needs.group.then(|| "group".to_owned()));
        words.extend(needs.update.iter().map(|(name, _)| format!("+{name}")));
        words.extend(needs.restart.iter().map(|(name, _)| format!("!{name}")));
        words.extend(needs.again.iter().map(|id| format!("@{id}")));
        assert_eq!(words.join(" "), expect);
        assert_eq!(needs.is_met(), expect.is_empty());
    }
}

fn with_policy(mut container: Value, resource: &str) -> Value {
    container["resizePolicy"] = json!([{"resourceName": resource, "restartPolicy": "RestartContainer"}]);
    container
}

#[test]
fn what_differs_is_changed() {
    let (small, large) = (container("a", "1", "8Mi"), container("a", "2", "16Mi"));
    let other = container("b", "1", "8Mi");
    let grows = || Scene::new(&[small.clone(), other.clone()], &[large.clone(), other.clone()]);
    grows().check("group +a");
    Scene { grouped: true, ..grows() }.check("+a");
    // What ended by itself starts with what is set aside.
    Scene { grouped: true, runs: false, ..grows() }.check("");
    Scene { grouped: true, ..Scene::new(&[small.clone()], &[small.clone()]) }.check("");
    let idle = Record { under_way: None, ..grows().record() };
    assert!(needs(&grows().after, &idle, &Observed::default()).is_met());
}

#[test]
fn policies_say_what_is_started_again() {
    let check = |policy: &str, cpu: &str, memory: &str, expect: &str| {
        let from = with_policy(container("a", "1", "8Mi"), policy);
        let scene = Scene::new(&[from], &[with_policy(container("a", cpu, memory), policy)]);
        Scene { grouped: true, ..scene }.check(expect);
    };
    check("cpu", "2", "8Mi", "!a");
    check("cpu", "1", "16Mi", "+a");
    check("memory", "1", "16Mi", "!a");
    check("memory", "2", "8Mi", "+a");
    check("memory", "2", "16Mi", "!a");
    // A request for memory is in no container.
    let mut request = with_policy(container("a", "1", "8Mi"), "memory");
    let from = request.clone();
    request["resources"]["requests"]["memory"] = "2Mi".into();
    Scene { grouped: true, ..Scene::new(&[from], &[request]) }.check("+a");
}

#[test]
fn what_was_stopped_for_it_starts_again_in_any_life() {
    let scene = |runs| {
        let (from, to) = (container("a", "1", "8Mi"), container("a", "2", "8Mi"));
        let scene = Scene::new(&[with_policy(from, "cpu")], &[with_policy(to, "cpu")]);
        Scene { restarts: &["a0"], runs, ..scene }
    };
    scene(true).check("group !a");
    scene(false).check("group @a0");
}

#[test]
fn memory_in_use_forbids_a_lower_limit() {
    let check = |before: &str, after: &str, used: i64, expect: Option<&str>| {
        let scene = Scene::new(&[container("a", "1", before)], &[container("a", "1", after)]);
        let found = forbidden(&scene.after, &scene.record(), &[("a".to_owned(), used << 20)]);
        assert_eq!(found.as_deref(), expect);
    };
    check("8Mi", "16Mi", 20, None);
    check("16Mi", "8Mi", 7, None);
    let both = "cannot decrease memory limits: [attempting to set pod memory limit (8388608) below current usage \
        (8388608), attempting to set container \"a\" memory limit (8388608) below current usage (8388608)]";
    check("16Mi", "8Mi", 8, Some(both));
    let two = |memory: &str| [container("a", "1", memory), container("b", "1", "16Mi")];
    let scene = Scene::new(&two("16Mi"), &two("8Mi"));
    let usage = [("a".to_owned(), 9 << 20), ("b".to_owned(), 1 << 20)];
    let one = "cannot decrease memory limits: attempting to set container \"a\" memory limit (8388608) below current \
        usage (9437184)";
    assert_eq!(forbidden(&scene.after, &scene.record(), &usage).as_deref(), Some(one));
}

#[test]
fn events_tell_the_sizes() {
    let pod = pod(&[json!({"name": "c0", "resources": {"requests": {"cpu": "100m"}}})]);
    let shown =
        r#"Pod resize started: {"containers":[{"name":"c0","resources":{"requests":{"cpu":"100m"}}}],"generation":2}"#;
    assert_eq!(told("started", &pod, 2, None), shown);
    let shown = r#"Pod resize Deferred: {"containers":[{"name":"c0","resources":{"requests":{"cpu":"100m"}}}],"generation":3,"error":"no \"room\""}"#;
    assert_eq!(told("Deferred", &pod, 3, Some("no \"room\"")), shown);
}
