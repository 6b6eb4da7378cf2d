//! The objects of one resource and the ring of what happened to them lately.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::watch;

use super::event::Event;
use super::object::EventKind;
use super::{Gone, Object, Snapshot};

/// Namespace and name.
type Place = (Arc<str>, Arc<str>);

#[derive(Debug)]
struct State {
    objects: BTreeMap<Place, Arc<Object>>,
    ring: VecDeque<Arc<Event>>,
    /// Every event after this revision is in the ring.
    floor: u64,
    /// Revision of the last event.
    last: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Bucket {
    state: RwLock<State>,
    history: usize,
    published: Arc<AtomicU64>,
    wake: watch::Sender<()>,
}

impl Bucket {
    pub(super) fn new(floor: u64, history: usize, published: Arc<AtomicU64>) -> Self {
        let state = State { objects: BTreeMap::new(), ring: VecDeque::new(), floor, last: floor };
        Self { state: RwLock::new(state), history, published, wake: watch::Sender::new(()) }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an object found on disk.
    pub(super) fn load(&self, object: Object) {
        let place = (object.key.namespace.clone(), object.key.name.clone());
        self.state.write().unwrap_or_else(PoisonError::into_inner).objects.insert(place, Arc::new(object));
    }

    /// Applies one event; watchers are woken by [`Bucket::wake`] when the whole batch is published.
    pub(super) fn push(&self, event: Arc<Event>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let place = (event.object.key.namespace.clone(), event.object.key.name.clone());
        match event.kind {
            EventKind::Deleted => state.objects.remove(&place),
            EventKind::Added | EventKind::Modified => state.objects.insert(place, event.object.clone()),
        };
        state.last = event.revision;
        state.ring.push_back(event);
        while state.ring.len() > self.history {
            if let Some(dropped) = state.ring.pop_front() {
                state.floor = dropped.revision;
            }
        }
    }

    pub(super) fn wake(&self) {
        self.wake.send_replace(());
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.wake.subscribe()
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.read().objects.get(&(namespace.into(), name.into())).cloned()
    }

    /// Revision of the last change.
    pub(super) fn changed_at(&self) -> u64 {
        self.read().last
    }

    pub(super) fn len(&self) -> usize {
        self.read().objects.len()
    }

    pub(super) fn list(&self, namespace: Option<&str>) -> Snapshot {
        let state = self.read();
        Snapshot { revision: self.position(&state), objects: within(&state.objects, namespace) }
    }

    /// The position of a reader that has seen all of `state`. The writer publishes the global revision after the
    /// buckets, so under this lock all events up to it are here; the bucket itself may already be ahead.
    fn position(&self, state: &State) -> u64 {
        state.last.max(self.published.load(Ordering::Acquire))
    }

    pub(super) fn list_at(&self, namespace: Option<&str>, revision: u64) -> Result<Snapshot, Gone> {
        let state = self.read();
        if revision > self.position(&state) {
            return Err(Gone { asked: revision, oldest: state.floor });
        }
        if revision >= state.last {
            return Ok(Snapshot { revision, objects: within(&state.objects, namespace) });
        }
        if revision < state.floor {
            return Err(Gone { asked: revision, oldest: state.floor });
        }
        let mut objects = state.objects.clone();
        for event in state.ring.iter().rev().take_while(|event| event.revision > revision) {
            let place = (event.object.key.namespace.clone(), event.object.key.name.clone());
            match &event.previous {
                Some(previous) => objects.insert(place, previous.clone()),
                None => objects.remove(&place),
            };
        }
        Ok(Snapshot { revision, objects: within(&objects, namespace) })
    }

    /// Checks that a watch may start after `from`.
    pub(super) fn check_position(&self, from: u64) -> Result<(), Gone> {
        let state = self.read();
        if from < state.floor || from > self.position(&state) {
            return Err(Gone { asked: from, oldest: state.floor });
        }
        Ok(())
    }

    /// Events after `from` and the position reached by reading them; at most `limit` of them.
    pub(super) fn events_after(&self, from: u64, limit: usize) -> Result<(Vec<Arc<Event>>, u64), Gone> {
        let state = self.read();
        if from < state.floor {
            return Err(Gone { asked: from, oldest: state.floor });
        }
        let start = state.ring.partition_point(|event| event.revision <= from);
        let events: Vec<_> = state.ring.range(start..).take(limit).cloned().collect();
        let position = match events.last() {
            Some(last) if events.len() == limit => last.revision,
            _ => self.position(&state),
        };
        Ok((events, position.max(from)))
    }
}

fn within(objects: &BTreeMap<Place, Arc<Object>>, namespace: Option<&str>) -> Vec<Arc<Object>> {
    let Some(namespace) = namespace else { return objects.values().cloned().collect() };
    let first: Place = (namespace.into(), "".into());
    let range = objects.range((Bound::Included(first), Bound::Unbounded));
    range.take_while(|((ns, _), _)| &**ns == namespace).map(|(_, object)| object.clone()).collect()
}
