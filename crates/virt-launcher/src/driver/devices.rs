//! The driver's part in changes of a running domain: disks that come and go, media of drives, disks that have grown.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use domain::hotplug::{Action, Change, changes};
use domain::{DeviceKind, LiveDomain, ResolvedDisk};
use libvirt::Domain;
use tokio::time::Instant;

use super::{Driver, DriverError, start};
use crate::hotplug::exclusive;
use crate::prepare::{self, tracked};
use crate::request_queue::Phase;

/// A guest that did not hear that a disk is to go is told again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Disks that their guest was asked to let go of, and when.
#[derive(Default)]
pub(super) struct Asked(BTreeMap<String, Instant>);

impl Asked {
    /// Whether it is time to ask for `volume`, which then counts as asked for.
    fn again(&mut self, volume: &str, now: Instant) -> bool {
        let due = self.0.get(volume).is_none_or(|last| now.duration_since(*last) >= ASK_AGAIN);
        if due {
            self.0.insert(volume.to_owned(), now);
        }
        due
    }
}

impl Driver {
    /// Brings the disks of the running domain to what `vmi` asks for. Whatever can be done is done; the error is of the
    /// first that could not.
    pub(super) async fn change_devices(&mut self, vmi: &str, environment: &str) -> Result<(), DriverError> {
        let settled = matches!(self.phase, Phase::Running | Phase::Paused) && self.leaving.is_none();
        if !settled {
            return Ok(());
        }
        let failed = |failure: start::Failure| DriverError::Start(failure.to_string());
        let vmi = self.read(vmi).map_err(failed)?;
        let environment = self.environment(environment).map_err(failed)?;
        let xml = self.with_domain(Domain::xml).await?;
        let live = LiveDomain::read(&xml).unwrap_or_default();
        let own = vmi.spec.utility_volumes.iter().map(|volume| volume.name.as_str());
        let named: BTreeSet<&str> = vmi.spec.volumes.iter().map(|volume| volume.name.as_str()).chain(own).collect();
        let in_use = |name: &str| {
            let used = |device: &domain::LiveDevice| device.name == name && !device.source.is_empty();
            live.devices.iter().any(|device| device.kind == DeviceKind::Disk && used(device))
        };
        for gone in self.hotplugged.retain(|name| named.contains(name) || in_use(name) || self.dump.is_writing(name)) {
            self.prepared.disks.remove(&gone);
            self.prepared.devices.release(&gone);
            self.asked.0.remove(&gone);
            tracked::forget(&gone, &self.dirs);
            tracing::info!(volume = gone, "the disk was given back");
        }
        let (available, made) = self.hotplugged.ready(&vmi, &self.dirs, in_use);
        let wanted =
            changes(&vmi, &environment, &live, &available).map_err(|error| failed(start::Failure::Domain(error)))?;
        let mut outcome = made.map_err(|error| DriverError::Start(kit::Chain(&error).to_string()));
        for change in wanted {
            let (volume, action) = (change.volume.clone(), change.action);
            if let Err(error) = self.change(&vmi, change, &available).await {
                tracing::warn!(volume, ?action, error = %kit::Chain(&error), "a disk was not changed");
                outcome = outcome.and(Err(error));
            }
        }
        self.grow(&vmi, &live).await;
        let outcome = outcome.and(self.set_links(&vmi, &environment, &live).await);
        outcome.and(self.resize(&vmi, &live).await)
    }

    /// Plugs and unplugs the links of the guest's interfaces.
    async fn set_links(
        &self,
        vmi: &VirtualMachineInstance,
        environment: &domain::Environment,
        live: &LiveDomain,
    ) -> Result<(), DriverError> {
        let wanted = domain::interfaces::links(vmi, environment, live)
            .map_err(|error| DriverError::Start(start::Failure::Domain(error).to_string()))?;
        for (interface, xml) in wanted {
            let done = self.with_domain(move |domain| domain.update_device(&xml)).await;
            done.map_err(|error| DriverError::Link { interface: interface.clone(), source: Box::new(error) })?;
            tracing::info!(interface, "the link of the guest's interface was changed");
        }
        Ok(())
    }

    async fn change(
        &mut self,
        vmi: &VirtualMachineInstance,
        change: Change,
        available: &BTreeMap<String, ResolvedDisk>,
    ) -> Result<(), DriverError> {
        let Change { volume, action, xml } = change;
        if action == Action::Detach {
            if self.asked.again(&volume, Instant::now()) {
                tracing::info!(volume, "the guest is asked to let go of a disk");
                self.with_domain(move |domain| domain.detach_device(&xml)).await?;
            }
            return Ok(());
        }
        if let Some(resolved) = available.get(&volume) {
            if let Some(device) = exclusive(vmi, &volume, resolved) {
                self.prepared.devices.want(&volume, device);
                if let Err(error) = self.prepared.devices.take() {
                    self.prepared.devices.release(&volume);
                    return Err(DriverError::Start(kit::Chain(&error).to_string()));
                }
            }
            self.prepared.disks.insert(volume.clone(), resolved.clone());
        }
        let done = self.with_domain(move |domain| match action {
            Action::Medium => domain.update_device(&xml),
            Action::Attach | Action::Detach => domain.attach_device(&xml),
        });
        if let Err(error) = done.await {
            self.prepared.disks.remove(&volume);
            self.prepared.devices.release(&volume);
            let text = error.to_string();
            return Err(match start::locked(&text, available) {
                Some(volume) => {
                    let error = prepare::Error::InUse { volume: volume.to_owned() };
                    DriverError::Start(error.to_string())
                }
                None => DriverError::Disk { volume, source: Box::new(error) },
            });
        }
        tracing::info!(volume, ?action, "a disk of the running guest was changed");
        Ok(())
    }

    /// Makes images as large as their claims, and tells the guest of disks that are larger than it knows.
    async fn grow(&mut self, vmi: &VirtualMachineInstance, live: &LiveDomain) {
        for device in live.devices.iter().filter(|device| device.kind == DeviceKind::Disk) {
            let Some(disk) = self.prepared.disks.get(&device.name) else { continue };
            // A layer that tracks what changes grows with the disk below it.
            let is_raw = disk.format == domain::Format::Raw || disk.data.is_some();
            if disk.ephemeral || disk.readonly || !is_raw {
                continue;
            }
            let (path, is_device) = disk.contents();
            let (target, path, known) = (device.target.clone(), path.to_owned(), self.sizes.of(device));
            let claim = (!is_device).then(|| claim_of(vmi, &device.name)).flatten();
            let grown = self.with_domain(move |domain| {
                if let Some(claim) = claim
                    && let Err(error) = extend(&path, claim)
                {
                    tracing::warn!(path, claim, %error, "the disk does not grow with its claim");
                }
                let known = known.map_or_else(|| domain.block_info(&target).map(|info| info.capacity), Ok)?;
                let size = size_of(&path).unwrap_or(0);
                if size > known { domain.resize_disk(&target, size).map(|()| size) } else { Ok(0) }
            });
            match grown.await {
                Ok(0) => {}
                Ok(size) => {
                    self.sizes.note(device, size);
                    tracing::info!(volume = device.name, size, "the disk has grown");
                }
                Err(error) => {
                    tracing::warn!(volume = device.name, error = %kit::Chain(&error), "the guest was not told that its disk has grown");
                }
            }
        }
    }
}

/// The size of the claim of `volume`.
fn claim_of(vmi: &VirtualMachineInstance, volume: &str) -> Option<u64> {
    let info = api::kubevirt::hotplug::status(vmi, volume)?.persistent_volume_claim_info.as_ref()?;
    meta::quantity::Amount::try_from(info.capacity.get("storage")?).ok().map(meta::quantity::Amount::bytes)
}

/// What an image that has `size` bytes, in a file system with `free` more, grows to in a claim of `claim` bytes; none when
/// it is as large as it can be. It ends on a boundary that every file system can read around its page cache.
fn grown(size: u64, claim: u64, free: u64) -> Option<u64> {
    const BOUNDARY: u64 = 1 << 20;
    let room = claim.min(size.saturating_add(free));
    let end = room - room % BOUNDARY;
    (end > size).then_some(end)
}

/// Makes the image as large as its claim, as far as its file system has room.
fn extend(path: &str, claim: u64) -> std::io::Result<()> {
    let file = std::fs::File::options().write(true).open(path)?;
    let found = rustix::fs::fstatvfs(&file)?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    match grown(file.metadata()?.len(), claim, free) {
        Some(size) => file.set_len(size),
        None => Ok(()),
    }
}

/// The size of an image or a device, by its end.
fn size_of(path: &str) -> std::io::Result<u64> {
    use std::io::Seek as _;
    std::fs::File::open(path)?.seek(std::io::SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_grows_as_far_as_there_is_room() {
        const MI: u64 = 1 << 20;
        assert_eq!(grown(64 * MI, 128 * MI, 1 << 40), Some(128 * MI));
        assert_eq!(grown(64 * MI, 128 * MI + 700, 1 << 40), Some(128 * MI));
        assert_eq!(grown(64 * MI, 128 * MI, 10 * MI + 1), Some(74 * MI));
        assert_eq!(grown(64 * MI, 64 * MI, 1 << 40), None);
        assert_eq!(grown(64 * MI, 32 * MI, 1 << 40), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_is_asked_again_now_and_then() {
        let mut asked = Asked::default();
        let now = Instant::now();
        assert!(asked.again("a", now) && !asked.again("a", now + Duration::from_secs(9)));
        assert!(asked.again("b", now) && asked.again("a", now + ASK_AGAIN));
    }
}
