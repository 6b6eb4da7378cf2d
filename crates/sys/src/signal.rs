//! Ending at once when asked to: what a small PID 1 needs, since the kernel gives that one no default action.
#![allow(unsafe_code)]

use crate::{Result, call};

/// From now on SIGTERM and SIGINT end the process with status 0. For programs that hold nothing in need of care.
pub fn exit_when_asked() -> Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: all-zero is a valid sigaction; the fields that matter are set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = exit as *const () as libc::sighandler_t;
        // SAFETY: a valid action whose handler only makes an async-signal-safe call, and no place for the old one.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } < 0 {
            return Err(call("install a signal handler")(std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

extern "C" fn exit(_: libc::c_int) {
    // SAFETY: _exit is async-signal-safe and does not return.
    unsafe { libc::_exit(0) }
}
