//! The driver's part in backups: the files they are written to, the job, and what is told of it.
//!
//! ```text
//! Start -> files beneath the claim -> (freeze) -> libvirt's job, from this moment on -> (thaw) -> JobCompleted -> Completed
//! ```
//! A checkpoint is made with each backup, so that the next one can be of what changed since. A backup that failed leaves
//! neither files nor a checkpoint.
//!
//! A backup that is pulled is served by QEMU at a socket of the pod from its moment on, until it is aborted: then it is
//! complete. Its files hold what the guest has overwritten meanwhile, and are of no use afterwards.

use std::path::PathBuf;

use api::backup::v1alpha1::{BackupCheckpoint, BackupOptions};
use api::export::lending;
use api::kubevirt::v1::{VirtualMachineInstanceBackupStatus as Status, VirtualMachineInstanceBackupVolumeInfo};
use disk::qcow2;
use domain::backup::{Disk, Mode, backup_xml, checkpoint_xml};
use domain::{DeviceKind, LiveDevice, LiveDomain};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use libvirt::{BackupEnded, Domain};
use sys::beneath::Dir;
use tokio::time::Instant;

use super::{Driver, DriverError, THAW_AGAIN};
use crate::prepare::Lent;

/// Values of `cmd`.
mod command {
    pub(super) const START: &str = "Start";
    pub(super) const ABORT: &str = "Abort";
    /// A checkpoint is of no use any more.
    pub(super) const FORGET: &str = "Forget";
}

/// Values of `mode`.
const PUSH: &str = "Push";
const PULL: &str = "Pull";

/// What `quiesceStatus` says of the guest's file systems at the backup's moment.
mod quiesce {
    pub(super) const SUCCEEDED: &str = "QuiesceSucceeded";
    pub(super) const FAILED: &str = "QuiesceFailed";
    pub(super) const SKIPPED: &str = "QuiesceSkipped";
}

/// A backup that runs, or the one that ended last.
pub(super) struct Running {
    status: Status,
    /// Open for as long as QEMU writes them.
    files: Vec<Lent>,
    /// Held only until it is over: it keeps the claim from being taken away.
    directory: Option<Dir>,
    names: Vec<String>,
    /// Where QEMU serves it, if it is pulled.
    socket: Option<PathBuf>,
    /// Its end was asked for.
    ending: bool,
}

impl Running {
    pub(super) fn is_over(&self) -> bool {
        self.status.completed == Some(true)
    }

    pub(super) fn name(&self) -> String {
        self.status.backup_name.clone().unwrap_or_default()
    }

    fn is(&self, options: &BackupOptions) -> bool {
        self.status.backup_name == options.backup_name && self.status.start_timestamp == options.backup_start_time
    }
}

impl Driver {
    pub(super) async fn backup(&mut self, options: &str) -> Result<(), DriverError> {
        let options: BackupOptions = serde_json::from_str(options).map_err(DriverError::Options)?;
        match options.cmd.as_deref() {
            Some(command::START) => self.begin_backup(&options).await,
            Some(command::ABORT) => self.abort_backup(&options).await,
            Some(command::FORGET) => self.forget_checkpoint(&options).await,
            _ => Err(DriverError::Refused("cmd of a backup is one of Start, Abort, Forget")),
        }
    }

    async fn begin_backup(&mut self, options: &BackupOptions) -> Result<(), DriverError> {
        match &self.backup {
            Some(known) if known.is(options) => return Ok(()),
            Some(other) if !other.is_over() => {
                return Err(DriverError::BackupRuns(other.name()));
            }
            _ => {}
        }
        if self.leaving.is_some() {
            return Err(DriverError::Refused("the virtual machine is being moved to another node"));
        }
        self.dump.none_runs()?;
        let pulled = match options.mode.as_deref().unwrap_or(PUSH) {
            PUSH => false,
            PULL => true,
            _ => return Err(DriverError::Refused("mode of a backup is Push or Pull")),
        };
        let name = options.backup_name.clone().unwrap_or_default();
        let checkpoint = checkpoint_name(options);
        let live = self.live().await?;
        let mut running = self.files(options, &checkpoint, &live)?;
        running.socket = pulled.then(|| self.dirs.served_backup(&lending::served_at(&name, &started(options))));
        let disks: Vec<Disk> = live.iter().map(|device| place(device, &running)).collect();
        let since = options.incremental.as_deref().filter(|since| !since.is_empty());
        if let Some(since) = since
            && !self.with_domain(Domain::checkpoints).await?.iter().any(|known| known == since)
        {
            discard(&running);
            let source = libvirt::Error::Call {
                call: "looking for a checkpoint",
                code: libvirt::code::NO_CHECKPOINT,
                message: "libvirt does not know it".to_owned(),
            };
            return Err(DriverError::Checkpoint { name: since.to_owned(), source });
        }
        let mode = match &running.socket {
            None => Mode::Push,
            Some(socket) => Mode::Pull { socket: socket.display().to_string() },
        };
        let backup = backup_xml(&mode, since, &checkpoint, &disks);
        let mark = checkpoint_xml(&checkpoint, None, &disks);
        let skip = options.skip_quiesce == Some(true);
        let agent = self.publisher.get().agent_connected;
        let begun = self.with_domain(move |domain| Ok(begin(domain, &backup, &mark, skip, agent))).await?;
        if !begun.thawed {
            self.thaw_at = Some(Instant::now() + THAW_AGAIN);
        }
        let (quiesced, why) = match begun.outcome {
            Ok(()) => (begun.quiesced, begun.why),
            Err(error) => {
                discard(&running);
                return Err(match since.filter(|_| is_broken(&error)) {
                    Some(since) => DriverError::Checkpoint { name: since.to_owned(), source: error },
                    None => DriverError::Libvirt(error),
                });
            }
        };
        tracing::info!(backup = name, checkpoint, since, quiesced, "a backup begins");
        running.status.quiesce_status = Some(quiesced.to_owned());
        running.status.backup_msg = why;
        self.publish_backup(&running.status);
        self.backup = Some(running);
        Ok(())
    }

    async fn live(&self) -> Result<Vec<LiveDevice>, DriverError> {
        let xml = self.with_domain(Domain::xml).await?;
        let devices = LiveDomain::read(&xml).unwrap_or_default().devices;
        let mut disks: Vec<LiveDevice> = devices.into_iter().filter(|one| one.kind == DeviceKind::Disk).collect();
        for disk in disks.iter_mut().filter(|disk| disk.tracked) {
            let target = disk.target.clone();
            disk.size = self.with_domain(move |domain| domain.block_info(&target)).await?.capacity;
        }
        Ok(disks)
    }

    /// Makes the files that the tracked disks among `live` are written to.
    fn files(&self, options: &BackupOptions, checkpoint: &str, live: &[LiveDevice]) -> Result<Running, DriverError> {
        let tracked: Vec<&LiveDevice> = live.iter().filter(|device| device.tracked).collect();
        if tracked.is_empty() {
            return Err(DriverError::Refused("changes of none of its disks are tracked"));
        }
        let volume = options.target_path.as_deref().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        let claim = self.hotplugged.directory(volume);
        let claim = claim.ok_or(DriverError::Refused("the claim for the backup is not in the pod"))?;
        let failed = |error: sys::Error| DriverError::BackupFiles(error.into());
        let machine = self.name.split_once('_').map_or(self.name.as_str(), |(_, name)| name);
        let directory = claim.make_dir(machine, 0o770).map_err(failed)?.make_dir(checkpoint, 0o770).map_err(failed)?;
        let mut running = Running {
            status: Status {
                backup_name: options.backup_name.clone(),
                checkpoint_name: Some(checkpoint.to_owned()),
                start_timestamp: options.backup_start_time.clone(),
                volumes: tracked
                    .iter()
                    .map(|device| VirtualMachineInstanceBackupVolumeInfo { volume_name: device.name.clone() })
                    .collect(),
                ..Status::default()
            },
            files: Vec::new(),
            directory: Some(directory),
            names: Vec::new(),
            socket: None,
            ending: false,
        };
        for device in tracked {
            let name = format!("{}-{}.qcow2", options.backup_name.as_deref().unwrap_or_default(), device.name);
            if let Err(error) = self.file(&mut running, device, name) {
                discard(&running);
                return Err(error);
            }
        }
        Ok(running)
    }

    fn file(&self, running: &mut Running, device: &LiveDevice, name: String) -> Result<(), DriverError> {
        let Some(directory) = &running.directory else { return Ok(()) };
        // One of a backup that this launcher's predecessor began is no use to anybody.
        let _ = directory.remove(&name);
        let mut file = directory.create(&name, 0o660).map_err(|error| DriverError::BackupFiles(error.into()))?;
        running.names.push(name);
        let made = qcow2::create(&mut file, device.size, None);
        made.map_err(|error| DriverError::BackupFiles(error.into()))?;
        let lent = Lent::new(file, &self.dirs.backups(), &format!("{}.qcow2", device.name));
        running.files.push(lent.map_err(|error| DriverError::BackupFiles(error.into()))?);
        Ok(())
    }

    async fn abort_backup(&mut self, options: &BackupOptions) -> Result<(), DriverError> {
        let Some(known) = self.backup.as_mut().filter(|known| known.is(options) && !known.is_over()) else {
            return Ok(());
        };
        known.ending = true;
        self.with_domain(Domain::abort_job).await
    }

    async fn forget_checkpoint(&mut self, options: &BackupOptions) -> Result<(), DriverError> {
        let Some(name) = options.incremental.clone() else { return Ok(()) };
        match self.with_domain(move |domain| domain.delete_checkpoint(&name)).await {
            Err(DriverError::Libvirt(error)) if error.is_bad_checkpoint() => Ok(()),
            other => other,
        }
    }

    /// Tells libvirt of a checkpoint of an earlier run of the guest.
    pub(super) async fn redefine(&mut self, checkpoint: &str) -> Result<(), DriverError> {
        let checkpoint: BackupCheckpoint = serde_json::from_str(checkpoint).map_err(DriverError::Options)?;
        let name = checkpoint.name.clone().unwrap_or_default();
        let of_it = |device: &LiveDevice| {
            device.tracked && checkpoint.volumes.iter().any(|volume| volume.volume_name == device.name)
        };
        let disks: Vec<Disk> = self
            .live()
            .await?
            .iter()
            .map(|device| Disk {
                volume: device.name.clone(),
                target: device.target.clone(),
                file: of_it(device).then(String::new),
            })
            .collect();
        let bad = |source| DriverError::Checkpoint { name: name.clone(), source };
        if disks.iter().filter(|disk| disk.file.is_some()).count() != checkpoint.volumes.len() {
            return Err(bad(libvirt::Error::Call {
                call: "redefining a checkpoint",
                code: libvirt::code::NO_CHECKPOINT,
                message: "the guest has not all of its disks any more".to_owned(),
            }));
        }
        let made = checkpoint.creation_time.as_ref().map_or(0, |time| time.0.as_second());
        let xml = checkpoint_xml(&name, Some(made), &disks);
        let done = self.with_domain(move |domain| domain.redefine_checkpoint(&xml)).await;
        match done {
            Err(DriverError::Libvirt(error)) if is_broken(&error) => Err(bad(error)),
            other => other,
        }
    }

    /// The job has ended.
    pub(super) async fn backup_ended(&mut self, ended: BackupEnded) {
        let Some(mut running) = self.backup.take() else { return };
        if running.is_over() {
            self.backup = Some(running);
            return;
        }
        // libvirt tells first and has QEMU close the files then. What is asked of the disks now waits for that.
        let _ = self.live().await;
        running.status.completed = Some(true);
        running.status.end_timestamp = Some(Time(kit::clock::seconds(kit::clock::now())));
        let pulled = running.socket.is_some();
        let files = std::mem::take(&mut running.files);
        let written = tokio::task::spawn_blocking(move || match pulled {
            // Nobody will read them again.
            true => Ok(()),
            false => files.iter().try_for_each(|file| file.file.sync_all()),
        });
        let failure = match (ended, written.await) {
            (BackupEnded::Failed(why), _) => Some(why),
            (BackupEnded::Cancelled, _) if pulled && running.ending => None,
            (BackupEnded::Cancelled, _) => Some("the backup was ended".to_owned()),
            (BackupEnded::Complete, Ok(Err(error))) => Some(format!("the backup cannot be written out: {error}")),
            (BackupEnded::Complete, _) => None,
        };
        if pulled || failure.is_some() {
            discard(&running);
        }
        if let Some(why) = failure {
            tracing::warn!(error = why, "the backup failed");
            running.status.failed = Some(true);
            running.status.backup_msg = Some(why);
            if let Some(name) = running.status.checkpoint_name.clone()
                && let Err(error) = self.with_domain(move |domain| domain.delete_checkpoint(&name)).await
            {
                tracing::info!(error = %kit::Chain(&error), "the checkpoint of the failed backup stays");
            }
        } else {
            tracing::info!(backup = running.status.backup_name, "the backup is complete");
        }
        running.directory = None;
        self.publish_backup(&running.status);
        self.backup = Some(running);
    }

    fn publish_backup(&self, status: &Status) {
        let text = serde_json::to_string(status).unwrap_or_default();
        self.publisher.update(|state| state.backup = text);
    }
}

/// When the backup was asked for, as it is part of names.
fn started(options: &BackupOptions) -> String {
    options.backup_start_time.as_ref().map(|time| time.0.to_string()).unwrap_or_default()
}

/// `BACKUP-2026-01-31_13-59-59`
fn checkpoint_name(options: &BackupOptions) -> String {
    let at = options.backup_start_time.as_ref().map_or(kit::clock::now(), |time| time.0);
    format!("{}-{}", options.backup_name.as_deref().unwrap_or_default(), at.strftime("%Y-%m-%d_%H-%M-%S"))
}

/// Where the contents of `device` go, by the order in which the files were made.
fn place(device: &LiveDevice, running: &Running) -> Disk {
    let at = running.status.volumes.iter().position(|volume| volume.volume_name == device.name);
    let file = at.and_then(|at| running.files.get(at)).map(|file| file.link.display().to_string());
    Disk { volume: device.name.clone(), target: device.target.clone(), file }
}

/// Removes the files of a backup that has failed, or that nobody pulls any more.
fn discard(running: &Running) {
    let Some(directory) = &running.directory else { return };
    for name in &running.names {
        if let Err(error) = directory.remove(name) {
            tracing::info!(name, error = %kit::Chain(&error), "a file of the backup stays");
        }
    }
}

/// What libvirt says of bitmaps that are missing or that cannot be relied on comes without a number of its own.
fn is_broken(error: &libvirt::Error) -> bool {
    let text = error.to_string();
    error.is_bad_checkpoint()
        || (text.contains("bitmap") && ["missing", "broken", "inconsistent"].iter().any(|word| text.contains(word)))
}

/// How a job began.
struct Begun {
    outcome: libvirt::Result<()>,
    /// Whether the guest's file systems stood still, and why not.
    quiesced: &'static str,
    why: Option<String>,
    /// No: the guest may still stand.
    thawed: bool,
}

/// Begins the job while the guest's file systems stand still, if they can.
fn begin(domain: &Domain, backup: &str, checkpoint: &str, skip: bool, agent: bool) -> Begun {
    let frozen = match (skip, agent) {
        (true, _) => None,
        (false, false) => Some(Err("the guest agent is not connected".to_owned())),
        (false, true) => Some(domain.freeze().map(drop).map_err(|error| kit::Chain(&error).to_string())),
    };
    let outcome = domain.begin_backup(backup, Some(checkpoint));
    let (quiesced, mut why) = match &frozen {
        None => (quiesce::SKIPPED, None),
        Some(Ok(())) => (quiesce::SUCCEEDED, None),
        Some(Err(why)) => (quiesce::FAILED, Some(format!("Failed freezing guest filesystem: {why}"))),
    };
    // An agent that answers too late has frozen them, too.
    let thaw = if agent && !skip { domain.thaw().map(drop) } else { Ok(()) };
    if let (Err(error), Some(Ok(()))) = (&thaw, &frozen) {
        why = Some(format!("the guest's file systems are still to be thawed: {}", kit::Chain(error)));
    }
    Begun { outcome, quiesced, why, thawed: thaw.is_ok() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_checkpoint_is_named_after_its_backup_and_the_moment() {
        let options = json!({ "backupName": "daily", "backupStartTime": "2026-01-31T13:59:59Z" });
        assert_eq!(checkpoint_name(&serde_json::from_value(options).unwrap()), "daily-2026-01-31_13-59-59");
    }

    #[test]
    fn words_of_broken_bitmaps() {
        let check = |message: &str, code: i32, expect: bool| {
            let error = libvirt::Error::Call { call: "beginning a backup", code, message: message.to_owned() };
            assert_eq!(is_broken(&error), expect, "{message}");
        };
        check("missing or broken bitmap 'c1' for disk 'vda'", 55, true);
        check("checkpoint 'c1' inconsistent", libvirt::code::CHECKPOINT_INCONSISTENT, true);
        check("No space left on device", 1, false);
    }
}
