//! Lending a disk of an attachment pod to a launcher.
//!
//! ```text
//!   attachment pod                       virt-handler                              launcher
//!   /proc/PID/root/…/VMI-UID/VOLUME  --opened beneath it, no link-->  image: descriptor over its socket
//!   /proc/PID/root/dev/VMI-UID/VOLUME --major, minor-->               device: lent to its cgroup, node in its /dev
//! ```
//! The UID in the status of a VMI is not proof enough: whoever may write it could name the pod of somebody else. The process
//! is one of that pod by the kernel's word (rule R5), and only the attachment pods of this very VMI have anything at a path
//! with its UID, which virt-controller gives them and nobody can choose.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sys::beneath::{self, Dir};
use sys::device::Kind;
use sys::device_access::{self, Device};
use sys::peer::Process;

use super::plan::Attached;
use crate::Error;
use crate::launcher::{self, Launcher, Pods, SOCKETS, belongs};
use crate::storage::{self, ClaimedDisk, Purpose, USER};

/// Where attachment pods have volumes with a file system, below what the pod specification calls /var/run.
const MOUNTS: &str = "run/kubevirt-private/hotplug-disks";
const SOCKET: &str = "hotplug-sock";
/// The launcher answers at once, unless it is busy with its guest.
const ANSWER: Duration = Duration::from_secs(60);
const LINE_LIMIT: usize = 16 << 10;

/// What the launcher answers.
#[derive(serde::Deserialize)]
struct Answer {
    error: Option<String>,
}

/// Lends the disk of `attached` to the `launcher` of the VMI with the UID `uid`. Blocks as long as the volume does. Returns
/// a warning for the user.
pub(super) fn lend(
    pods: &Pods,
    launcher: &Launcher,
    uid: &str,
    attached: &Attached,
    disk: &ClaimedDisk,
    purpose: Purpose,
) -> Result<Option<String>, Error> {
    let words = serde_json::json!({ "volume": disk.volume(), "writable": disk.is_writable() });
    if disk.is_block() {
        device(launcher, uid, attached)?;
        say(pods, launcher, &words, &[])?;
        return Ok(None);
    }
    let opened = storage::open_image(&mounted(uid, attached)?, disk, purpose)?;
    let lent: Vec<BorrowedFd<'_>> =
        std::iter::once(&opened.image).chain(&opened.layer).map(|file| file.as_fd()).collect();
    say(pods, launcher, &words, &lent)?;
    Ok(opened.warning)
}

/// Lends the volume of `attached` itself, which the launcher writes to and the guest does not see.
pub(super) fn lend_directory(pods: &Pods, launcher: &Launcher, uid: &str, attached: &Attached) -> Result<(), Error> {
    let dir = mounted(uid, attached)?;
    let failed = || Error::disk(&attached.volume);
    let looked = |source| failed()(sys::Error::Call { op: "look at it", source });
    let reference = dir.as_fd().try_clone_to_owned().map_err(looked)?;
    let found = File::from(reference).metadata().map_err(looked)?;
    // What the cluster did not give to the pod's group, it left to root.
    if found.uid() != USER && found.gid() != USER {
        beneath::give(&dir, USER).map_err(failed())?;
    }
    let words = serde_json::json!({ "volume": attached.volume, "writable": true, "directory": true });
    say(pods, launcher, &words, &[dir.as_fd()])
}

/// The file system of the volume, as its attachment pod has it.
fn mounted(uid: &str, attached: &Attached) -> Result<Dir, Error> {
    let found = find(&attached.pod, |root| {
        let path = format!("{MOUNTS}/{uid}/{}", attached.volume);
        // In most images /var/run is a link, and none is followed here.
        root.dir(&path).or_else(|_| root.dir(format!("var/{path}"))).ok()
    });
    found.ok_or_else(|| not_there(attached))
}

fn not_there(attached: &Attached) -> Error {
    Error::NotThereYet(format!("volume {}: no process of its attachment pod {} has it", attached.volume, attached.pod))
}

fn say(pods: &Pods, launcher: &Launcher, words: &serde_json::Value, lent: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let pod = launcher.pod.as_str();
    let (stream, ..) = launcher::open_now(pods, &launcher.pod, SOCKETS, SOCKET)?;
    stream.set_nonblocking(false).map_err(Error::no_launcher(pod))?;
    stream.set_write_timeout(Some(ANSWER)).map_err(Error::no_launcher(pod))?;
    let line = format!("{words}\n");
    if lent.is_empty() {
        write(&stream, line.as_bytes()).map_err(Error::no_launcher(pod))?;
    } else {
        sys::fdpass::send(&stream, line.as_bytes(), lent).map_err(Error::no_launcher(pod))?;
    }
    let (answer, _) = sys::fdpass::receive_line_within(&stream, LINE_LIMIT, ANSWER).map_err(Error::no_launcher(pod))?;
    let answer: Answer = serde_json::from_str(&answer).map_err(Error::no_launcher(pod))?;
    answer.error.map_or(Ok(()), |error| Err(Error::Launcher(error)))
}

fn write(mut stream: &UnixStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)
}

/// Makes the device of `attached` one of the launcher's.
fn device(launcher: &Launcher, uid: &str, attached: &Attached) -> Result<(), Error> {
    let volume = &attached.volume;
    let failed = || Error::disk(volume);
    let place = format!("dev/{uid}/{volume}");
    let node = find(&attached.pod, |root| root.reference(&place).ok()).ok_or_else(|| not_there(attached))?;
    let Some(device) = block_device(node, volume)? else {
        return Err(Error::Disk(format!("volume {volume}: its disk is not a block device")));
    };
    let (root, path) = in_dev(launcher, volume)?;
    let name = Path::new("dev").join(volume);
    let there = root.reference(&name).ok().map(|there| block_device(there, volume)).transpose()?;
    if let Some(there) = there.filter(|there| *there != Some(device)) {
        let what = if there.is_some() { "another disk" } else { "something else" };
        return Err(Error::Disk(format!(
            "volume {volume}: the launcher has {what} at /dev/{volume}: choose another name"
        )));
    }
    device_access::lend(launcher.process(), device, |group| belongs(group, &launcher.pod)).map_err(failed())?;
    if there.is_none() {
        sys::device::make(&path.0, Kind::Block, device.major, device.minor, 0o660).map_err(failed())?;
        beneath::give(root.reference(&name).map_err(failed())?, USER).map_err(failed())?;
    }
    Ok(())
}

/// The device behind a node; None if it is no block device's.
fn block_device(node: OwnedFd, volume: &str) -> Result<Option<Device>, Error> {
    let looked = |source| Error::disk(volume)(sys::Error::Call { op: "look at it", source });
    let found = File::from(node).metadata().map_err(looked)?;
    let (major, minor) = sys::device::split(found.rdev());
    Ok(found.file_type().is_block_device().then_some(Device { kind: Kind::Block, major, minor }))
}

/// A path through a directory that is held open.
struct Pinned(PathBuf, #[expect(dead_code, reason = "held so that the path stays what it is")] Dir);

/// The launcher's file system, and where the node of `volume` is in its /dev.
fn in_dev(launcher: &Launcher, volume: &str) -> Result<(Dir, Pinned), Error> {
    let root = launcher.root()?;
    let dev = root.dir("dev").map_err(Error::disk(volume))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{volume}", dev.as_fd().as_raw_fd()));
    Ok((root, Pinned(path, dev)))
}

/// The device of `volume` that the launcher was lent, if it was lent one.
fn lent(launcher: &Launcher, volume: &str) -> Result<Option<(Device, Pinned)>, Error> {
    let (root, path) = in_dev(launcher, volume)?;
    let Ok(node) = root.reference(Path::new("dev").join(volume)) else { return Ok(None) };
    Ok(block_device(node, volume)?.map(|device| (device, path)))
}

/// Sees to it that the launcher may open the device of `volume` still: its container's runtime may have decided anew what it
/// may open, and knows nothing of what was lent.
pub(super) fn renew(launcher: &Launcher, volume: &str) -> Result<(), Error> {
    let Some((device, _)) = lent(launcher, volume)? else { return Ok(()) };
    let renewed = device_access::lend(launcher.process(), device, |group| belongs(group, &launcher.pod));
    renewed.map_err(Error::disk(volume))
}

/// Takes the device of `volume` from the launcher again, if it was lent one.
pub(super) fn take_back(launcher: &Launcher, volume: &str) -> Result<(), Error> {
    let Some((device, node)) = lent(launcher, volume)? else { return Ok(()) };
    let looked = |source| Error::disk(volume)(sys::Error::Call { op: "look at it", source });
    // The node is what tells the next attempt which device it was.
    let taken = device_access::take(launcher.process(), device, |group| belongs(group, &launcher.pod));
    taken.map_err(Error::disk(volume))?;
    std::fs::remove_file(&node.0).map_err(looked)
}

/// What `look` finds in the file system of a process of the pod.
fn find<T>(pod: &str, look: impl Fn(&Dir) -> Option<T>) -> Option<T> {
    let entries = std::fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| of_process(pid, pod, &look)).next()
}

fn of_process<T>(pid: u32, pod: &str, look: &impl Fn(&Dir) -> Option<T>) -> Option<T> {
    // Held: a number that another process has by then would lead into that one's files.
    let process = Process::open(pid).ok()?;
    let groups = process.cgroups().ok()?;
    if !groups.iter().any(|group| belongs(&group.path, pod)) {
        return None;
    }
    look(&process.root().ok()?)
}
