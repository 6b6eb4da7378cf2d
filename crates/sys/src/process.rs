//! Processes: reaping as an init does, killing what has gone astray, waiting on descriptors instead of polling.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::{Error, Result, call};

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its pid.
    pub pid: u32,
    /// Exit code, or 128 plus the signal that ended it.
    pub code: i32,
}

/// Waits for any child of this process to end and reaps it; None when there is no child at all. An init lives in this.
/// Not to be mixed with `std::process::Child::wait` or tokio's children in the same process.
pub fn reap() -> Result<Option<Exit>> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
                if let (Some(code), Ok(pid)) = (code, u32::try_from(Pid::as_raw(Some(pid)))) {
                    return Ok(Some(Exit { pid, code }));
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(None),
            Err(errno) => return Err(call("wait for a child")(errno)),
        }
    }
}

/// A hold on a process that a reused pid cannot deceive.
#[derive(Debug)]
pub struct Handle {
    fd: OwnedFd,
}

impl Handle {
    /// The process that has `pid` now; None when there is none.
    pub fn open(pid: u32) -> Result<Option<Self>> {
        let pid =
            i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| Error::Protocol(format!("pid {pid}")))?;
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self { fd })),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(errno) => Err(call("open a process")(errno)),
        }
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> Result<bool> {
        self.ended_within(Duration::ZERO)
    }

    /// Asks it to end.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Tells it that the power is about to go.
    pub fn power_fails(&self) -> Result<()> {
        self.signal(Signal::POWER)
    }

    /// Ends it. The death of the init of a PID namespace is the death of everything in it.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match rustix::process::pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(call("signal a process")(errno)),
        }
    }

    /// Whether the process ended within `limit`.
    pub fn ended_within(&self, limit: Duration) -> Result<bool> {
        let timeout = timespec(limit);
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(count) => return Ok(count > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(call("wait for a process")(errno)),
            }
        }
    }
}

/// The children of a process, as far as they can be seen.
pub fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_of(&stat) == Some(parent))
    };
    pids.filter(of).collect()
}

/// The command's name, which comes before, is in parentheses and may itself hold any character.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Does nothing for `duration`, on this thread: for an init, which has no async runtime to wait in.
pub fn pause(duration: Duration) {
    let timeout = timespec(duration);
    while rustix::event::poll(&mut [], Some(&timeout)) == Err(rustix::io::Errno::INTR) {}
}

impl From<OwnedFd> for Handle {
    /// Of a descriptor of a process that the kernel gave.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Starts a session of its own, so that the terminal's signals and its end pass this process by.
pub fn detach_from_terminal() -> Result<()> {
    rustix::process::setsid().map(|_| ()).map_err(call("start a session"))
}

/// Raises the limit of open files to its hard maximum.
pub fn raise_open_files() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).map_err(call("raise the limit of open files"))
}

/// Sets the host name of this UTS namespace.
pub fn set_hostname(name: &str) -> Result<()> {
    rustix::system::sethostname(name.as_bytes()).map_err(call("set the host name"))
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_sees_the_end() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap().unwrap();
        assert!(!handle.ended_within(Duration::ZERO).unwrap());
        handle.kill().unwrap();
        assert!(handle.ended_within(Duration::from_secs(5)).unwrap());
        child.wait().unwrap();
        handle.kill().unwrap();
        assert!(Handle::open(child.id()).unwrap().is_none());
    }
}
