//! The volumes of an export: where they are mounted, and at which paths they are served.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use sys::beneath::Dir;

/// The name of a disk in a volume that is a file system.
const DISK: &str = "disk.img";
const PATH: &str = "_EXPORT_PATH";

/// A volume, and the paths that lead to it; one that is not offered is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// The directory, or the device.
    pub path: PathBuf,
    /// Of the disk as it is.
    pub raw: String,
    /// Of the disk, compressed.
    pub gzip: String,
    /// Of the files.
    pub dir: String,
    /// Of the archive of the files.
    pub archive: String,
}

/// The volumes that the variables of an environment name: `VOLUME0_EXPORT_PATH` and those that begin like it.
pub fn of_environment(variables: impl Iterator<Item = (String, String)>) -> Vec<Volume> {
    let all: BTreeMap<String, String> = variables.collect();
    let named = all.iter().filter_map(|(name, value)| Some((name.strip_suffix(PATH)?, value)));
    let volumes = named.map(|(prefix, path)| {
        let uri = |form: &str| all.get(&format!("{prefix}_EXPORT_{form}_URI")).cloned().unwrap_or_default();
        Volume { path: path.into(), raw: uri("RAW"), gzip: uri("RAW_GZIP"), dir: uri("DIR"), archive: uri("ARCHIVE") }
    });
    volumes.collect()
}

/// A disk, opened.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) file: File,
    pub(super) size: u64,
    /// Differs between disks, and between what one disk has held.
    pub(super) tag: String,
}

impl Volume {
    /// Whether it can be read at all.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self) -> io::Result<()> {
        if self.path.is_dir() { std::fs::read_dir(&self.path).map(drop) } else { File::open(&self.path).map(drop) }
    }

    /// The volume's disk. Whatever a guest made of its volume: no link is followed, and only a file or a device is a disk.
    pub(super) fn open(&self) -> io::Result<Disk> {
        if self.path.is_dir() {
            let file = Dir::open(&self.path).and_then(|dir| dir.read(DISK)).map_err(plain)?;
            let found = file.metadata()?;
            if !found.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "disk.img is not a file"));
            }
            let tag = format!("{:x}-{:x}-{:x}.{:x}", found.ino(), found.size(), found.mtime(), found.mtime_nsec());
            return Ok(Disk { size: found.len(), file, tag });
        }
        let file = File::open(&self.path)?;
        let found = file.metadata()?;
        if !found.file_type().is_block_device() && !found.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the volume is neither a directory nor a device"));
        }
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        // A device does not say when it was written last. Nobody writes it while this process has it.
        let tag = format!("{:x}-{size:x}-{:x}", found.rdev(), started());
        Ok(Disk { file, size, tag })
    }
}

/// The kernel's answer alone: which file it was, the request says.
pub(super) fn plain(error: sys::Error) -> io::Error {
    match error {
        sys::Error::Path { source, .. } | sys::Error::Call { source, .. } => source,
        other @ sys::Error::Protocol(_) => io::Error::other(other),
    }
}

/// A number that differs between processes.
fn started() -> u128 {
    static NUMBER: std::sync::OnceLock<u128> = std::sync::OnceLock::new();
    *NUMBER.get_or_init(|| {
        let mut bytes = [0; 16];
        let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
        filled.map_or(0, |()| u128::from_ne_bytes(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_by_variables() {
        let of = |all: &[(&str, &str)]| {
            of_environment(all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        let found = of(&[
            ("VOLUME0_EXPORT_PATH", "/export-volumes/a"),
            ("VOLUME0_EXPORT_RAW_URI", "/volumes/a/disk.img"),
            ("VOLUME0_EXPORT_RAW_GZIP_URI", "/volumes/a/disk.img.gz"),
            ("VOLUME1_EXPORT_PATH", "/export-volumes/b"),
            ("VOLUME1_EXPORT_DIR_URI", "/volumes/b/dir/"),
            ("VOLUME1_EXPORT_ARCHIVE_URI", "/volumes/b/disk.tar.gz"),
            ("PATH", "/bin"),
        ]);
        let a = Volume {
            path: "/export-volumes/a".into(),
            raw: "/volumes/a/disk.img".into(),
            gzip: "/volumes/a/disk.img.gz".into(),
            ..Volume::default()
        };
        let b = Volume {
            path: "/export-volumes/b".into(),
            dir: "/volumes/b/dir/".into(),
            archive: "/volumes/b/disk.tar.gz".into(),
            ..Volume::default()
        };
        assert_eq!(found, [a, b]);
        assert_eq!(of(&[("HOME", "/")]), []);
    }

    #[test]
    fn a_link_is_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume { path: dir.path().join("volume"), ..Volume::default() };
        std::fs::create_dir(&volume.path).unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        assert_eq!(volume.open().unwrap_err().kind(), io::ErrorKind::NotFound);
        std::os::unix::fs::symlink("../secret", volume.path.join(DISK)).unwrap();
        volume.open().unwrap_err();
        std::fs::remove_file(volume.path.join(DISK)).unwrap();
        std::fs::write(volume.path.join(DISK), "disk").unwrap();
        let first = volume.open().unwrap();
        assert_eq!(first.size, 4);
        std::fs::write(volume.path.join(DISK), "disks").unwrap();
        assert_ne!(volume.open().unwrap().tag, first.tag);
    }
}
