//! One change of one object, as watches tell of it.

use std::sync::{Arc, OnceLock};

use super::object::{EventKind, Object};

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
    #[inline]
    pub fn seen(&self, before: bool, now: bool) -> Option<(EventKind, &Arc<Object>)> {
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
