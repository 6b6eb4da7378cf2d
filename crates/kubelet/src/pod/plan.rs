//! Pure: from a pod's spec and what is observed of it to the steps that may start now.
//!
//! A step already under way is in `Facts::busy` under its [`Step::key`] and is not started twice; a step that failed is
//! held back until `Facts::hold` lets it go. So a plan may be made at any moment and as often as one likes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::pod::container::ephemeral;
use crate::pod::observed::{Instance, Observed, State};
use crate::pod::resize::{Named, Needs};
pub(crate) use crate::resources::is_sidecar;

const CRASH_BASE: Duration = Duration::from_secs(10);
const CRASH_MAX: Duration = Duration::from_secs(300);
/// A container that ran this long has not crashed on start.
const CRASH_FORGET: Duration = Duration::from_secs(600);

/// Something to do, to be done beside the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    SetUpVolumes,
    CreateSandbox {
        attempt: u32,
    },
    /// Bring the interfaces of the sandbox to what the pod's annotation says.
    ChangeNetworks {
        sandbox: String,
    },
    /// Make sure the container's image is there.
    Pull {
        name: String,
    },
    Start {
        name: String,
        attempt: u32,
        sandbox: String,
    },
    /// Stop with the grace that remains; `reason` is the sentence of the event.
    Stop {
        id: String,
        name: String,
        grace: i64,
        reason: String,
    },
    /// The grace is over.
    Kill {
        id: String,
    },
    Remove {
        id: String,
    },
    /// Change the sizes of running containers, by name and id, and of the pod's group.
    Resize {
        update: Vec<Named>,
    },
    StopSandbox {
        id: String,
    },
    /// Nothing runs any more: give back volumes and cgroups; with `all`, also containers, sandboxes and logs.
    CleanUp {
        all: bool,
    },
}

/// The key of changes of networks.
pub(crate) const NETWORKS: &str = "networks";
/// The key of changes of sizes.
pub(crate) const RESIZE: &str = "resize";

impl Step {
    pub(crate) fn key(&self) -> String {
        match self {
            Step::SetUpVolumes => "volumes".into(),
            Step::CreateSandbox { .. } => "sandbox".into(),
            Step::ChangeNetworks { .. } => NETWORKS.into(),
            Step::Pull { name } => format!("pull:{name}"),
            Step::Start { name, .. } => format!("start:{name}"),
            Step::Stop { id, .. } => format!("stop:{id}"),
            Step::Kill { id } => format!("kill:{id}"),
            Step::Remove { id } => format!("remove:{id}"),
            Step::Resize { .. } => RESIZE.into(),
            Step::StopSandbox { id } => format!("stop-sandbox:{id}"),
            Step::CleanUp { .. } => "clean".into(),
        }
    }
}

/// Why the pod is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stopping {
    /// When patience ends.
    pub(crate) deadline: Timestamp,
    /// The object is (being) deleted: in the end everything goes, not only what runs.
    pub(crate) deleted: bool,
}

/// What the worker knows beyond spec and runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) volumes_ready: bool,
    /// Volumes whose sources may have changed are due at this time.
    pub(crate) volumes_due: Option<Timestamp>,
    /// The annotation by which the sandbox has its networks; none until that is known.
    pub(crate) networks: Option<String>,
    /// Containers whose image has been seen to be there, for their next start.
    pub(crate) pulled: BTreeSet<String>,
    pub(crate) busy: BTreeSet<String>,
    pub(crate) hold: BTreeMap<String, Timestamp>,
    /// By container id: what the probes said.
    pub(crate) probes: BTreeMap<String, Probed>,
    /// By container name: the delay before the next restart, and when it was last grown.
    pub(crate) crashes: BTreeMap<String, (Duration, Timestamp)>,
    pub(crate) stopping: Option<Stopping>,
    /// The machine is about to be switched off: what is stopped comes back with it, but for what has come to its end.
    pub(crate) power_off: bool,
    /// The pod ended in an earlier life of this process.
    pub(crate) was_terminal: bool,
    /// Sandboxes that are dead and have given back what they held, such as their addresses.
    pub(crate) released: BTreeSet<String>,
    /// What the pod lacks of the size that it has been given.
    pub(crate) resize: Needs,
    /// CleanUp was done, and with `all`.
    pub(crate) cleaned: Option<bool>,
}

/// What the probes of one running container have said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probed {
    pub(crate) started: bool,
    pub(crate) ready: bool,
    /// Liveness or startup failed.
    pub(crate) doomed: Option<Doom>,
}

/// Why a probe wants its container stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doom {
    /// The sentence of the event.
    pub(crate) reason: String,
    /// The grace period of the probe itself, which is stronger than the pod's.
    pub(crate) grace: Option<i64>,
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// When to plan again if nothing happens before.
    pub(crate) wake: Option<Timestamp>,
    /// Containers that wait to be restarted, and the delay they wait.
    pub(crate) crash_loops: BTreeMap<String, Duration>,
}

impl Plan {
    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
    }
}

/// The steps for a pod.
pub(crate) fn plan(pod: &Pod, observed: &Observed, facts: &Facts, now: Timestamp) -> Plan {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut plan = Plan::default();
    if let Some(stopping) = &facts.stopping {
        stop(spec, observed, stopping, facts, now, &mut plan);
    } else if facts.was_terminal || is_terminal(spec, observed, facts) {
        // What still runs are sidecars: they get the pod's grace, which the runtime measures.
        let grace = Duration::from_secs(u64::try_from(grace_period(spec)).unwrap_or(0));
        let over = Stopping { deadline: now.checked_add(grace).unwrap_or(now), deleted: false };
        stop(spec, observed, &over, facts, now, &mut plan);
        plan.wake = None;
    } else {
        run(spec, observed, facts, now, &mut plan);
        let sandbox = observed.sandbox().filter(|_| !facts.busy.contains(&Step::CreateSandbox { attempt: 0 }.key()));
        if let Some(sandbox) = sandbox.filter(|_| facts.networks.as_deref() != Some(pod_networks::annotation(pod))) {
            plan.steps.push(Step::ChangeNetworks { sandbox: sandbox.id.clone() });
        }
    }
    hold_back(&mut plan, facts, now);
    plan
}

fn hold_back(plan: &mut Plan, facts: &Facts, now: Timestamp) {
    let steps = std::mem::take(&mut plan.steps);
    for step in steps {
        let key = step.key();
        if facts.busy.contains(&key) {
            continue;
        }
        match facts.hold.get(&key) {
            Some(until) if *until > now => plan.wake_at(*until),
            _ => plan.steps.push(step),
        }
    }
}

/// Stops what runs, sidecars last; then the sandboxes; then gives everything back.
fn stop(spec: &PodSpec, observed: &Observed, why: &Stopping, facts: &Facts, now: Timestamp, plan: &mut Plan) {
    let left = why.deadline.duration_since(now);
    let grace = if left.is_negative() { 0 } else { left.as_secs() + i64::from(left.subsec_nanos() > 0) };
    let sidecars: Vec<&str> = sidecars(spec).map(|c| c.name.as_str()).collect();
    let running: Vec<&Instance> = observed.running().collect();
    let mains_left = running.iter().any(|instance| !sidecars.contains(&instance.name.as_str()));
    // Sidecars go in reverse order, one after the other, after everything they serve.
    let last_sidecar = sidecars.iter().rev().find(|name| running.iter().any(|i| i.name == **name));
    for instance in &running {
        let sidecar = sidecars.contains(&instance.name.as_str());
        if sidecar && (mains_left || last_sidecar != Some(&instance.name.as_str())) && now < why.deadline {
            continue;
        }
        let (id, name) = (instance.id.clone(), instance.name.clone());
        let reason = format!("Stopping container {name}");
        let stop = Step::Stop { id: id.clone(), name, grace, reason };
        if facts.busy.contains(&stop.key()) && now >= why.deadline {
            plan.steps.push(Step::Kill { id });
        } else {
            plan.steps.push(stop);
        }
    }
    if !running.is_empty() {
        if why.deadline > now {
            plan.wake_at(why.deadline);
        }
        return;
    }
    // A start under way would leave a container behind, and a resize the pod's group: their end is awaited.
    let leaves = ["sandbox", "volumes", NETWORKS, RESIZE];
    if facts.busy.iter().any(|key| key.starts_with("start:") || leaves.contains(&key.as_str())) {
        return;
    }
    let ready: Vec<_> = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).collect();
    if !ready.is_empty() {
        plan.steps.extend(ready.into_iter().map(|sandbox| Step::StopSandbox { id: sandbox.id.clone() }));
    } else if facts.cleaned < Some(why.deleted) {
        plan.steps.push(Step::CleanUp { all: why.deleted });
    }
}

fn run(spec: &PodSpec, observed: &Observed, facts: &Facts, now: Timestamp, plan: &mut Plan) {
    // One that is still being made may lack networks.
    let sandbox = observed.sandbox().filter(|_| !facts.busy.contains(&Step::CreateSandbox { attempt: 0 }.key()));
    if facts.volumes_ready {
        match facts.volumes_due {
            Some(due) if due <= now => plan.steps.push(Step::SetUpVolumes),
            Some(due) => plan.wake_at(due),
            None => {}
        }
    } else {
        plan.steps.push(Step::SetUpVolumes);
    }
    if sandbox.is_none() {
        // What still runs belongs to a sandbox that died.
        let orphans: Vec<&Instance> = observed.running().collect();
        if !orphans.is_empty() {
            plan.steps.extend(orphans.into_iter().map(|i| Step::Kill { id: i.id.clone() }));
            return;
        }
        let attempt = observed.sandboxes.first().map_or(0, |last| last.attempt + 1);
        plan.steps.push(Step::CreateSandbox { attempt });
    }
    let dead = observed.sandboxes.iter().filter(|other| !other.ready && !facts.released.contains(&other.id));
    plan.steps.extend(dead.map(|sandbox| Step::StopSandbox { id: sandbox.id.clone() }));
    if sandbox.is_some() {
        resize(spec, &facts.resize, plan);
    }
    let own = |name: &str| {
        observed.latest(name).filter(|instance| sandbox.is_none_or(|sandbox| sandbox.id == instance.sandbox))
    };
    let mut start = |container: &Container, plan: &mut Plan| {
        let name = container.name.clone();
        if facts.busy.contains(&format!("start:{name}")) {
            return;
        }
        let attempt = observed.latest(&name).map_or(0, |last| last.attempt + 1);
        if !facts.pulled.contains(&name) {
            plan.steps.push(Step::Pull { name });
        } else if let (Some(sandbox), true) = (sandbox, facts.volumes_ready) {
            plan.steps.push(Step::Start { name, attempt, sandbox: sandbox.id.clone() });
        }
    };
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let mains_begun = sandbox.is_some() && spec.containers.iter().any(|c| own(&c.name).is_some());
    for container in inits {
        let instance = own(&container.name);
        if is_sidecar(container) {
            attend(spec, container, instance, facts, now, plan, &mut start);
            let started = instance.is_some_and(|i| i.is_running() && has_started(container, i, facts));
            if !started && !mains_begun {
                return;
            }
            continue;
        }
        if mains_begun || instance.and_then(Instance::exit).is_some_and(|exit| exit.code == 0) {
            continue;
        }
        attend(spec, container, instance, facts, now, plan, &mut start);
        return;
    }
    for container in &spec.containers {
        attend(spec, container, own(&container.name), facts, now, plan, &mut start);
    }
    // Once, into a pod that runs; what they look at may be what never starts.
    if mains_begun {
        let new = spec.ephemeral_containers.iter().flatten().filter(|c| observed.latest(&c.name).is_none());
        for container in new.filter_map(ephemeral) {
            start(&container, plan);
        }
    }
}

/// Stops what must start again to have another size; then the others are changed as they run.
fn resize(spec: &PodSpec, needs: &Needs, plan: &mut Plan) {
    for (name, id) in &needs.restart {
        let reason = format!("Container {name} resize requires restart");
        plan.steps.push(Step::Stop { id: id.clone(), name: name.clone(), grace: grace_period(spec), reason });
    }
    if needs.changes() {
        plan.steps.push(Step::Resize { update: needs.update.clone() });
    }
}

/// Starts, restarts or stops one container as its state demands.
fn attend(
    spec: &PodSpec,
    container: &Container,
    instance: Option<&Instance>,
    facts: &Facts,
    now: Timestamp,
    plan: &mut Plan,
    start: &mut dyn FnMut(&Container, &mut Plan),
) {
    let Some(instance) = instance else { return start(container, plan) };
    match &instance.state {
        State::Created => {
            if !facts.busy.contains(&format!("start:{}", container.name)) {
                plan.steps.push(Step::Remove { id: instance.id.clone() });
                start(container, plan);
            }
        }
        State::Running { .. } => {
            let doom = facts.probes.get(&instance.id).and_then(|probed| probed.doomed.clone());
            if let Some(Doom { reason, grace }) = doom {
                let grace = grace.unwrap_or_else(|| grace_period(spec));
                plan.steps.push(Step::Stop { id: instance.id.clone(), name: container.name.clone(), grace, reason });
            }
        }
        // It ended to be started with another size; the pod's group comes first, unless that fails.
        State::Exited(_) if facts.resize.again.contains(&instance.id) => {
            let waits = facts.resize.changes() && facts.hold.get(RESIZE).is_none_or(|until| *until <= now);
            if !waits {
                start(container, plan);
            }
        }
        State::Exited(exit) => {
            // A start under way has waited already; the delay known by now is that of the restart after it.
            if !restarts(spec, container, exit.code) || facts.busy.contains(&format!("start:{}", container.name)) {
                return;
            }
            let delay = crash_delay(facts.crashes.get(&container.name), exit.started, exit.finished);
            let ready_at = exit.finished.checked_add(delay).unwrap_or(exit.finished);
            if ready_at > now {
                plan.wake_at(ready_at);
                plan.crash_loops.insert(container.name.clone(), delay);
            } else {
                start(container, plan);
            }
        }
    }
}

fn crash_delay(known: Option<&(Duration, Timestamp)>, started: Timestamp, finished: Timestamp) -> Duration {
    let ran = finished.duration_since(started);
    match known {
        Some((delay, _)) if ran < jiff::SignedDuration::try_from(CRASH_FORGET).unwrap_or_default() => *delay,
        _ => Duration::ZERO,
    }
}

/// The delay before the restart after this one.
pub(crate) fn next_crash_delay(known: Option<&(Duration, Timestamp)>, last_run: Option<Duration>) -> Duration {
    match known {
        Some((delay, _)) if last_run.is_none_or(|ran| ran < CRASH_FORGET) => (*delay * 2).min(CRASH_MAX),
        _ => CRASH_BASE,
    }
}

/// The pod's own grace period.
pub(crate) fn grace_period(spec: &PodSpec) -> i64 {
    spec.termination_grace_period_seconds.unwrap_or(30)
}

fn sidecars(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().filter(|c| is_sidecar(c))
}

/// A container without a startup probe has started when it runs and its postStart hook has ended.
pub(crate) fn has_started(container: &Container, instance: &Instance, facts: &Facts) -> bool {
    let probed = || facts.probes.get(&instance.id).is_some_and(|probed| probed.started);
    !is_hooked(container, facts) && (container.startup_probe.is_none() || probed())
}

/// The container's postStart hook is under way: until it has ended the container does not count as running.
pub(crate) fn is_hooked(container: &Container, facts: &Facts) -> bool {
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
    hook.is_some() && facts.busy.contains(&format!("start:{}", container.name))
}

/// Whether the kubelet would start the container again after it ended with `code`.
pub(crate) fn restarts(spec: &PodSpec, container: &Container, code: i32) -> bool {
    if is_sidecar(container) {
        return true;
    }
    let init = spec.init_containers.iter().flatten().any(|c| c.name == container.name);
    match spec.restart_policy.as_deref() {
        Some("Never") => false,
        Some("OnFailure") => code != 0,
        _ => !init || code != 0,
    }
}

/// True when no container of the pod will ever run again by itself.
pub(crate) fn is_terminal(spec: &PodSpec, observed: &Observed, facts: &Facts) -> bool {
    if spec.restart_policy.as_deref().unwrap_or("Always") == "Never" {
        let failed = |c: &&Container| {
            !is_sidecar(c) && observed.latest(&c.name).and_then(Instance::exit).is_some_and(|e| e.code != 0)
        };
        let begun = spec.containers.iter().any(|c| observed.latest(&c.name).is_some());
        if !begun && spec.init_containers.iter().flatten().any(|c| failed(&c)) {
            return true;
        }
    }
    !spec.containers.is_empty()
        && spec.containers.iter().all(|container| {
            let ended = observed.latest(&container.name).filter(|instance| !facts.resize.again.contains(&instance.id));
            ended.and_then(Instance::exit).is_some_and(|exit| !restarts(spec, container, exit.code))
        })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
