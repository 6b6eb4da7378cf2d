//! The volume that a pod fills: a directory that holds `disk.img`, or a block device.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use disk::{Place, Resume, Target};

/// The name of a disk in a volume that is a file system.
pub(crate) const DISK: &str = "disk.img";
/// The name of an import's journal beside it, which is gone when the disk is complete.
const JOURNAL: &str = ".disk.img.journal";
/// Usable space is whole mebibytes, so that nothing that rounds a disk's size up exceeds it.
const ALIGN: u64 = 1 << 20;

/// Where the pod's claim is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    /// A file system, mounted here.
    Directory(PathBuf),
    /// A block device.
    Device(PathBuf),
}

impl Volume {
    /// The device when there is one; the claim's volume mode decided that.
    pub(crate) fn find(directory: &Path, device: &Path) -> Self {
        match device.exists() {
            true => Self::Device(device.to_owned()),
            false => Self::Directory(directory.to_owned()),
        }
    }

    /// By the path of the disk itself, as the upload server is told it.
    pub(crate) fn at(destination: &Path) -> Self {
        match destination.parent() {
            Some(directory) if destination.file_name().is_some_and(|name| name == DISK) => {
                Self::Directory(directory.to_owned())
            }
            _ => Self::Device(destination.to_owned()),
        }
    }

    /// Bytes that a disk on it may have, when `asked` of the claim were requested.
    pub(crate) fn usable(&self, asked: Option<u64>, overhead: f64) -> io::Result<u64> {
        match self {
            Self::Device(path) => Ok(device(path)?.capacity()),
            Self::Directory(path) => {
                let free = rustix::fs::statvfs(path)?;
                // What an earlier try left there is overwritten.
                let own = std::fs::symlink_metadata(path.join(DISK)).map_or(0, |found| found.blocks() * 512);
                let there = free.f_bavail.saturating_mul(free.f_frsize).saturating_add(own);
                Ok(without_overhead(asked.map_or(there, |asked| asked.min(there)), overhead))
            }
        }
    }

    /// The disk, to be written.
    pub(crate) fn target(&self, usable: u64) -> io::Result<Target> {
        match self {
            Self::Device(path) => device(path),
            Self::Directory(path) => Target::file(&path.join(DISK), usable),
        }
    }

    /// Where an import that is interrupted leaves what the next one goes on by. A device's is believed only by imports for
    /// the same `owner`.
    pub(crate) fn resume(&self, owner: &str) -> Option<Resume> {
        Some(Resume::at(match self {
            Self::Directory(path) => Place::File(path.join(JOURNAL)),
            Self::Device(_) if owner.is_empty() => return None,
            Self::Device(_) => Place::Device(owner.to_owned()),
        }))
    }

    /// Makes a written disk ready for its users: the group may write it, and its name is as durable as its bytes.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let Self::Directory(path) = self else { return Ok(()) };
        let disk = path.join(DISK);
        if disk.try_exists()? {
            std::fs::set_permissions(&disk, Permissions::from_mode(0o660))?;
            File::open(&disk)?.sync_all()?;
        }
        File::open(path)?.sync_all()
    }

    /// The directory, for content that is files.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            Self::Device(_) => None,
        }
    }
}

/// A device that this user may write: that of the node's disk group, or of everybody, or one that the runtime gave away.
fn device(path: &Path) -> io::Result<Target> {
    Target::device(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            format!(
                "the pod may not open its block volume at {}: the node leaves it to another user. Set \
                 device_ownership_from_security_context = true in the CRI settings of its containerd or CRI-O, or use a \
                 claim with volumeMode Filesystem",
                path.display()
            ),
        ),
        _ => error,
    })
}

/// What a file system of `bytes` leaves for a disk.
fn without_overhead(bytes: u64, overhead: f64) -> u64 {
    let left = (bytes as f64 * (1.0 - overhead.clamp(0.0, 1.0))) as u64;
    left / ALIGN * ALIGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_keep_a_part_for_themselves() {
        let check = |bytes, overhead, expect| assert_eq!(without_overhead(bytes, overhead), expect);
        check(1 << 30, 0.0, 1 << 30);
        check(1 << 30, 0.06, 962 << 20);
        check((1 << 30) + 5, 0.0, 1 << 30);
        check(1 << 20, 0.06, 0);
        check(1 << 30, 2.0, 0);
    }

    #[test]
    fn a_disk_left_behind_does_not_count_against_its_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::find(dir.path(), &dir.path().join("missing"));
        assert_eq!(volume, Volume::at(&dir.path().join(DISK)));
        assert_eq!(volume.usable(Some(8 << 20), 0.0).unwrap(), 8 << 20);
        std::fs::write(dir.path().join(DISK), vec![7; 4 << 20]).unwrap();
        assert_eq!(volume.usable(Some(8 << 20), 0.0).unwrap(), 8 << 20);
        volume.settle().unwrap();
        assert_eq!(std::fs::metadata(dir.path().join(DISK)).unwrap().mode() & 0o777, 0o660);
    }

    #[test]
    fn a_destination_of_another_name_is_a_device() {
        assert_eq!(Volume::at(Path::new("/data/disk.img")), Volume::Directory("/data".into()));
        assert_eq!(Volume::at(Path::new("/dev/cdi-block-volume")), Volume::Device("/dev/cdi-block-volume".into()));
    }
}
