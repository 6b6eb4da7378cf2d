//! A work queue of keys: each key at most once waiting and at most once being worked on, with delays and back-off.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Task;
use crate::backoff::Backoff;
use crate::shutdown::CancellationToken;

/// A queue that tries again at once and then less and less often: see [`Backoff::EAGER`].
pub fn eager<T: Clone + Eq + Hash + Ord + Debug + Send + 'static>() -> Queue<T> {
    Queue::new(Backoff::EAGER)
}

/// A queue of work done by others: see [`Backoff::PATIENT`].
pub fn patient<T: Clone + Eq + Hash + Ord + Debug + Send + 'static>() -> Queue<T> {
    Queue::new(Backoff::PATIENT)
}

/// What a reconcile asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: a watch brings the key back.
    Wait,
    /// Come back after this long, changed or not.
    After(Duration),
    /// Come back with back-off: something outside failed.
    Retry,
}

struct State<T> {
    ready: VecDeque<T>,
    waiting: HashSet<T>,
    working: HashSet<T>,
    again: HashSet<T>,
    timers: BTreeSet<(Instant, T)>,
    /// One timer for each key: a key that is looked at often asks for a later look each time.
    due: HashMap<T, Instant>,
    failures: HashMap<T, u32>,
}

/// The queue; cheap to clone.
pub struct Queue<T> {
    state: Arc<Mutex<State<T>>>,
    wake: Arc<Notify>,
    backoff: Backoff,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Queue { state: self.state.clone(), wake: self.wake.clone(), backoff: self.backoff }
    }
}

impl<T: Clone + Eq + Hash + Ord + Debug + Send + 'static> Default for Queue<T> {
    fn default() -> Self {
        Queue::new(Backoff::QUEUE)
    }
}

impl<T: Clone + Eq + Hash + Ord + Debug + Send + 'static> Queue<T> {
    /// An empty queue whose retries follow `backoff`.
    pub fn new(backoff: Backoff) -> Self {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            working: HashSet::new(),
            again: HashSet::new(),
            timers: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
        };
        Queue { state: Arc::new(Mutex::new(state)), wake: Arc::new(Notify::new()), backoff }
    }

    /// Asks for `key` to be worked on. Asking twice before it is taken is asking once.
    pub fn add(&self, key: T) {
        add(&mut self.lock(), key);
        self.wake.notify_one();
    }

    /// Asks for each of `keys` to be worked on.
    pub fn add_all(&self, keys: impl IntoIterator<Item = T>) {
        keys.into_iter().for_each(|key| self.add(key));
    }

    /// Asks for `key` to be worked on after `delay`, or earlier where that was asked for before.
    pub fn add_after(&self, key: T, delay: Duration) {
        at(&mut self.lock(), Instant::now() + delay, key);
        self.wake.notify_one();
    }

    /// The next key; the caller must hand it back to [`Queue::done`].
    pub async fn next(&self) -> T {
        loop {
            let due = {
                let mut state = self.lock();
                let now = Instant::now();
                while state.timers.first().is_some_and(|(at, _)| *at <= now) {
                    if let Some((_, key)) = state.timers.pop_first() {
                        state.due.remove(&key);
                        add(&mut state, key);
                    }
                }
                if let Some(key) = state.ready.pop_front() {
                    state.waiting.remove(&key);
                    state.working.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return key;
                }
                state.timers.first().map(|(at, _)| *at)
            };
            match due {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = self.wake.notified() => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Gives back a key taken by [`Queue::next`], saying what comes next for it.
    pub fn done(&self, key: &T, next: Next) {
        let mut state = self.lock();
        state.working.remove(key);
        match next {
            Next::Wait => {
                state.failures.remove(key);
            }
            Next::After(delay) => {
                state.failures.remove(key);
                at(&mut state, Instant::now() + delay, key.clone());
            }
            Next::Retry => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                *failures = failures.saturating_add(1);
                let delay = self.backoff.jittered(*failures);
                at(&mut state, Instant::now() + delay, key.clone());
            }
        }
        if state.again.remove(key) {
            add(&mut state, key.clone());
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Works the queue off with `workers` tasks until `stop`. Dropping the returned tasks stops them too.
    pub fn run<F, Fut>(&self, workers: usize, stop: &CancellationToken, reconcile: F) -> Vec<Task<()>>
    where
        F: Fn(T) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Next> + Send + 'static,
    {
        (0..workers)
            .map(|_| {
                let (queue, stop, reconcile) = (self.clone(), stop.clone(), reconcile.clone());
                crate::spawn("worker", async move {
                    loop {
                        let key = tokio::select! {
                            key = queue.next() => key,
                            () = stop.cancelled() => return,
                        };
                        let next = reconcile(key.clone()).await;
                        queue.done(&key, next);
                    }
                })
            })
            .collect()
    }

    /// Works on keys for ever within this one task, `width` at a time: what is done may borrow from its surroundings.
    pub async fn work<F, Fut>(&self, width: usize, reconcile: F)
    where
        F: Fn(T) -> Fut,
        Fut: Future<Output = Next>,
    {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                key = self.next(), if running.len() < width => {
                    let work = reconcile(key.clone());
                    running.push(async move { (key, work.await) });
                }
                Some((key, next)) = running.next(), if !running.is_empty() => self.done(&key, next),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add<T: Clone + Eq + Hash>(state: &mut State<T>, key: T) {
    if state.working.contains(&key) {
        state.again.insert(key);
    } else if state.waiting.insert(key.clone()) {
        state.ready.push_back(key);
    }
}

fn at<T: Clone + Eq + Hash + Ord>(state: &mut State<T>, due: Instant, key: T) {
    match state.due.get(&key) {
        Some(earlier) if *earlier <= due => return,
        Some(later) => {
            let later = (*later, key.clone());
            state.timers.remove(&later);
        }
        None => {}
    }
    state.due.insert(key.clone(), due);
    state.timers.insert((due, key));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_has_one_timer_and_the_earliest_counts() {
        let (queue, start) = (Queue::<&str>::default(), Instant::now());
        for seconds in [5, 2, 9] {
            queue.add_after("a", Duration::from_secs(seconds));
        }
        assert_eq!((queue.next().await, start.elapsed().as_secs()), ("a", 2));
        // Looked at often, it is not looked at more often from then on.
        for _ in 0..3 {
            queue.done(&"a", Next::After(Duration::from_secs(60)));
            queue.add("a");
            queue.next().await;
        }
        queue.done(&"a", Next::Wait);
        assert_eq!((queue.next().await, start.elapsed().as_secs()), ("a", 62));
        queue.done(&"a", Next::Wait);
        let again = tokio::time::timeout(Duration::from_secs(600), queue.next()).await;
        assert!(again.is_err(), "{again:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_worked_on_once_at_a_time() {
        let queue = Queue::<&str>::default();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "b");
        queue.done(&"a", Next::Wait);
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_are_worked_on_as_are_wanted() {
        let (queue, start, done) = (eager::<u32>(), Instant::now(), Mutex::new(Vec::new()));
        queue.add_all(0..4);
        let done = &done;
        let reconcile = |key| async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            done.lock().unwrap().push((key, start.elapsed().as_secs()));
            Next::Wait
        };
        let _ = tokio::time::timeout(Duration::from_secs(60), queue.work(2, reconcile)).await;
        assert_eq!(*done.lock().unwrap(), [(0, 10), (1, 10), (2, 20), (3, 20)]);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_back_off() {
        let queue = Queue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(8) });
        queue.add("a");
        let start = Instant::now();
        for _ in 0..4 {
            let key = queue.next().await;
            queue.done(&key, Next::Retry);
        }
        queue.next().await;
        let passed = start.elapsed().as_secs();
        assert!((15..=19).contains(&passed), "{passed}");
    }
}
