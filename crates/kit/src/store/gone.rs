//! The uids of objects known to be gone.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Remembers the latest deletions: as many as it is made for.
#[derive(Debug)]
pub(super) struct Gone {
    uids: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
    limit: usize,
}

impl Gone {
    pub(super) fn of(limit: usize) -> Self {
        Self { uids: HashSet::new(), order: VecDeque::new(), limit }
    }

    pub(super) fn insert(&mut self, uid: &str) {
        if uid.is_empty() || self.uids.contains(uid) {
            return;
        }
        let uid: Arc<str> = uid.into();
        self.uids.insert(uid.clone());
        self.order.push_back(uid);
        if self.order.len() > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    /// It is there after all: the cluster was restored to a time at which it was.
    pub(super) fn remove(&mut self, uid: &str) {
        if self.uids.remove(uid) {
            self.order.retain(|gone| gone.as_ref() != uid);
        }
    }

    pub(super) fn contains(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }
}
