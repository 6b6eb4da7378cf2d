//! Spawning: every task has a name in the trace and somebody who holds it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument;

/// A running task. Dropping it ends the task; [`Task::detach`] lets it live as long as the process.
#[must_use = "dropping a task ends it; await it, keep it, or detach it"]
pub struct Task<T> {
    handle: Option<JoinHandle<T>>,
}

/// Starts `future` as a task whose log lines carry `name`.
pub fn spawn<T, F>(name: &'static str, future: F) -> Task<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let span = tracing::info_span!("task", name);
    #[expect(clippy::disallowed_methods, reason = "this is what everything else is to call")]
    let handle = tokio::spawn(future.instrument(span));
    Task { handle: Some(handle) }
}

impl<T> Task<T> {
    /// Lets the task run on without its handle.
    pub fn detach(mut self) {
        self.handle = None;
    }

    /// Ends the task at its next await point.
    pub fn abort(&self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }

    /// True once the task has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.handle {
            Some(handle) => Pin::new(handle).poll(cx),
            None => Poll::Pending,
        }
    }
}
