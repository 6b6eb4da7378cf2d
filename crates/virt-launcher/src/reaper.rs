//! Ended children. QEMU leaves libvirtd for PID 1, which is this process: unless it is reaped, libvirt takes the zombie
//! for a QEMU that refuses to die.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast;

/// Pids of children that have ended, as they end.
pub(crate) type Children = broadcast::Sender<u32>;

pub(crate) fn start() -> std::io::Result<Children> {
    // In a pod this process is PID 1 anyway; elsewhere orphans must come here too.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let mut child_signals = signal(SignalKind::child())?;
    let (children, _) = broadcast::channel(64);
    let announce = children.clone();
    kit::spawn("reaper", async move {
        while child_signals.recv().await.is_some() {
            while let Ok(Some((pid, _))) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
                let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0);
                tracing::debug!(pid, "a child ended");
                // Nobody may be listening.
                let _ = announce.send(pid);
            }
        }
    })
    .detach();
    Ok(children)
}
