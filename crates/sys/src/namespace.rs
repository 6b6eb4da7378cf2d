//! Namespaces: leaving them, entering them, and doing one thing in another network namespace.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{Result, at, call};

/// What [`unshare`] leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Cgroup paths: the current cgroup becomes the root of what is seen.
    Cgroup,
    /// System V IPC and POSIX message queues.
    Ipc,
    /// The mount table.
    Mount,
    /// Network devices, addresses, routes, nftables.
    Net,
    /// Process ids, of children only: the next child is PID 1.
    PidForChildren,
    /// Host name.
    Uts,
}

impl Namespace {
    fn flag(self) -> UnshareFlags {
        match self {
            Self::Cgroup => UnshareFlags::NEWCGROUP,
            Self::Ipc => UnshareFlags::NEWIPC,
            Self::Mount => UnshareFlags::NEWNS,
            Self::Net => UnshareFlags::NEWNET,
            Self::PidForChildren => UnshareFlags::NEWPID,
            Self::Uts => UnshareFlags::NEWUTS,
        }
    }
}

/// Moves the calling thread into fresh namespaces of the given kinds. Only this thread and what it forks are concerned,
/// so call it on a thread made for the purpose.
pub fn unshare(kinds: &[Namespace]) -> Result<()> {
    let flags = kinds.iter().fold(UnshareFlags::empty(), |all, kind| all | kind.flag());
    // SAFETY: the only unshare flag that breaks I/O safety is CLONE_FILES, which `Namespace` cannot express.
    unsafe { unshare_unsafe(flags) }.map_err(call("create namespaces"))
}

/// The network namespace of the calling thread, as a descriptor that keeps it alive.
pub fn current_netns() -> Result<OwnedFd> {
    open_netns(Path::new("/proc/thread-self/ns/net"))
}

/// A network namespace by path: `/proc/<pid>/ns/net` or a bind mount such as `/run/netns/<name>`.
pub fn open_netns(path: &Path) -> Result<OwnedFd> {
    File::open(path).map(OwnedFd::from).map_err(at("open network namespace", path))
}

/// Moves the calling thread into the network namespace `netns`, for good.
pub fn enter_netns(netns: BorrowedFd<'_>) -> Result<()> {
    move_into_link_name_space(netns, Some(LinkNameSpaceType::Network)).map_err(call("enter network namespace"))
}

/// Runs `work` in the network namespace `netns`, on a thread that ends with it: no other thread of the process ever
/// leaves its namespace. Sockets made by `work` belong to that namespace for as long as they live, wherever they are
/// used. Blocks the caller; a panic of `work` is passed on.
pub fn in_netns<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, move || enter_netns(netns).map(|()| work()))
            .map_err(call("start a thread"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Like [`in_netns`], by path.
pub fn in_netns_at<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T> {
    let netns = open_netns(path)?;
    in_netns(netns.as_fd(), work)
}

/// Runs `work` with `root` as the root of all paths, on a thread that ends with it: no other thread of the process sees another
/// root. What `work` starts keeps it. Blocks the caller; a panic of `work` is passed on.
pub fn in_root<T: Send>(root: &Path, work: impl FnOnce() -> T + Send) -> Result<T> {
    let enter = || {
        // SAFETY: of what threads share, only root and working directory are concerned, not the descriptors.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.map_err(call("leave the process's root"))?;
        rustix::process::chroot(root).map_err(at("make the root", root))?;
        rustix::process::chdir("/").map_err(at("enter", root))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("root".into());
        let thread = thread.spawn_scoped(scope, move || enter().map(|()| work())).map_err(call("start a thread"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_in_another_root_stays_there() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("root-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("inside")).unwrap();
        let list = || std::fs::read_dir("/").unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(in_root(&dir, list).unwrap(), ["inside"]);
        assert!(Path::new("/proc").exists() && std::env::current_dir().unwrap() != Path::new("/"));
        assert!(in_root(Path::new("/nonexistent"), || ()).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn work_in_another_network_namespace_leaves_this_one_alone() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let here = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let fresh = std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().unwrap();
        let there = in_netns(fresh.unwrap().as_fd(), || std::fs::read_link("/proc/thread-self/ns/net").unwrap());
        assert_ne!(there.unwrap(), here);
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), here);
    }

    #[test]
    fn a_path_that_is_no_namespace_is_named() {
        let error = in_netns_at(Path::new("/nonexistent/netns"), || ()).unwrap_err();
        assert_eq!(error.to_string(), "cannot open network namespace /nonexistent/netns");
    }
}
