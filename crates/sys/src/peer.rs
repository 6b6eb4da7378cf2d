//! Who is at the other end of a Unix socket, as the kernel says it, and processes that are held so that what is looked at
//! later is of the same one.
//!
//! A pid is a number that the next process may have. A descriptor of `/proc/PID` is of one process: when that has gone,
//! nothing is found beneath it any more, whoever has its number then.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::beneath::Dir;
use crate::process::Handle;
use crate::{Error, Result, at, call};

/// Bytes of a file of a process that are read: its longest has a line for each hierarchy of control groups.
const LONGEST: u64 = 64 << 10;

/// The process that connected, or that listened when asked from the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id in the PID namespace of the caller; 0 when it lives outside of it.
    pub pid: u32,
    /// User id at the time of connect or listen.
    pub uid: u32,
    /// Group id at the time of connect or listen.
    pub gid: u32,
}

/// The peer's credentials (`SO_PEERCRED`).
pub fn peer(socket: impl AsFd) -> Result<Peer> {
    // Not rustix's wrapper: that types the pid as non-zero, and it is 0 for a peer of a foreign PID namespace.
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the live structure that is pointed to.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    if answer < 0 {
        return Err(call("read the credentials of a socket's peer")(std::io::Error::last_os_error()));
    }
    Ok(Peer { pid: u32::try_from(cred.pid).unwrap_or(0), uid: cred.uid, gid: cred.gid })
}

/// A process that is held: what is read of it, and opened through it, is never another's.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    /// Its directory below /proc.
    dir: OwnedFd,
}

impl Process {
    /// The process that has `pid` now.
    pub fn open(pid: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/proc/{pid}"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&path, flags, Mode::empty()).map_err(at("open", &path))?;
        Ok(Self { pid, dir })
    }

    /// The peer of a connected socket: the process that connected, or that listened when asked from the client's side.
    ///
    /// Where the kernel does not hand out the peer itself (`SO_PEERPIDFD`, Linux 6.5), it is the process that has the
    /// peer's number, which one that began after the peer's end may be: check what it belongs to by what is read through
    /// this.
    pub fn of_peer(socket: impl AsFd) -> Result<Self> {
        let pid = peer(&socket)?.pid;
        let Some(handle) = peer_handle(&socket)? else { return Self::open(pid) };
        let process = Self::open(pid)?;
        // Alive now, it had its number all the time, and so when the directory was opened.
        if handle.has_ended()? {
            return Err(call("hold a socket's peer")(std::io::Error::from(std::io::ErrorKind::NotFound)));
        }
        Ok(process)
    }

    /// Its number, for messages.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its control groups, one for each hierarchy.
    pub fn cgroups(&self) -> Result<Vec<crate::cgroup::Membership>> {
        self.read("cgroup").map(|text| crate::cgroup::parse_memberships(&text))
    }

    /// Whether it exists. When the first process of a container is gone, the kernel has ended all of it.
    pub fn is_alive(&self) -> bool {
        self.read("stat").is_ok()
    }

    /// Whether it has begun to end. The first one of a PID namespace, whose descriptors are closed by then, stays in this
    /// state until the others have ended.
    pub fn is_ending(&self) -> Result<bool> {
        let stat = self.read("stat")?;
        parse_ending(&stat).ok_or_else(|| Error::Protocol(format!("unreadable /proc/{}/stat", self.pid)))
    }

    /// Its network namespace, which lives as long as this descriptor.
    pub fn netns(&self) -> Result<OwnedFd> {
        self.follow("ns/net", OFlags::RDONLY)
    }

    /// Its file system.
    pub fn root(&self) -> Result<Dir> {
        self.follow("root", OFlags::PATH | OFlags::DIRECTORY).map(Dir::from)
    }

    /// Opens what the kernel has put beneath the process's directory.
    fn follow(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        let opened = rustix::fs::openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(at("open", &Path::new("/proc").join(self.pid.to_string()).join(name)))
    }

    fn read(&self, name: &str) -> Result<String> {
        let mut text = String::new();
        let file = File::from(self.follow(name, OFlags::RDONLY)?);
        let path = Path::new("/proc").join(self.pid.to_string()).join(name);
        file.take(LONGEST).read_to_string(&mut text).map_err(at("read", &path))?;
        Ok(text)
    }
}

/// The peer itself (`SO_PEERPIDFD`); none where the kernel does not know the option.
fn peer_handle(socket: impl AsFd) -> Result<Option<Handle>> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the live number that is pointed to.
    let answer = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len)
    };
    if answer == 0 {
        // SAFETY: the kernel made the descriptor for this process a moment ago, and nobody else knows it.
        return Ok(Some(Handle::from(unsafe { OwnedFd::from_raw_fd(fd) })));
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::EINVAL) => Ok(None),
        _ => Err(call("hold a socket's peer")(error)),
    }
}

/// Of the kernel's interface, on all architectures that this runs on.
const SO_PEERPIDFD: libc::c_int = 77;

/// `PF_EXITING` in field 9 of `/proc/<pid>/stat`, the kernel's flags of the process.
fn parse_ending(stat: &str) -> Option<bool> {
    field(stat, 9)?.parse::<u32>().ok().map(|flags| flags & 0x4 != 0)
}

/// Fields from the third on, counted as proc(5) does: the command name in field 2 may hold blanks and parentheses.
fn field(stat: &str, number: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_pair_is_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = peer(&a).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        let process = Process::of_peer(&a).unwrap();
        assert_eq!(process.pid(), std::process::id());
        assert!(!process.cgroups().unwrap().is_empty());
        assert!(process.is_alive() && !process.is_ending().unwrap());
        assert!(process.root().unwrap().dir("proc").is_ok());
        assert!(process.netns().is_ok());
    }

    #[test]
    fn a_process_that_has_gone_leads_nowhere() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(process.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert!(process.cgroups().is_err() && process.root().is_err() && process.netns().is_err());
    }

    #[test]
    fn a_listener_that_has_ended_is_not_taken_for_its_successor() {
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        // The pair's maker is this process, which lives: it is held although the other end is closed.
        assert_eq!(Process::of_peer(&a).unwrap().pid(), std::process::id());
        let dir = std::env::temp_dir().join(format!("peer-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&dir).unwrap();
        let mut child = std::process::Command::new("python3")
            .args(["-c", "import socket,sys;s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1])"])
            .arg(&dir)
            .spawn()
            .unwrap();
        let (accepted, _) = listener.accept().unwrap();
        child.wait().unwrap();
        assert!(Process::of_peer(&accepted).is_err(), "its number may be anybody's by now");
        std::fs::remove_file(dir).unwrap();
    }

    #[test]
    fn command_names_with_parentheses() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(parse_ending(stat), Some(false));
        assert_eq!(parse_ending(&stat.replace("4194560", "4194564")), Some(true));
        assert_eq!(parse_ending("garbage"), None);
    }
}
