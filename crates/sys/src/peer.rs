//! Who is at the other end of a Unix socket, as the kernel says it.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use crate::{Error, Result, at, call};

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

/// The text of `/proc/<pid>/cgroup`: one line for each hierarchy. The answer concerns the process that has the pid
/// now; compare [`start_time`] before and after when the pid may have been reused.
pub fn cgroups_of(pid: u32) -> Result<Vec<crate::cgroup::Membership>> {
    let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
    let text = fs::read_to_string(&path).map_err(at("read", &path))?;
    Ok(crate::cgroup::parse_memberships(&text))
}

/// Clock ticks since boot at which the process started: with the pid it names a process for good.
pub fn start_time(pid: u32) -> Result<u64> {
    read_stat(pid, parse_start_time)
}

/// Whether the process has begun to end. The first one of a PID namespace, whose descriptors are closed by then, stays in this
/// state until the others have ended.
pub fn is_ending(pid: u32) -> Result<bool> {
    read_stat(pid, parse_ending)
}

fn read_stat<T>(pid: u32, parse: fn(&str) -> Option<T>) -> Result<T> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let text = fs::read_to_string(&path).map_err(at("read", &path))?;
    parse(&text).ok_or_else(|| Error::Protocol(format!("unreadable {}", path.display())))
}

/// Field 22 of `/proc/<pid>/stat`.
pub fn parse_start_time(stat: &str) -> Option<u64> {
    field(stat, 22)?.parse().ok()
}

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
        assert!(!cgroups_of(peer.pid).unwrap().is_empty());
        assert!(start_time(peer.pid).unwrap() > 0);
        assert!(!is_ending(peer.pid).unwrap());
    }

    #[test]
    fn command_names_with_parentheses() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(parse_start_time(stat), Some(4242));
        assert_eq!(parse_ending(stat), Some(false));
        assert_eq!(parse_ending(&stat.replace("4194560", "4194564")), Some(true));
        assert_eq!(parse_start_time("garbage"), None);
    }
}
