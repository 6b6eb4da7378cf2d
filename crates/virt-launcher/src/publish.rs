//! What the launcher tells: the newest state, numbered, and whether anybody has read the last one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpc::launcher::DomainState;
use tokio::sync::{Notify, watch};

/// Set by the driver only.
pub(crate) struct Publisher {
    state: watch::Sender<DomainState>,
    read: Arc<Read>,
}

/// Shared by all readers.
#[derive(Clone)]
pub(crate) struct Published {
    state: watch::Receiver<DomainState>,
    read: Arc<Read>,
}

#[derive(Default)]
struct Read {
    sequence: AtomicU64,
    changed: Notify,
}

pub(crate) fn channel() -> (Publisher, Published) {
    let first = DomainState { version: env!("CARGO_PKG_VERSION").to_owned(), ..DomainState::default() };
    let (sender, receiver) = watch::channel(first);
    let read = Arc::new(Read::default());
    (Publisher { state: sender, read: read.clone() }, Published { state: receiver, read })
}

impl Publisher {
    /// Changes the state; a change that changes nothing is not published.
    pub(crate) fn update(&self, change: impl FnOnce(&mut DomainState)) {
        self.state.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            if *state == before {
                return false;
            }
            state.sequence = before.sequence + 1;
            true
        });
    }

    pub(crate) fn get(&self) -> DomainState {
        self.state.borrow().clone()
    }

    /// Returns when the newest state has been handed to a reader.
    pub(crate) async fn newest_was_read(&self) {
        loop {
            let changed = self.read.changed.notified();
            if self.read.sequence.load(Ordering::Acquire) >= self.state.borrow().sequence {
                return;
            }
            changed.await;
        }
    }
}

impl Published {
    pub(crate) fn get(&self) -> DomainState {
        self.state.borrow().clone()
    }

    /// The state now, then each newer one. `None` when the driver is gone.
    pub(crate) async fn next(&mut self, first: bool) -> Option<DomainState> {
        if !first {
            self.state.changed().await.ok()?;
        }
        Some(self.state.borrow_and_update().clone())
    }

    /// A reader has this one: it was written to its stream.
    pub(crate) fn was_read(&self, sequence: u64) {
        self.read.sequence.fetch_max(sequence, Ordering::AcqRel);
        self.read.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_changes_are_numbered() {
        let (publisher, mut published) = channel();
        assert_eq!(published.next(true).await.unwrap().sequence, 0);
        publisher.update(|state| state.status = "Running".to_owned());
        publisher.update(|state| state.status = "Running".to_owned());
        let state = published.next(false).await.unwrap();
        assert_eq!((state.sequence, state.status.as_str()), (1, "Running"));
        published.was_read(1);
        publisher.newest_was_read().await;
    }
}
