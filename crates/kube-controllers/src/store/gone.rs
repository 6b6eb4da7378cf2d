//! The uids of objects known to be gone.

use std::collections::{HashSet, VecDeque};

/// How many are remembered: far more than there are requests under way, whose late answers are what this is for.
const REMEMBERED: usize = 4096;

/// Remembers the latest deletions. A uid is never used again, so none of them needs to be taken back.
#[derive(Default)]
pub(super) struct Gone {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

impl Gone {
    pub(super) fn insert(&mut self, uid: &str) {
        if !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }
}
