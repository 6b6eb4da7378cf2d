//! Local copies of watched objects.
//!
//! ```text
//! watch -> trim (managedFields, last-applied, what the caller does not need) -> table: versions, index, deletions
//!                                                                                |
//!                       Store: bytes; one who is notified    <------------------ + ----> Shared: objects; many listeners
//! ```
//!
//! What becomes of versions, lists and deletions is one code (`table`), and so is the watch (`follow`). What is kept of
//! an object is one of two things, since memory and speed ask for opposites:
//!
//! * [`Store`] keeps JSON, typed only while somebody looks. A typed object of optional fields is ten times its JSON; ten
//!   thousand of them are the memory of a controller that looks at few of them at a time.
//! * [`Shared`] keeps typed objects and gives them out without copying. The scheduler looks at every pod and node for each
//!   pod it places. A trimmed pod is one or two KiB of JSON, some microseconds to be typed; with a thousand pods that would
//!   be milliseconds for each placement, against the counting of references.

mod follow;
mod gone;
mod shared;
mod table;

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

pub(crate) use self::follow::{Mirror, follow};
pub use self::shared::Shared;
use self::table::{Row, Source, Table};
use crate::Task;

/// `kubectl apply` keeps a copy of the whole object in this annotation.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Namespace and name of an object; the namespace of a cluster-scoped one is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// The namespace, or empty.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// A key of its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Key { namespace: namespace.into(), name: name.into() }
    }

    /// The key of `object`.
    pub fn of<K: Resource>(object: &K) -> Self {
        Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// What happened to one object, given to the watcher's `notify` after the store was changed.
pub struct Change<'a, K> {
    /// Which object.
    pub key: &'a Key,
    /// The object as it is now, trimmed; none when it is gone.
    pub new: Option<&'a K>,
    /// The index values it had before.
    pub was: &'a [String],
    /// The index values it has now.
    pub is: &'a [String],
}

/// How many deletions are remembered; an answer is late by milliseconds.
const REMEMBERED: usize = 256;

type Packed = Box<[u8]>;

/// Objects of one kind as JSON; cheap to clone, filled by [`watch`].
pub struct Store<K> {
    table: Arc<RwLock<Table<Packed>>>,
    synced: Arc<watch::Sender<bool>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Store { table: self.table.clone(), synced: self.synced.clone(), kind: PhantomData }
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        // What a write answered is held whole until the watch brings the same version, trimmed.
        let table = Table::new(REMEMBERED, true);
        Store { table: Arc::new(RwLock::new(table)), synced: Arc::new(watch::channel(false).0), kind: PhantomData }
    }
}

impl<K: DeserializeOwned + Serialize> Store<K> {
    /// The object under `key`.
    pub fn get(&self, key: &Key) -> Option<K> {
        decode(&self.read().get(key)?.held)
    }

    /// True when an object has this key.
    pub fn contains(&self, key: &Key) -> bool {
        self.read().get(key).is_some()
    }

    /// Every key.
    pub fn keys(&self) -> Vec<Key> {
        self.read().keys().cloned().collect()
    }

    /// Every object.
    pub fn list(&self) -> Vec<K> {
        self.read().all().filter_map(decode).collect()
    }

    /// The objects whose index values include `word`.
    pub fn by_index(&self, word: &str) -> Vec<K> {
        self.read().by_word(word).filter_map(decode).collect()
    }

    /// The keys of the objects whose index values include `word`.
    pub fn keys_by_index(&self, word: &str) -> Vec<Key> {
        self.read().keys_by_word(word).cloned().collect()
    }

    /// How many objects are held.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of JSON held; for metrics and for the memory test.
    pub fn bytes(&self) -> usize {
        self.read().all().map(|json| json.len()).sum()
    }

    /// Waits until the first list has been stored.
    pub async fn synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives in self, so the wait can only end by the value.
        let _ = synced.wait_for(|done| *done).await;
    }

    /// Puts an object in by hand: what a controller just wrote is visible before the watch brings it back.
    /// A newer version that arrived meanwhile is kept, and an object that went meanwhile stays gone.
    pub fn put(&self, object: &K, words: Vec<String>)
    where
        K: Resource,
    {
        self.take(&Key::of(object), object, words, Source::News);
    }

    /// Returns the words before and now. Looking and replacing are one step: answers arrive beside the watch.
    fn take(&self, key: &Key, object: &K, words: Vec<String>, source: Source) -> (Box<[String]>, Box<[String]>)
    where
        K: Resource,
    {
        let row = Row::of(object, words, serde_json::to_vec(object).unwrap_or_default().into_boxed_slice());
        let is = row.words.clone();
        let mut table = self.write();
        match table.take(key, row, source) {
            Ok(was) => (was.map(|row| row.words).unwrap_or_default(), is),
            Err(_) => {
                let held = table.get(key).map(|row| row.words.clone()).unwrap_or_default();
                (held.clone(), held)
            }
        }
    }

    fn remove(&self, key: &Key, uid: Option<&str>) -> Box<[String]> {
        self.write().remove(key, uid).map(|row| row.words).unwrap_or_default()
    }
}

impl<K> Store<K> {
    // A poisoned lock only means that another reader panicked; the table itself is whole after each statement.
    fn read(&self) -> RwLockReadGuard<'_, Table<Packed>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table<Packed>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn decode<K: DeserializeOwned>(json: &Packed) -> Option<K> {
    serde_json::from_slice(json).ok()
}

/// How one kind is watched.
pub struct Watch<K> {
    /// Selectors.
    pub config: watcher::Config,
    /// Drops what nobody reads, before the object is stored. What [`trim`] drops always is.
    pub trim: fn(&mut K),
    /// Words to find the object by later: an owner's UID, a node's name.
    pub index: fn(&K) -> Vec<String>,
}

impl<K> Default for Watch<K> {
    fn default() -> Self {
        Watch { config: watcher::Config::default(), trim: |_| {}, index: |_| Vec::new() }
    }
}

/// Drops who wrote which field, and the copy that `kubectl apply` keeps of the object in itself.
pub fn trim<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Keeps `store` equal to the cluster and calls `notify` after every change, for as long as the task is held.
pub fn watch<K, F>(api: Api<K>, how: Watch<K>, store: Store<K>, notify: F) -> Task<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    F: FnMut(Change<'_, K>) + Send + 'static,
{
    let config = how.config.clone();
    crate::spawn("watch", async move { follow(api, config, &mut Kept { store, how, notify }).await })
}

/// A store, how it is filled, and who is told.
pub(crate) struct Kept<K, F> {
    pub(crate) store: Store<K>,
    pub(crate) how: Watch<K>,
    pub(crate) notify: F,
}

impl<K, F> Kept<K, F>
where
    K: Resource + DeserializeOwned + Serialize,
    F: FnMut(Change<'_, K>),
{
    fn remove(&mut self, key: &Key, uid: Option<&str>) {
        let was = self.store.remove(key, uid);
        (self.notify)(Change { key, new: None, was: &was, is: &[] });
    }
}

impl<K, F> Mirror<K> for Kept<K, F>
where
    K: Resource + DeserializeOwned + Serialize,
    F: FnMut(Change<'_, K>),
{
    fn listing(&mut self) {
        self.store.write().listing();
    }

    fn there(&mut self, mut object: K, listed: bool) {
        trim(&mut object);
        let words = (self.how.index)(&object);
        (self.how.trim)(&mut object);
        let key = Key::of(&object);
        let source = if listed { Source::List } else { Source::News };
        let (was, is) = self.store.take(&key, &object, words, source);
        (self.notify)(Change { key: &key, new: Some(&object), was: &was, is: &is });
    }

    fn gone(&mut self, object: &K) {
        self.remove(&Key::of(object), object.meta().uid.as_deref());
    }

    fn listed(&mut self) {
        let vanished = self.store.write().listed();
        vanished.iter().for_each(|key| self.remove(key, None));
        self.store.synced.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    use super::*;

    fn object(name: &str, version: &str) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            resource_version: Some(version.into()),
            ..Default::default()
        };
        ConfigMap { metadata, ..Default::default() }
    }

    #[test]
    fn words_follow_the_object() {
        let store = Store::<ConfigMap>::default();
        store.put(&object("a", "1"), vec!["owner".into()]);
        assert_eq!(store.keys_by_index("owner"), [Key::new("ns", "a")]);
        store.put(&object("a", "2"), vec!["other".into()]);
        assert!(store.by_index("owner").is_empty());
        assert_eq!(store.by_index("other").len(), 1);
        store.remove(&Key::new("ns", "a"), None);
        assert!(store.is_empty() && store.keys_by_index("other").is_empty());
    }

    #[track_caller]
    fn check(store: &Store<ConfigMap>, version: Option<&str>) {
        let held = store.get(&Key::new("ns", "a")).and_then(|held| held.resource_version());
        assert_eq!(held.as_deref(), version);
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let store = Store::<ConfigMap>::default();
        let key = Key::new("ns", "a");
        store.put(&object("a", "10"), vec![]);
        store.put(&object("a", "9"), vec![]);
        check(&store, Some("10"));
        store.take(&key, &object("a", "9"), vec![], Source::News);
        check(&store, Some("10"));
        store.take(&key, &object("a", "11"), vec![], Source::News);
        check(&store, Some("11"));
        store.take(&key, &object("a", "3"), vec![], Source::List);
        check(&store, Some("3"));
    }

    #[test]
    fn a_late_answer_does_not_bring_an_object_back() {
        let store = Store::<ConfigMap>::default();
        let mut first = object("a", "1");
        first.metadata.uid = Some("first".into());
        store.put(&first, vec![]);
        store.remove(&Key::new("ns", "a"), Some("first"));
        store.put(&first, vec![]);
        check(&store, None);
        let mut second = object("a", "2");
        second.metadata.uid = Some("second".into());
        store.put(&second, vec![]);
        check(&store, Some("2"));
    }

    /// The answer to a write, and the watch's news of the next one, at the same time.
    #[test]
    fn an_answer_never_hides_what_the_watch_brought() {
        let store = Store::<ConfigMap>::default();
        for round in 0..2000 {
            let (older, newer) = ((2 * round + 1).to_string(), (2 * round + 2).to_string());
            std::thread::scope(|scope| {
                scope.spawn(|| store.put(&object("a", &older), vec![]));
                store.take(&Key::new("ns", "a"), &object("a", &newer), vec![], Source::News);
            });
            check(&store, Some(&newer));
        }
    }
}
