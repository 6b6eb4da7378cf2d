//! A watch: a position in a resource's ring of events. It holds no buffer, so a slow watcher costs nothing; one that
//! falls behind the ring is told so.

use std::sync::Arc;

use tokio::sync::watch::Receiver;

use super::Gone;
use super::bucket::Bucket;
use super::event::Event;

/// See the module.
#[derive(Debug)]
pub struct Watch {
    bucket: Arc<Bucket>,
    namespace: Option<String>,
    position: u64,
    wake: Receiver<()>,
}

/// Events handed over at once: bounds the time the bucket is locked and the size of one chunk.
const BATCH: usize = 256;

impl Watch {
    pub(super) fn new(bucket: Arc<Bucket>, namespace: Option<&str>, from: u64) -> Result<Self, Gone> {
        let mut wake = bucket.subscribe();
        wake.mark_changed();
        bucket.check_position(from)?;
        Ok(Self { bucket, namespace: namespace.map(str::to_owned), position: from, wake })
    }

    /// Everything up to here has been handed over (or concerned other objects).
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next events, in order. Waits until there are some. Safe to cancel.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, Gone> {
        loop {
            let events = self.ready()?;
            if !events.is_empty() {
                return Ok(events);
            }
            if self.wake.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Events that are there already, possibly none; moves the position.
    pub fn ready(&mut self) -> Result<Vec<Arc<Event>>, Gone> {
        loop {
            self.wake.mark_unchanged();
            let (mut events, position) = self.bucket.events_after(self.position, BATCH)?;
            let full = events.len() == BATCH;
            self.position = position;
            if let Some(namespace) = &self.namespace {
                events.retain(|event| &*event.object.key.namespace == namespace.as_str());
            }
            if !events.is_empty() || !full {
                return Ok(events);
            }
        }
    }
}
