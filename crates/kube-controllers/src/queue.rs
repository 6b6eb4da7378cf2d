//! A work queue of keys: a key waits at most once, is never worked on twice at a time, and failures back off.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::Error;

/// What is left to do after a key was worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A change of some object will wake us.
    OnChange,
    /// Also look again after this time.
    After(Duration),
}

struct State<T> {
    ready: VecDeque<T>,
    waiting: HashSet<T>,
    working: HashSet<T>,
    delayed: BTreeMap<(Instant, u64), T>,
    delayed_at: HashMap<T, (Instant, u64)>,
    failures: HashMap<T, u32>,
    sequence: u64,
}

/// The queue of one controller.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    bell: Notify,
    /// The first and the longest pause after failures.
    pauses: (Duration, Duration),
}

const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// The pauses of work done by others, who may be slow to recover: a storage driver.
const PATIENT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

impl<T: Clone + Eq + Hash> Queue<T> {
    pub(crate) fn new() -> Self {
        Self::pausing((FIRST_RETRY, LAST_RETRY))
    }

    /// A queue that pauses longer after failures.
    pub(crate) fn patient() -> Self {
        Self::pausing(PATIENT)
    }

    fn pausing(pauses: (Duration, Duration)) -> Self {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            working: HashSet::new(),
            delayed: BTreeMap::new(),
            delayed_at: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
        };
        Self { state: Mutex::new(state), bell: Notify::new(), pauses }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `key` worked on as soon as possible.
    pub(crate) fn push(&self, key: T) {
        let mut state = self.lock();
        if state.waiting.insert(key.clone()) && !state.working.contains(&key) {
            state.ready.push_back(key);
            drop(state);
            self.bell.notify_one();
        }
    }

    /// Has `key` worked on after `delay`, or earlier when it was already due earlier.
    pub(crate) fn push_after(&self, key: T, delay: Duration) {
        let mut state = self.lock();
        state.sequence += 1;
        let due = (Instant::now() + delay, state.sequence);
        match state.delayed_at.get(&key) {
            Some(earlier) if *earlier <= due => return,
            Some(later) => {
                let later = *later;
                state.delayed.remove(&later);
            }
            None => {}
        }
        state.delayed_at.insert(key.clone(), due);
        state.delayed.insert(due, key);
        drop(state);
        self.bell.notify_one();
    }

    /// Moves what is due; the next due time otherwise.
    fn take(&self) -> Result<T, Option<Instant>> {
        let mut state = self.lock();
        let now = Instant::now();
        while let Some(entry) = state.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            state.delayed_at.remove(&key);
            if state.waiting.insert(key.clone()) && !state.working.contains(&key) {
                state.ready.push_back(key);
            }
        }
        match state.ready.pop_front() {
            Some(key) => {
                state.waiting.remove(&key);
                state.working.insert(key.clone());
                Ok(key)
            }
            None => Err(state.delayed.first_key_value().map(|((due, _), _)| *due)),
        }
    }

    async fn next(&self) -> T {
        loop {
            let due = match self.take() {
                Ok(key) => return key,
                Err(due) => due,
            };
            match due {
                Some(due) => {
                    let _ = tokio::time::timeout_at(due, self.bell.notified()).await;
                }
                None => self.bell.notified().await,
            }
        }
    }

    fn done(&self, key: T, outcome: Result<Wake, ()>) {
        let delay = {
            let mut state = self.lock();
            state.working.remove(&key);
            if state.waiting.contains(&key) {
                state.ready.push_back(key.clone());
                self.bell.notify_one();
            }
            match outcome {
                Ok(wake) => {
                    state.failures.remove(&key);
                    match wake {
                        Wake::OnChange => None,
                        Wake::After(delay) => Some(delay),
                    }
                }
                Err(()) => {
                    let count = state.failures.entry(key.clone()).or_default();
                    *count += 1;
                    let (first, last) = self.pauses;
                    Some(first.saturating_mul(1 << (*count - 1).min(16)).min(last))
                }
            }
        };
        if let Some(delay) = delay {
            self.push_after(key, delay);
        }
    }

    /// Works on keys for ever, `width` at a time.
    pub(crate) async fn work<F, Fut>(&self, name: &'static str, width: usize, reconcile: F)
    where
        T: std::fmt::Debug,
        F: Fn(T) -> Fut,
        Fut: Future<Output = Result<Wake, Error>>,
    {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                key = self.next(), if running.len() < width => {
                    let work = reconcile(key.clone());
                    running.push(async move { (key, work.await) });
                }
                Some((key, outcome)) = running.next(), if !running.is_empty() => {
                    if let Err(error) = &outcome {
                        // Somebody else wrote first: the watch brings the news and the retry finds it.
                        if error.code() == 409 {
                            tracing::debug!(controller = name, ?key, error = error.chain(), "conflict");
                        } else {
                            tracing::warn!(controller = name, ?key, error = error.chain(), "will retry");
                        }
                    }
                    self.done(key, outcome.map_err(|_| ()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_not_beside_itself() {
        let queue = Queue::new();
        queue.push(1);
        queue.push(1);
        assert_eq!(queue.next().await, 1);
        queue.push(1);
        assert_eq!(queue.take(), Err(None));
        queue.done(1, Ok(Wake::OnChange));
        assert_eq!(queue.next().await, 1);
        queue.done(1, Ok(Wake::OnChange));
        assert_eq!(queue.take(), Err(None));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_delay_wins() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.push_after("a", Duration::from_secs(5));
        queue.push_after("a", Duration::from_secs(2));
        queue.push_after("a", Duration::from_secs(9));
        assert_eq!(queue.next().await, "a");
        assert_eq!(start.elapsed().as_secs(), 2);
        queue.done("a", Ok(Wake::OnChange));
        assert_eq!(queue.take(), Err(None));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_success_resets() {
        let queue = Queue::new();
        queue.push("a");
        let mut waits = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            let key = queue.next().await;
            waits.push(start.elapsed().as_millis());
            queue.done(key, Err(()));
        }
        assert_eq!(waits, [0, 10, 20, 40]);
    }
}
