//! Sending the domain away: one job, watched until it has ended.

mod channels;
mod convergence;
mod handover;
mod ramp;
mod stall;
mod watchdog;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    LiveDomain, MigrationChannel, MigrationMode, MigrationOptions, MigrationOutcome, MigrationProgress, Place,
};
use kit::Task;
use kit::shutdown::CancellationToken;
use libvirt::{Domain, Job, Migration};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Dirs;
use crate::prepare::Prepared;
pub(crate) use channels::Channels;
use convergence::Convergence;
use handover::Handover;

const LOOK: Duration = Duration::from_millis(400);
const MIB: u64 = 1 << 20;
/// Connections for memory that is compressed: each is packed by a thread of its own.
const COMPRESSED_CONNECTIONS: u32 = 2;

/// A migration that has not ended.
pub(crate) struct Leaving {
    pub(crate) uid: String,
    abort: CancellationToken,
    _task: Task<()>,
}

impl Leaving {
    /// Begins. Every change is sent to `report`, the last with an outcome.
    pub(crate) fn start(
        domain: Arc<Domain>,
        options: MigrationOptions,
        migration: Migration,
        mut open: Open,
        report: mpsc::Sender<MigrationProgress>,
    ) -> Self {
        let (uid, abort) = (options.uid.clone(), CancellationToken::new());
        let stop = abort.clone();
        let task = kit::spawn("migration", async move {
            let last = send(&domain, &options, migration, &mut open, &stop, &report).await;
            drop(open);
            // Without a reader the launcher is ending.
            let _ = report.send(last).await;
        });
        Self { uid, abort, _task: task }
    }

    pub(crate) fn abort(&self) {
        self.abort.cancel();
    }
}

pub(crate) use channels::Open;

/// What libvirt is asked for.
///
/// `xml` is the domain for another node, `places` are disks that lie elsewhere there.
pub(crate) fn request(
    options: &MigrationOptions,
    dirs: &Dirs,
    prepared: &Prepared,
    live: &LiveDomain,
    xml: Option<String>,
) -> Migration {
    let unix = |channel| format!("unix:{}", dirs.migration_socket(channel).display());
    let copied = |device: &&domain::LiveDevice| {
        let own = |disk: &domain::ResolvedDisk| disk.ephemeral || options.copied_volumes.contains(&device.name);
        device.kind == domain::DeviceKind::Disk
            && prepared.disks.get(&device.name).is_some_and(|disk| own(disk) && !disk.readonly)
            && !device.readonly
    };
    let copied_disks: Vec<_> = live.devices.iter().filter(copied).map(|device| device.target.clone()).collect();
    let compressed = options.compression && !options.post_copy;
    if options.compression && !compressed {
        tracing::warn!("memory is not compressed: post-copy is allowed, and QEMU cannot do both");
    }
    Migration {
        to: format!("qemu+unix:///session?socket={}", dirs.migration_socket(MigrationChannel::Libvirt).display()),
        memory_uri: unix(MigrationChannel::Memory),
        disks_uri: (!copied_disks.is_empty()).then(|| unix(MigrationChannel::Disks)),
        copied_disks,
        xml,
        bandwidth: options.bandwidth.div_ceil(MIB),
        // QEMU compresses on parallel connections only, and has no post-copy on those.
        parallel: if compressed { COMPRESSED_CONNECTIONS } else { 0 },
        compression: compressed.then(|| "zstd".to_owned()),
        auto_converge: options.auto_converge,
        post_copy: options.post_copy,
        paused: false,
        trust_disks: options.trust_disks,
    }
}

/// The disks that lie elsewhere on the target: on a device in place of an image, or the other way round, or on a device that
/// is larger than the disk.
pub(crate) fn relocated(
    options: &MigrationOptions,
    dirs: &Dirs,
    prepared: &Prepared,
    size: impl Fn(&str) -> Option<u64>,
) -> BTreeMap<String, Place> {
    let mut places = BTreeMap::new();
    for (volume, there) in &options.destinations {
        let Some(here) = prepared.disks.get(volume) else { continue };
        // A guest whose disk is as large as the device has no slice of it.
        let (layered, (_, is_device)) = (here.data.is_some(), here.contents());
        let slice = size(volume).filter(|size| !layered && there.block && *size > 0 && *size < there.capacity);
        if is_device == there.block && slice.is_none() {
            continue;
        }
        let links = if there.hotplugged { dirs.hotplugged_disks() } else { dirs.claimed_disks() };
        let path = if there.block { format!("/dev/{volume}").into() } else { links.join(format!("{volume}.img")) };
        let place = Place { path: path.display().to_string(), block: there.block, slice, layered };
        places.insert(volume.clone(), place);
    }
    places
}

async fn send(
    domain: &Arc<Domain>,
    options: &MigrationOptions,
    migration: Migration,
    open: &mut Open,
    abort: &CancellationToken,
    report: &mpsc::Sender<MigrationProgress>,
) -> MigrationProgress {
    let begin = Instant::now();
    let mut progress = MigrationProgress { uid: options.uid.clone(), ..MigrationProgress::default() };
    // Whoever watches learns that it has begun.
    let _ = report.send(progress.clone()).await;
    let (mut convergence, mut handover) = (Convergence::default(), Handover::default());
    convergence.prepare(domain, options).await;
    let moving = domain.clone();
    let mut done = tokio::task::spawn_blocking(move || moving.migrate(&migration));
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ended_because = None;
    let outcome = loop {
        tokio::select! {
            ended = &mut done => break match ended {
                Ok(Ok(())) => MigrationOutcome::Moved,
                Ok(Err(_)) if ended_because.is_some() => ended_because.take().unwrap_or(MigrationOutcome::Aborted),
                Ok(Err(error)) => MigrationOutcome::Failed(kit::Chain(&error).to_string()),
                Err(_) => MigrationOutcome::Failed("the launcher is ending".to_owned()),
            },
            word = open.word() => {
                if let Some(outcome) = handover.heard(domain, word, open, &mut progress).await {
                    ended_because = Some(outcome);
                }
                let _ = report.send(progress.clone()).await;
            }
            // There is no way back from post-copy.
            () = abort.cancelled(), if ended_because.is_none() && progress.mode != MigrationMode::PostCopy => {
                // There may be no job yet, so it is asked again with each look.
                ended_because = Some(MigrationOutcome::Aborted);
                let _ = call(domain, Domain::abort_job).await;
            }
            _ = look.tick() => {
                if handover.look(domain, open, &mut progress).await {
                    let _ = report.send(progress.clone()).await;
                }
                let Some(job) = call(domain, Domain::job).await.ok().flatten() else { continue };
                if ended_because.is_some() {
                    let _ = call(domain, Domain::abort_job).await;
                    continue;
                }
                read(&mut progress, &job, begin.elapsed());
                if let Some(why) = convergence.look(domain, options, &job, begin.elapsed(), &mut progress).await {
                    ended_because = Some(MigrationOutcome::Failed(why));
                }
                let _ = report.send(progress.clone()).await;
            }
        }
    };
    progress.elapsed = milliseconds(begin.elapsed());
    progress.uncertain = false;
    if outcome == MigrationOutcome::Moved {
        (progress.processed, progress.remaining) = (progress.total, 0);
    }
    tracing::info!(?outcome, elapsed = progress.elapsed, "the migration has ended");
    progress.outcome = Some(outcome);
    progress
}

fn read(progress: &mut MigrationProgress, job: &Job, elapsed: Duration) {
    progress.elapsed = milliseconds(elapsed);
    progress.total = job.memory_total.saturating_add(job.disk_total);
    progress.processed = job.memory_processed.saturating_add(job.disk_processed);
    progress.remaining = job.memory_remaining.saturating_add(job.disk_remaining);
    progress.rate = job.memory_rate;
    progress.dirty_rate = job.dirty_rate;
    progress.expected_downtime = job.downtime;
    progress.throttle = job.throttle;
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A blocking call beside the one that migrates.
async fn call<T: Send + 'static>(
    domain: &Arc<Domain>,
    call: impl FnOnce(&Domain) -> libvirt::Result<T> + Send + 'static,
) -> Result<T, String> {
    let domain = domain.clone();
    let joined = tokio::task::spawn_blocking(move || call(&domain)).await;
    joined.map_err(|error| error.to_string())?.map_err(|error| kit::Chain(&error).to_string())
}
