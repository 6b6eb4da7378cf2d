//! One watch per kind, shared by all controllers, with the controllers' own writes folded in at once.
//!
//! ```text
//!  API server --watch--> Store<K> --listeners--> queues of the controllers
//!                           ^                          |
//!                           +---- observe(result) <--- writes
//! ```
//!
//! Guarantees: listeners see the changes of one store in order and exactly once; a controller that passes the result of
//! a write to [`Store::observe`] reads its own write afterwards, so it never repeats it; an object whose deletion the watch
//! or [`Store::forget`] reported does not come back from a late watch event, nor from a late answer to a request.

mod gone;

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use futures::StreamExt;
use kit::served::Served;
use kube::discovery::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use self::gone::Gone;
use crate::cached::Cached;
pub use kit::store::Key;

type Listener<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// Controller owner's uid ("" for none) -> objects.
    by_owner: HashMap<String, BTreeSet<Key>>,
    /// Deleted as far as the watch or we ourselves know. An answer to a request that was overtaken by the deletion, as that
    /// to the removal of the last finalizer often is, would otherwise stay for good.
    gone: Gone,
    /// During a relist: what it has shown, plus what was observed meanwhile.
    seen: Option<HashSet<Key>>,
}

/// All objects of one kind.
pub struct Store<K> {
    state: RwLock<State<K>>,
    /// Held while listeners run: keeps their order and lets them read any store.
    listeners: Mutex<Vec<Listener<K>>>,
    ready: watch::Sender<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn revision<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn owner_uid<K: Resource>(object: &K) -> &str {
    crate::owner::controller_of(object.meta()).map_or("", |owner| owner.uid.as_str())
}

impl<K: Resource> State<K> {
    fn index(&mut self, key: &Key, old: Option<&K>, new: Option<&K>) {
        let (before, after) = (old.map(owner_uid), new.map(owner_uid));
        if before == after {
            return;
        }
        if let Some(uid) = before
            && let Some(keys) = self.by_owner.get_mut(uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_owner.remove(uid);
            }
        }
        if let Some(uid) = after {
            self.by_owner.entry(uid.to_owned()).or_default().insert(key.clone());
        }
    }
}

impl<K> Store<K>
where
    K: Cached,
{
    fn new() -> Self {
        let state = State { objects: BTreeMap::new(), by_owner: HashMap::new(), gone: Gone::default(), seen: None };
        Self { state: RwLock::new(state), listeners: Mutex::new(Vec::new()), ready: watch::Sender::new(false) }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `listener` with (old, new) for every change from now on, and at once for everything already known.
    /// A listener may read stores but must not write to one.
    pub fn on_change(&self, listener: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static) {
        let mut listeners = lock(&self.listeners);
        let known: Vec<_> = self.read().objects.values().cloned().collect();
        for object in &known {
            listener(None, Some(object));
        }
        listeners.push(Box::new(listener));
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        let mut ready = self.ready.subscribe();
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// The object, if it exists.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }
    /// Everything.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }
    /// Whether anything satisfies `predicate`.
    pub fn any(&self, predicate: impl Fn(&K) -> bool) -> bool {
        self.read().objects.values().any(|object| predicate(object))
    }
    /// Everything in one namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let from = Key::new(namespace, "");
        state.objects.range(from..).take_while(|(k, _)| k.namespace == namespace).map(|(_, o)| o.clone()).collect()
    }
    /// Everything whose controller is the object with this uid; with `""` everything without a controller.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let keys = state.by_owner.get(uid);
        keys.into_iter().flatten().filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// Takes in the result of a write, or a watch event. Older versions than the known one are ignored.
    pub fn observe(&self, mut object: K) {
        object.trim();
        self.change(object, false);
    }

    /// Puts an object in although its version is the known one: a decision that is being written.
    pub fn assume(&self, object: K) {
        self.change(object, true);
    }

    fn change(&self, object: K, assumed: bool) {
        let listeners = lock(&self.listeners);
        let key = Key::of(&object);
        let object = Arc::new(object);
        let old = {
            let mut state = self.write();
            if let Some(seen) = &mut state.seen {
                seen.insert(key.clone());
            }
            if object.meta().uid.as_ref().is_some_and(|uid| state.gone.contains(uid)) {
                return;
            }
            let old = state.objects.get(&key).cloned();
            if let Some(old) = &old
                && !assumed
                && old.meta().uid == object.meta().uid
                && revision(old.as_ref()) >= revision(object.as_ref())
            {
                return;
            }
            state.index(&key, old.as_deref(), Some(object.as_ref()));
            state.objects.insert(key, object.clone());
            old
        };
        for listener in listeners.iter() {
            listener(old.as_ref(), Some(&object));
        }
    }

    /// Drops an object whose deletion was just acknowledged, before the watch says so.
    pub fn forget(&self, key: &Key, uid: &str) {
        let listeners = lock(&self.listeners);
        let old = {
            let mut state = self.write();
            state.gone.insert(uid);
            let Some(old) = state.objects.get(key).cloned().filter(|o| o.meta().uid.as_deref() == Some(uid)) else {
                return;
            };
            state.index(key, Some(old.as_ref()), None);
            state.objects.remove(key);
            old
        };
        for listener in listeners.iter() {
            listener(Some(&old), None);
        }
    }

    fn removed(&self, key: &Key, uid: Option<&str>) {
        let listeners = lock(&self.listeners);
        let old = {
            let mut state = self.write();
            if let Some(uid) = uid {
                state.gone.insert(uid);
            }
            let known = state.objects.get(key).cloned();
            let Some(old) = known.filter(|o| uid.is_none() || o.meta().uid.as_deref() == uid) else { return };
            state.index(key, Some(old.as_ref()), None);
            state.objects.remove(key);
            old
        };
        for listener in listeners.iter() {
            listener(Some(&old), None);
        }
    }

    fn relist_begins(&self) {
        let mut state = self.write();
        state.seen = Some(HashSet::new());
    }

    fn relist_ends(&self) {
        let vanished: Vec<Key> = {
            let mut state = self.write();
            let seen = state.seen.take().unwrap_or_default();
            state.objects.keys().filter(|key| !seen.contains(*key)).cloned().collect()
        };
        for key in vanished {
            self.removed(&key, None);
        }
        self.ready.send_replace(true);
    }

    async fn follow(self: Arc<Self>, client: Client) {
        if !K::OPTIONAL {
            return self.watch(client).await;
        }
        let mut served = Served::new(&client, &ApiResource::erase::<K>(&()));
        loop {
            if served.next().await {
                tokio::select! {
                    () = self.watch(client.clone()) => {}
                    () = served.ends() => {}
                }
            }
            // There is nothing of a kind that is not served.
            self.relist_begins();
            self.relist_ends();
        }
    }

    async fn watch(&self, client: Client) {
        let api = K::api(client);
        let mut events = std::pin::pin!(watcher(api, K::selection()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => self.observe(object),
                Ok(watcher::Event::Delete(object)) => self.removed(&Key::of(&object), object.uid().as_deref()),
                Ok(watcher::Event::Init) => self.relist_begins(),
                Ok(watcher::Event::InitDone) => self.relist_ends(),
                Err(error) => tracing::debug!(kind = std::any::type_name::<K>(), %error, "watch interrupted"),
            }
        }
    }
}

/// The stores in use, each started when first asked for.
#[derive(Default)]
pub(crate) struct Stores {
    by_type: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Stores {
    pub(crate) fn get<K>(
        &self,
        start: impl FnOnce(futures::future::BoxFuture<'static, ()>),
        client: &Client,
    ) -> Arc<Store<K>>
    where
        K: Cached + DeserializeOwned + Debug,
    {
        let mut by_type = lock(&self.by_type);
        if let Some(store) = by_type.get(&TypeId::of::<K>())
            && let Ok(store) = store.clone().downcast::<Store<K>>()
        {
            return store;
        }
        let store = Arc::new(Store::<K>::new());
        by_type.insert(TypeId::of::<K>(), store.clone());
        start(Box::pin(store.clone().follow(client.clone())));
        store
    }
}

#[cfg(test)]
#[path = "store/tests.rs"]
mod tests;
