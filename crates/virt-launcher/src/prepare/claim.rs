//! Disks on claims: a block device of the pod, or the image on a volume with a file system.
//!
//! A volume may be written by others, so its image is opened once, beneath the volume and through no link (rule R3); QEMU
//! gets to it through this process's descriptor, which nobody can exchange. It is raw by our word and never by its first
//! bytes, which are the guest's to write.
//!
//! QEMU locks the images it writes, on the file, so that whoever opens the same file meets the lock. Devices have as many
//! nodes as pods, and a lock on one is not seen at another: they are taken exclusively from the kernel instead
//! ([`Exclusive`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use domain::{Format, ResolvedDisk};
use rustix::fs::OFlags;
use sys::beneath::Dir;

use super::Error;
use super::lent::Lent;
use crate::dirs::Dirs;

/// The name of a disk on a volume with a file system.
const IMAGE: &str = "disk.img";
const DEVICES: &str = "/dev";

/// How a disk uses its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) writable: bool,
    /// Several guests write it by agreement: a file system made for it, a cluster's quorum disk.
    pub(crate) shareable: bool,
}

/// A claim's disk, open.
pub(crate) enum Claimed {
    Image(Lent),
    Device(PathBuf),
}

/// Finds the disk of `volume`.
pub(super) fn open(dirs: &Dirs, volume: &str, access: Access) -> Result<(Claimed, ResolvedDisk), Error> {
    match device(volume, access) {
        Some(device) => Ok(device),
        None => image(dirs, volume, access),
    }
}

/// The device of `volume`, if the pod has one.
pub(crate) fn device(volume: &str, access: Access) -> Option<(Claimed, ResolvedDisk)> {
    let device = Path::new(DEVICES).join(volume);
    let found = std::fs::metadata(&device).ok()?;
    let resolved = ResolvedDisk {
        path: device.display().to_string(),
        format: Format::Raw,
        block: true,
        direct_io: true,
        readonly: !access.writable,
        ..ResolvedDisk::default()
    };
    found.file_type().is_block_device().then_some((Claimed::Device(device), resolved))
}

fn image(dirs: &Dirs, volume: &str, access: Access) -> Result<(Claimed, ResolvedDisk), Error> {
    let directory = dirs.claims().join(volume);
    let path = directory.join(IMAGE);
    let failed = |source: io::Error| Error::Read { volume: volume.to_owned(), path: path.clone(), source };
    let opened = Dir::open(&directory)
        .and_then(|dir| if access.writable { dir.write(IMAGE) } else { dir.read(IMAGE) })
        .map_err(|error| {
            failed(io::Error::new(error.io_kind().unwrap_or(io::ErrorKind::Other), kit::Chain(&error).to_string()))
        })?;
    judged(opened, &dirs.claimed_disks(), volume, access, &path)
}

/// The disk in `image`, which somebody has opened beneath its volume; `links` is where QEMU finds it.
pub(crate) fn lent(image: File, links: &Path, volume: &str, access: Access) -> Result<(Claimed, ResolvedDisk), Error> {
    judged(image, links, volume, access, Path::new(IMAGE))
}

fn judged(
    opened: File,
    links: &Path,
    volume: &str,
    access: Access,
    path: &Path,
) -> Result<(Claimed, ResolvedDisk), Error> {
    let failed = |source: io::Error| Error::Read { volume: volume.to_owned(), path: path.to_owned(), source };
    let found = opened.metadata().map_err(failed)?;
    if !found.is_file() {
        let message = format!("{} is not a regular file", path.display());
        return Err(Error::Unusable { volume: volume.to_owned(), message });
    }
    if found.len() == 0 {
        let message =
            format!("{} is empty: put a raw image in its place, or remove it to have one made", path.display());
        return Err(Error::Unusable { volume: volume.to_owned(), message });
    }
    let lent = Lent::new(opened, links, &format!("{volume}.img")).map_err(failed)?;
    let direct = File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&lent.link).is_ok();
    let resolved = ResolvedDisk {
        path: lent.link.display().to_string(),
        format: Format::Raw,
        direct_io: direct,
        preallocated: found.blocks() * 512 >= found.len(),
        readonly: !access.writable,
        ..ResolvedDisk::default()
    };
    Ok((Claimed::Image(lent), resolved))
}

/// Devices that no other guest of this node may write while this one does.
#[derive(Debug, Default)]
pub(crate) struct Exclusive {
    wanted: Vec<(String, PathBuf)>,
    held: Vec<(String, PathBuf, File)>,
}

impl Exclusive {
    /// Remembers a device to be taken.
    pub(crate) fn want(&mut self, volume: &str, device: PathBuf) {
        self.wanted.push((volume.to_owned(), device));
    }

    /// Whether a device is not held yet.
    pub(crate) fn is_wanting(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Lets go of the device of `volume`.
    pub(crate) fn release(&mut self, volume: &str) {
        self.wanted.retain(|(name, _)| name != volume);
        self.held.retain(|(name, ..)| name != volume);
    }

    /// Takes what is not held yet. Held until this value goes, and by the kernel's word gone with this process.
    ///
    /// A guest that is received from elsewhere is taken over once it is here: its source holds the devices until then.
    pub(crate) fn take(&mut self) -> Result<(), Error> {
        while let Some((volume, device)) = self.wanted.last().cloned() {
            let flags = (OFlags::EXCL | OFlags::NONBLOCK).bits().cast_signed();
            match File::options().read(true).write(true).custom_flags(flags).open(&device) {
                Ok(file) => self.held.push((volume, device, file)),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Err(Error::InUse { volume }),
                Err(source) => return Err(Error::Read { volume, path: device, source }),
            }
            self.wanted.pop();
        }
        Ok(())
    }

    /// Lets go of all of them, to be taken again.
    pub(crate) fn put_back(&mut self) {
        self.wanted.extend(self.held.drain(..).map(|(volume, device, _)| (volume, device)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITABLE: Access = Access { writable: true, shareable: false };

    fn scene(name: &str) -> (PathBuf, Dirs, PathBuf) {
        let run = std::env::temp_dir().join(format!("claim-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&run);
        let dirs = Dirs::below(&run);
        dirs.create("uid").unwrap();
        let volume = dirs.private().join("vmi-disks/root");
        std::fs::create_dir_all(&volume).unwrap();
        (run, dirs, volume)
    }

    #[track_caller]
    fn complaint(dirs: &Dirs) -> String {
        match open(dirs, "root", WRITABLE) {
            Ok(_) => panic!("it was opened"),
            Err(error) => kit::Chain(&error).to_string(),
        }
    }

    #[test]
    fn an_image_is_raw_whatever_the_guest_wrote_into_it() {
        let (run, dirs, volume) = scene("raw");
        let mut image = b"QFI\xfb\0\0\0\x03".to_vec();
        image.resize(1 << 20, 0);
        std::fs::write(volume.join(IMAGE), &image).unwrap();
        let Ok((Claimed::Image(lent), resolved)) = open(&dirs, "root", WRITABLE) else { panic!("not an image") };
        assert_eq!((resolved.format, resolved.readonly, lent.size), (Format::Raw, false, 1 << 20));
        // What QEMU is given is this file, also when another has taken its name.
        std::fs::rename(volume.join(IMAGE), volume.join("moved")).unwrap();
        std::fs::write(volume.join(IMAGE), "another").unwrap();
        assert_eq!(std::fs::read(&resolved.path).unwrap(), image);
        std::fs::remove_dir_all(run).unwrap();
    }

    #[test]
    fn a_symbolic_link_in_a_claim_is_not_followed() {
        let (run, dirs, volume) = scene("link");
        assert!(complaint(&dirs).contains("No such file"));
        std::os::unix::fs::symlink("/etc/passwd", volume.join(IMAGE)).unwrap();
        assert!(complaint(&dirs).contains("symbolic links"), "{}", complaint(&dirs));
        std::fs::remove_file(volume.join(IMAGE)).unwrap();
        std::fs::write(volume.join(IMAGE), "").unwrap();
        assert!(complaint(&dirs).contains("is empty"));
        std::fs::remove_file(volume.join(IMAGE)).unwrap();
        std::fs::create_dir(volume.join(IMAGE)).unwrap();
        assert!(open(&dirs, "root", Access { writable: false, ..WRITABLE }).is_err());
        std::fs::remove_dir_all(run).unwrap();
    }
}
