//! SIGTERM and SIGINT become one token that everything else watches.

use tokio::signal::unix::{SignalKind, signal};
pub use tokio_util::sync::CancellationToken;

/// A token cancelled by the first SIGTERM or SIGINT.
///
/// # Errors
/// When the process may not install signal handlers.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let cancelled = token.clone();
    crate::spawn("signals", async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: shutting down"),
            _ = interrupt.recv() => tracing::info!("SIGINT: shutting down"),
        }
        cancelled.cancel();
    })
    .detach();
    Ok(token)
}
