//! A block device as the volume of a pool: it gets a file system once, and is mounted with quotas where the kernel
//! keeps them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::mount::MountFlags;
use sys::mount;

use crate::Error;

/// The kind of file system that is made.
const KIND: &str = "ext4";
/// The program that makes it, with quotas of projects and without.
const MAKE: &str = "mke2fs";
const WITH_QUOTAS: [&str; 4] = ["-O", "quota,project", "-E", "quotatype=prjquota"];
/// How it is mounted, the first way that the kernel takes.
const OPTIONS: [&str; 2] = ["prjquota", ""];
/// Where ext4 says that it is one, and how.
const MAGIC: (u64, [u8; 2]) = (0x438, [0x53, 0xEF]);
/// So much at the beginning of a device has to be zero for it to hold nothing.
const BEGINNING: usize = 1 << 20;

/// What a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Nothing,
    FileSystem,
    Strange,
}

/// Mounts the device at `target`, unless an earlier life did. A device that holds nothing gets a file system before;
/// one that
/// holds anything else is left as it is.
pub(super) fn mount(device: &Path, target: &Path) -> Result<(), Error> {
    if is_mounted(device, target).map_err(Error::file("look at", target))? {
        return Ok(());
    }
    match content(device).map_err(Error::file("read", device))? {
        Content::FileSystem => mount_any(device, target),
        Content::Nothing => {
            make(device, &WITH_QUOTAS)?;
            // A kernel that keeps no quotas does not mount what has them.
            mount_any(device, target).or_else(|_| {
                make(device, &["-F"])?;
                mount_any(device, target)
            })
        }
        Content::Strange => Err(Error::Argument(format!(
            "the volume of the pool, {}, holds something that is no {KIND} file system: empty it, or use another claim",
            device.display()
        ))),
    }
}

fn mount_any(device: &Path, target: &Path) -> Result<(), Error> {
    let from = device.display().to_string();
    let mut refused = None;
    for options in OPTIONS {
        match mount::mount(KIND, &from, target, MountFlags::empty(), options) {
            Ok(()) => {
                tracing::info!(target = %target.display(), options, "the pool's device is mounted");
                return Ok(());
            }
            Err(error) => refused = Some(error),
        }
    }
    refused.map_or(Ok(()), |error| Err(Error::Kernel(error)))
}

/// Whether the device's file system is at `target`.
fn is_mounted(device: &Path, target: &Path) -> io::Result<bool> {
    let device = std::fs::metadata(device)?;
    Ok(device.file_type().is_block_device() && std::fs::metadata(target)?.dev() == device.rdev())
}

fn content(device: &Path) -> io::Result<Content> {
    let device = File::open(device)?;
    let mut magic = [0; 2];
    device.read_exact_at(&mut magic, MAGIC.0)?;
    if magic == MAGIC.1 {
        return Ok(Content::FileSystem);
    }
    let mut beginning = vec![0; BEGINNING];
    device.read_exact_at(&mut beginning, 0)?;
    Ok(if beginning.iter().all(|byte| *byte == 0) { Content::Nothing } else { Content::Strange })
}

fn make(device: &Path, words: &[&str]) -> Result<(), Error> {
    let made = Command::new(MAKE).args(["-q", "-t", KIND]).args(words).arg(device).output();
    let made = made.map_err(Error::file("run mke2fs on", device))?;
    if made.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&made.stderr).trim().to_owned();
    Err(Error::Argument(format!("{MAKE} makes no file system on {}: {why}", device.display())))
}

#[cfg(test)]
mod tests {
    use sys::loop_device;

    use super::*;

    #[test]
    fn a_device_gets_a_file_system_once_and_keeps_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        let target = dir.path().join("pool");
        std::fs::create_dir(&target).unwrap();
        let device = loop_device::attach(&file, Path::new("/dev")).unwrap();
        for _ in 0..2 {
            // A second life finds the mount of the first.
            mount(&device, &target).unwrap();
            assert!(is_mounted(&device, &target).unwrap());
        }
        std::fs::write(target.join("f"), "kept").unwrap();
        mount::detach(&target).unwrap();
        assert!(!target.join("f").exists());
        mount(&device, &target).unwrap();
        assert_eq!(std::fs::read_to_string(target.join("f")).unwrap(), "kept");
        mount::detach(&target).unwrap();
        loop_device::detach(&file, Path::new("/dev")).unwrap();
    }

    #[test]
    fn devices_with_foreign_content_are_not_formatted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [b"LUKS\xba\xbe".as_slice(), &[0; 2 << 20]].concat()).unwrap();
        assert_eq!(content(&path).unwrap(), Content::Strange);
        let refused = mount(&path, dir.path()).unwrap_err().to_string();
        assert!(refused.contains("holds something that is no ext4 file system: empty it"), "{refused}");
        std::fs::write(&path, vec![0; 2 << 20]).unwrap();
        assert_eq!(content(&path).unwrap(), Content::Nothing);
    }
}
