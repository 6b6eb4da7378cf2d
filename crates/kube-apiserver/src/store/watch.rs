//! A watch: a position in a resource's ring of events. It holds no buffer, so a slow watcher costs nothing; one that
//! falls behind the ring is told so.

use std::sync::{Arc, OnceLock};

use tokio::sync::watch::Receiver;

use super::bucket::Bucket;
use super::{Gone, Object};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Created.
    Added,
    /// Updated.
    Modified,
    /// Removed.
    Deleted,
}

/// One change. `object` carries the event's revision, also when it was deleted.
#[derive(Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Revision of the change.
    pub revision: u64,
    /// The new state; for a deletion the last one.
    pub object: Arc<Object>,
    /// The state before; None for a creation.
    pub previous: Option<Arc<Object>>,
    left: OnceLock<Arc<Object>>,
}

impl Event {
    pub(super) fn new(kind: EventKind, object: Arc<Object>, previous: Option<Arc<Object>>) -> Self {
        Self { kind, revision: object.revision, object, previous, left: OnceLock::new() }
    }

    /// What a watch tells of whose selector matches the object `before` this event and `now`: an object that leaves the
    /// selector is deleted, in the last state that matched; one that enters is added.
    pub(crate) fn seen(&self, before: bool, now: bool) -> Option<(EventKind, &Arc<Object>)> {
        match (before, now, &self.previous) {
            (false, true, _) => Some((EventKind::Added, &self.object)),
            (true, true, _) => Some((EventKind::Modified, &self.object)),
            (true, false, _) if self.kind == EventKind::Deleted => Some((EventKind::Deleted, &self.object)),
            (true, false, Some(previous)) => {
                let left = self.left.get_or_init(|| Arc::new(previous.deleted_at(self.revision)));
                Some((EventKind::Deleted, left))
            }
            _ => None,
        }
    }
}

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
