//! Carrying a plan out, and writing the status that follows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use api::kubevirt::words::{annotation, phase};
use domain::{Environment, FailedDisk, GuestFacts, MigrationProgress};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kit::queue::Next;
use kit::store::Key;
use kit::{Chain, Task, clock};
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use rpc::launcher::{DomainState, Empty, SyncRequest};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Context;
use super::handover;
use super::memory_dump;
use super::plan::{self, Known, Step};
use super::status::{self, Observed};
use crate::Error;
use crate::device_plugin;
use crate::hotplug;
use crate::launcher::{self, CALL, Launcher, answer, timed};
use crate::migration::{self, Moving};
use crate::network::{self, Plugged};
use crate::pace::Pace;
use crate::settings::Settings;
use crate::storage::{self, Purpose};

/// How long a launcher that listens no more may be asked for before it counts as gone: a socket in the pod's directory
/// outlives the process, and a pod that is just starting has none yet.
const PATIENCE: u32 = 8;
/// How long a launcher that has begun to end may take: QEMU gives its memory back first.
const ENDING: SignedDuration = SignedDuration::from_secs(10);
/// How long the target of a migration has to tell that the domain is there, once the launcher here has gone.
const WORD_OF_TARGET: SignedDuration = SignedDuration::from_secs(15);
/// How long something that passes by itself may last before the user is told.
const PASSING: SignedDuration = SignedDuration::from_secs(20);
/// Between two looks at a guest that is to let go of a disk.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// States that a launcher tells, each as much as it is long, see [`cost`].
const STATES: Pace = Pace::new(200, 50);
/// Characters of a launcher's reason why a guest does not start.
const LONGEST_SENTENCE: usize = 4096;
/// Writes of a VMI's status for what its launcher told.
const WRITES: Pace = Pace::new(50, 5);
/// Defining and starting a domain.
const SYNC: Duration = Duration::from_secs(120);

/// A VMI that was taken over.
pub(crate) struct Guest {
    /// Its UID: another machine may take its name.
    uid: String,
    held: Mutex<Held>,
    moving: Mutex<Moving>,
    writes: Mutex<Pace>,
}

#[derive(Default)]
struct Held {
    launcher: Option<Launcher>,
    /// The pod of this launcher, or of the last.
    pod: String,
    /// A pod that is of no use any more, although its launcher may still answer.
    spent: String,
    watching: Option<Task<()>>,
    plugged: Option<Arc<Plugged>>,
    /// What the launcher accepted of the VMI, see [`handover`].
    handed_over: Option<Vec<u8>>,
    shutdown_sent: bool,
    refused: u32,
    gone: bool,
    gone_since: Option<Timestamp>,
    emulation: Option<String>,
    state: Option<DomainState>,
    /// Volumes that the launcher was lent while it ran.
    lent: hotplug::Lent,
    /// Claims that are larger than their disks, as they were when the launcher was told of them.
    larger: hotplug::Larger,
    trouble: Option<String>,
    /// Since when something is waited for that passes by itself.
    passing: Option<Timestamp>,
    told: Told,
}

impl Held {
    /// Whether what was met at `now` has to be told: what passes by itself, only when it does not.
    fn is_news(&mut self, error: &Error, now: Timestamp) -> bool {
        let passes = matches!(error, Error::NotThereYet(_) | Error::NoLauncher { .. } | Error::Crowded { .. });
        !passes || now.duration_since(*self.passing.get_or_insert(now)) >= PASSING
    }

    /// A launcher in another pod than the one before, whose migration failed, say: what is known of that one, and what was
    /// plugged into it, is nothing to this one.
    fn meets(&mut self, pod: &str) {
        if self.pod != pod {
            (self.plugged, self.state) = (None, None);
            self.lent.clear();
            self.larger.clear();
            pod.clone_into(&mut self.pod);
        }
    }
}

/// Events already sent, so that each is sent once.
#[derive(Default)]
struct Told {
    started: bool,
    trouble: String,
    stays: String,
    failed: Vec<FailedDisk>,
}

impl Guest {
    pub(crate) fn of(uid: &str) -> Self {
        let writes = Mutex::new(WRITES);
        Self { uid: uid.to_owned(), held: Mutex::default(), moving: Mutex::default(), writes }
    }

    /// Counts so many writes of its status, and says how long to wait before the next.
    fn writes(&self, count: f64) -> Duration {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).spend(count, Instant::now())
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The launcher, while it is connected.
    pub(crate) fn launcher(&self) -> Option<Launcher> {
        self.held().launcher.clone()
    }

    /// Remembers that the launcher has the disk of `volume` from an attachment pod.
    pub(crate) fn was_lent(&self, volume: &str) {
        self.held().lent.insert(volume.to_owned());
    }

    /// Has done with its pod: the next launcher is another's.
    pub(crate) fn part(&self) {
        let mut held = self.held();
        let spent = std::mem::take(&mut held.pod);
        if !spent.is_empty() {
            *held = Held { spent, ..Held::default() };
        }
    }

    /// What it has of a migration.
    pub(crate) fn moving(&self) -> MutexGuard<'_, Moving> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the pod's network hear where the guest is now.
    pub(crate) fn announce(&self) {
        let held = self.held();
        if let (Some(launcher), Some(plugged)) = (held.launcher.clone(), held.plugged.clone()) {
            kit::spawn("announce", async move {
                if let Err(error) = network::announce(&plugged, &launcher).await {
                    tracing::warn!(error = %Chain(&error), "the guest was not announced");
                }
            })
            .detach();
        }
    }

    /// What is to be written of a migration's progress.
    fn news(&self, vmi: &VirtualMachineInstance) -> Option<String> {
        let (_, progress, _) = self.migration();
        self.moving().news(vmi, progress.as_ref()?)
    }

    /// For the target of a migration: connected, plugged, and the domain is here.
    pub(crate) fn readiness(&self) -> (bool, bool, bool) {
        let known = self.known();
        (known.connected, known.plugged, known.connected && known.domain)
    }

    /// For the source of a migration: whether the launcher has told anything, what it told last of a migration, and whether
    /// it has been gone for long.
    pub(crate) fn migration(&self) -> (bool, Option<MigrationProgress>, bool) {
        let held = self.held();
        let text = held.state.as_ref().map(|state| state.migration.as_str()).filter(|text| !text.is_empty());
        let progress = text.and_then(|text| serde_json::from_str(text).ok());
        let gone = held.gone_since.is_some_and(|since| clock::now().duration_since(since) >= WORD_OF_TARGET);
        (held.state.is_some(), progress, gone)
    }

    fn known(&self) -> Known {
        let held = self.held();
        Known {
            connected: held.launcher.is_some(),
            plugged: held.plugged.is_some(),
            handed_over: held.handed_over.is_some(),
            shutdown_sent: held.shutdown_sent,
            domain: held.state.as_ref().is_some_and(|s| runs(&s.status)),
        }
    }

    /// What is known, the VMI being as it is now.
    fn known_of(&self, vmi: &VirtualMachineInstance) -> Known {
        let same = self.held().handed_over.as_ref().is_some_and(|known| *known == handover::acted_on(vmi));
        Known { handed_over: same, ..self.known() }
    }

    pub(super) fn observed(&self) -> Observed {
        let held = self.held();
        let facts = held.state.as_ref().map(|s| s.guest.as_str()).filter(|text| !text.is_empty());
        Observed {
            facts: facts.map(GuestFacts::told).unwrap_or_default(),
            domain: held.state.clone(),
            launcher_gone: held.gone,
            addresses: held.plugged.as_ref().map(|p| p.addresses.clone()).unwrap_or_default(),
            trouble: held.trouble.clone(),
            emulation: held.emulation.clone(),
            lent: held.lent.clone(),
            on_its_way: false,
            host_model: None,
        }
    }
}

fn runs(status: &str) -> bool {
    matches!(status, "Running" | "Paused" | "Blocked" | "PMSuspended" | "Shutdown")
}

/// Brings one VMI forward.
pub(crate) async fn reconcile(context: &Context, key: &Key) -> Next {
    let Some(vmi) = context.vmi(key) else {
        return release(context, key).await;
    };
    let arrives = migration::plan::arrives(&vmi, &context.node);
    let has_left = migration::plan::has_left(&vmi, &context.node);
    if !arrives && (has_left || !plan::concerns(&vmi, &context.node)) {
        return release(context, key).await;
    }
    let uid = vmi.uid().unwrap_or_default();
    let guest = context.guest_or_new(key, &uid);
    if guest.uid != uid {
        // The machine of this name was given up while this node was away: its guest ends before the new one begins.
        return match release(context, key).await {
            Next::Wait => Next::After(Duration::ZERO),
            again => again,
        };
    }
    if arrives {
        return migration::target::reconcile(context, key, &vmi, &guest).await;
    }
    let plan = plan::plan(&vmi, guest.known_of(&vmi), clock::now());
    let mut retry = false;
    for step in &plan.steps {
        if let Err(error) = execute(context, key, &vmi, &guest, *step).await {
            retry = true;
            trouble(context, &vmi, &guest, *step, &error);
            break;
        }
    }
    let mut waits_for_guest = false;
    if !retry {
        match change_disks(context, &vmi, &guest).await {
            Ok(waits) => {
                waits_for_guest = waits;
                guest.held().passing = None;
            }
            Err(error) => {
                retry = true;
                trouble(context, &vmi, &guest, Step::Sync, &error);
            }
        }
    }
    if let Err(error) = migration::source::step(context, &vmi, &guest).await {
        tracing::info!(vmi = %key, uid, error = %Chain(&error), "a step of the migration failed and will be tried again");
        retry = true;
    }
    let written = write(context, &vmi, &guest).await;
    if let Err(error) = &written {
        tracing::info!(vmi = %key, uid, error = %Chain(error), "the status was not written");
    }
    let waits = migration::plan::is_leaving(&vmi, &context.node) && guest.held().gone_since.is_some();
    match (retry || written.is_err(), plan.again) {
        (true, _) => Next::Retry,
        // Nobody tells when the target's time is over.
        (false, _) if waits => Next::After(Duration::from_secs(1)),
        (false, Some(after)) => Next::After(after),
        (false, None) if waits_for_guest => Next::After(ASK_AGAIN),
        (false, None) => Next::Wait,
    }
}

/// Lets go of a VMI: what was plugged goes with its pod. A guest that still runs although nothing asks for it any more is
/// ended: it may have been started elsewhere while this node was cut off.
async fn release(context: &Context, key: &Key) -> Next {
    let Some(guest) = context.guest(key) else { return Next::Wait };
    if let Some(launcher) = guest.launcher() {
        if guest.known().domain && launcher.is_alive() {
            tracing::warn!(vmi = %key, uid = guest.uid, "nothing asks for this guest any more: it is ended");
            if let Err(error) = answer(CALL, launcher.client.clone().kill(timed(Empty {}, CALL))).await {
                tracing::warn!(vmi = %key, error = %Chain(&Error::from(error)), "the guest was not ended");
                return Next::Retry;
            }
        }
    }
    context.guests().remove(key);
    Next::Wait
}

async fn execute(
    context: &Context,
    key: &Key,
    vmi: &VirtualMachineInstance,
    guest: &Arc<Guest>,
    step: Step,
) -> Result<(), Error> {
    match step {
        Step::Connect => connect(context, key, vmi, guest).await,
        Step::Plug => plug(context, vmi, guest).await,
        Step::Sync => sync(context, guest, vmi).await,
        Step::Shutdown => {
            let mut client = current(guest, vmi)?.client;
            answer(CALL, client.shutdown(timed(Empty {}, CALL))).await?;
            guest.held().shutdown_sent = true;
            context.recorder.normal(&reference(vmi), "ShuttingDown", "Signaled Graceful Shutdown");
            Ok(())
        }
        Step::Kill => {
            let mut client = current(guest, vmi)?.client;
            answer(CALL, client.kill(timed(Empty {}, CALL))).await?;
            Ok(())
        }
    }
}

/// Makes the interfaces of the pod.
pub(crate) async fn plug(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> Result<(), Error> {
    let launcher = current(guest, vmi)?;
    let plugged = network::plug(vmi, &launcher, &context.records).await?;
    guest.held().plugged = Some(Arc::new(plugged));
    Ok(())
}

/// The connected launcher.
pub(crate) fn current(guest: &Guest, vmi: &VirtualMachineInstance) -> Result<Launcher, Error> {
    guest.launcher().ok_or_else(|| Error::NoLauncher {
        pod: vmi.name_any(),
        source: Box::new(std::io::Error::from(std::io::ErrorKind::NotConnected)),
    })
}

/// Finds the launcher and follows what it tells.
pub(crate) async fn connect(
    context: &Context,
    key: &Key,
    vmi: &VirtualMachineInstance,
    guest: &Arc<Guest>,
) -> Result<(), Error> {
    let spent = guest.held().spent.clone();
    let launcher = match find(context, vmi, &spent).await {
        Ok(launcher) => launcher,
        Err(error) => {
            let mut held = guest.held();
            held.refused += 1;
            // A launcher that was seen and is dead is gone at once; one never seen gets the benefit of a slow start.
            let running = vmi.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase::RUNNING);
            held.gone |= running && held.refused >= PATIENCE;
            if held.gone {
                held.gone_since.get_or_insert_with(clock::now);
            }
            return if held.gone { Ok(()) } else { Err(error) };
        }
    };
    if let Err(error) = device_plugin::hand_over(&launcher) {
        tracing::warn!(vmi = %key, pod = launcher.pod, error = %Chain(&error), "the launcher has not all of its devices");
    }
    let mut stream = answer(CALL, launcher.for_states().watch(Empty {})).await?;
    guest.held().meets(&launcher.pod);
    let kvm = launcher.root().is_ok_and(|root| root.reference("dev/kvm").is_ok());
    let (watched, queue, process, key) = (Arc::downgrade(guest), context.queue.clone(), launcher.clone(), key.clone());
    let watching = kit::spawn("domain", async move {
        let mut pace = STATES;
        while let Ok(Some(state)) = stream.message().await {
            // The launcher skips what it could not tell in time: the newest state is what counts.
            tokio::time::sleep(pace.spend(cost(&state), Instant::now())).await;
            let Some(guest) = watched.upgrade() else { return };
            guest.held().state = Some(bounded(state));
            queue.add(key.clone());
        }
        // Its connections end before it does. Whoever judges in between takes a dead launcher for one that is slow.
        let last = clock::now() + ENDING;
        while process.is_ending() && clock::now() < last {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let Some(guest) = watched.upgrade() else { return };
        let mut held = guest.held();
        held.launcher = None;
        held.gone = !process.is_alive();
        if held.gone {
            held.gone_since = Some(clock::now());
        }
        drop(held);
        queue.add(key);
    });
    let mut held = guest.held();
    held.emulation = match (&context.no_kvm, kvm) {
        (Some(why), _) => Some(why.clone()),
        (None, false) => Some("the pod was not given /dev/kvm".to_owned()),
        (None, true) => None,
    };
    held.launcher = Some(launcher);
    held.watching = Some(watching);
    held.handed_over = None;
    held.refused = 0;
    held.gone = false;
    held.gone_since = None;
    Ok(())
}

/// Lends the launcher the disks that are to come, has it compare what the guest has with what it is to have, and takes back
/// what has gone. True when the guest was asked for something that it may not have heard.
async fn change_disks(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> Result<bool, Error> {
    let known = guest.known();
    let running = vmi.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase::RUNNING);
    let stays = vmi.metadata.deletion_timestamp.is_none() && !migration::plan::is_leaving(vmi, &context.node);
    if !(known.connected && known.domain && running && stays) {
        return Ok(false);
    }
    let seen = guest.observed();
    let (devices, dump) = (&seen.facts.devices, seen.dump());
    let plan = hotplug::plan(vmi, devices, &guest.held().lent, |volume| dump.is_writing(volume));
    let larger = hotplug::larger(vmi, devices);
    // Told once: a disk that cannot grow is not asked again before its claim has changed.
    let grows = larger != guest.held().larger && !larger.is_empty();
    let launcher = current(guest, vmi)?;
    let mut outcome = Ok(plan.waits);
    if !plan.lend.is_empty() {
        let purpose = Purpose::Start(context.settings.current()?.tolerance);
        for attached in &plan.lend {
            match hotplug::lend(&context.pods, &context.recorder, vmi, launcher.clone(), attached, purpose).await {
                Ok(()) => guest.was_lent(&attached.volume),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
    }
    for volume in &plan.renew {
        match hotplug::renew(launcher.clone(), volume.clone()).await {
            // Known again after a restart of this process, and so taken back in the end.
            Ok(()) => guest.was_lent(volume),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    if plan.compare || grows {
        sync(context, guest, vmi).await?;
    }
    guest.held().larger = larger;
    for volume in &plan.take_back {
        hotplug::take_back(launcher.clone(), volume.clone()).await?;
        guest.held().lent.remove(volume);
    }
    outcome.and(memory_dump::begin(vmi, launcher, &guest.observed().dump()).await.map(|()| plan.waits))
}

async fn sync(context: &Context, guest: &Guest, vmi: &VirtualMachineInstance) -> Result<(), Error> {
    let mut client = current(guest, vmi)?.client;
    let settings = context.settings.current()?;
    if !guest.known().domain {
        let purpose = Purpose::Start(settings.tolerance);
        prepare_disks(context, vmi, current(guest, vmi)?, purpose).await?;
    }
    let environment = {
        let held = guest.held();
        Environment {
            emulation: held.emulation.is_some(),
            interfaces: held.plugged.as_ref().map(|p| p.interfaces.clone()).unwrap_or_default(),
            ..chosen(vmi, &settings)
        }
    };
    let encode = |value: serde_json::Result<String>| value.map_err(|e| tonic::Status::internal(e.to_string()));
    let request = SyncRequest {
        vmi: encode(serde_json::to_string(vmi))?,
        environment: encode(serde_json::to_string(&environment))?,
    };
    answer(SYNC, client.sync(timed(request, SYNC))).await?;
    let mut held = guest.held();
    held.handed_over = Some(handover::acted_on(vmi));
    held.trouble = None;
    Ok(())
}

/// Disks on claims, before the launcher opens them. A volume that hangs holds up nothing but its own guest.
pub(crate) async fn prepare_disks(
    context: &Context,
    vmi: &VirtualMachineInstance,
    launcher: Launcher,
    purpose: Purpose,
) -> Result<(), Error> {
    let about = vmi.clone();
    let prepared = tokio::task::spawn_blocking(move || storage::prepare(&about, &launcher, purpose)).await;
    for warning in prepared.map_err(|error| Error::Disk(error.to_string()))?? {
        context.recorder.warning(&reference(vmi), "ToleratedSmallPV", warning);
    }
    Ok(())
}

/// What the administrator chose for every guest, as far as this one does not choose itself.
fn chosen(vmi: &VirtualMachineInstance, settings: &Settings) -> Environment {
    let kept = vmi.annotations().get(annotation::FREE_PAGE_REPORTING_DISABLED).is_some_and(|value| value == "true");
    Environment {
        free_page_reporting: settings.free_page_reporting && !kept,
        log_serial_console: settings.serial_console_log,
        smbios: settings.smbios.clone(),
        ..Default::default()
    }
}

/// What is shown to people is no longer than a condition may say.
fn bounded(mut state: DomainState) -> DomainState {
    if let Some((end, _)) = state.sync_error.char_indices().nth(LONGEST_SENTENCE) {
        state.sync_error.truncate(end);
    }
    state
}

/// What a state costs of [`STATES`]: a common one has few KiB, and the largest are few a second.
fn cost(state: &DomainState) -> f64 {
    let long =
        [&state.guest, &state.domain_xml, &state.sync_error, &state.migration, &state.backup, &state.memory_dump];
    let bytes: usize = long.into_iter().map(String::len).sum();
    1.0 + bytes as f64 / 32768.0
}

/// The launcher that answers, among the VMI's pods on this node: one that a migration left may linger beside it.
async fn find(context: &Context, vmi: &VirtualMachineInstance, spent: &str) -> Result<Launcher, Error> {
    let pods = vmi.status.as_ref().map(|status| status.active_pods.clone()).unwrap_or_default();
    let mut failed = Error::NotThereYet(format!("none of its pods is known to be on node {}", context.node));
    for (pod, _) in pods.into_iter().filter(|(pod, node)| *node == context.node && pod != spent) {
        match launcher::connect(&context.pods, &pod).await {
            Ok(launcher) => return Ok(launcher),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn trouble(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest, step: Step, error: &Error) {
    let message = Chain(error).to_string();
    tracing::info!(vmi = %vmi.name_any(), step = ?step, error = %message, "a step failed and will be tried again");
    let reason = match step {
        Step::Plug => "FailedPlugNetwork",
        Step::Connect | Step::Sync => "SyncFailed",
        Step::Shutdown | Step::Kill => return,
    };
    let mut held = guest.held();
    if !held.is_news(error, clock::now()) {
        return;
    }
    if held.told.trouble != message {
        context.recorder.warning(&reference(vmi), reason, &message);
        held.told.trouble.clone_from(&message);
    }
    held.trouble = Some(message);
}

/// Writes the status if it differs from what the VMI has, against the version it was computed from.
async fn write(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> Result<(), Error> {
    tokio::time::sleep(guest.writes(0.0)).await;
    let mut seen = Observed { host_model: context.host_model.clone(), ..guest.observed() };
    let now = clock::seconds(clock::now());
    let mut moved = None;
    if let Some(state) = migration::plan::state(vmi).filter(|state| migration::plan::is_source(state, &context.node)) {
        let after = migration::status::source(state, &migration::source::known(guest, state), now);
        let failed = migration::plan::ended(&after) && !migration::plan::succeeded(&after);
        seen.on_its_way = migration::plan::is_leaving(vmi, &context.node) && !failed;
        moved = Some(after);
    }
    let before = vmi.status.as_deref().cloned().unwrap_or_default();
    // Of a guest that has left, the last word is that it has: the rest is for the node that it went to.
    let gone = moved.as_ref().is_some_and(migration::plan::succeeded);
    let mut wanted = if gone { before.clone() } else { status::status(vmi, &seen, now) };
    if moved.is_some() {
        wanted.migration_state = moved.map(Box::new);
    }
    let progress = guest.news(vmi);
    if wanted == before && progress.is_none() {
        return Ok(());
    }
    let failed = |source| Error::Write { what: format!("the status of {}", vmi.name_any()), source };
    let changes = difference(&json!(before), &json!(wanted));
    let mut metadata = json!({ "resourceVersion": vmi.resource_version() });
    if let Some(progress) = progress {
        metadata["annotations"] = json!({ annotation::MIGRATION_PROGRESS: progress });
    }
    let patch = json!({ "metadata": metadata, "status": changes });
    let api: Api<VirtualMachineInstance> =
        Api::namespaced(context.client.clone(), vmi.namespace().as_deref().unwrap_or_default());
    guest.writes(1.0);
    match api.patch(&vmi.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(new) => context.vmis.put(&new, Vec::new()),
        // Somebody wrote meanwhile, or the VMI is gone: the watch brings the key back.
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    announce(context, vmi, guest, before.phase.as_deref(), &wanted);
    for (bad, reason, message) in status::dump::news(&before.volume_status, &wanted.volume_status) {
        let about = reference(vmi);
        if bad {
            context.recorder.warning(&about, reason, message);
        } else {
            context.recorder.normal(&about, reason, message);
        }
    }
    Ok(())
}

/// The status of a VMI as this node sees its guest now.
pub(crate) fn wanted(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> VirtualMachineInstanceStatus {
    let seen = Observed { host_model: context.host_model.clone(), ..guest.observed() };
    status::status(vmi, &seen, clock::seconds(clock::now()))
}

/// Fields that changed, with null for those that went away.
pub(crate) fn difference(before: &Value, after: &Value) -> Map<String, Value> {
    let empty = Map::new();
    let (before, after) = (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
    let mut out: Map<String, Value> = after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    out.extend(before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
    out
}

fn announce(
    context: &Context,
    vmi: &VirtualMachineInstance,
    guest: &Guest,
    before: Option<&str>,
    wanted: &VirtualMachineInstanceStatus,
) {
    let now = wanted.phase.as_deref();
    let reference = reference(vmi);
    if let Some(why) = status::stays_though_asked_to_move(vmi, wanted) {
        let mut held = guest.held();
        if held.told.stays != why {
            let message = format!("EvictionStrategy is set but vmi is not migratable; {why}");
            context.recorder.warning(&reference, "Migrated", message);
            held.told.stays = why;
        }
    }
    failures(context, &reference, guest);
    if now == before {
        return;
    }
    match now {
        Some(phase::RUNNING) => {
            let mut held = guest.held();
            if !held.told.started {
                held.told.started = true;
                context.recorder.normal(&reference, "Created", "VirtualMachineInstance defined.");
                context.recorder.normal(&reference, "Started", "VirtualMachineInstance started.");
            }
        }
        Some(phase::SUCCEEDED) => {
            context.recorder.normal(&reference, "Stopped", "The VirtualMachineInstance was shut down.");
        }
        Some(phase::FAILED) => {
            let why = wanted.reason.clone().unwrap_or_else(|| "the guest ended with an error".to_owned());
            context.recorder.warning(&reference, "Stopped", format!("The VirtualMachineInstance failed: {why}."));
        }
        _ => {}
    }
}

/// Says of each disk once that it failed, and again when it fails again.
fn failures(context: &Context, reference: &ObjectReference, guest: &Guest) {
    let failed = guest.observed().facts.failed_disks;
    let mut held = guest.held();
    for disk in failed.iter().filter(|disk| !held.told.failed.contains(disk)) {
        context.recorder.warning(reference, "IOerror", status::failure(disk));
    }
    held.told.failed = failed;
}

fn reference(vmi: &VirtualMachineInstance) -> ObjectReference {
    vmi.object_ref(&())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::kubevirt::v1::KubeVirtConfiguration;

    #[test]
    fn the_administrator_chooses_for_every_guest() {
        let vmi =
            |annotations: Value| serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
        let configuration = json!({
            "smbios": {"manufacturer": "Acme", "product": "Cloud"},
            "virtualMachineOptions": {"disableSerialConsoleLog": {}},
        });
        let configuration = Settings::of(&serde_json::from_value(configuration).unwrap());
        let found = chosen(&vmi(json!({})), &configuration);
        assert_eq!((found.smbios.manufacturer.as_str(), found.smbios.product.as_str()), ("Acme", "Cloud"));
        assert_eq!((found.free_page_reporting, found.log_serial_console), (true, false));
        let kept = vmi(json!({"kubevirt.io/free-page-reporting-disabled": "true"}));
        let found = chosen(&kept, &Settings::of(&KubeVirtConfiguration::default()));
        assert_eq!((found.free_page_reporting, found.log_serial_console), (false, true));
    }

    #[test]
    fn nothing_of_one_pod_is_taken_for_anothers() {
        let known = || Held {
            pod: "first".into(),
            plugged: Some(Arc::default()),
            state: Some(DomainState::default()),
            ..Held::default()
        };
        for (pod, expect) in [("first", true), ("second", false)] {
            let mut held = known();
            held.meets(pod);
            assert_eq!((held.plugged.is_some(), held.state.is_some(), held.pod.as_str()), (expect, expect, pod));
        }
    }

    #[test]
    fn what_passes_by_itself_is_told_when_it_does_not() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (passes, lasts) = (Error::NotThereYet("no pod".to_owned()), Error::Disk("no disk".to_owned()));
        let mut held = Held::default();
        assert!(held.is_news(&lasts, at(0)));
        for (second, expect) in [(5, false), (24, false), (25, true), (90, true)] {
            assert_eq!(held.is_news(&passes, at(second)), expect, "{second}");
        }
        held.passing = None;
        assert!(!held.is_news(&passes, at(91)), "it has passed meanwhile");
        // A pod that is just starting has no launcher yet; one that has none for long is something to know.
        let mut held = Held::default();
        let absent = Error::no_launcher("p")(std::io::Error::from(std::io::ErrorKind::NotFound));
        assert_eq!([0, 19, 20].map(|second| held.is_news(&absent, at(second))), [false, false, true]);
    }

    #[test]
    fn a_pod_is_parted_from_once() {
        let guest = Guest::of("u");
        guest.part();
        assert_eq!(guest.held().spent, "", "there was none");
        guest.held().meets("first");
        guest.held().plugged = Some(Arc::default());
        guest.part();
        guest.part();
        let held = guest.held();
        assert_eq!((held.spent.as_str(), held.pod.as_str(), held.plugged.is_some()), ("first", "", false));
    }

    #[test]
    fn only_what_changed_is_written() {
        let before = json!({"phase": "Scheduled", "nodeName": "n", "reason": "x"});
        let after = json!({"phase": "Running", "nodeName": "n", "machine": {"type": "q35"}});
        let expect = json!({"phase": "Running", "machine": {"type": "q35"}, "reason": null});
        assert_eq!(Value::Object(difference(&before, &after)), expect);
    }
}
