//! The pods that wait to be placed: the most important first, and after a failure only when something may have changed.
//!
//! ```text
//!  add --> active --next--> (a cycle) --stuck--> stuck --happened--> delayed --due--> active
//!             ^                  +--failed------------------------------^
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kit::store::Key;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::verdict::{Event, Plugin};

/// More important first, then in the order of arrival.
type Rank = (Reverse<i32>, u64);

#[derive(Debug, Default)]
struct Entry {
    priority: i32,
    arrived: u64,
    attempts: u32,
    failed: Option<Instant>,
    /// What had happened before the present cycle began.
    began: Happened,
    place: Where,
}

/// How often each event has happened.
type Happened = [u64; Event::ALL.len()];

#[derive(Debug, Default)]
enum Where {
    /// In a cycle, or done with.
    #[default]
    Out,
    Active,
    Delayed(Instant),
    /// What refused it, and when it is tried again at the latest.
    Stuck(HashSet<Plugin>, Instant),
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    active: BTreeMap<Rank, Key>,
    delayed: BTreeMap<(Instant, u64), Key>,
    stuck: HashSet<Key>,
    happened: Happened,
    sequence: u64,
}

/// The waiting pods.
#[derive(Default)]
pub(crate) struct Backlog {
    state: Mutex<State>,
    bell: Notify,
}

/// The first pause is shorter than anybody notices: a node that comes up has to get its pods at once.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// A failed write counts as so many attempts.
const REFUSED: u32 = 6;
/// A pod is tried again after so long although nothing happened.
const FORGOTTEN: Duration = Duration::from_secs(300);

fn pause(attempts: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(LAST_PAUSE)
}

fn helps(refused_by: &HashSet<Plugin>, event: Event) -> bool {
    refused_by.is_empty() || refused_by.iter().any(|plugin| plugin.helped_by(event))
}

impl State {
    /// Takes a pod out of wherever it waits.
    fn lift(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        match std::mem::take(&mut entry.place) {
            Where::Out => {}
            Where::Active => {
                self.active.remove(&(Reverse(entry.priority), entry.arrived));
            }
            Where::Delayed(due) => {
                self.delayed.remove(&(due, entry.arrived));
            }
            Where::Stuck(_, due) => {
                self.stuck.remove(key);
                self.delayed.remove(&(due, entry.arrived));
            }
        }
    }

    fn activate(&mut self, key: &Key) {
        self.lift(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.place = Where::Active;
        self.active.insert((Reverse(entry.priority), entry.arrived), key.clone());
    }

    fn delay(&mut self, key: &Key, due: Instant) {
        self.lift(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.place = Where::Delayed(due);
        self.delayed.insert((due, entry.arrived), key.clone());
    }
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod is new or has changed: it is tried as soon as its turn comes.
    pub(crate) fn add(&self, key: &Key, priority: i32) {
        let mut state = self.lock();
        state.lift(key);
        state.sequence += 1;
        let arrived = state.sequence;
        let entry = state.entries.entry(key.clone()).or_insert_with(|| Entry { arrived, ..Entry::default() });
        entry.priority = priority;
        state.activate(key);
        drop(state);
        self.bell.notify_one();
    }

    /// The pod waits no longer.
    pub(crate) fn remove(&self, key: &Key) {
        let mut state = self.lock();
        state.lift(key);
        state.entries.remove(key);
    }

    /// The pod fits nowhere; what refused it says which events matter.
    pub(crate) fn stuck(&self, key: &Key, refused_by: HashSet<Plugin>) {
        let mut state = self.lock();
        let now = Instant::now();
        // It changed during its cycle and waits for the next one already.
        if !state.entries.get(key).is_some_and(|entry| matches!(entry.place, Where::Out)) {
            return;
        }
        let happened = state.happened;
        let Some(entry) = state.entries.get_mut(key) else { return };
        entry.attempts += 1;
        entry.failed = Some(now);
        // What happened during the cycle may have come too late for it.
        let mut missed = Event::ALL.iter().filter(|event| happened[**event as usize] != entry.began[**event as usize]);
        if missed.any(|event| helps(&refused_by, *event)) {
            let due = now + pause(entry.attempts);
            state.delay(key, due);
            drop(state);
            self.bell.notify_one();
            return;
        }
        let due = now + FORGOTTEN;
        entry.place = Where::Stuck(refused_by, due);
        let arrived = entry.arrived;
        state.stuck.insert(key.clone());
        state.delayed.insert((due, arrived), key.clone());
        drop(state);
        self.bell.notify_one();
    }

    /// What was decided could not be written; a server that refuses is not asked at once again.
    pub(crate) fn failed(&self, key: &Key) {
        let mut state = self.lock();
        let now = Instant::now();
        let Some(entry) = state.entries.get_mut(key) else { return };
        entry.attempts = (entry.attempts + 1).max(REFUSED);
        entry.failed = Some(now);
        let due = now + pause(entry.attempts);
        state.delay(key, due);
        drop(state);
        self.bell.notify_one();
    }

    /// Something happened; those it may help are tried again, though not at once if they failed often.
    pub(crate) fn happened(&self, event: Event) {
        let mut state = self.lock();
        state.happened[event as usize] += 1;
        let helped = |key: &&Key| {
            matches!(state.entries.get(*key).map(|entry| &entry.place), Some(Where::Stuck(refused_by, _))
                if helps(refused_by, event))
        };
        let helped: Vec<Key> = state.stuck.iter().filter(helped).cloned().collect();
        if helped.is_empty() {
            return;
        }
        for key in helped {
            let Some(entry) = state.entries.get(&key) else { continue };
            let due = entry.failed.map(|failed| failed + pause(entry.attempts));
            match due.filter(|due| *due > Instant::now()) {
                Some(due) => state.delay(&key, due),
                None => state.activate(&key),
            }
        }
        drop(state);
        self.bell.notify_one();
    }

    fn take(&self) -> Result<Key, Option<Instant>> {
        let mut state = self.lock();
        let now = Instant::now();
        while let Some(((due, _), key)) = state.delayed.first_key_value() {
            if *due > now {
                break;
            }
            let key = key.clone();
            state.activate(&key);
        }
        match state.active.pop_first() {
            Some((_, key)) => {
                let happened = state.happened;
                if let Some(entry) = state.entries.get_mut(&key) {
                    entry.began = happened;
                    entry.place = Where::Out;
                }
                Ok(key)
            }
            None => Err(state.delayed.first_key_value().map(|((due, _), _)| *due)),
        }
    }

    /// The next pod to try.
    pub(crate) async fn next(&self) -> Key {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("d", name)
    }

    #[tokio::test(start_paused = true)]
    async fn the_important_come_first() {
        let backlog = Backlog::default();
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5)] {
            backlog.add(&key(name), priority);
        }
        let mut order = String::new();
        for _ in 0..4 {
            order.push_str(&backlog.next().await.name);
        }
        assert_eq!(order, "bdac");
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_helps_wakes_and_pauses_grow() {
        let backlog = Backlog::default();
        backlog.add(&key("p"), 0);
        let mut pauses = Vec::new();
        assert_eq!(backlog.next().await, key("p"));
        for _ in 0..4 {
            backlog.stuck(&key("p"), HashSet::from([Plugin::NodeResourcesFit]));
            backlog.happened(Event::Volume);
            assert!(backlog.take().is_err());
            let begin = Instant::now();
            backlog.happened(Event::PodLeft);
            backlog.next().await;
            pauses.push(begin.elapsed().as_millis());
        }
        assert_eq!(pauses, [20, 40, 80, 160]);
        let begin = Instant::now();
        backlog.failed(&key("p"));
        backlog.next().await;
        assert_eq!(begin.elapsed().as_millis(), 640);
    }

    #[tokio::test(start_paused = true)]
    async fn events_during_a_cycle_requeue_the_pod() {
        let backlog = Backlog::default();
        backlog.add(&key("p"), 0);
        backlog.happened(Event::Volume);
        backlog.next().await;
        backlog.happened(Event::Volume);
        backlog.stuck(&key("p"), HashSet::from([Plugin::Volumes]));
        let begin = Instant::now();
        assert_eq!(backlog.next().await, key("p"));
        assert_eq!(begin.elapsed(), FIRST_PAUSE);
        backlog.stuck(&key("p"), HashSet::from([Plugin::Volumes]));
        assert!(backlog.take().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn unschedulable_pods_are_retried_and_deleted_ones_dropped() {
        let backlog = Backlog::default();
        backlog.add(&key("p"), 0);
        backlog.add(&key("q"), 0);
        assert_eq!(backlog.next().await, key("p"));
        backlog.stuck(&key("p"), HashSet::from([Plugin::NodeAffinity]));
        backlog.remove(&key("q"));
        let begin = Instant::now();
        assert_eq!(backlog.next().await, key("p"));
        assert_eq!(begin.elapsed(), FORGOTTEN);
    }
}
