//! Descriptors that whoever started this process left open.
#![allow(unsafe_code)]

use crate::{Result, call};

/// Programs that are started from here get none of the descriptors beyond the three standard ones that are open now. What goes on in the
/// background would otherwise hold the locks and pipes of the script that started it.
pub fn end_here() -> Result<()> {
    let (first, last, flags) = (3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: takes no pointer, and closes nothing in this process.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(call("keep inherited descriptors here")(std::io::Error::last_os_error())),
    }
}
