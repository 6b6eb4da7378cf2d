//! How far an import has come, read by whoever reports it while the import runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters that the import moves and others read. The same one serves a second attempt: it starts again at zero.
#[derive(Debug, Default)]
pub struct Progress {
    fetched: AtomicU64,
    written: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
    accepted: AtomicBool,
    cancelled: AtomicBool,
}

impl Progress {
    /// Bytes that came from the source, those included that came twice.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// Bytes written to the target. What is zero is not written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes of the source that are dealt with, fetched or found to be of no interest: of [`total`](Self::total).
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Bytes of the source, once they are known.
    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }

    /// From 0 to 1, where the size of the source is known.
    pub fn fraction(&self) -> Option<f64> {
        self.total().map(|total| (self.done() as f64 / total as f64).min(1.0))
    }

    /// Whether the image was looked at, and is one that can be imported as far as its beginning tells.
    pub fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }

    /// Ends the import at its next step.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Starts again at zero, as an import does by itself when it begins.
    pub fn reset(&self) {
        self.begin(None);
    }

    pub(crate) fn begin(&self, total: Option<u64>) {
        for counter in [&self.fetched, &self.written, &self.done] {
            counter.store(0, Ordering::Relaxed);
        }
        self.accepted.store(false, Ordering::Release);
        self.total.store(total.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn accept(&self) {
        self.accepted.store(true, Ordering::Release);
    }

    pub(crate) fn add_fetched(&self, bytes: u64) {
        self.fetched.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_done(&self, bytes: u64) {
        self.done.fetch_max(bytes, Ordering::Relaxed);
    }
}
