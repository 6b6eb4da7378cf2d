//! The uids of objects known to be gone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Remembers the latest deletions: as many as it is made for.
#[derive(Debug)]
pub(super) struct Gone {
    /// With whether the watch has still to tell of it.
    uids: HashMap<Arc<str>, bool>,
    order: VecDeque<Arc<str>>,
    limit: usize,
}

impl Gone {
    pub(super) fn of(limit: usize) -> Self {
        Self { uids: HashMap::new(), order: VecDeque::new(), limit }
    }

    /// `ahead`: the watch has still to tell of it.
    pub(super) fn insert(&mut self, uid: &str, ahead: bool) {
        if let Some(known) = self.uids.get_mut(uid) {
            *known &= ahead;
            return;
        }
        if uid.is_empty() {
            return;
        }
        let uid: Arc<str> = uid.into();
        self.uids.insert(uid.clone(), ahead);
        self.order.push_back(uid);
        if self.order.len() > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    /// It is there after all: the cluster was restored to a time at which it was, or it is in the watch's sight again.
    pub(super) fn remove(&mut self, uid: &str) {
        if self.uids.remove(uid).is_some() {
            self.order.retain(|gone| gone.as_ref() != uid);
        }
    }

    pub(super) fn contains(&self, uid: &str) -> bool {
        self.uids.contains_key(uid)
    }

    /// Whether the watch has told that it ended, or that it went out of sight.
    pub(super) fn is_told(&self, uid: &str) -> bool {
        self.uids.get(uid) == Some(&false)
    }
}
