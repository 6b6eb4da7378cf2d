//! Whole Ethernet frames on a link.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Result, call};

/// Sends a frame on the link of this index in the calling thread's network namespace.
pub fn send(index: u32, frame: &[u8]) -> Result<()> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(call("open a packet socket")(std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: zeroes are a valid address of this plain structure.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = i32::try_from(index).unwrap_or(-1);
    to.sll_halen = 6;
    // SAFETY: both pointers are to live values of the lengths given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if sent < 0 {
        return Err(call("send a frame")(std::io::Error::last_os_error()));
    }
    Ok(())
}
