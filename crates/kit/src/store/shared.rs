//! Objects of one kind for many readers: each controller listens, all share the objects.
//!
//! ```text
//!  API server --watch--> Shared<K> --listeners--> queues of the controllers
//!                           ^                          |
//!                           +---- observe(result) <--- writes
//! ```
//!
//! Guarantees: listeners see the changes of one store in order and exactly once; a controller that passes the result of
//! a write to [`Shared::observe`] reads its own write afterwards, so it never repeats it; an object whose deletion the watch
//! or [`Shared::forget`] reported does not come back from a late watch event, nor from a late answer to a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::Resource;
use tokio::sync::watch;

use super::Key;
use super::follow::Mirror;
use super::table::{Row, Source, Table};

/// How many deletions are remembered: far more than there are requests under way.
const REMEMBERED: usize = 4096;

type Listener<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

/// All objects of one kind, typed.
pub struct Shared<K> {
    table: RwLock<Table<Arc<K>>>,
    trim: fn(&mut K),
    index: fn(&K) -> Vec<String>,
    /// Held while listeners run: keeps their order and lets them read any store.
    listeners: Mutex<Vec<Listener<K>>>,
    ready: watch::Sender<bool>,
}

impl<K: Resource> Shared<K> {
    /// An empty one, of what `trim` leaves of objects, found by what `index` says of them.
    pub(crate) fn new(trim: fn(&mut K), index: fn(&K) -> Vec<String>) -> Self {
        Self {
            table: RwLock::new(Table::new(REMEMBERED, false)),
            trim,
            index,
            listeners: Mutex::new(Vec::new()),
            ready: watch::Sender::new(false),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table<Arc<K>>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table<Arc<K>>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listener<K>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `listener` with (old, new) for every change from now on, and at once for everything already known.
    /// A listener may read stores but must not write to one.
    pub fn on_change(&self, listener: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static) {
        let mut listeners = self.listeners();
        let known = self.all();
        for object in &known {
            listener(None, Some(object));
        }
        listeners.push(Box::new(listener));
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        let mut ready = self.ready.subscribe();
        // The sender lives in self, so the wait can only end by the value.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// The object, if it exists.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().get(key).map(|row| row.held.clone())
    }

    /// Everything.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().all().cloned().collect()
    }

    /// Whether anything satisfies `predicate`.
    pub fn any(&self, predicate: impl Fn(&K) -> bool) -> bool {
        self.read().all().any(|object| predicate(object))
    }

    /// Everything in one namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read().in_namespace(namespace).cloned().collect()
    }

    /// Everything whose controller is the object with this uid; with `""` everything without a controller. So are the stores
    /// indexed that a [`Context`](crate::controller::Context) gives out.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.by_index(uid)
    }

    /// Everything that has the index word.
    pub fn by_index(&self, word: &str) -> Vec<Arc<K>> {
        self.read().by_word(word).cloned().collect()
    }

    /// Takes in the result of a write. Older versions than the known one are ignored.
    pub fn observe(&self, object: K) {
        self.take(object, Source::News);
    }

    /// Puts an object in although its version is the known one: a decision that is being written.
    pub fn assume(&self, object: K) {
        self.take(object, Source::Decision);
    }

    fn take(&self, mut object: K, source: Source) {
        super::trim(&mut object);
        (self.trim)(&mut object);
        let (key, words) = (Key::of(&object), (self.index)(&object));
        let object = Arc::new(object);
        let row = Row::of(object.as_ref(), words, object.clone());
        let listeners = self.listeners();
        // The lock is let go of before the listeners run.
        let taken = self.write().take(&key, row, source);
        let Ok(was) = taken else { return };
        let was = was.map(|row| row.held);
        listeners.iter().for_each(|listener| listener(was.as_ref(), Some(&object)));
    }

    /// Drops an object whose deletion was just acknowledged, before the watch says so.
    pub fn forget(&self, key: &Key, uid: &str) {
        self.remove(key, Some(uid));
    }

    fn remove(&self, key: &Key, uid: Option<&str>) {
        let listeners = self.listeners();
        let removed = self.write().remove(key, uid);
        let Some(was) = removed else { return };
        listeners.iter().for_each(|listener| listener(Some(&was.held), None));
    }
}

impl<K: Resource> Mirror<K> for Arc<Shared<K>> {
    fn listing(&mut self) {
        self.write().listing();
    }

    fn there(&mut self, object: K, listed: bool) {
        self.take(object, if listed { Source::List } else { Source::News });
    }

    fn gone(&mut self, object: &K) {
        self.remove(&Key::of(object), object.meta().uid.as_deref());
    }

    fn listed(&mut self) {
        let vanished = self.write().listed();
        vanished.iter().for_each(|key| self.remove(key, None));
        self.ready.send_replace(true);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
