//! The stores in use, one per kind, each started when first asked for; and what is kept of which kind.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::owner::controller_of;
use crate::served::{self, Served};
use crate::store::{Shared, follow};

/// A kind that can be kept in a [`Shared`] store: any.
pub trait Cached: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}
impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Cached for K {}

/// Which objects of a kind are kept, and which parts of them. Objects out of a store are therefore never written back whole.
pub struct Kept<K> {
    /// A cluster may lack the kind: it is watched while it is served.
    pub optional: bool,
    /// Which objects.
    pub config: watcher::Config,
    /// Where they are watched.
    pub api: fn(Client) -> Api<K>,
    /// Drops what no controller reads, beside what [`crate::store::trim`] does.
    pub trim: fn(&mut K),
}

impl<K: Cached> Default for Kept<K> {
    fn default() -> Self {
        Self { optional: false, config: watcher::Config::default(), api: Api::all, trim: |_| {} }
    }
}

/// What is kept of which kind. Of a kind that is not among them everything is.
#[derive(Default)]
pub struct Kinds(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Kinds {
    /// The same, and `kept` of its kind.
    #[must_use]
    pub fn with<K: Cached>(mut self, kept: Kept<K>) -> Self {
        self.0.insert(TypeId::of::<K>(), Box::new(kept));
        self
    }

    fn take<K: Cached>(&mut self) -> Kept<K> {
        let found = self.0.remove(&TypeId::of::<K>()).and_then(|kept| kept.downcast::<Kept<K>>().ok());
        found.map_or_else(Kept::default, |kept| *kept)
    }
}

/// Everything by the uid of its controller; by `""` what has none.
fn owner<K: Resource>(object: &K) -> Vec<String> {
    vec![controller_of(object.meta()).map(|owner| owner.uid.clone()).unwrap_or_default()]
}

struct State {
    kinds: Kinds,
    stores: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

/// The stores in use.
pub(super) struct Stores(Mutex<State>);

impl Stores {
    pub(super) fn new(kinds: Kinds) -> Self {
        Self(Mutex::new(State { kinds, stores: HashMap::new() }))
    }

    /// The store of a kind; `start` is given what fills it when it is new.
    pub(super) fn get<K: Cached>(&self, start: impl FnOnce(BoxFuture<'static, ()>), client: &Client) -> Arc<Shared<K>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = state.stores.get(&TypeId::of::<K>())
            && let Ok(store) = store.clone().downcast::<Shared<K>>()
        {
            return store;
        }
        let kept = state.kinds.take::<K>();
        let store = Arc::new(Shared::<K>::new(kept.trim, owner));
        state.stores.insert(TypeId::of::<K>(), store.clone());
        let (api, config, mut filled) = ((kept.api)(client.clone()), kept.config, store.clone());
        if kept.optional {
            let served = Served::new(client, &ApiResource::erase::<K>(&()));
            start(Box::pin(async move { served::mirror(served, api, config, &mut filled).await }));
        } else {
            start(Box::pin(async move { follow(api, config, &mut filled).await }));
        }
        store
    }
}
