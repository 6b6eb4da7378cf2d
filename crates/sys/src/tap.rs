//! Persistent tap devices: made by the privileged side, opened later by an unprivileged owner.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::{Error, Result, at, call};

/// Creates the tap `name` in the calling thread's network namespace, owned by `owner` (uid and gid), or finds the one
/// that is there. It stays until the namespace ends or the link is deleted. `device` is the tun device, usually
/// `/dev/net/tun`. With `multi_queue` it may be opened once for each queue.
pub fn ensure(device: &Path, name: &str, owner: u32, multi_queue: bool) -> Result<()> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ || bytes.contains(&0) {
        return Err(Error::Protocol(format!("{name:?} is not a name for a network interface")));
    }
    let fd: OwnedFd =
        rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(at("open", device))?;
    // SAFETY: `ifreq` is plain data for which all-zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which is live and exclusively borrowed.
    check("create a tap device", unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    // SAFETY: the three calls below take an integer by value.
    check("set a tap's owner", unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOWNER, libc::c_ulong::from(owner)) })?;
    // SAFETY: as above.
    check("set a tap's group", unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETGROUP, libc::c_ulong::from(owner)) })?;
    // SAFETY: as above.
    check("keep a tap device", unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST, 1 as libc::c_ulong) })
}

fn check(op: &'static str, answer: libc::c_int) -> Result<()> {
    if answer < 0 { Err(call(op)(std::io::Error::last_os_error())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for name in ["", "a-name-that-is-too-long", "nul\0"] {
            assert!(matches!(ensure(Path::new("/dev/null"), name, 107, false), Err(Error::Protocol(_))), "{name:?}");
        }
    }
}
