//! The task that owns one pod.

mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec};
use kit::backoff::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::context::{Context, about, about_container};
use crate::images::{ImageInfo, Waiting};
use crate::networks;
use crate::pod::observed::{self, Observed};
use crate::pod::plan::{self, Facts, Plan, Probed, Step, Stopping};
use crate::pod::probes::{self, Verdict};
use crate::pod::start::{Start, named};
use crate::pod::status::{self, Published};
use crate::pod::steps::{self, Outcome};
use crate::pod::{admission, local_storage, resizing, termination};
use crate::volumes::{self, Mounted};
use size::Size;

/// Retries of what failed: quick at first, because the cause is often an object not yet there.
const RETRY: Backoff = Backoff { base: Duration::from_millis(200), max: Duration::from_secs(120) };
const START_RETRY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60) };
const PULL_RETRY: Backoff = Backoff { base: Duration::from_secs(10), max: Duration::from_secs(300) };
/// How long a status may wait for steps under way, so that a quick start is one write.
const SETTLE: Duration = Duration::from_millis(400);
/// How often an announced exit is looked for before the announcement is disbelieved.
const LAG_TRIES: u32 = 12;
/// Running containers are looked at this often even when containerd says nothing: an exit between this process's first
/// look and its subscription, or while the subscription was broken, is announced to nobody.
const RELIST: Duration = Duration::from_secs(10);
/// How often what a pod has written is compared with its limits.
const MEASURE: Duration = Duration::from_secs(10);
/// How long the containers of an evicted pod get to end.
const EVICTION_GRACE: Duration = Duration::from_secs(1);
/// How long a pod of a node whose power goes may take to say that it has stopped: the node may be cut off.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How often contents of volumes are compared with their sources.
const REFRESH: Duration = Duration::from_secs(45);

/// The API's wish, newest only.
#[derive(Clone)]
pub(crate) struct Wish {
    pub(crate) pod: Arc<Pod>,
    /// The object is gone from the API: whatever is left goes at once.
    pub(crate) gone: bool,
}

/// Something containerd said about one of the pod's containers or its sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) id: String,
    pub(crate) exited: bool,
}

struct Worker {
    context: Arc<Context>,
    pod: Arc<Pod>,
    gone: bool,
    observed: Observed,
    facts: Facts,
    size: Size,
    waiting: BTreeMap<String, Waiting>,
    mounted: Mounted,
    images: BTreeMap<String, ImageInfo>,
    failures: BTreeMap<String, u32>,
    messages: BTreeMap<String, String>,
    verdict: Option<(String, String)>,
    published: Option<Published>,
    /// Since when the published status is not the true one.
    unpublished: Option<tokio::time::Instant>,
    released: bool,
    /// The annotation by which networks are being made or changed.
    networks: String,
    /// When the runtime was last read.
    looked: tokio::time::Instant,
    /// When what the pod has written was last compared with its limits.
    measured: tokio::time::Instant,
    /// Containers whose exit containerd announced but its CRI part does not show yet.
    lagging: BTreeMap<String, u32>,
    steps: JoinSet<(String, Outcome)>,
    probes: BTreeMap<String, kit::Task<()>>,
    reports: probes::Reports,
}

/// Owns the pod until the API has let go of it and nothing is left on the node.
pub(crate) async fn run(
    context: Arc<Context>,
    mut wishes: watch::Receiver<Wish>,
    mut happenings: mpsc::UnboundedReceiver<Happened>,
) {
    let Wish { pod, gone } = wishes.borrow_and_update().clone();
    let (reports, mut verdicts) = mpsc::unbounded_channel();
    let power_off = context.config.power_off.clone();
    let mut worker = Worker::new(context, pod, gone, reports);
    let mut drivers = worker.context.csi.drivers.changes();
    let mut plugins = worker.context.device_claims.plugins.changes();
    let mut allocations = worker.context.allocations.changes();
    let mut dirty = true;
    loop {
        if dirty {
            dirty = !worker.observe().await;
        }
        let plan = worker.turn();
        if worker.is_over() {
            return;
        }
        let wake = worker.wake(&plan, dirty);
        tokio::select! {
            changed = wishes.changed() => {
                if changed.is_err() {
                    return;
                }
                let Wish { pod, gone } = wishes.borrow_and_update().clone();
                worker.adopt(pod, gone);
            }
            Some(happened) = happenings.recv() => {
                worker.happened(&happened);
                while let Ok(happened) = happenings.try_recv() {
                    worker.happened(&happened);
                }
                dirty = true;
            }
            Some(done) = worker.steps.join_next() => {
                match done {
                    Ok((key, outcome)) => dirty |= worker.done(&key, outcome),
                    Err(error) => tracing::error!(%error, "a step of a pod panicked"),
                }
            }
            Some((id, verdict)) = verdicts.recv() => worker.probed(&id, verdict),
            Ok(()) = drivers.changed() => worker.hasten(),
            Ok(()) = plugins.changed() => worker.hasten(),
            // What others gave up may be what this one waits for.
            Ok(()) = allocations.changed(), if worker.size.is_waiting() => {}
            () = power_off.cancelled(), if !worker.facts.power_off => worker.power_fails(),
            () = tokio::time::sleep(wake) => dirty |= !worker.lagging.is_empty() || worker.relist() == Some(Duration::ZERO),
        }
    }
}

impl Worker {
    fn new(context: Arc<Context>, pod: Arc<Pod>, gone: bool, reports: probes::Reports) -> Self {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let facts = Facts { was_terminal: matches!(phase, Some("Succeeded" | "Failed")), ..Default::default() };
        let mut worker = Worker {
            context,
            pod,
            gone,
            observed: Observed::default(),
            facts,
            size: Size::default(),
            waiting: BTreeMap::new(),
            mounted: Mounted::default(),
            images: BTreeMap::new(),
            failures: BTreeMap::new(),
            messages: BTreeMap::new(),
            verdict: None,
            published: None,
            unpublished: None,
            released: false,
            networks: String::new(),
            looked: tokio::time::Instant::now(),
            measured: tokio::time::Instant::now(),
            lagging: BTreeMap::new(),
            steps: JoinSet::new(),
            probes: BTreeMap::new(),
            reports,
        };
        worker.pod = worker.given(worker.pod.clone());
        worker.check_admission();
        worker.check_deletion();
        worker
    }

    /// A pod seen for the first time may be one that this node does not run.
    fn check_admission(&mut self) {
        let accepted = self.pod.status.as_ref().is_some_and(|status| status.start_time.is_some());
        if accepted || self.facts.was_terminal {
            return;
        }
        if let Some((reason, message)) = admission::refusal(self.spec()) {
            self.context.events.warning(&about(&self.pod), &reason, message.clone());
            self.verdict = Some((reason, format!("Pod was rejected: {message}")));
            self.facts.was_terminal = true;
        }
    }

    fn spec(&self) -> &PodSpec {
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Reads the runtime. False when it must be read again soon.
    async fn observe(&mut self) -> bool {
        self.looked = tokio::time::Instant::now();
        let first = self.observed == Observed::default();
        let uid = self.uid().to_owned();
        match observed::observe(&self.context.runtime, &uid, &self.observed).await {
            Ok(observed) => {
                self.observed = observed;
                if first {
                    self.remember();
                }
                self.lagging.retain(|id, tries| self.observed.is_open(id) && *tries < LAG_TRIES);
                self.lagging.values_mut().for_each(|tries| *tries += 1);
                self.hear_last_words();
                self.lagging.is_empty()
            }
            Err(error) => {
                tracing::warn!(pod = uid, error = %kit::Chain(&error), "the runtime could not be asked about a pod");
                *self.lagging.entry(String::new()).or_default() += 1;
                false
            }
        }
    }

    /// What an earlier life of this process knew: probes of running containers.
    fn remember(&mut self) {
        let statuses = self.pod.status.as_ref();
        let all: Vec<ContainerStatus> = statuses
            .into_iter()
            .flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()))
            .cloned()
            .collect();
        for instance in self.observed.running() {
            let id = format!("containerd://{}", instance.id);
            if let Some(status) = all.iter().find(|status| status.container_id.as_ref() == Some(&id)) {
                let probed = Probed { started: status.started == Some(true), ready: status.ready, doomed: None };
                self.facts.probes.insert(instance.id.clone(), probed);
            }
        }
    }

    fn hear_last_words(&mut self) {
        let logs = PathBuf::from(crate::sandbox::log_directory(&self.pod, &self.context.config.log_dir));
        for instance in &self.observed.containers {
            let Some(exit) = instance.exit().filter(|_| !self.messages.contains_key(&instance.id)) else { continue };
            let container = named(self.spec(), &instance.name);
            let policy = container.as_ref().and_then(|c| c.termination_message_policy.as_deref());
            let fallback = policy == Some("FallbackToLogsOnError") && exit.code != 0;
            let own = instance.termination_log.as_ref().map(PathBuf::from).unwrap_or_default();
            let log = logs.join(crate::sandbox::log_path(&instance.name, instance.attempt));
            self.messages.insert(instance.id.clone(), termination::message(&own, &log, fallback));
        }
    }

    /// Takes the API's newest object. Of the status only what others own is new to us.
    fn adopt(&mut self, pod: Arc<Pod>, gone: bool) {
        let metadata_changed = pod.metadata.labels != self.pod.metadata.labels
            || pod.metadata.annotations != self.pod.metadata.annotations;
        if metadata_changed && self.facts.volumes_due.is_some() {
            self.facts.volumes_due = Some(kit::clock::now());
        }
        if metadata_changed {
            // What was refused may be what was mended.
            self.facts.hold.remove(plan::NETWORKS);
            self.failures.remove(plan::NETWORKS);
        }
        self.pod = match &mut self.published {
            Some(published) => {
                let status = published.adopt(&pod);
                Arc::new(Pod { status: Some(status), ..Arc::unwrap_or_clone(pod) })
            }
            None => pod,
        };
        self.pod = self.given(self.pod.clone());
        self.gone |= gone;
        self.check_deletion();
    }

    fn check_deletion(&mut self) {
        let now = kit::clock::now();
        if self.gone || self.pod.metadata.deletion_timestamp.is_some() {
            let grace = if self.gone {
                // Force-deleted: the API waits for nothing any more, containers still get a moment.
                self.facts.stopping.as_ref().map_or(1, |_| 0)
            } else {
                self.pod.metadata.deletion_grace_period_seconds.unwrap_or_else(|| plan::grace_period(self.spec()))
            };
            let mut deadline = now.checked_add(Duration::from_secs(u64::try_from(grace).unwrap_or(0))).unwrap_or(now);
            if let Some(promised) = &self.pod.metadata.deletion_timestamp {
                // Whole seconds, cut: a kubelet that starts in the middle does not begin the grace again.
                deadline = deadline.min(promised.0.checked_add(Duration::from_secs(1)).unwrap_or(deadline));
            }
            match &mut self.facts.stopping {
                Some(stopping) => {
                    stopping.deadline = stopping.deadline.min(deadline);
                    stopping.deleted = true;
                }
                none => *none = Some(Stopping { deadline, deleted: true }),
            }
        }
    }

    /// A driver came: what may have waited for it is tried at once.
    fn hasten(&mut self) {
        for key in
            [Step::SetUpVolumes, Step::CleanUp { all: true }, Step::CleanUp { all: false }].map(|step| step.key())
        {
            self.facts.hold.remove(&key);
            self.failures.remove(&key);
        }
    }

    /// Everything is stopped with its grace. Volumes, and what a pod has written, stay for when the power is back.
    fn power_fails(&mut self) {
        self.facts.power_off = true;
        let now = kit::clock::now();
        let grace = Duration::from_secs(u64::try_from(plan::grace_period(self.spec())).unwrap_or(0));
        let deadline = now.checked_add(grace).unwrap_or(now);
        self.facts.stopping.get_or_insert(Stopping { deadline, deleted: false });
    }

    fn happened(&mut self, happened: &Happened) {
        if happened.exited {
            self.lagging.insert(happened.id.clone(), 0);
        }
    }

    fn probed(&mut self, id: &str, verdict: Verdict) {
        let probed = self.facts.probes.entry(id.to_owned()).or_default();
        match verdict {
            Verdict::Started => probed.started = true,
            Verdict::Ready(ready) => probed.ready = ready,
            Verdict::Doomed(doom) => probed.doomed = Some(doom),
        }
    }

    /// Plans, begins what may begin, and publishes.
    fn turn(&mut self) -> Plan {
        let now = kit::clock::now();
        self.check_active_deadline(now);
        self.check_storage();
        self.tend_size();
        self.tend_probes();
        let pod = self.pod.clone();
        let plan = plan::plan(&pod, &self.observed, &self.facts, now);
        let kept = |step: &Step| matches!(step, Step::CleanUp { all: false }) && self.facts.power_off;
        let steps: Vec<Step> = plan.steps.iter().filter(|step| !kept(step)).cloned().collect();
        for step in steps {
            self.begin(step);
        }
        self.publish(&plan, now);
        let held = self.facts.hold.get("release").is_some_and(|until| *until > now);
        if self.facts.cleaned == Some(true) && !self.gone && !self.released && !held && self.unpublished.is_none() {
            self.spawn("release", steps::release(self.context.clone(), self.pod.clone()));
        }
        plan
    }

    fn check_active_deadline(&mut self, now: Timestamp) {
        let Some(seconds) = self.spec().active_deadline_seconds else { return };
        let started = self.pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        let over = started.is_some_and(|started| now.duration_since(started).as_secs() >= seconds);
        if over
            && self.facts.stopping.is_none()
            && !self.facts.was_terminal
            && !plan::is_terminal(self.spec(), &self.observed, &self.facts)
        {
            let message = "Pod was active on the node longer than the specified deadline";
            self.context.events.normal(&about(&self.pod), "DeadlineExceeded", message);
            self.verdict = Some(("DeadlineExceeded".into(), message.into()));
            let grace = Duration::from_secs(u64::try_from(plan::grace_period(self.spec())).unwrap_or(0));
            let deadline = now.checked_add(grace).unwrap_or(now);
            self.facts.stopping = Some(Stopping { deadline, deleted: false });
        }
    }

    /// What a pod has written is looked at in the rhythm in which running pods are.
    fn check_storage(&mut self) {
        let due = self.measured.elapsed() >= MEASURE && self.observed.running().next().is_some();
        if due && self.facts.stopping.is_none() && local_storage::is_limited(self.spec()) {
            self.measured = tokio::time::Instant::now();
            self.spawn("measure", steps::measure(self.context.clone(), self.pod.clone()));
        }
    }

    fn evict(&mut self, message: String) {
        if self.facts.stopping.is_some() || self.facts.was_terminal {
            return;
        }
        self.context.events.warning(&about(&self.pod), status::EVICTED, message.clone());
        self.verdict = Some((status::EVICTED.into(), message));
        let now = kit::clock::now();
        let deadline = now.checked_add(EVICTION_GRACE).unwrap_or(now);
        self.facts.stopping = Some(Stopping { deadline, deleted: false });
    }

    /// One probing task for each running container that wants one.
    fn tend_probes(&mut self) {
        let running: BTreeSet<String> = self.observed.running().map(|i| i.id.clone()).collect();
        self.probes.retain(|id, _| running.contains(id));
        self.facts.probes.retain(|id, _| running.contains(id));
        if self.facts.stopping.is_some() {
            // What is being stopped is not asked whether it lives; its last readiness stands.
            self.probes.clear();
            return;
        }
        let pod_ip = self.pod_ips().into_iter().next();
        let new: Vec<_> = self
            .observed
            .running()
            .filter(|instance| !self.probes.contains_key(&instance.id))
            .filter_map(|instance| Some((instance.id.clone(), named(self.spec(), &instance.name)?.into_owned())))
            .filter(|(_, container)| probes::wanted(container) && !plan::is_hooked(container, &self.facts))
            .collect();
        for (id, container) in new {
            let started = self.facts.probes.get(&id).is_some_and(|probed| probed.started);
            let target = probes::Target {
                context: self.context.clone(),
                pod: self.pod.clone(),
                container,
                id: id.clone(),
                pod_ip: pod_ip.clone(),
                started,
            };
            self.probes.insert(id, kit::spawn("probe", probes::run(target, self.reports.clone())));
        }
    }

    fn pod_ips(&self) -> Vec<String> {
        if self.spec().host_network == Some(true) {
            return self.context.node_ips();
        }
        self.observed.sandbox().map(|sandbox| sandbox.ips.clone()).unwrap_or_default()
    }

    fn spawn(&mut self, key: &str, step: impl Future<Output = Outcome> + Send + 'static) {
        if self.facts.busy.insert(key.to_owned()) {
            let key = key.to_owned();
            self.steps.spawn(async move { (key, step.await) });
        }
    }

    fn begin(&mut self, step: Step) {
        let (context, pod, key) = (self.context.clone(), self.pod.clone(), step.key());
        match step {
            Step::SetUpVolumes => {
                self.facts.volumes_due = None;
                let ips = self.pod_ips();
                self.spawn(&key, steps::set_up_volumes(context, pod, ips));
            }
            Step::CreateSandbox { attempt } => {
                self.networks = pod_networks::annotation(&pod).to_owned();
                self.spawn(&key, steps::create_sandbox(context, pod, attempt));
            }
            Step::ChangeNetworks { sandbox } => {
                self.networks = pod_networks::annotation(&pod).to_owned();
                self.spawn(&key, async move { Outcome::Networks(networks::change(&context, &pod, &sandbox).await) });
            }
            Step::Pull { name } => self.spawn(&key, steps::pull(context, pod, name)),
            Step::Start { name, attempt, sandbox } => {
                let last = self.observed.latest(&name).filter(|last| !self.facts.resize.again.contains(&last.id));
                if let Some(exit) = last.and_then(|last| last.exit()) {
                    let ran = Duration::try_from(exit.finished.duration_since(exit.started)).ok();
                    let delay = plan::next_crash_delay(self.facts.crashes.get(&name), ran);
                    self.facts.crashes.insert(name.clone(), (delay, kit::clock::now()));
                }
                let ephemeral = self.spec().ephemeral_containers.iter().flatten().find(|c| c.name == name);
                let target = ephemeral.and_then(|c| c.target_container_name.as_ref());
                let start = Start {
                    target: target.and_then(|of| self.observed.latest(of)).map(|instance| instance.id.clone()),
                    image: self.images.get(&name).cloned().unwrap_or_default(),
                    attempt,
                    sandbox_attempt: self.observed.sandbox().map_or(0, |sandbox| sandbox.attempt),
                    sandbox,
                    pod_ips: self.pod_ips(),
                    mounted: self.mounted.clone(),
                    name,
                };
                self.spawn(&key, steps::start(context, pod, start));
            }
            Step::Stop { id, name, grace, reason } => {
                let ip = self.pod_ips().into_iter().next();
                self.spawn(&key, steps::stop(context, pod, id, name, grace, reason, ip));
            }
            Step::Kill { id } => {
                self.spawn(&key, async move { Outcome::Other(context.runtime.stop_container(&id, 0).await) });
            }
            Step::Remove { id } => {
                self.spawn(&key, async move { Outcome::Other(context.runtime.remove_container(&id).await) });
            }
            Step::Resize { update } => {
                self.spawn(&key, async move { Outcome::Resized(resizing::resize(context, pod, update).await) });
            }
            Step::StopSandbox { id } => {
                self.spawn(&key, async move { Outcome::Other(networks::stop_sandbox(&context, &id).await) });
            }
            Step::CleanUp { all } => self.spawn(&key, steps::clean_up(context, pod, all)),
        }
    }

    /// Takes the outcome of a step. True when the runtime must be read again.
    fn done(&mut self, key: &str, outcome: Outcome) -> bool {
        self.facts.busy.remove(key);
        let uid = self.uid().to_owned();
        let failed = |error: &crate::Error| {
            tracing::warn!(pod = uid, step = key, error = %kit::Chain(error), "a step failed and will be tried again");
        };
        let (good, observe) = match outcome {
            Outcome::Volumes(Ok(mounted)) => {
                self.mounted = mounted;
                self.facts.volumes_ready = true;
                let due = kit::clock::now().checked_add(REFRESH).ok();
                self.facts.volumes_due = due.filter(|_| self.mounted.republish || volumes::are_live(self.spec()));
                (true, false)
            }
            Outcome::Volumes(Err(error)) => {
                failed(&error);
                self.facts.volumes_due = self.facts.volumes_ready.then(kit::clock::now);
                (false, false)
            }
            Outcome::Networks(result) => {
                match &result {
                    Ok(()) => self.facts.networks = Some(std::mem::take(&mut self.networks)),
                    Err(error) => failed(error),
                }
                (result.is_ok(), false)
            }
            Outcome::Sandbox(result) | Outcome::Other(result) => {
                if key == (Step::CreateSandbox { attempt: 0 }).key() && result.is_ok() {
                    self.facts.networks = Some(std::mem::take(&mut self.networks));
                }
                if let Err(error) = &result {
                    failed(error);
                } else if let Some(id) = key.strip_prefix("stop-sandbox:") {
                    self.facts.released.insert(id.to_owned());
                }
                (result.is_ok(), true)
            }
            Outcome::Pulled { name, result } => (self.pulled(name, result), false),
            Outcome::Started { name, result } => {
                // The next start asks for the image again, as its policy may demand.
                self.facts.pulled.remove(&name);
                let good = result.is_ok();
                match result {
                    Ok(()) => self.waiting.remove(&name),
                    Err(waiting) => self.waiting.insert(name, waiting),
                };
                (good, true)
            }
            Outcome::Cleaned { all, result } => {
                match &result {
                    Ok(()) => {
                        self.facts.cleaned = Some(all);
                        self.context.allocations.over(&uid);
                    }
                    Err(error) => failed(error),
                }
                (result.is_ok(), true)
            }
            Outcome::Resized(result) => {
                match &result {
                    Ok(()) => self.size.error = None,
                    Err(why) => {
                        tracing::warn!(pod = uid, error = why, "containers of a pod have not got their new sizes");
                        self.failed_to_size(why);
                    }
                }
                (result.is_ok(), false)
            }
            Outcome::Measured(excess) => {
                if let Some(message) = excess {
                    self.evict(message);
                }
                (true, false)
            }
            Outcome::Published(result) => (self.wrote(result), false),
            Outcome::Released(result) => {
                if let Err(error) = &result {
                    failed(error);
                }
                self.released = result.is_ok();
                (result.is_ok(), false)
            }
        };
        if good {
            self.failures.remove(key);
            self.facts.hold.remove(key);
        } else {
            let failures = self.failures.entry(key.to_owned()).or_default();
            *failures += 1;
            let delay = match key.split(':').next() {
                Some("pull") => PULL_RETRY.delay(*failures),
                Some("start") => START_RETRY.delay(*failures),
                _ => RETRY.jittered(*failures),
            };
            let now = kit::clock::now();
            self.facts.hold.insert(key.to_owned(), now.checked_add(delay).unwrap_or(now));
        }
        observe
    }

    fn pulled(&mut self, name: String, result: Result<ImageInfo, Waiting>) -> bool {
        match result {
            Ok(image) => {
                self.images.insert(name.clone(), image);
                // Only what the image was the reason for: a start that failed is still waited for, and asks for the
                // image again before each try.
                if self.waiting.get(&name).is_some_and(|waiting| waiting.reason.contains("Image")) {
                    self.waiting.remove(&name);
                }
                self.facts.pulled.insert(name);
                true
            }
            Err(waiting) => {
                let repeated = self.failures.contains_key(&format!("pull:{name}")) && waiting.reason == "ErrImagePull";
                let waiting = if repeated {
                    let image = named(self.spec(), &name).and_then(|c| c.image.clone()).unwrap_or_default();
                    let about = about_container(&self.pod, &name);
                    self.context.events.normal(&about, "BackOff", format!("Back-off pulling image \"{image}\""));
                    self.context.events.warning(&about, "Failed", "Error: ImagePullBackOff");
                    let message = format!("Back-off pulling image \"{image}\": ErrImagePull: {}", waiting.message);
                    Waiting { reason: "ImagePullBackOff".into(), message }
                } else {
                    waiting
                };
                self.waiting.insert(name, waiting);
                false
            }
        }
    }

    fn wrote(&mut self, result: crate::Result<Box<Published>>) -> bool {
        match result {
            Ok(published) => {
                let status = Some(published.status.clone());
                self.pod = Arc::new(Pod { status, ..Arc::unwrap_or_clone(self.pod.clone()) });
                self.published = Some(*published);
                true
            }
            Err(error) if error.is_not_found() || error.is_conflict() => {
                // Deleted meanwhile: the watch will say so.
                self.unpublished = None;
                self.published = self.pod.status.clone().map(|status| Published::of(status, &self.pod));
                true
            }
            Err(error) => {
                tracing::warn!(pod = self.uid(), error = %kit::Chain(&error), "the status of a pod was not written");
                false
            }
        }
    }

    /// Writes the status when it changed: at once when nothing is under way, else after a moment.
    fn publish(&mut self, plan: &Plan, now: Timestamp) {
        if self.gone || self.released {
            return;
        }
        for (name, delay) in &plan.crash_loops {
            let known = self.waiting.get(name).is_some_and(|waiting| waiting.reason == "CrashLoopBackOff");
            if !known {
                let message = status::crash_message(name, *delay, &self.pod);
                let text = format!(
                    "Back-off restarting failed container {name} in pod {}_{}({})",
                    self.pod.metadata.name.as_deref().unwrap_or_default(),
                    self.pod.metadata.namespace.as_deref().unwrap_or_default(),
                    self.uid()
                );
                self.context.events.warning(&about_container(&self.pod, name), "BackOff", text);
                self.waiting.insert(name.clone(), Waiting { reason: "CrashLoopBackOff".into(), message });
            }
        }
        let wanted = status::status(&status::Inputs {
            pod: &self.pod,
            observed: &self.observed,
            facts: &self.facts,
            waiting: &self.waiting,
            crash_loops: &plan.crash_loops,
            messages: &self.messages,
            verdict: self.verdict.as_ref(),
            size: &status::Sizing {
                record: &self.size.record,
                refused: self.size.refused.as_ref().map(|(refusal, generation)| (refusal, *generation)),
                error: self.size.error.as_deref(),
            },
            node_ips: &self.context.node_ips(),
            now,
        });
        let published = self.published.as_ref().map(|published| &published.status);
        let current = published.or(self.pod.status.as_ref());
        if current.is_some_and(|current| status::same(current, &wanted)) {
            self.unpublished = None;
            return;
        }
        let since = *self.unpublished.get_or_insert_with(tokio::time::Instant::now);
        let under_way = |key: &String| {
            key.starts_with("start:") || key.starts_with("pull:") || key == "sandbox" || key == "volumes"
        };
        let starting = self.facts.busy.iter().any(under_way) && since.elapsed() < SETTLE;
        let held = self.facts.hold.get("publish").is_some_and(|until| *until > now);
        if !starting && !held && !self.facts.busy.contains("publish") {
            self.spawn("publish", steps::publish(self.context.clone(), self.pod.clone(), wanted));
        }
    }

    /// How long nothing needs to be done unless something happens.
    /// How long until the runtime is to be read without a reason; none while nothing runs.
    fn relist(&self) -> Option<Duration> {
        self.observed.running().next().map(|_| RELIST.saturating_sub(self.looked.elapsed()))
    }

    fn wake(&self, plan: &Plan, dirty: bool) -> Duration {
        let now = kit::clock::now();
        let mut wake = self.relist().unwrap_or(Duration::from_secs(3600));
        let mut at = |time: Timestamp| {
            let left = Duration::try_from(time.duration_since(now)).unwrap_or(Duration::ZERO);
            // Never a busy loop, whatever the clocks say.
            wake = wake.min(left.max(Duration::from_millis(1)));
        };
        if let Some(time) = plan.wake {
            at(time);
        }
        for key in ["publish", "release"] {
            if let Some(until) = self.facts.hold.get(key) {
                at(*until);
            }
        }
        let started = self.pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        if let (Some(started), Some(limit), None) = (started, self.spec().active_deadline_seconds, &self.facts.stopping)
            && let Ok(time) = started.checked_add(Duration::from_secs(u64::try_from(limit).unwrap_or(0)))
        {
            at(time);
        }
        if let Some(since) = self.unpublished.filter(|_| !self.facts.busy.contains("publish")) {
            wake = wake.min(SETTLE.saturating_sub(since.elapsed()).max(Duration::from_millis(1)));
        }
        if dirty {
            let tries = self.lagging.values().max().copied().unwrap_or(0);
            wake = wake.min(Duration::from_millis(5) * 2u32.saturating_pow(tries.min(8)));
        }
        wake
    }

    fn is_over(&self) -> bool {
        let said = self.unpublished.is_none_or(|since| since.elapsed() >= LAST_WORDS);
        let off = self.facts.power_off && self.observed.running().next().is_none() && said;
        // An image that is still on its way is not waited for.
        let busy = |key: &String| !(off && key.starts_with("pull:"));
        (off || (self.gone && self.facts.cleaned == Some(true))) && !self.facts.busy.iter().any(busy)
    }
}
