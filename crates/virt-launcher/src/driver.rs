//! The state driver: the only task that changes the domain. Others queue requests and read what it publishes.
//!
//! It ends when the guest is gone for good and a reader has seen that, or when it is told to end before any guest
//! started.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use domain::{DomainReason, Environment, LiveDomain, MigrationProgress};
use kit::shutdown::CancellationToken;
use libvirt::{Connection, Domain, Event, Lifecycle, PausedReason, State};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use crate::hotplug::{Hotplugged, Lending};
use crate::migration::{Channels, Leaving};
use crate::prepare::Prepared;
use crate::publish::{self, Published, Publisher};
use crate::request_queue::{Kind, Phase, Queue, Verdict, judge};
use crate::{Args, Dirs, Error, agent, console_log, domain_state};

mod backup;
mod credentials;
mod devices;
mod failing;
mod memory_dump;
mod moving;
mod resizing;
mod sizes;
mod start;

/// Requests that wait to be taken.
const REQUESTS: usize = 64;
/// The guest may have missed the power button while it booted.
const PRESS_AGAIN: Duration = Duration::from_secs(5);
/// `VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED`.
const SUSPENDED_TO_MIGRATE: i32 = 1;
/// Between two looks at what sends no event.
const TICK: Duration = Duration::from_secs(5);
/// Between two tries to take a device that the guest already writes.
const GRASP: Duration = Duration::from_millis(10);
/// How long a final state waits for its reader.
const LAST_READ: Duration = Duration::from_secs(5);
/// How long freezing may last when nobody says.
const THAW_AFTER: Duration = Duration::from_secs(300);
/// Before the first attempt to thaw a guest whose agent did not do it when it was asked; each one after it waits twice as long.
const THAW_AGAIN: Duration = Duration::from_secs(5);
/// After so many attempts the agent is one that cannot thaw, and thus has not frozen anything.
const THAW_ATTEMPTS: u32 = 6;

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("{0}")]
    Refused(&'static str),
    #[error("the VirtualMachineInstance cannot be read")]
    Vmi(#[source] serde_json::Error),
    #[error("the environment cannot be read")]
    Environment(#[source] serde_json::Error),
    #[error("the migration's options cannot be read")]
    Options(#[source] serde_json::Error),
    #[error("migration {0} has not ended")]
    Migrating(String),
    #[error("backup {0} has not ended")]
    BackupRuns(String),
    #[error("the guest's memory is being written to {0}")]
    Dumping(String),
    #[error("the files of the backup cannot be made")]
    BackupFiles(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("checkpoint {name} cannot be relied on")]
    Checkpoint {
        name: String,
        #[source]
        source: libvirt::Error,
    },
    #[error("the sockets of the migration cannot be made")]
    Channels(#[source] std::io::Error),
    #[error("{0}")]
    Start(String),
    #[error(transparent)]
    Libvirt(#[from] libvirt::Error),
    #[error("the guest agent is not connected")]
    NoAgent,
    #[error("the guest agent is connected and does not answer yet; try again")]
    SilentAgent,
    #[error("the guest did not come to have {0} CPUs")]
    Cpus(u32, #[source] Box<DriverError>),
    #[error("interface {interface}: its link was not changed")]
    Link {
        interface: String,
        #[source]
        source: Box<DriverError>,
    },
    #[error("the guest's memory was not changed")]
    Memory(#[source] Box<DriverError>),
    #[error("volume {volume}: the guest was not given its disk")]
    Disk {
        volume: String,
        #[source]
        source: Box<DriverError>,
    },
    #[error("the launcher is ending")]
    Ending,
}

type Reply = oneshot::Sender<Result<(), DriverError>>;

pub(crate) enum Command {
    Sync { vmi: String, environment: String },
    Freeze { seconds: u64 },
    Expect { vmi: String },
    Migrate { options: String },
    Backup { options: String },
    Checkpoint { checkpoint: String },
    DumpMemory { volume: String, file: String },
    Lend(Lending),
    Plain,
}

pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) command: Command,
    pub(crate) reply: Reply,
}

/// What the server has of the driver.
#[derive(Clone)]
pub struct Handle {
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) published: Published,
    pub(crate) domain: watch::Receiver<Option<Arc<Domain>>>,
    pub(crate) screenshots: PathBuf,
}

pub struct Driver {
    dirs: Dirs,
    consoles: PathBuf,
    name: String,
    emulator: String,
    connection: Connection,
    shutdown: CancellationToken,
    grace: Duration,
    start_timeout: Duration,
    publisher: Publisher,
    requests: mpsc::Receiver<Request>,
    events: mpsc::Receiver<Event>,
    facts: (mpsc::Sender<domain::GuestFacts>, mpsc::Receiver<domain::GuestFacts>),
    channels: Channels,
    leaving: Option<Leaving>,
    /// The way broke when half of the guest was on either side.
    torn: bool,
    progress: (mpsc::Sender<MigrationProgress>, mpsc::Receiver<MigrationProgress>),
    domain: watch::Sender<Option<Arc<Domain>>>,
    phase: Phase,
    /// Borrowed files, open for as long as QEMU may open them.
    prepared: Prepared,
    /// Disks that were lent since the guest started.
    hotplugged: Hotplugged,
    asked: devices::Asked,
    backup: Option<backup::Running>,
    dump: memory_dump::Dump,
    credentials: credentials::Credentials,
    failing: failing::Failing,
    sizes: sizes::Sizes,
    agent_facts: domain::GuestFacts,
    agent_task: Option<kit::Task<()>>,
    thaw_at: Option<Instant>,
    thaws_failed: u32,
    /// Somebody else held a disk of the guest when it was to start.
    contested: bool,
    kill_at: Option<Instant>,
    press_at: Option<Instant>,
    asked_to_start: bool,
}

impl Driver {
    pub fn new(
        args: &Args,
        dirs: Dirs,
        connection: Connection,
        shutdown: CancellationToken,
    ) -> Result<(Self, Handle), Error> {
        let (publisher, published) = publish::channel();
        let (sender, requests) = mpsc::channel(REQUESTS);
        let (domain, domain_reader) = watch::channel(None);
        let consoles = dirs.consoles(&args.uid);
        let handle = Handle { requests: sender, published, domain: domain_reader, screenshots: consoles.clone() };
        let events = connection.events()?;
        let failed = |source| Error::Serve { path: dirs.channels_socket(), source };
        let channels = Channels::start(&dirs).map_err(failed)?;
        let driver = Self {
            name: domain::domain_name(&args.namespace, &args.name),
            emulator: args.emulator.clone(),
            grace: Duration::from_secs(args.grace_period_seconds),
            start_timeout: Duration::from_secs(args.start_timeout_seconds),
            facts: mpsc::channel(1),
            channels,
            leaving: None,
            torn: false,
            progress: mpsc::channel(4),
            dirs,
            consoles,
            connection,
            shutdown,
            publisher,
            requests,
            events,
            domain,
            phase: Phase::Empty,
            prepared: Prepared::default(),
            hotplugged: Hotplugged::default(),
            asked: devices::Asked::default(),
            backup: None,
            dump: memory_dump::Dump::default(),
            credentials: credentials::Credentials::default(),
            failing: failing::Failing::default(),
            sizes: sizes::Sizes::default(),
            agent_facts: domain::GuestFacts::default(),
            agent_task: None,
            thaw_at: None,
            thaws_failed: 0,
            contested: false,
            kill_at: None,
            press_at: None,
            asked_to_start: false,
        };
        Ok((driver, handle))
    }

    /// Drives until the end; `ending` is cancelled by whoever waits for it.
    pub async fn run(mut self, ending: CancellationToken) -> Result<(), Error> {
        let start_by = Instant::now() + self.start_timeout;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = false;
        let mut queue = Queue::default();
        while self.phase != Phase::Gone {
            let shutdown = self.shutdown.clone();
            tokio::select! {
                request = self.requests.recv() => {
                    let Some(request) = request else { break };
                    queue.push(request.kind, request);
                    while let Ok(request) = self.requests.try_recv() {
                        queue.push(request.kind, request);
                    }
                }
                Some(event) = self.events.recv() => self.happened(event).await,
                Some(facts) = self.facts.1.recv() => {
                    self.agent_facts = facts;
                    self.refresh().await;
                }
                Some(progress) = self.progress.1.recv() => self.moving(progress).await,
                written = self.dump.written() => self.memory_written(written).await,
                outcome = self.credentials.outcome() => self.told_of_credentials(&outcome),
                _ = tick.tick() => self.look().await,
                // A guest that came from elsewhere has its devices once their last holder has ended; and nobody else may come
                // between, who waits for them too.
                () = sleep(GRASP), if self.phase == Phase::Running && self.prepared.devices.is_wanting() => {
                    if self.prepared.devices.take().is_ok() {
                        tracing::info!("the devices are held here now");
                    }
                }
                () = at(self.kill_at) => {
                    tracing::warn!(grace = ?self.grace, "the guest did not shut down in time: switching it off");
                    self.destroy().await;
                }
                () = at(self.press_at) => self.press().await,
                () = at(self.failing.again()) => self.try_again().await,
                () = at(self.thaw_at) => self.thaw_late().await,
                () = shutdown.cancelled(), if !told => {
                    told = true;
                    self.begin_shutdown().await;
                }
                () = ending.cancelled() => return Ok(()),
                () = sleep_until(start_by), if !self.asked_to_start => {
                    return Err(Error::NeverStarted(self.start_timeout));
                }
            }
            while let Some((kind, request)) = queue.pop() {
                let outcome = self.execute(kind, request.command).await;
                // The caller may have gone away.
                let _ = request.reply.send(outcome);
                while let Ok(request) = self.requests.try_recv() {
                    queue.push(request.kind, request);
                }
            }
        }
        self.agent_task = None;
        self.credentials.end();
        tracing::info!(status = self.publisher.get().status, reason = self.publisher.get().reason, "the guest is gone");
        if timeout(LAST_READ, self.publisher.newest_was_read()).await.is_err() {
            tracing::info!("nobody read the final state");
        }
        Ok(())
    }

    async fn execute(&mut self, kind: Kind, command: Command) -> Result<(), DriverError> {
        match judge(self.phase, kind) {
            Verdict::Done => return Ok(()),
            Verdict::Refuse(why) => return Err(DriverError::Refused(why)),
            Verdict::Run => {}
        }
        let outcome = match (kind, command) {
            (Kind::Sync, Command::Sync { vmi, environment }) => {
                self.asked_to_start = true;
                self.sync(&vmi, &environment).await
            }
            (Kind::Freeze, Command::Freeze { seconds }) => self.freeze(seconds).await,
            (Kind::Pause, _) => self.with_domain(Domain::suspend).await,
            (Kind::Unpause, _) => self.unpause().await,
            (Kind::Reset, _) => self.with_domain(Domain::reset).await,
            (Kind::SoftReboot, _) => self.with_domain(Domain::reboot).await,
            (Kind::Unfreeze, _) => {
                self.thaw_at = None;
                self.with_domain(|domain| domain.thaw().map(drop)).await
            }
            (Kind::Shutdown, _) => {
                self.begin_shutdown().await;
                Ok(())
            }
            (Kind::Kill, _) => {
                self.destroy().await;
                Ok(())
            }
            (Kind::Expect, Command::Expect { vmi }) => {
                self.asked_to_start = true;
                self.expect(&vmi).await
            }
            (Kind::Migrate, Command::Migrate { options }) => self.migrate(&options).await,
            (Kind::AbortMigration, _) => {
                self.abort_migration();
                Ok(())
            }
            (Kind::Backup, Command::Backup { options }) => self.backup(&options).await,
            (Kind::Checkpoint, Command::Checkpoint { checkpoint }) => self.redefine(&checkpoint).await,
            (Kind::DumpMemory, Command::DumpMemory { volume, file }) => self.dump_memory(&volume, &file).await,
            (Kind::Lend, Command::Lend(lending)) => {
                let kept = self.hotplugged.keep(&self.dirs, lending);
                kept.map_err(|error| DriverError::Start(kit::Chain(&error).to_string()))
            }
            (
                Kind::Sync
                | Kind::Freeze
                | Kind::Expect
                | Kind::Migrate
                | Kind::Lend
                | Kind::Backup
                | Kind::Checkpoint
                | Kind::DumpMemory,
                _,
            ) => Err(DriverError::Refused("the request is incomplete")),
        };
        // What is lent changes nothing before the guest gets it.
        if kind != Kind::Lend {
            self.refresh().await;
        }
        outcome
    }

    async fn sync(&mut self, vmi: &str, environment: &str) -> Result<(), DriverError> {
        if self.phase != Phase::Empty {
            return self.change_devices(vmi, environment).await;
        }
        let outcome = self.start(vmi, environment).await;
        let (sentence, last) = match &outcome {
            Ok(()) => (String::new(), false),
            Err(failure) => (failure.to_string(), failure.is_final()),
        };
        self.contested |= outcome.as_ref().is_err_and(start::Failure::is_contested);
        if !sentence.is_empty() {
            tracing::error!(error = sentence, last, "the virtual machine does not start");
        }
        self.publisher.update(|state| {
            state.sync_error.clone_from(&sentence);
            state.terminal = last;
        });
        outcome.map_err(|failure| DriverError::Start(failure.to_string()))
    }

    async fn start(&mut self, vmi: &str, environment: &str) -> Result<(), start::Failure> {
        let vmi = self.read(vmi)?;
        let environment = self.environment(environment)?;
        let contested = self.contested;
        let (prepared, domain) = start::domain(&vmi, environment, &self.dirs, &self.connection, contested).await?;
        self.prepared = prepared;
        self.phase = Phase::Running;
        self.domain.send_replace(Some(Arc::new(domain)));
        self.credentials.ask(&vmi);
        self.give_credentials();
        tracing::info!(domain = self.name, borrowed = self.prepared.lent.len(), "the virtual machine runs");
        Ok(())
    }

    fn environment(&self, text: &str) -> Result<Environment, start::Failure> {
        let mut environment: Environment = serde_json::from_str(text).map_err(start::Failure::Environment)?;
        environment.paths.consoles = self.consoles.display().to_string();
        environment.paths.emulator.clone_from(&self.emulator);
        Ok(environment)
    }

    fn read(&mut self, vmi: &str) -> Result<VirtualMachineInstance, start::Failure> {
        let vmi: VirtualMachineInstance = serde_json::from_str(vmi).map_err(start::Failure::Vmi)?;
        let grace = vmi.spec.termination_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        self.grace = grace.map_or(self.grace, Duration::from_secs);
        Ok(vmi)
    }

    fn current(&self) -> Option<Arc<Domain>> {
        self.domain.borrow().clone()
    }

    /// Runs a blocking call on the domain.
    async fn with_domain<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Domain) -> libvirt::Result<T> + Send + 'static,
    ) -> Result<T, DriverError> {
        let domain = self.current().ok_or(DriverError::Refused("the virtual machine has not started yet"))?;
        let joined = tokio::task::spawn_blocking(move || call(&domain)).await;
        joined.map_err(|_| DriverError::Ending)?.map_err(DriverError::Libvirt)
    }

    async fn unpause(&mut self) -> Result<(), DriverError> {
        self.with_domain(Domain::resume).await?;
        // The guest's clock stood still; its agent sets it right. Without an agent the guest has to.
        if self.publisher.get().agent_connected {
            let now = kit::clock::now().as_second();
            if let Err(error) = self.with_domain(move |domain| domain.set_time(now)).await {
                tracing::info!(error = %kit::Chain(&error), "the guest's clock was not set");
            }
        }
        Ok(())
    }

    /// Nobody thawed in time, or could. A guest whose agent is slow is not left frozen.
    async fn thaw_late(&mut self) {
        self.thaw_at = None;
        match self.with_domain(|domain| domain.thaw().map(drop)).await {
            Ok(()) => {
                self.thaws_failed = 0;
                tracing::warn!("nobody thawed the guest's file systems in time: they were thawed now");
            }
            Err(error) => {
                tracing::warn!(error = %kit::Chain(&error), "the guest's file systems are not thawed");
                self.thaws_failed += 1;
                if self.thaws_failed < THAW_ATTEMPTS && self.publisher.get().agent_connected {
                    self.thaw_at = Some(Instant::now() + THAW_AGAIN * 2_u32.pow(self.thaws_failed));
                } else {
                    self.thaws_failed = 0;
                }
            }
        }
    }

    async fn freeze(&mut self, seconds: u64) -> Result<(), DriverError> {
        if !self.publisher.get().agent_connected {
            return Err(DriverError::NoAgent);
        }
        if let Err(error) = self.with_domain(|domain| domain.freeze().map(drop)).await
            && !self.is_frozen().await
        {
            // An agent that answers too late has frozen them nevertheless.
            self.thaw_at.get_or_insert_with(|| Instant::now() + THAW_AGAIN);
            return Err(error);
        }
        let limit = if seconds == 0 { THAW_AFTER } else { Duration::from_secs(seconds) };
        self.thaw_at = Some(Instant::now() + limit);
        Ok(())
    }

    /// Whether the guest's file systems are frozen: to freeze them once more is refused, and is what was asked for.
    async fn is_frozen(&self) -> bool {
        self.with_domain(|domain| Ok(agent::is_frozen(domain))).await.unwrap_or(false)
    }

    /// Asks the guest to end, and makes sure that it does.
    async fn begin_shutdown(&mut self) {
        match self.phase {
            Phase::Empty | Phase::Expecting | Phase::Gone => {
                self.publisher.update(|state| {
                    state.status = "Shutoff".to_owned();
                    state.reason = "Destroyed".to_owned();
                });
                self.phase = Phase::Gone;
            }
            Phase::ShuttingDown => {}
            Phase::Running | Phase::Paused if self.grace.is_zero() => self.destroy().await,
            Phase::Running | Phase::Paused => {
                // It is to end, wherever it is.
                self.abort_migration();
                if self.phase == Phase::Paused {
                    // A paused guest cannot hear.
                    let _ = self.with_domain(Domain::resume).await;
                }
                self.phase = Phase::ShuttingDown;
                self.kill_at = Some(Instant::now() + self.grace);
                tracing::info!(grace = ?self.grace, "asking the guest to shut down");
                self.press().await;
            }
        }
    }

    async fn press(&mut self) {
        let first = self.press_at.is_none();
        self.press_at = Some(Instant::now() + PRESS_AGAIN);
        let agent = self.publisher.get().agent_connected;
        if let Err(error) = self.with_domain(Domain::shutdown_acpi).await {
            tracing::warn!(error = %kit::Chain(&error), "the power button does not work");
        }
        // Some guests ignore the button and have an agent that does not.
        if agent && !first {
            let _ = self.with_domain(Domain::shutdown_agent).await;
        }
    }

    async fn destroy(&mut self) {
        self.kill_at = None;
        if self.current().is_none() {
            self.begin_shutdown_of_nothing();
        } else if let Err(error) = self.with_domain(Domain::destroy).await {
            tracing::warn!(error = %kit::Chain(&error), "switching the guest off");
        }
        self.refresh().await;
    }

    fn begin_shutdown_of_nothing(&mut self) {
        self.phase = Phase::Gone;
        self.publisher.update(|state| {
            state.status = "Shutoff".to_owned();
            state.reason = "Destroyed".to_owned();
        });
    }

    async fn happened(&mut self, event: Event) {
        tracing::debug!(?event, "event");
        if let Some(ended) = libvirt::backup_ended(&event) {
            self.backup_ended(ended).await;
        }
        match event {
            Event::Agent { connected, .. } => self.agent(connected),
            Event::IoError { ref alias, ref reason, ref path, .. } => {
                tracing::error!(alias, reason, path, "a disk failed");
                self.failing.note(&event, Instant::now());
            }
            Event::Watchdog { action, .. } => tracing::warn!(action, "the guest's watchdog fired"),
            Event::Reboot { .. } => tracing::info!("the guest reboots"),
            // It stands still for as long as its hand-over takes. Each question now would make that longer.
            Event::Lifecycle { change: Lifecycle::Suspended, detail: SUSPENDED_TO_MIGRATE, .. } => return,
            Event::Lifecycle { .. }
            | Event::Balloon { .. }
            | Event::DeviceRemoved { .. }
            | Event::JobCompleted { .. }
            | Event::Disconnected => {}
        }
        self.refresh().await;
    }

    fn agent(&mut self, connected: bool) {
        self.publisher.update(|state| state.agent_connected = connected);
        self.credentials.agent(connected);
        self.agent_task = None;
        if !connected {
            self.agent_facts = domain::GuestFacts::default();
        } else if let Some(domain) = self.current() {
            self.agent_task = Some(kit::spawn("agent", poll_agent(domain, self.facts.0.clone())));
        }
    }

    /// What no event tells.
    async fn look(&mut self) {
        if self.phase == Phase::Empty {
            return;
        }
        let log = self.consoles.join(domain::console::SERIAL_LOG);
        if let Err(error) = console_log::trim(&log) {
            tracing::warn!(%error, "the serial console's log cannot be kept small");
        }
        self.refresh().await;
    }

    /// Reads the domain's state and publishes what changed.
    async fn refresh(&mut self) {
        if self.phase == Phase::Expecting {
            self.arrive().await;
        }
        if self.current().is_none() {
            return;
        }
        let mut sizes = self.sizes.clone();
        let read = self.with_domain(move |domain| {
            let state = domain.state()?;
            let xml = if state.is_active() { domain.xml()? } else { String::new() };
            let mut live = LiveDomain::read(&xml).unwrap_or_default();
            sizes.complete(&mut live.devices, |target| domain.block_info(target).ok().map(|info| info.capacity));
            Ok((state, xml, live, sizes))
        });
        let (state, xml, live, sizes) = match read.await {
            Ok(read) => read,
            Err(DriverError::Libvirt(error)) if error.is_no_domain() => {
                // Who sends it away hears how that ended.
                if self.leaving.is_none() {
                    self.phase = Phase::Gone;
                }
                return;
            }
            Err(error) => {
                tracing::warn!(error = %kit::Chain(&error), "the domain's state cannot be read");
                return;
            }
        };
        if self.leaving.is_some() && !state.is_active() {
            return;
        }
        if self.leaving.is_none() && state == State::Paused(PausedReason::PostCopyFailed) {
            // Its end is an event.
            return self.end_torn_guest().await;
        }
        self.sizes = sizes;
        self.phase = domain_state::phase(state, self.phase);
        if state != State::Paused(PausedReason::IoError) {
            self.failing.over();
        }
        let mut facts = self.agent_facts.clone();
        facts.machine = live.machine;
        facts.memory_kib = live.memory_kib;
        facts.plugged_kib = live.memory_device.as_ref().map_or(0, |device| device.requested);
        facts.vcpus = live.vcpus;
        facts.devices = live.devices;
        facts.failed_disks = self.failing.disks();
        let guest = serde_json::to_string(&facts).unwrap_or_default();
        self.publisher.update(|published| {
            domain_state::status(state).as_str().clone_into(&mut published.status);
            let torn = self.torn && !state.is_active();
            let reason = if torn { DomainReason::PostCopyFailed } else { domain_state::reason(state) };
            reason.as_str().clone_into(&mut published.reason);
            if !xml.is_empty() {
                published.guest = guest;
            } else {
                published.agent_connected = false;
            }
        });
    }
}

/// Waits for a moment that may never be set.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Asks the agent again and again, less often the longer the guest lives.
async fn poll_agent(domain: Arc<Domain>, facts: mpsc::Sender<domain::GuestFacts>) {
    let mut pause = Duration::from_secs(2);
    let mut known = domain::GuestFacts::default();
    loop {
        let (asked, before) = (domain.clone(), known.clone());
        let Ok(found) = tokio::task::spawn_blocking(move || agent::collect(&asked, before)).await else { return };
        if let Some(found) = found {
            known = found;
            if facts.send(known.clone()).await.is_err() {
                return;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(15));
    }
}
