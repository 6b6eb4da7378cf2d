//! Disks that come while the guest runs: the node agent lends them over a socket, as open files or by word that a device
//! is there, and they are kept for as long as the guest may use them.
//!
//! ```text
//!   node agent --{"volume":…}\n + fds--> hotplug_server --Lend--> driver;  --Sync--> driver --attach--> QEMU
//! ```
//! With an image comes the file beside it that is to track what changes on it, if something is to.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use api::kubevirt::hotplug::{carried, disk};
use api::kubevirt::v1::VirtualMachineInstance;
use domain::ResolvedDisk;
use sys::beneath::Dir;

use crate::Dirs;
use crate::prepare::tracked::{self, Below};
use crate::prepare::{Access, Claimed, Error, Lent, Moment, Prepared, claim};

/// A disk as it is lent: its image, or nothing where its device is in the pod already.
#[derive(Debug)]
pub(crate) struct Lending {
    pub(crate) volume: String,
    pub(crate) writable: bool,
    pub(crate) directory: bool,
    pub(crate) image: Option<File>,
    /// The file beside the image that is to track what changes.
    pub(crate) layer: Option<File>,
}

/// What was lent and is still of use.
#[derive(Default)]
pub(crate) struct Hotplugged {
    held: BTreeMap<String, Held>,
    /// Volumes that are not for the guest.
    directories: BTreeMap<String, Dir>,
}

struct Held {
    claimed: Claimed,
    resolved: ResolvedDisk,
    /// What is to be the layer over it.
    beside: Option<File>,
    /// What tracks its changes.
    layer: Option<Lent>,
}

impl Held {
    /// As QEMU opens it.
    fn resolved(&self) -> ResolvedDisk {
        let below = self.resolved.clone();
        self.layer.as_ref().map_or_else(|| below.clone(), |layer| tracked::over(layer, below.clone()))
    }

    /// Has what changes on it tracked from now on, if it is to be and is not yet.
    fn track(&mut self, vmi: &VirtualMachineInstance, name: &str, dirs: &Dirs, moment: Moment) -> Result<(), Error> {
        // What it looks like to the guest nobody says any more of a disk on its way out: it may have had a layer.
        let described = disk(&vmi.spec, name);
        let wanted = described.map_or_else(|| tracked::is_on(vmi), |disk| tracked::wanted(vmi, Some(disk)));
        if !wanted || self.resolved.readonly || self.layer.is_some() {
            return Ok(());
        }
        let below = match (&self.claimed, &self.beside) {
            (Claimed::Image(image), Some(file)) => {
                let file = file.try_clone();
                let failed = |error: io::Error| Error::Write { volume: name.to_owned(), source: error.into() };
                Below::Image(image, Some(file.map_err(failed)?))
            }
            // Lent when nothing was to be tracked.
            (Claimed::Image(_), None) => return Ok(()),
            (Claimed::Device(_), _) => Below::Device(&self.resolved.path),
        };
        self.layer = Some(tracked::layer(vmi, name, dirs, below, moment)?);
        Ok(())
    }
}

impl Hotplugged {
    /// Keeps a disk. One that is lent again is the one that is there, or replaces it.
    pub(crate) fn keep(&mut self, dirs: &Dirs, lending: Lending) -> Result<(), Error> {
        let Lending { volume, writable, directory, image, layer } = lending;
        if directory {
            let message = "its directory did not come with its name".to_owned();
            let missing = Error::NotLent { volume: volume.clone(), message };
            self.directories.insert(volume, Dir::from(OwnedFd::from(image.ok_or(missing)?)));
            return Ok(());
        }
        if let Some(Held { claimed: Claimed::Image(lent), resolved, .. }) = self.held.get(&volume)
            && resolved.readonly != writable
            && image.as_ref().is_some_and(|image| same(&lent.file, image))
        {
            return Ok(());
        }
        let access = Access { writable, shareable: false };
        let (claimed, resolved) = match image {
            Some(image) => claim::lent(image, &dirs.hotplugged_disks(), &volume, access)?,
            None => claim::device(&volume, access).ok_or_else(|| Error::NotLent {
                volume: volume.clone(),
                message: "its device is not in the pod".to_owned(),
            })?,
        };
        self.held.insert(volume, Held { claimed, resolved, beside: layer, layer: None });
        Ok(())
    }

    /// Lets go of what is of no use: `used` says what is.
    pub(crate) fn retain(&mut self, used: impl Fn(&str) -> bool) -> Vec<String> {
        let gone: Vec<String> = self.held.keys().filter(|volume| !used(volume)).cloned().collect();
        self.held.retain(|volume, _| used(volume));
        self.directories.retain(|volume, _| used(volume));
        gone
    }

    /// The directory of a volume that is not for the guest.
    pub(crate) fn directory(&self, volume: &str) -> Option<&Dir> {
        self.directories.get(volume)
    }

    /// Those that can be given to the guest of `vmi`, as QEMU opens them: what is to be tracked has its layer. Of what the
    /// guest `has` nothing changes. The error is of the first that could not be made ready.
    pub(crate) fn ready(
        &mut self,
        vmi: &VirtualMachineInstance,
        dirs: &Dirs,
        has: impl Fn(&str) -> bool,
    ) -> (BTreeMap<String, ResolvedDisk>, Result<(), Error>) {
        let (mut ready, mut outcome) = (BTreeMap::new(), Ok(()));
        for (volume, held) in &mut self.held {
            let tracked = if has(volume) { Ok(()) } else { held.track(vmi, volume, dirs, Moment::Start) };
            match tracked {
                Ok(()) => {
                    ready.insert(volume.clone(), held.resolved());
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        (ready, outcome)
    }

    /// Makes the disks that come with a guest from another node part of what is prepared for it.
    pub(crate) fn join(
        &mut self,
        vmi: &VirtualMachineInstance,
        dirs: &Dirs,
        prepared: &mut Prepared,
    ) -> Result<(), Error> {
        for name in carried(vmi) {
            let Some(held) = self.held.get_mut(name) else {
                let message = "it has not been attached to this node yet".to_owned();
                return Err(Error::NotLent { volume: name.to_owned(), message });
            };
            held.track(vmi, name, dirs, Moment::Arrival)?;
            let resolved = held.resolved();
            if let Some(device) = exclusive(vmi, name, &resolved) {
                prepared.devices.want(name, device);
            }
            prepared.disks.insert(name.to_owned(), resolved);
        }
        Ok(())
    }
}

/// The device behind the volume, if no other guest may write it.
pub(crate) fn exclusive(vmi: &VirtualMachineInstance, volume: &str, resolved: &ResolvedDisk) -> Option<PathBuf> {
    let shareable = disk(&vmi.spec, volume).is_some_and(|disk| disk.shareable == Some(true));
    let (path, is_device) = resolved.contents();
    (is_device && !resolved.readonly && !shareable).then(|| path.into())
}

fn same(one: &File, other: &File) -> bool {
    let id = |file: &File| file.metadata().ok().map(|found| (found.dev(), found.ino()));
    id(one).is_some_and(|found| id(other) == Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_kept_once_and_let_go_when_it_is_of_no_use() {
        let run = std::env::temp_dir().join(format!("hotplug-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&run);
        let dirs = Dirs::below(&run);
        dirs.create("uid").unwrap();
        let path = run.join("disk.img");
        std::fs::write(&path, [0_u8; 4096]).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let lend = |image| Lending { volume: "data".into(), writable: true, directory: false, image, layer: None };
        let mut all = Hotplugged::default();
        let vmi = VirtualMachineInstance::default();
        let ready = |all: &mut Hotplugged| all.ready(&vmi, &dirs, |_| false).0;
        let link = |all: &mut Hotplugged| std::fs::read_link(&ready(all)["data"].path).unwrap();
        all.keep(&dirs, lend(Some(open()))).unwrap();
        let first = link(&mut all);
        all.keep(&dirs, lend(Some(open()))).unwrap();
        assert_eq!(link(&mut all), first, "it was there already");
        assert!(all.keep(&dirs, lend(Some(File::open("/dev/null").unwrap()))).is_err(), "not a regular file");
        let missing = all.keep(&dirs, Lending { image: None, volume: "none-such".into(), ..lend(None) });
        assert!(missing.unwrap_err().to_string().contains("its device is not in the pod"));
        assert!(all.retain(|volume| volume == "data").is_empty());
        assert_eq!(all.retain(|_| false), ["data"]);
        assert!(ready(&mut all).is_empty());
        std::fs::remove_dir_all(run).unwrap();
    }

    #[test]
    fn a_disk_hotplugged_into_a_tracked_guest_gets_a_tracking_layer() {
        let run = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(run.path());
        dirs.create("uid").unwrap();
        let open = |name: &str| {
            let path = run.path().join(name);
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
        };
        open("disk.img").set_len(1 << 20).unwrap();
        let mut all = Hotplugged::default();
        let (image, layer) = (Some(open("disk.img")), Some(open("disk.img.cbt")));
        let lending = Lending { volume: "data".into(), writable: true, directory: false, image, layer };
        all.keep(&dirs, lending).unwrap();
        let vmi: VirtualMachineInstance = serde_json::from_value(serde_json::json!({
            "spec": { "domain": { "devices": { "disks": [{ "name": "data", "disk": {} }] } } },
            "status": { "changedBlockTracking": { "state": "Enabled" } },
        }))
        .unwrap();
        let (plain, _) = all.ready(&vmi, &dirs, |volume| volume == "data");
        assert_eq!(plain["data"].data, None, "what the guest has stays as it is");
        let (ready, outcome) = all.ready(&vmi, &dirs, |_| false);
        assert!(outcome.is_ok());
        assert_eq!((ready["data"].format, ready["data"].contents()), (domain::Format::Qcow2, plain["data"].contents()));
        let (still, _) = all.ready(&vmi, &dirs, |volume| volume == "data");
        assert_eq!(still, ready, "and what it got tracked, too");
    }
}
