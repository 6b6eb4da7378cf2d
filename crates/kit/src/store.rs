//! A local copy of watched objects, kept small: JSON bytes at rest, typed only while somebody looks.
//!
//! ```text
//! watch -> trim (managedFields, last-applied, what the caller does not need) -> bytes -> notify(key, old, new)
//! ```
//!
//! A typed object of optional fields is ten times its JSON; ten thousand of them are the memory of a controller.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt::Debug,
    marker::PhantomData,
    pin::pin,
    sync::{Arc, RwLock},
};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use crate::Task;

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

struct Entry {
    version: u64,
    uid: Box<str>,
    json: Box<[u8]>,
    words: Box<[String]>,
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<Key, Entry>,
    index: HashMap<String, BTreeSet<Key>>,
    /// UIDs of the objects that went last: the answer to a write may come after the news of the object's end.
    gone: VecDeque<Box<str>>,
}

/// How many of them are remembered; an answer is late by milliseconds.
const GONE: usize = 256;

/// Objects of one kind; cheap to clone, filled by [`watch`].
pub struct Store<K> {
    inner: Arc<RwLock<Inner>>,
    synced: Arc<watch::Sender<bool>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Store { inner: self.inner.clone(), synced: self.synced.clone(), kind: PhantomData }
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Store { inner: Arc::default(), synced: Arc::new(watch::channel(false).0), kind: PhantomData }
    }
}

impl<K: DeserializeOwned + Serialize> Store<K> {
    /// The object under `key`.
    pub fn get(&self, key: &Key) -> Option<K> {
        let inner = self.read();
        decode(&inner.objects.get(key)?.json)
    }

    /// True when an object has this key.
    pub fn contains(&self, key: &Key) -> bool {
        self.read().objects.contains_key(key)
    }

    /// Every key.
    pub fn keys(&self) -> Vec<Key> {
        self.read().objects.keys().cloned().collect()
    }

    /// Every object.
    pub fn list(&self) -> Vec<K> {
        self.read().objects.values().filter_map(|entry| decode(&entry.json)).collect()
    }

    /// The objects whose index values include `word`.
    pub fn by_index(&self, word: &str) -> Vec<K> {
        let inner = self.read();
        let Some(keys) = inner.index.get(word) else { return Vec::new() };
        keys.iter().filter_map(|key| inner.objects.get(key)).filter_map(|entry| decode(&entry.json)).collect()
    }

    /// The keys of the objects whose index values include `word`.
    pub fn keys_by_index(&self, word: &str) -> Vec<Key> {
        self.read().index.get(word).map(|keys| keys.iter().cloned().collect()).unwrap_or_default()
    }

    /// How many objects are held.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of JSON held; for metrics and for the memory test.
    pub fn bytes(&self) -> usize {
        self.read().objects.values().map(|entry| entry.json.len()).sum()
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
        let (key, entry) = (Key::of(object), entry(object, words));
        // Looking and replacing are one step: the watch runs beside this, and what it brings in between must not be lost.
        let mut inner = self.write();
        let newer = inner.objects.get(&key).is_some_and(|held| held.version > entry.version);
        let gone = !entry.uid.is_empty() && inner.gone.contains(&entry.uid);
        if !newer && !gone {
            insert(&mut inner, &key, entry);
        }
    }

    /// Takes in what the watch brought, unless a newer version is held. Returns the words before and now.
    fn take(&self, key: &Key, object: &K, words: Vec<String>, listed: bool) -> (Box<[String]>, Box<[String]>)
    where
        K: Resource,
    {
        let entry = entry(object, words);
        let mut inner = self.write();
        // A list is the truth also where its versions are lower: the cluster may have been restored.
        if let Some(held) = inner.objects.get(key).filter(|held| !listed && held.version > entry.version) {
            return (held.words.clone(), held.words.clone());
        }
        let is = entry.words.clone();
        (insert(&mut inner, key, entry), is)
    }

    fn remove(&self, key: &Key) -> Box<[String]> {
        let mut inner = self.write();
        let Some(entry) = forget(&mut inner, key) else { return Box::default() };
        if inner.gone.len() == GONE {
            inner.gone.pop_front();
        }
        inner.gone.push_back(entry.uid);
        entry.words
    }

    // A poisoned lock only means that another reader panicked; the map itself is whole after each statement.
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn entry<K: Resource + Serialize>(object: &K, words: Vec<String>) -> Entry {
    Entry {
        version: object.resource_version().and_then(|v| v.parse().ok()).unwrap_or(0),
        uid: object.uid().unwrap_or_default().into_boxed_str(),
        json: serde_json::to_vec(object).unwrap_or_default().into_boxed_slice(),
        words: words.into_boxed_slice(),
    }
}

/// Returns the words of what was there before.
fn insert(inner: &mut Inner, key: &Key, entry: Entry) -> Box<[String]> {
    let was = forget(inner, key).map(|entry| entry.words).unwrap_or_default();
    for word in &entry.words {
        inner.index.entry(word.clone()).or_default().insert(key.clone());
    }
    inner.objects.insert(key.clone(), entry);
    was
}

fn decode<K: DeserializeOwned>(json: &[u8]) -> Option<K> {
    serde_json::from_slice(json).ok()
}

fn forget(inner: &mut Inner, key: &Key) -> Option<Entry> {
    let entry = inner.objects.remove(key)?;
    for word in &entry.words {
        if let Some(keys) = inner.index.get_mut(word) {
            keys.remove(key);
            if keys.is_empty() {
                inner.index.remove(word);
            }
        }
    }
    Some(entry)
}

/// How one kind is watched.
pub struct Watch<K> {
    /// Selectors.
    pub config: watcher::Config,
    /// Drops what nobody reads, before the object is stored. managedFields are always dropped.
    pub trim: fn(&mut K),
    /// Words to find the object by later: an owner's UID, a node's name.
    pub index: fn(&K) -> Vec<String>,
}

impl<K> Default for Watch<K> {
    fn default() -> Self {
        Watch { config: watcher::Config::default(), trim: |_| {}, index: |_| Vec::new() }
    }
}

/// Keeps `store` equal to the cluster and calls `notify` after every change, for as long as the task is held.
pub fn watch<K, F>(api: Api<K>, how: Watch<K>, store: Store<K>, mut notify: F) -> Task<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    F: FnMut(Change<'_, K>) + Send + 'static,
{
    crate::spawn("watch", async move { follow(api, &how, &store, &mut notify).await })
}

pub(crate) async fn follow<K, F>(api: Api<K>, how: &Watch<K>, store: &Store<K>, notify: &mut F)
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    F: FnMut(Change<'_, K>) + Send + 'static,
{
    let mut stream = pin!(watcher::watcher(api, how.config.clone()).default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.insert(Key::of(&object));
                apply(store, object, true, how, notify);
            }
            Ok(Event::Apply(object)) => apply(store, object, false, how, notify),
            Ok(Event::Delete(object)) => remove(store, &Key::of(&object), notify),
            Ok(Event::InitDone) => {
                for key in store.keys().into_iter().filter(|key| !listed.contains(key)) {
                    remove(store, &key, notify);
                }
                listed = BTreeSet::new();
                store.synced.send_replace(true);
            }
            Err(error) => tracing::debug!(error = %crate::Chain(&error), "watch interrupted, retrying"),
        }
    }
}

/// Takes everything out: the kind is not served, and so there is nothing of it.
pub(crate) fn clear<K, F>(store: &Store<K>, notify: &mut F)
where
    K: Resource + DeserializeOwned + Serialize,
    F: FnMut(Change<'_, K>),
{
    store.keys().iter().for_each(|key| remove(store, key, notify));
    store.synced.send_replace(true);
}

fn apply<K, F>(store: &Store<K>, mut object: K, listed: bool, how: &Watch<K>, notify: &mut F)
where
    K: Resource + DeserializeOwned + Serialize,
    F: FnMut(Change<'_, K>),
{
    object.meta_mut().managed_fields = None;
    if let Some(annotations) = &mut object.meta_mut().annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    let words = (how.index)(&object);
    (how.trim)(&mut object);
    let key = Key::of(&object);
    let (was, is) = store.take(&key, &object, words, listed);
    notify(Change { key: &key, new: Some(&object), was: &was, is: &is });
}

fn remove<K, F>(store: &Store<K>, key: &Key, notify: &mut F)
where
    K: Resource + DeserializeOwned + Serialize,
    F: FnMut(Change<'_, K>),
{
    let was = store.remove(key);
    notify(Change { key, new: None, was: &was, is: &[] });
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
        store.remove(&Key::new("ns", "a"));
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
        store.take(&key, &object("a", "9"), vec![], false);
        check(&store, Some("10"));
        store.take(&key, &object("a", "11"), vec![], false);
        check(&store, Some("11"));
        store.take(&key, &object("a", "3"), vec![], true);
        check(&store, Some("3"));
    }

    #[test]
    fn a_late_answer_does_not_bring_an_object_back() {
        let store = Store::<ConfigMap>::default();
        let mut first = object("a", "1");
        first.metadata.uid = Some("first".into());
        store.put(&first, vec![]);
        store.remove(&Key::new("ns", "a"));
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
                store.take(&Key::new("ns", "a"), &object("a", &newer), vec![], false);
            });
            check(&store, Some(&newer));
        }
    }
}
