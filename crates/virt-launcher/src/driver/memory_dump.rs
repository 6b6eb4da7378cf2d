//! The driver's part in dumps of the guest's memory: the file on the claim, libvirt's call, and what is told of it.
//!
//! libvirt halts the guest, has QEMU write an ELF core, and lets the guest go on. Its call returns when all of that is done, so
//! it is made beside the driver, which goes on telling of the guest.

use api::kubevirt::memory_dump::SUFFIX;
use domain::MemoryDump;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use libvirt::Domain;
use sys::beneath::Dir;
use tokio::sync::oneshot;

use super::{Driver, DriverError};
use crate::prepare::Lent;

/// What a failure begins with, as clients know it.
const FAILED: &str = "Domain memory dump failed";
/// The link by which libvirt reaches the file.
const LINK: &str = "memory.dump";

/// A dump that is being written, or the one that ended last.
#[derive(Default)]
pub(super) struct Dump {
    told: MemoryDump,
    open: Option<Open>,
}

/// What is held while the memory is written.
struct Open {
    directory: Dir,
    _file: Lent,
    done: oneshot::Receiver<Result<(), String>>,
}

impl Dump {
    /// The volume called so is being written to.
    pub(super) fn is_writing(&self, volume: &str) -> bool {
        self.told.is_writing(volume)
    }

    /// Refuses what cannot be done while the guest is halted for this.
    pub(super) fn none_runs(&self) -> Result<(), DriverError> {
        if self.open.is_some() { Err(DriverError::Dumping(self.told.file.clone())) } else { Ok(()) }
    }

    /// Returns when the memory has been written, or cannot be. While none is, never.
    pub(super) async fn written(&mut self) -> Result<(), String> {
        let Some(open) = &mut self.open else { return std::future::pending().await };
        (&mut open.done).await.unwrap_or_else(|_| Err("the call to libvirt was given up".to_owned()))
    }
}

impl Driver {
    /// Begins to write the guest's memory into `file` of `volume`. What stands in its way for a while is an error; what does so
    /// for good is told as the end of the dump.
    pub(super) async fn dump_memory(&mut self, volume: &str, file: &str) -> Result<(), DriverError> {
        if self.dump.told.volume == volume && self.dump.told.file == file {
            return Ok(());
        }
        self.dump.none_runs()?;
        if self.leaving.is_some() {
            return Err(DriverError::Refused("the virtual machine is being moved to another node"));
        }
        if let Some(backup) = self.backup.as_ref().filter(|backup| !backup.is_over()) {
            return Err(DriverError::BackupRuns(backup.name()));
        }
        if file.contains('/') || !file.ends_with(SUFFIX) {
            return Err(DriverError::Refused("the file of a memory dump has a name that ends in .memory.dump"));
        }
        let claim = self.hotplugged.directory(volume);
        let claim = claim.ok_or(DriverError::Refused("the claim for the memory dump is not in the pod"))?;
        let domain = self.current().ok_or(DriverError::Refused("the virtual machine has not started yet"))?;
        self.dump.told = MemoryDump {
            volume: volume.to_owned(),
            file: file.to_owned(),
            started: Some(now()),
            ..MemoryDump::default()
        };
        let made = make(claim, file).and_then(|(directory, made)| {
            let lent = Lent::new(made, &self.dirs.backups(), LINK).map_err(|error| error.to_string())?;
            Ok((directory, lent))
        });
        match made {
            Ok((directory, lent)) => {
                tracing::info!(volume, file, "the guest's memory is written");
                let (tell, done) = oneshot::channel();
                let (link, written) = (lent.link.display().to_string(), lent.file.try_clone());
                tokio::task::spawn_blocking(move || {
                    // Who asked may have gone.
                    let _ = tell.send(write(&domain, &link, written));
                });
                self.dump.open = Some(Open { directory, _file: lent, done });
            }
            Err(why) => self.dump_ended(Err(why)),
        }
        self.publish_dump();
        Ok(())
    }

    /// The memory was written, or was not.
    pub(super) async fn memory_written(&mut self, written: Result<(), String>) {
        let open = self.dump.open.take();
        if let (Some(open), Err(_)) = (open, &written)
            && let Err(error) = open.directory.remove(&self.dump.told.file)
        {
            tracing::info!(error = %kit::Chain(&error), "the file of the failed dump stays");
        }
        self.dump_ended(written);
        self.publish_dump();
        self.refresh().await;
    }

    fn dump_ended(&mut self, written: Result<(), String>) {
        self.dump.told.ended = Some(now());
        match written {
            Ok(()) => tracing::info!(file = self.dump.told.file, "the guest's memory was written"),
            Err(why) => {
                tracing::warn!(file = self.dump.told.file, error = why, "the guest's memory was not written");
                self.dump.told.failure = Some(format!("{FAILED}: {why}"));
            }
        }
    }

    fn publish_dump(&self) {
        let text = serde_json::to_string(&self.dump.told).unwrap_or_default();
        self.publisher.update(|state| state.memory_dump = text);
    }
}

fn now() -> Time {
    Time(kit::clock::seconds(kit::clock::now()))
}

/// Makes the file in the directory of the claim, in place of the dumps of before.
fn make(claim: &Dir, file: &str) -> Result<(Dir, std::fs::File), String> {
    let failed = |error: sys::Error| kit::Chain(&error).to_string();
    let directory = claim.dir(".").map_err(failed)?;
    for old in directory.names().map_err(failed)?.iter().filter(|name| name.ends_with(SUFFIX)) {
        directory.remove(old).map_err(failed)?;
    }
    let made = directory.create(file, 0o660).map_err(failed)?;
    Ok((directory, made))
}

/// Has libvirt write to `link`, and what it wrote be on the disk.
fn write(domain: &Domain, link: &str, file: std::io::Result<std::fs::File>) -> Result<(), String> {
    domain.dump_memory(link).map_err(|error| kit::Chain(&error).to_string())?;
    file.and_then(|file| file.sync_all()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_takes_the_place_of_those_before_it() {
        let home = tempfile::tempdir().unwrap();
        for name in ["vm-claim-20260131-135959.memory.dump", "disk.img", "notes"] {
            std::fs::write(home.path().join(name), name).unwrap();
        }
        let claim = Dir::open(home.path()).unwrap();
        make(&claim, "next.memory.dump").unwrap();
        let mut names = claim.names().unwrap();
        names.sort();
        assert_eq!(names, ["disk.img", "next.memory.dump", "notes"]);
        assert!(make(&claim, "no/such.memory.dump").is_err());
    }
}
