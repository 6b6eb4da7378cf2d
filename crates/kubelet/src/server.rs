//! The agent's HTTPS server.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{context::Context, error::Result, pods::Known};

/// Serves until `shutdown`.
pub(crate) async fn run(context: Arc<Context>, known: Known, shutdown: CancellationToken) -> Result<()> {
    let _ = (context, known);
    shutdown.cancelled().await;
    Ok(())
}
