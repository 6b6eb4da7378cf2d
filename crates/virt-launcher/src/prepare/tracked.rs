//! Layers that track what changes on the disks of claims.
//!
//! ```text
//!   image on a claim   -> beside it on its claim, wherever the guest goes with that
//!   device             -> on the claim with the machine's state, by the names of the volume and its claim
//!                         (without such a claim, or without room on it: in the pod, and gone with it)
//! ```
//! So what changed since a backup is known after a restart, whether the disk is one of the guest's from the start or came
//! later. A machine's state moves as a new claim, on which layers are begun anew: the backup after that is a full one.
//!
//! A layer that was not the last to be closed says nothing of its disk, and one that says that an area reads as zero where
//! the disk has data would hide that. A layer over an image is made anew then, while nobody else has the disk: QEMU's locks
//! tell. Of a device nobody knows when it was written, so its layer is stripped of what it says of such areas, and it goes
//! when the device leaves the guest.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use api::kubevirt::constants::tracking;
use api::kubevirt::v1::{Disk, VirtualMachineInstance, Volume};
use disk::tracking::{Holes, create, fits, reopen};
use domain::{Backing, Format, ResolvedDisk};
use rustix::fs::{FlockOperation, fcntl_lock};
use sys::beneath::Dir;

use super::Error;
use super::lent::Lent;
use crate::dirs::Dirs;

/// The disk that the layer is named after, and whose name is in its header.
const DISK: &str = "disk.img";
/// The directory of layers over devices: of each volume one, with a file that is named after the claim.
const LAYERS: &str = "tracking";

/// Why disks are prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The guest starts.
    Start,
    /// The guest comes from another node, where it still runs.
    Arrival,
}

/// Changes of `disk` are to be tracked: the guest alone writes it, and knows it for no drive and no device of its own.
pub(crate) fn wanted(vmi: &VirtualMachineInstance, disk: Option<&Disk>) -> bool {
    let plain = |disk: &Disk| {
        let read_only = disk.disk.as_ref().is_some_and(|target| target.readonly == Some(true));
        disk.cdrom.is_none() && disk.lun.is_none() && disk.shareable != Some(true) && !read_only
    };
    disk.is_some_and(plain) && is_on(vmi)
}

/// Changes of the disks of `vmi` are tracked.
pub(crate) fn is_on(vmi: &VirtualMachineInstance) -> bool {
    let known = vmi.status.as_ref().and_then(|status| status.changed_block_tracking.as_ref());
    known.is_some_and(|known| [tracking::INITIALIZING, tracking::ENABLED].contains(&known.state.as_str()))
}

/// The disk that a layer is put over.
pub(crate) enum Below<'a> {
    /// An image, and the file beside it that is to be its layer; without one it is looked for on the claim.
    Image(&'a Lent, Option<File>),
    /// A device.
    Device(&'a str),
}

/// The layer over `below`, the disk of `volume`.
pub(crate) fn layer(
    vmi: &VirtualMachineInstance,
    volume: &str,
    dirs: &Dirs,
    below: Below<'_>,
    moment: Moment,
) -> Result<Lent, Error> {
    let write = |source: disk::Error| Error::Write { volume: volume.to_owned(), source };
    let file = match below {
        Below::Image(image, file) => {
            let file =
                file.map_or_else(|| layer_on_claim(dirs, volume), |file| judged(volume, file, &dirs.claims()))?;
            // Copied on the way, the disk has nothing of its own here yet.
            let copied = vmi.status.iter().flat_map(|status| &status.migrated_volumes);
            let shared = !copied.into_iter().any(|moved| moved.volume_name == volume);
            match moment {
                Moment::Arrival if shared => {}
                Moment::Arrival => create(&file, &image.file, DISK, image.size, Holes::Unknown).map_err(write)?,
                Moment::Start => renew(volume, &file, image)?,
            }
            file
        }
        Below::Device(path) => over_device(vmi, volume, dirs, path, moment)?,
    };
    Lent::new(file, &dirs.claimed_disks(), &format!("{volume}.cbt")).map_err(|source| write(source.into()))
}

/// The layer over the device at `path`.
fn over_device(
    vmi: &VirtualMachineInstance,
    volume: &str,
    dirs: &Dirs,
    path: &str,
    moment: Moment,
) -> Result<File, Error> {
    let write = |source: disk::Error| Error::Write { volume: volume.to_owned(), source };
    let io = |source: io::Error| write(source.into());
    let mut device = File::open(path).map_err(io)?;
    let end = io::Seek::seek(&mut device, io::SeekFrom::End(0)).map_err(io)?;
    // What arrives is as large as it was, and the device may be larger.
    let known = api::kubevirt::hotplug::status(vmi, volume).and_then(|status| u64::try_from(status.size?).ok());
    let size = known.filter(|size| moment == Moment::Arrival && (1..end).contains(size)).unwrap_or(end);
    if let Some(file) = kept(vmi, volume, dirs)? {
        if moment == Moment::Start && reopen(&file, size).map_err(io)? {
            return Ok(file);
        }
        if fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::InUse { volume: volume.to_owned() });
        }
        let made = create(&file, &device, path, size, Holes::Unknown);
        fcntl_lock(&file, FlockOperation::Unlock).map_err(|error| io(error.into()))?;
        match made {
            Ok(()) => return Ok(file),
            Err(error) => {
                let error = kit::Chain(&error).to_string();
                tracing::warn!(volume, error, "what changes on the device is known only until the pod ends");
                forget(volume, dirs);
            }
        }
    }
    let file = new_file(&dirs.ephemeral().join("disk-data").join(volume).join("disk.cbt")).map_err(io)?;
    create(&file, &device, path, size, Holes::Unknown).map_err(write)?;
    Ok(file)
}

/// The layer's file on the claim with the machine's state. One over another claim of the same volume is removed.
fn kept(vmi: &VirtualMachineInstance, volume: &str, dirs: &Dirs) -> Result<Option<File>, Error> {
    let claim = vmi.spec.volumes.iter().find(|known| known.name == volume).and_then(Volume::own_claim);
    let (Some(state), Some(claim)) = (dirs.tracking(), claim) else { return Ok(None) };
    let path = state.join(LAYERS).join(volume);
    let opened = Dir::open(&state).and_then(|dir| dir.make_dir(LAYERS, 0o770)?.make_dir(volume, 0o770));
    let found = opened.and_then(|dir| {
        for other in dir.names()?.into_iter().filter(|name| name != claim) {
            dir.remove(&other)?;
        }
        open_or_create(&dir, claim)
    });
    let failed = |error: sys::Error| {
        let source = io::Error::new(error.io_kind().unwrap_or(io::ErrorKind::Other), kit::Chain(&error).to_string());
        Error::Read { volume: volume.to_owned(), path: path.clone(), source }
    };
    judged(volume, found.map_err(failed)?, &path).map(Some)
}

fn open_or_create(dir: &Dir, name: &str) -> sys::Result<File> {
    match dir.create(name, 0o660) {
        Err(error) if error.io_kind() == Some(io::ErrorKind::AlreadyExists) => dir.write(name),
        other => other,
    }
}

/// Removes what is kept of the device of `volume`: from now on others may write it.
pub(crate) fn forget(volume: &str, dirs: &Dirs) {
    let Some(state) = dirs.tracking() else { return };
    let Ok(dir) = Dir::open(&state).and_then(|dir| dir.dir(Path::new(LAYERS).join(volume))) else { return };
    for name in dir.names().unwrap_or_default() {
        if let Err(error) = dir.remove(&name) {
            tracing::warn!(volume, error = %kit::Chain(&error), "the layer of a device that is gone stays");
        }
    }
}

/// Removes what is kept of devices that `vmi` has no more.
pub(super) fn sweep(vmi: &VirtualMachineInstance, dirs: &Dirs) {
    let Some(state) = dirs.tracking() else { return };
    let kept = Dir::open(&state).and_then(|dir| dir.dir(LAYERS)).and_then(|dir| dir.names()).unwrap_or_default();
    for volume in kept.iter().filter(|name| !vmi.spec.volumes.iter().any(|volume| volume.name == **name)) {
        forget(volume, dirs);
    }
}

/// As QEMU opens it.
pub(crate) fn over(layer: &Lent, below: ResolvedDisk) -> ResolvedDisk {
    ResolvedDisk {
        path: layer.link.display().to_string(),
        format: Format::Qcow2,
        block: false,
        data: Some(Backing { path: below.path.clone(), format: Format::Raw, block: below.block }),
        ..below
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    File::options().read(true).write(true).create(true).truncate(true).mode(0o660).open(path)
}

/// The layer's file beside the disk on its claim.
fn layer_on_claim(dirs: &Dirs, volume: &str) -> Result<File, Error> {
    let directory = dirs.claims().join(volume);
    let failed = |error: sys::Error| {
        let source = io::Error::new(error.io_kind().unwrap_or(io::ErrorKind::Other), kit::Chain(&error).to_string());
        Error::Read { volume: volume.to_owned(), path: directory.join(tracking::LAYER), source }
    };
    let file = Dir::open(&directory).and_then(|dir| open_or_create(&dir, tracking::LAYER)).map_err(failed)?;
    judged(volume, file, &directory)
}

/// `file`, which lies in `directory`, if it can be a layer.
fn judged(volume: &str, file: File, directory: &Path) -> Result<File, Error> {
    let found = file.metadata();
    let found =
        found.map_err(|source| Error::Read { volume: volume.to_owned(), path: directory.to_owned(), source })?;
    if !found.is_file() {
        let message = format!("{} beside its disk is not a regular file: remove it", tracking::LAYER);
        return Err(Error::Unusable { volume: volume.to_owned(), message });
    }
    Ok(file)
}

/// Makes the layer anew unless it fits its disk.
fn renew(volume: &str, layer: &File, image: &Lent) -> Result<(), Error> {
    let write = |source: disk::Error| Error::Write { volume: volume.to_owned(), source };
    if fits(layer, &image.file, image.size).map_err(|error| write(error.into()))? {
        return Ok(());
    }
    let held = [layer, &image.file].map(|file| fcntl_lock(file, FlockOperation::NonBlockingLockExclusive));
    if held.iter().any(Result::is_err) {
        return Err(Error::InUse { volume: volume.to_owned() });
    }
    tracing::info!(volume, "changes of the disk are tracked from now on");
    create(layer, &image.file, DISK, image.size, Holes::Skipped).map_err(write)?;
    for file in [layer, &image.file] {
        fcntl_lock(file, FlockOperation::Unlock).map_err(|error| write(io::Error::from(error).into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_layer_is_kept_as_long_as_it_fits() {
        let run = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(run.path());
        dirs.create("uid").unwrap();
        let claim = dirs.claims().join("root");
        std::fs::create_dir_all(&claim).unwrap();
        let image = File::options().read(true).write(true).create_new(true).open(claim.join(DISK)).unwrap();
        image.set_len(1 << 20).unwrap();
        let image = Lent::new(image, &dirs.claimed_disks(), "root.img").unwrap();
        let below = ResolvedDisk { path: image.link.display().to_string(), ..ResolvedDisk::default() };
        let vmi: VirtualMachineInstance =
            serde_json::from_value(json!({ "status": { "changedBlockTracking": { "state": "Initializing" } } }))
                .unwrap();
        let disk = |kind: &str| serde_json::from_value::<Disk>(json!({ "name": "root", (kind): {} })).unwrap();
        assert!(wanted(&vmi, Some(&disk("disk"))) && !wanted(&vmi, Some(&disk("cdrom"))));
        assert!(!wanted(&VirtualMachineInstance::default(), Some(&disk("disk"))));
        let make = |moment| layer(&vmi, "root", &dirs, Below::Image(&image, None), moment).unwrap();
        let mark = |layer: &Lent| layer.file.write_all_at(b"mark", 3000).unwrap();
        let marked = |layer: &Lent| {
            let mut found = [0; 4];
            layer.file.read_exact_at(&mut found, 3000).unwrap();
            &found == b"mark"
        };
        let first = make(Moment::Start);
        mark(&first);
        assert!(marked(&make(Moment::Start)), "it was the last to be closed");
        let later = first.file.metadata().unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
        image.file.set_modified(later).unwrap();
        assert!(marked(&make(Moment::Arrival)), "where it comes from, the guest still writes both");
        assert!(!marked(&make(Moment::Start)), "somebody wrote to the disk");
        let resolved = over(&first, below);
        assert_eq!((resolved.format, resolved.data.unwrap().format), (Format::Qcow2, Format::Raw));
    }

    #[test]
    fn a_layer_over_a_device_is_kept_with_the_machines_state() {
        let run = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(run.path());
        dirs.create("uid").unwrap();
        let device = run.path().join("device");
        File::create(&device).unwrap().set_len(1 << 20).unwrap();
        let below = device.display().to_string();
        let on = |claim: &str| -> VirtualMachineInstance {
            let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } });
            serde_json::from_value(json!({ "spec": { "volumes": [volume] } })).unwrap()
        };
        let make = |claim: &str, moment| layer(&on(claim), "data", &dirs, Below::Device(&below), moment).unwrap();
        // A bitmap would lie behind the tables.
        let mark = |layer: &Lent| layer.file.write_all_at(b"mark", 7 << 16).unwrap();
        let is_marked = |layer: &Lent| {
            let mut found = [0; 4];
            layer.file.read_at(&mut found, 7 << 16).unwrap();
            &found == b"mark"
        };
        mark(&make("a", Moment::Start));
        assert!(!is_marked(&make("a", Moment::Start)), "the pod has no place for it that lasts");

        let state = dirs.private().join("vm-state-cbt");
        std::fs::create_dir(&state).unwrap();
        mark(&make("a", Moment::Start));
        assert!(is_marked(&make("a", Moment::Start)));
        sweep(&on("a"), &dirs);
        assert!(is_marked(&make("a", Moment::Start)), "the volume is still there");
        assert!(!is_marked(&make("b", Moment::Start)), "another claim");
        mark(&make("b", Moment::Start));
        assert!(!is_marked(&make("b", Moment::Arrival)), "the claim of the state is another, too");
        mark(&make("b", Moment::Start));
        File::options().write(true).open(&device).unwrap().set_len(2 << 20).unwrap();
        assert!(!is_marked(&make("b", Moment::Start)), "the device has grown");
        mark(&make("b", Moment::Start));
        sweep(&VirtualMachineInstance::default(), &dirs);
        assert!(!is_marked(&make("b", Moment::Start)), "it was another guest's meanwhile");
    }
}
