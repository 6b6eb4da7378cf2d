//! The processes that the cluster on this machine is made of: found by their number, held while they end.

use std::time::Duration;

use sys::process::Handle;

/// How long the control plane may take to end by itself, and anything else to end when killed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The process of that number, if it is there.
///
/// # Errors
/// When /proc cannot be read.
pub(crate) fn open(pid: Option<u32>) -> anyhow::Result<Option<Handle>> {
    Ok(pid.map(Handle::open).transpose()?.flatten())
}

/// Waits until `process`, which was told to, has ended.
///
/// # Errors
/// When it does not.
pub(crate) fn end(process: &Handle, what: &str) -> anyhow::Result<()> {
    anyhow::ensure!(process.ended_within(PATIENCE)?, "{what} does not end: a process in it is stuck in the kernel");
    Ok(())
}

/// Whether the process runs the same file as this one; a rebuilt program is another file.
pub(crate) fn is_this_program(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: String| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    id(format!("/proc/{pid}/exe")) == id("/proc/self/exe".to_owned())
}
