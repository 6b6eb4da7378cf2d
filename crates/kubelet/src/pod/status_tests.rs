//! Statuses by data: what is observed, and what the API gets to see.

use serde_json::{Value, json};

use super::*;
use crate::pod::observed::{Exit, Sandbox};
use crate::pod::plan::Stopping;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn instance(name: &str, attempt: u32, state: State) -> Instance {
    Instance {
        id: format!("{name}{attempt}"),
        name: name.to_owned(),
        attempt,
        sandbox: "s".into(),
        image: "img".into(),
        image_ref: "sha256:1".into(),
        state,
        termination_log: None,
        log_path: String::new(),
    }
}

fn running(name: &str) -> Instance {
    instance(name, 0, State::Running { started: at(5) })
}

fn exited(name: &str, attempt: u32, code: i32) -> Instance {
    instance(name, attempt, State::Exited(Exit { code, started: at(5), finished: at(6), ..Default::default() }))
}

#[test]
fn an_end_is_looked_for_until_it_is_shown() {
    let containers = vec![instance("a", 0, State::Created), running("b"), exited("c", 0, 1)];
    let observed = Observed { containers, ..Observed::default() };
    let open = |id: &str| observed.is_open(id);
    assert_eq!([open("a0"), open("b0"), open("c0"), open("s")], [true, true, false, false]);
}

#[derive(Default)]
struct Scene {
    spec: Value,
    containers: Vec<Instance>,
    facts: Facts,
    waiting: BTreeMap<String, Waiting>,
    before: Value,
    verdict: Option<(String, String)>,
    record: Record,
    refused: Option<Refusal>,
    error: Option<&'static str>,
}

impl Scene {
    fn new(spec: Value, containers: Vec<Instance>) -> Self {
        Scene { spec, containers, before: json!({}), ..Default::default() }
    }

    fn status(self) -> PodStatus {
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 7}, "spec": self.spec,
                "status": self.before}),
        )
        .unwrap();
        let sandbox = Sandbox { id: "s".into(), ready: true, ips: vec!["10.0.0.2".into()], ..Default::default() };
        status(&Inputs {
            pod: &pod,
            observed: &Observed { sandboxes: vec![sandbox], containers: self.containers },
            facts: &self.facts,
            waiting: &self.waiting,
            crash_loops: &BTreeMap::new(),
            messages: &BTreeMap::new(),
            verdict: self.verdict.as_ref(),
            size: &Sizing {
                record: &self.record,
                refused: self.refused.as_ref().map(|refusal| (refusal, 6)),
                error: self.error,
            },
            node_ips: &["192.0.2.1".to_owned()],
            now: at(100),
        })
    }

    #[track_caller]
    fn check(self, expect: &str) {
        let status = self.status();
        let truth = |kind: &str| {
            let found = status.conditions.iter().flatten().find(|c| c.type_ == kind);
            found.map_or("-".to_owned(), |c| {
                format!("{}{}", c.status, c.reason.as_ref().map_or(String::new(), |r| format!("({r})")))
            })
        };
        let got = format!(
            "{} Initialized={} Ready={}",
            status.phase.as_deref().unwrap_or_default(),
            truth("Initialized"),
            truth("Ready")
        );
        assert_eq!(got, expect);
    }
}

fn one() -> Value {
    json!({"containers": [{"name": "a"}]})
}

fn policy(policy: &str) -> Value {
    json!({"containers": [{"name": "a"}, {"name": "b"}], "restartPolicy": policy})
}

#[test]
fn sizes_are_told_as_they_are() {
    let size = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    let spec = || json!({"containers": [{"name": "a", "resources": size("2")}]});
    let record = |under_way| {
        let applied = serde_json::from_value(json!({"a": size("1")})).unwrap();
        Record { applied, under_way, ..Record::default() }
    };
    let check = |scene: Scene, expect: Value, conditions: &[(&str, Option<&str>, Option<&str>, i64)]| {
        let status = scene.status();
        let container = &status.container_statuses.as_ref().unwrap()[0];
        let told = json!([container.resources, container.allocated_resources]);
        assert_eq!((told, status.observed_generation), (expect, Some(7)));
        let found = status.conditions.iter().flatten().filter(|c| RESIZE.contains(&c.type_.as_str()));
        let found: Vec<_> = found
            .map(|c| (c.type_.as_str(), c.reason.as_deref(), c.message.as_deref(), c.observed_generation.unwrap()))
            .collect();
        assert_eq!(found, conditions);
        let others = status.conditions.iter().flatten().filter(|c| !RESIZE.contains(&c.type_.as_str()));
        assert!(others.into_iter().all(|c| c.observed_generation == Some(7)));
    };
    let runs = || Scene::new(spec(), vec![running("a")]);
    let (old, new) = (json!([size("1"), {"cpu": "2"}]), json!([size("2"), {"cpu": "2"}]));
    check(Scene { record: record(None), ..runs() }, old.clone(), &[]);
    let progress = "PodResizeInProgress";
    check(Scene { record: record(Some(5)), ..runs() }, old.clone(), &[(progress, None, None, 5)]);
    let refused = Some(Refusal { reason: "Deferred", message: "no room".into() });
    let both = [("PodResizePending", Some("Deferred"), Some("no room"), 6), (progress, Some("Error"), Some("why"), 5)];
    let scene = Scene { record: record(Some(5)), refused, error: Some("why"), ..runs() };
    check(scene, old, &both);
    // What does not run has nothing but what is set aside.
    check(Scene { record: record(None), ..Scene::new(spec(), vec![exited("a", 0, 1)]) }, new, &[]);
    check(Scene::new(spec(), vec![]), json!([null, null]), &[]);
    let before = json!({"conditions": [{"type": progress, "status": "True"}]});
    check(Scene { before, ..Scene::new(spec(), vec![]) }, json!([null, null]), &[]);
}

#[test]
fn phases() {
    Scene::new(one(), vec![]).check("Pending Initialized=True Ready=False(ContainersNotReady)");
    Scene::new(one(), vec![running("a")]).check("Running Initialized=True Ready=True");
    Scene::new(policy("Always"), vec![running("a"), exited("b", 0, 1)])
        .check("Running Initialized=True Ready=False(ContainersNotReady)");
    Scene::new(policy("Never"), vec![exited("a", 0, 0), exited("b", 0, 0)])
        .check("Succeeded Initialized=True(PodCompleted) Ready=False(PodCompleted)");
    Scene::new(policy("Never"), vec![exited("a", 0, 0), exited("b", 0, 3)])
        .check("Failed Initialized=True Ready=False(PodFailed)");
    Scene::new(policy("OnFailure"), vec![exited("a", 0, 0), exited("b", 0, 3)])
        .check("Running Initialized=True Ready=False(ContainersNotReady)");
}

#[test]
fn init_containers_hold_the_pod_pending() {
    let spec = || json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}], "restartPolicy": "Never"});
    Scene::new(spec(), vec![running("i")])
        .check("Pending Initialized=False(ContainersNotInitialized) Ready=False(ContainersNotReady)");
    Scene::new(spec(), vec![exited("i", 0, 1)])
        .check("Failed Initialized=False(ContainersNotInitialized) Ready=False(PodFailed)");
    let waiting = Scene::new(spec(), vec![running("i")]).status().container_statuses.unwrap();
    assert_eq!(waiting[0].state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(), Some("PodInitializing"));
}

#[test]
fn readiness_is_what_the_probe_says() {
    let spec = || json!({"containers": [{"name": "a", "readinessProbe": {"tcpSocket": {"port": 1}}}]});
    Scene::new(spec(), vec![running("a")]).check("Running Initialized=True Ready=False(ContainersNotReady)");
    let mut scene = Scene::new(spec(), vec![running("a")]);
    scene.facts.probes.insert("a0".into(), crate::pod::plan::Probed { ready: true, ..Default::default() });
    scene.check("Running Initialized=True Ready=True");
}

#[test]
fn readiness_gates_count() {
    let spec = json!({"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "x.io/up"}]});
    Scene::new(spec.clone(), vec![running("a")]).check("Running Initialized=True Ready=False(ReadinessGatesNotReady)");
    let mut scene = Scene::new(spec, vec![running("a")]);
    scene.before = json!({"conditions": [{"type": "x.io/up", "status": "True"}]});
    scene.check("Running Initialized=True Ready=True");
}

#[test]
fn deletion_ends_in_a_final_phase() {
    let stopping = Facts { stopping: Some(Stopping { deadline: at(200), deleted: true }), ..Default::default() };
    let mut killed = Scene::new(one(), vec![exited("a", 0, 137)]);
    killed.facts = stopping.clone();
    killed.check("Failed Initialized=True Ready=False(PodFailed)");
    let mut graceful = Scene::new(one(), vec![exited("a", 0, 0)]);
    graceful.facts = stopping;
    graceful.check("Succeeded Initialized=True(PodCompleted) Ready=False(PodCompleted)");
}

#[test]
fn a_waiting_container_tells_why_and_what_was_before() {
    let mut scene = Scene::new(one(), vec![exited("a", 1, 1), exited("a", 0, 2)]);
    scene.waiting.insert("a".into(), Waiting { reason: "CrashLoopBackOff".into(), message: "m".into() });
    let status = &scene.status().container_statuses.unwrap()[0];
    assert_eq!(status.restart_count, 1);
    assert_eq!(status.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(status.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
}

#[test]
fn times_stand_and_foreign_conditions_stay() {
    let mut scene = Scene::new(one(), vec![running("a")]);
    scene.before = json!({"startTime": "1970-01-01T00:00:01Z", "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"}, {"type": "DisruptionTarget", "status": "True"}]});
    let status = scene.status();
    assert_eq!(status.start_time.as_ref().unwrap().0, at(1));
    let conditions = status.conditions.as_ref().unwrap();
    assert!(conditions.iter().any(|c| c.type_ == "DisruptionTarget"));
    let ready = conditions.iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.last_transition_time.as_ref().unwrap().0, at(7));
}

#[test]
fn a_container_that_failed_to_start_and_is_not_restarted_is_terminated() {
    let state = |policy: &str| {
        let spec = json!({"containers": [{"name": "a"}], "restartPolicy": policy});
        let mut scene = Scene::new(spec, vec![exited("a", 0, 128)]);
        scene.waiting.insert("a".into(), Waiting { reason: "RunContainerError".into(), message: "m".into() });
        let status = scene.status();
        let container = status.container_statuses.unwrap().remove(0);
        (status.phase.unwrap(), container.state.unwrap())
    };
    let (phase, never) = state("Never");
    assert_eq!((phase.as_str(), never.waiting, never.terminated.map(|t| t.exit_code)), ("Failed", None, Some(128)));
    let (_, always) = state("Always");
    assert_eq!(always.waiting.unwrap().reason.as_deref(), Some("RunContainerError"));
}

#[test]
fn a_container_does_not_run_before_its_post_start_hook_has_ended() {
    let spec = || json!({"containers": [{"name": "a", "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}]});
    let mut hooked = Scene::new(spec(), vec![running("a")]);
    hooked.facts.busy.insert("start:a".into());
    hooked.check("Pending Initialized=True Ready=False(ContainersNotReady)");
    Scene::new(spec(), vec![running("a")]).check("Running Initialized=True Ready=True");
}

#[test]
fn a_pod_is_as_ready_as_its_sidecars() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let spec = json!({"containers": [{"name": "a"}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always", "readinessProbe": probe}]});
    let all = || vec![exited("i", 0, 0), running("s"), running("a")];
    Scene::new(spec.clone(), all()).check("Running Initialized=True Ready=False(ContainersNotReady)");
    let mut ready = Scene::new(spec, all());
    ready.facts.probes.insert("s0".into(), crate::pod::plan::Probed { ready: true, ..Default::default() });
    ready.check("Running Initialized=True Ready=True");
}

#[test]
fn a_refused_pod_has_no_containers_that_wait() {
    let mut scene = Scene::new(one(), vec![]);
    scene.verdict = Some(("SysctlForbidden".into(), "m".into()));
    let status = scene.status();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("SysctlForbidden")));
    assert_eq!(status.container_statuses, None);
    let mut again = Scene::new(one(), vec![]);
    again.before = json!({"phase": "Failed", "reason": "SysctlForbidden"});
    assert_eq!(again.status().container_statuses, None, "nor after a restart of the kubelet");
}

#[test]
fn status_changes_by_others_are_noticed() {
    let pod = |version: &str, ready: &str| -> Pod {
        let conditions =
            json!([{ "type": "Ready", "status": ready }, { "type": "example.com/gate", "status": "True" }]);
        let metadata = json!({ "resourceVersion": version });
        serde_json::from_value(json!({ "metadata": metadata, "status": { "conditions": conditions } })).unwrap()
    };
    let check = |version: &str, adopted: &str, published: &str| {
        let own = serde_json::from_value(json!({ "conditions": [{ "type": "Ready", "status": "True" }] })).unwrap();
        let mut held = Published::of(own, &pod("10", "True"));
        let ready = |status: &PodStatus| {
            let conditions = status.conditions.clone().unwrap();
            conditions.into_iter().find(|condition| condition.type_ == "Ready").unwrap().status
        };
        let status = held.adopt(&pod(version, "False"));
        assert_eq!(status.conditions.as_ref().map(Vec::len), Some(2), "the other's condition is there in any case");
        assert_eq!((ready(&status).as_str(), ready(&held.status).as_str()), (adopted, published), "{version}");
    };
    // What comes late tells of a time before our write.
    check("9", "True", "True");
    check("10", "True", "True");
    check("11", "False", "False");
    check("a word", "True", "True");
}
