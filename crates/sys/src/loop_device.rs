//! Loop devices: a block device whose blocks are a file's.
//!
//! A device is found by the file behind it (device and inode number), so whoever starts anew finds what an earlier life
//! attached, whatever the paths look like from where it runs.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::device::{self, Kind};
use crate::{Result, at, call};

const MAJOR: u32 = 7;
const CONTROL: (u32, u32) = (10, 237);
const GET_FREE: libc::Ioctl = 0x4C82;
const CONFIGURE: libc::Ioctl = 0x4C0A;
const CLEAR: libc::Ioctl = 0x4C01;
const GET_STATUS: libc::Ioctl = 0x4C05;
const SET_CAPACITY: libc::Ioctl = 0x4C07;
const DIRECT_IO: u32 = 16;
/// How often another free device is asked for, when somebody else was quicker.
const TRIES: u32 = 64;

/// `struct loop_info64` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const EMPTY: Info = Info {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// The loop device of `file`: the one that is attached, or a free one that now is. Returns its path in `dev`, where its
/// node is made if it is missing.
pub fn attach(file: &File, dev: &Path) -> Result<PathBuf> {
    if let Some(found) = find(file, dev)? {
        return Ok(found);
    }
    let control = node(dev, "loop-control", Kind::Char, CONTROL.0, CONTROL.1)?;
    let control = open(&control)?;
    let mut last = None;
    for _ in 0..TRIES {
        // SAFETY: the call takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
        let Ok(number) = u32::try_from(number) else {
            return Err(call("get a free loop device")(std::io::Error::last_os_error()));
        };
        let path = node(dev, &format!("loop{number}"), Kind::Block, MAJOR, number)?;
        let device = open(&path)?;
        // Without the page cache of its own, where the file's file system can.
        for flags in [DIRECT_IO, 0] {
            let config = Config {
                fd: file.as_raw_fd().cast_unsigned(),
                block_size: 0,
                info: Info { flags, ..EMPTY },
                reserved: [0; 8],
            };
            // SAFETY: CONFIGURE reads one `loop_config`, which is live.
            if unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) } == 0 {
                return Ok(path);
            }
            let error = std::io::Error::last_os_error();
            let busy = error.raw_os_error() == Some(libc::EBUSY);
            last = Some(error);
            if busy {
                break;
            }
        }
        if last.as_ref().and_then(std::io::Error::raw_os_error) != Some(libc::EBUSY) {
            break;
        }
    }
    Err(call("attach a loop device")(last.unwrap_or_else(|| std::io::ErrorKind::ResourceBusy.into())))
}

/// The loop device that `file` is attached to, if it is to one.
pub fn find(file: &File, dev: &Path) -> Result<Option<PathBuf>> {
    let meta = file.metadata().map_err(call("inspect a file"))?;
    for number in attached()? {
        let path = node(dev, &format!("loop{number}"), Kind::Block, MAJOR, number)?;
        // It may be detached while we look.
        let Ok(device) = open(&path) else { continue };
        if status(&device).is_some_and(|info| info.device == meta.dev() && info.inode == meta.ino()) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Detaches the file's loop device, if it has one: at once, or when the last who has it open closes it.
pub fn detach(file: &File, dev: &Path) -> Result<()> {
    let Some(path) = find(file, dev)? else { return Ok(()) };
    clear(&path)
}

/// Detaches the loop devices of all files below `dir`: they end with no process, so what made them may be gone.
pub fn detach_below(dir: &Path, dev: &Path) -> Result<()> {
    let Ok(meta) = std::fs::metadata(dir) else { return Ok(()) };
    let mut inodes = BTreeMap::new();
    for number in attached()? {
        let path = node(dev, &format!("loop{number}"), Kind::Block, MAJOR, number)?;
        let Ok(device) = open(&path) else { continue };
        if let Some(info) = status(&device).filter(|info| info.device == meta.dev()) {
            inodes.insert(info.inode, path);
        }
    }
    // Nearly always there is none, and then nothing is looked for.
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop().filter(|_| !inodes.is_empty()) {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if let Some(path) = inodes.remove(&entry.ino()) {
                clear(&path)?;
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
            }
        }
    }
    Ok(())
}

/// Detaches the device at `path`; not being attached is not an error.
fn clear(path: &Path) -> Result<()> {
    let device = open(path)?;
    // SAFETY: the call takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), CLEAR, 0) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        error => Err(at("detach", path)(error)),
    }
}

/// Makes the device as large as its file has become.
pub fn follow_size(path: &Path) -> Result<()> {
    let device = open(path)?;
    // SAFETY: the call takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), SET_CAPACITY, 0) } == 0 {
        return Ok(());
    }
    Err(at("grow", path)(std::io::Error::last_os_error()))
}

fn status(device: &File) -> Option<Info> {
    let mut info = EMPTY;
    // SAFETY: GET_STATUS writes one `loop_info64`, which is live and exclusively borrowed.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS, &raw mut info) };
    (answer == 0).then_some(info)
}

/// The numbers of the devices that have a file.
fn attached() -> Result<Vec<u32>> {
    let dir = Path::new("/sys/block");
    let entries = std::fs::read_dir(dir).map_err(at("list", dir))?;
    let numbers = entries.flatten().filter(|entry| entry.path().join("loop/backing_file").exists());
    Ok(numbers.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok()).collect())
}

/// The path of a device node, which is made when a /dev that nobody manages lacks it.
fn node(dev: &Path, name: &str, kind: Kind, major: u32, minor: u32) -> Result<PathBuf> {
    let path = dev.join(name);
    if device::numbers(&path) != Some((kind, major, minor)) {
        device::make(&path, kind, major, minor, 0o600)?;
    }
    Ok(path)
}

fn open(path: &Path) -> Result<File> {
    File::options().read(true).write(true).open(path).map_err(at("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    /// A device goes when the last who has it open lets go of it, and a child of another test has it until it runs its program.
    #[track_caller]
    fn gone(file: &File, dev: &Path) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Some(device) = find(file, dev).unwrap() {
            assert!(Instant::now() < deadline, "{} stays", device.display());
            crate::process::pause(Duration::from_millis(5));
        }
    }

    /// Needs root and loop devices, which every machine that runs the rest has.
    #[test]
    fn a_file_becomes_a_device_and_grows() {
        let dir = std::env::temp_dir().join(format!("loop-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = File::options().read(true).write(true).create(true).truncate(true).open(dir.join("f")).unwrap();
        file.set_len(1 << 20).unwrap();
        let device = attach(&file, &dir).unwrap();
        assert_eq!(attach(&file, &dir).unwrap(), device, "a file has one device");
        File::options().write(true).open(&device).unwrap().write_all(b"written").unwrap();
        rustix::fs::sync();
        let mut text = [0; 7];
        File::open(dir.join("f")).unwrap().read_exact(&mut text).unwrap();
        assert_eq!(&text, b"written");
        file.set_len(2 << 20).unwrap();
        follow_size(&device).unwrap();
        let name = device.file_name().unwrap().to_str().unwrap().to_owned();
        let sectors = std::fs::read_to_string(format!("/sys/block/{name}/size")).unwrap();
        assert_eq!(sectors.trim(), "4096");
        detach(&file, &dir).unwrap();
        gone(&file, &dir);
        detach(&file, &dir).unwrap();
        attach(&file, &dir).unwrap();
        std::fs::create_dir(dir.join("other")).unwrap();
        detach_below(&dir.join("other"), &dir).unwrap();
        assert!(find(&file, &dir).unwrap().is_some());
        detach_below(&dir, &dir).unwrap();
        gone(&file, &dir);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
