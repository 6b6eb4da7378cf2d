//! Pure: the pod's status from its spec, what is observed, and what the worker knows.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions;

use crate::allocation::fit::Refusal;
use crate::allocation::record::Record;
use crate::images::Waiting;
use crate::pod::container::ephemeral;
use crate::pod::observed::{Instance, Observed, State};
use crate::pod::plan::{Facts, has_started, is_hooked, is_sidecar, is_terminal, restarts};
use crate::resources::qos_class;

/// The reason of a pod that took more of the node than it may.
pub(crate) const EVICTED: &str = "Evicted";
const DISRUPTION: &str = "DisruptionTarget";
/// Conditions that are there while a resize waits or is under way, and not otherwise.
pub(crate) const RESIZE: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// What the status is made of.
pub(crate) struct Inputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) observed: &'a Observed,
    pub(crate) facts: &'a Facts,
    /// By container name.
    pub(crate) waiting: &'a BTreeMap<String, Waiting>,
    pub(crate) crash_loops: &'a BTreeMap<String, Duration>,
    /// By container id: what the container wrote to its termination log.
    pub(crate) messages: &'a BTreeMap<String, String>,
    /// Set when the node itself ended the pod: reason and message.
    pub(crate) verdict: Option<&'a (String, String)>,
    pub(crate) size: &'a Sizing<'a>,
    pub(crate) node_ips: &'a [String],
    pub(crate) now: Timestamp,
}

/// How large the pod is, and is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizing<'a> {
    pub(crate) record: &'a Record,
    /// Why the pod has not got what its spec says, and in which generation it was told.
    pub(crate) refused: Option<(&'a Refusal, i64)>,
    /// Why the containers have not got what the node has set aside.
    pub(crate) error: Option<&'a str>,
}

/// The status to publish. Conditions that others own are carried over from the pod as given.
pub(crate) fn status(inputs: &Inputs<'_>) -> PodStatus {
    let empty = PodSpec::default();
    let pod = inputs.pod;
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let before = pod.status.clone().unwrap_or_default();
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let initialized = inits_done(spec, inputs);
    let of = |container: &Container, list: &Option<Vec<ContainerStatus>>, init: bool| {
        let old = list.iter().flatten().find(|old| old.name == container.name);
        container_status(container, old, inputs, init, initialized)
    };
    let init_statuses: Vec<_> = inits.iter().map(|c| of(c, &before.init_container_statuses, true)).collect();
    let statuses: Vec<_> = spec.containers.iter().map(|c| of(c, &before.container_statuses, false)).collect();
    let passing = spec.ephemeral_containers.iter().flatten().filter_map(ephemeral);
    let passing: Vec<_> = passing
        .map(|c| ContainerStatus { ready: false, ..of(&c, &before.ephemeral_container_statuses, false) })
        .collect();
    let phase = phase(spec, inputs, initialized);
    let terminal = matches!(phase, "Succeeded" | "Failed");
    let ips = pod_ips(spec, inputs, &before);
    // The containers of a pod that is refused are waiting for nothing.
    let refused = phase == "Failed" && inputs.observed.containers.is_empty() && before.container_statuses.is_none();
    let statuses = Some(statuses).filter(|_| !refused);
    let init_statuses = Some(init_statuses).filter(|_| !refused && !inits.is_empty());
    let mut status = PodStatus {
        phase: Some(phase.to_owned()),
        host_ip: inputs.node_ips.first().cloned(),
        host_ips: Some(inputs.node_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: if ips.is_empty() { None } else { Some(ips.into_iter().map(|ip| PodIP { ip }).collect()) },
        qos_class: Some(before.qos_class.clone().unwrap_or_else(|| qos_class(spec).to_owned())),
        start_time: before.start_time.clone().or(Some(Time(kit::clock::seconds(inputs.now)))),
        init_container_statuses: init_statuses,
        container_statuses: statuses,
        ephemeral_container_statuses: if passing.is_empty() { None } else { Some(passing) },
        reason: before.reason.clone(),
        message: before.message.clone(),
        nominated_node_name: before.nominated_node_name.clone(),
        resize: before.resize.clone(),
        observed_generation: pod.metadata.generation,
        resource_claim_statuses: before.resource_claim_statuses.clone(),
        ..Default::default()
    };
    if let Some((reason, message)) = inputs.verdict {
        status.reason = Some(reason.clone());
        status.message = Some(message.clone());
    }
    status.conditions = Some(conditions(spec, &status, &before, inputs, initialized, terminal));
    status
}

fn pod_ips(spec: &PodSpec, inputs: &Inputs<'_>, before: &PodStatus) -> Vec<String> {
    if spec.host_network == Some(true) {
        return if inputs.observed.sandboxes.is_empty() { Vec::new() } else { inputs.node_ips.to_vec() };
    }
    let current = inputs.observed.sandbox().map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
    if !current.is_empty() {
        return current;
    }
    before.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect()
}

fn phase(spec: &PodSpec, inputs: &Inputs<'_>, initialized: bool) -> &'static str {
    let before = inputs.pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match before {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    let observed = inputs.observed;
    let any_running = observed.running().next().is_some();
    if inputs.verdict.is_some() && !any_running {
        return "Failed";
    }
    let exits: Vec<_> = spec.containers.iter().map(|c| observed.latest(&c.name).and_then(Instance::exit)).collect();
    let ends = inputs.facts.stopping.is_some() && !inputs.facts.power_off;
    let stopped = ends && !any_running;
    if is_terminal(spec, observed, inputs.facts) || (stopped && exits.iter().all(Option::is_some)) {
        let mains_running = spec.containers.iter().any(|c| observed.latest(&c.name).is_some_and(Instance::is_running));
        if !mains_running && (!any_running || !stopped) {
            let good = exits.iter().all(|exit| exit.is_some_and(|exit| exit.code == 0));
            return if good { "Succeeded" } else { "Failed" };
        }
    }
    if stopped && !observed.containers.is_empty() {
        return "Failed";
    }
    let begun = spec.containers.iter().all(|c| {
        observed.latest(&c.name).is_some_and(|i| !matches!(i.state, State::Created)) && !is_hooked(c, inputs.facts)
    });
    if (begun && initialized) || before == Some("Running") { "Running" } else { "Pending" }
}

fn inits_done(spec: &PodSpec, inputs: &Inputs<'_>) -> bool {
    let begun = spec.containers.iter().any(|c| inputs.observed.latest(&c.name).is_some());
    begun
        || spec.init_containers.iter().flatten().all(|container| {
            let instance = inputs.observed.latest(&container.name);
            if is_sidecar(container) {
                instance.is_some_and(|i| i.is_running() && has_started(container, i, inputs.facts))
            } else {
                instance.and_then(Instance::exit).is_some_and(|exit| exit.code == 0)
            }
        })
}

fn container_status(
    container: &Container,
    old: Option<&ContainerStatus>,
    inputs: &Inputs<'_>,
    init: bool,
    initialized: bool,
) -> ContainerStatus {
    let instance = inputs.observed.latest(&container.name);
    let waiting = inputs.waiting.get(&container.name).map(|waiting| ContainerStateWaiting {
        reason: Some(waiting.reason.clone()),
        message: Some(waiting.message.clone()).filter(|message| !message.is_empty()),
    });
    let crash = inputs.crash_loops.get(&container.name).map(|delay| ContainerStateWaiting {
        reason: Some("CrashLoopBackOff".to_owned()),
        message: Some(crash_message(&container.name, *delay, inputs.pod)),
    });
    let terminated = |i: &Instance| terminated(i, inputs.messages.get(&i.id));
    let mut state = ContainerState::default();
    let before = inputs.observed.previous(&container.name).and_then(terminated);
    let mut last = ContainerState { terminated: before, ..Default::default() };
    if last.terminated.is_none() {
        last = old.and_then(|old| old.last_state.clone()).unwrap_or_default();
    }
    let (mut started, mut ready) = (false, false);
    let spec = inputs.pod.spec.as_ref();
    match instance.map(|instance| &instance.state) {
        Some(State::Running { .. }) if is_hooked(container, inputs.facts) => {
            let creating = ContainerStateWaiting { reason: Some("ContainerCreating".to_owned()), message: None };
            state.waiting = waiting.or(Some(creating));
        }
        Some(State::Running { started: at }) => {
            let instance = instance.map(|i| (has_started(container, i, inputs.facts), inputs.facts.probes.get(&i.id)));
            state.running = Some(ContainerStateRunning { started_at: Some(Time(kit::clock::seconds(*at))) });
            started = instance.as_ref().is_some_and(|(started, _)| *started);
            let probed = instance.and_then(|(_, probed)| probed);
            ready = started && (container.readiness_probe.is_none() || probed.is_some_and(|probed| probed.ready));
        }
        Some(State::Exited(exit)) => {
            let ended = instance.and_then(terminated);
            // What is not started again waits for nothing, however its start went wrong.
            let over =
                inputs.facts.stopping.is_some() || spec.is_some_and(|spec| !restarts(spec, container, exit.code));
            if let Some(wait) = crash.or(waiting).filter(|_| !over) {
                state.waiting = Some(wait);
                last.terminated = ended;
            } else {
                ready = init && exit.code == 0;
                state.terminated = ended;
            }
        }
        Some(State::Created) | None => {
            let reason = if init || initialized { "ContainerCreating" } else { "PodInitializing" };
            let reason = if init { "PodInitializing" } else { reason };
            state.waiting = waiting.or(Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message: None }));
            if instance.is_none()
                && let Some(ended) = old.and_then(|old| old.state.as_ref()?.terminated.clone())
            {
                // The runtime forgot it (removed by collection or by hand); the last word stands.
                state = ContainerState { terminated: Some(ended), ..Default::default() };
                ready = old.is_some_and(|old| old.ready);
            }
        }
    }
    // What runs has what it was given; of anything else one can only say what is set aside.
    let allocated = container.resources.clone().unwrap_or_default();
    let applied = inputs.size.record.applied.get(&container.name).filter(|_| state.running.is_some());
    ContainerStatus {
        allocated_resources: allocated.requests.clone().filter(|_| instance.is_some()),
        resources: instance.map(|_| applied.cloned().unwrap_or(allocated)),
        name: container.name.clone(),
        container_id: instance
            .map(|instance| format!("containerd://{}", instance.id))
            .or_else(|| old.and_then(|old| old.container_id.clone())),
        image: instance
            .map(|i| i.image.clone())
            .filter(|image| !image.is_empty())
            .unwrap_or_else(|| container.image.clone().unwrap_or_default()),
        image_id: instance
            .map(|i| i.image_ref.clone())
            .or_else(|| old.map(|old| old.image_id.clone()))
            .unwrap_or_default(),
        restart_count: instance
            .map_or_else(|| old.map_or(0, |old| old.restart_count), |i| i32::try_from(i.attempt).unwrap_or(i32::MAX)),
        started: Some(started),
        ready,
        state: Some(state),
        last_state: Some(last),
        ..Default::default()
    }
}

/// The sentence users search for.
pub(crate) fn crash_message(name: &str, delay: Duration, pod: &Pod) -> String {
    let (pod_name, namespace, uid) = crate::sandbox::names(pod);
    let delay = match delay.as_secs() {
        secs if secs < 60 => format!("{secs}s"),
        secs => format!("{}m{}s", secs / 60, secs % 60),
    };
    format!("back-off {delay} restarting failed container={name} pod={pod_name}_{namespace}({uid})")
}

fn terminated(instance: &Instance, message: Option<&String>) -> Option<ContainerStateTerminated> {
    let exit = instance.exit()?;
    let reason = match (exit.reason.as_str(), exit.code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    let runtime_message = Some(exit.message.clone()).filter(|message| !message.is_empty());
    Some(ContainerStateTerminated {
        container_id: Some(format!("containerd://{}", instance.id)),
        exit_code: exit.code,
        reason: Some(reason.to_owned()),
        message: message.cloned().filter(|message| !message.is_empty()).or(runtime_message),
        started_at: Some(Time(kit::clock::seconds(exit.started))),
        finished_at: Some(Time(kit::clock::seconds(exit.finished))),
        ..Default::default()
    })
}

fn conditions(
    spec: &PodSpec,
    status: &PodStatus,
    before: &PodStatus,
    inputs: &Inputs<'_>,
    initialized: bool,
    terminal: bool,
) -> Vec<PodCondition> {
    let old = before.conditions.clone().unwrap_or_default();
    let succeeded = status.phase.as_deref() == Some("Succeeded");
    let names = |list: &Option<Vec<ContainerStatus>>| -> String {
        let unready = list.iter().flatten().filter(|status| !status.ready).map(|status| status.name.as_str());
        unready.collect::<Vec<_>>().join(" ")
    };
    let is_sidecar_named = |name: &str| spec.init_containers.iter().flatten().any(|c| c.name == name && is_sidecar(c));
    let sidecars = status.init_container_statuses.iter().flatten().filter(|status| is_sidecar_named(&status.name));
    let unready = names(&Some(sidecars.chain(status.container_statuses.iter().flatten()).cloned().collect()));
    let completed = || Some(("PodCompleted".to_owned(), String::new()));
    let containers = if terminal {
        Some(if succeeded {
            ("PodCompleted".to_owned(), String::new())
        } else {
            ("PodFailed".to_owned(), String::new())
        })
    } else if unready.is_empty() {
        None
    } else {
        Some(("ContainersNotReady".to_owned(), format!("containers with unready status: [{unready}]")))
    };
    let gates = spec.readiness_gates.iter().flatten().filter(|gate| {
        !old.iter().any(|condition| condition.type_ == gate.condition_type && condition.status == "True")
    });
    let missing: Vec<String> = gates
        .map(|gate| {
            let known = old.iter().any(|condition| condition.type_ == gate.condition_type);
            let name = &gate.condition_type;
            if known {
                format!("the status of pod readiness gate \"{name}\" is not \"True\", but False")
            } else {
                format!("corresponding condition of pod readiness gate \"{name}\" does not exist.")
            }
        })
        .collect();
    let ready = containers
        .clone()
        .or_else(|| (!missing.is_empty()).then(|| ("ReadinessGatesNotReady".to_owned(), missing.join(", "))));
    let incomplete = names(&status.init_container_statuses);
    let initializing = if succeeded {
        completed()
    } else if initialized {
        None
    } else {
        Some(("ContainersNotInitialized".to_owned(), format!("containers with incomplete status: [{incomplete}]")))
    };
    let sandboxed = inputs.observed.sandbox().is_some();
    let wanted = [
        ("PodReadyToStartContainers", sandboxed, None),
        ("Initialized", initialized || succeeded, initializing),
        ("Ready", ready.is_none(), ready),
        ("ContainersReady", containers.is_none(), containers),
        ("PodScheduled", true, None),
    ];
    let now = Time(inputs.now);
    let mut all: Vec<PodCondition> = Vec::new();
    for (kind, good, why) in wanted {
        let status = if good { "True" } else { "False" };
        let (reason, message) = why.unzip();
        all.push(conditions::said(&old, kind, status, reason.as_deref(), message.as_deref(), &now));
    }
    all.extend(resizing(&old, inputs.size, terminal, &now));
    let generation = inputs.pod.metadata.generation;
    all.iter_mut().for_each(|condition| condition.observed_generation = condition.observed_generation.or(generation));
    let evicted = inputs.verdict.filter(|(reason, _)| reason == EVICTED);
    let foreign = old.into_iter().filter(|condition| !is_own(&condition.type_));
    let mut foreign: Vec<_> = foreign.collect();
    if let Some((_, message)) = evicted.filter(|_| !foreign.iter().any(|condition| condition.type_ == DISRUPTION)) {
        conditions::set(&mut foreign, DISRUPTION, "True", Some("TerminationByKubelet"), Some(message), &now);
    }
    all.extend(foreign);
    all
}

/// What is said of a resize that waits, or is under way.
fn resizing(old: &[PodCondition], size: &Sizing<'_>, terminal: bool, now: &Time) -> Vec<PodCondition> {
    let [pending, progress] = RESIZE;
    let said = |kind, reason: Option<&str>, message: Option<&str>, generation: i64| PodCondition {
        observed_generation: Some(generation).filter(|generation| *generation > 0),
        ..conditions::said(old, kind, "True", reason, message, now)
    };
    let waits = size.refused.map(|(refusal, at)| said(pending, Some(refusal.reason), Some(&refusal.message), at));
    let goes = size.record.under_way.map(|at| said(progress, size.error.map(|_| "Error"), size.error, at));
    waits.into_iter().chain(goes).filter(|_| !terminal).collect()
}

/// True when writing `wanted` over `current` would change nothing.
pub(crate) fn same(current: &PodStatus, wanted: &PodStatus) -> bool {
    let canonical = |status: &PodStatus| {
        let mut status = status.clone();
        status.conditions.get_or_insert_default().sort_by(|a, b| a.type_.cmp(&b.type_));
        serde_json::to_value(status).unwrap_or_default()
    };
    canonical(current) == canonical(wanted)
}

/// A status as this kubelet wrote it, or as somebody changed it since.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) status: PodStatus,
    /// The pod's revision with it.
    pub(crate) version: u64,
}

/// Orders the revisions of one pod. One that is not a number is never the newer one.
pub(crate) fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok())
}

impl Published {
    /// `status` as the API answered that it keeps it.
    pub(crate) fn of(status: PodStatus, answer: &Pod) -> Self {
        Self { status, version: version(answer).unwrap_or(u64::MAX) }
    }

    /// Takes over which conditions `pod`, as the API tells of it, has. Others' conditions are new to us whenever they
    /// come. Ours are what we wrote, unless the pod is newer than that: then somebody changed them, as the node
    /// controller does with the pods of a node that it has not heard of.
    pub(crate) fn adopt(&mut self, pod: &Pod) -> PodStatus {
        let newer = version(pod).is_some_and(|version| version > self.version);
        let theirs = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let mut status = self.status.clone();
        status.resource_claim_statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.clone());
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|condition| is_own(&condition.type_) && !newer);
        conditions.extend(theirs.into_iter().filter(|condition| newer || !is_own(&condition.type_)));
        if newer {
            self.status = status.clone();
        }
        status
    }
}

/// True for the conditions the kubelet owns.
pub(crate) fn is_own(kind: &str) -> bool {
    let lasting =
        matches!(kind, "PodReadyToStartContainers" | "Initialized" | "Ready" | "ContainersReady" | "PodScheduled");
    lasting || RESIZE.contains(&kind)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
