//! The server: store, registry and gates put together.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::watch;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};
use kit::vital::Vitals;
use kube_store::{Object, Store};

use crate::authz::Authorizer;
use crate::config::Config;
use crate::crd;
use crate::edges::Edges;
use crate::lines::Lines;
use crate::metrics::Requests;
use crate::registry::{Registry, Resource};

/// See the module; cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    store: Arc<Store>,
    registry: ArcSwap<Registry>,
    authorizer: Authorizer,
    edges: Edges,
    openapi: crate::openapi::Cache,
    requests: Requests,
    vitals: Vitals,
    lines: Lines,
    closing: watch::Sender<bool>,
    /// Told when the registry has changed.
    registered: watch::Sender<()>,
    /// Held while a Service's addresses and ports are chosen and stored.
    services: Arc<tokio::sync::Mutex<()>>,
    /// Serialises rebuilding the registry.
    rebuilding: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// The state of a server whose store and keys are open. Nothing is served before the registry is made.
    pub(crate) fn of(config: Config, store: Arc<Store>, authorizer: Authorizer, edges: Edges) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                store,
                registry: ArcSwap::default(),
                authorizer,
                edges,
                openapi: crate::openapi::Cache::default(),
                requests: Requests::default(),
                vitals: Vitals::default(),
                lines: Lines::default(),
                closing: watch::Sender::new(false),
                registered: watch::Sender::new(()),
                services: Arc::default(),
                rebuilding: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Ends watches, so that connections can drain.
    pub fn close(&self) {
        self.inner.closing.send_replace(true);
    }

    /// The settings it was opened with.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }
    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.inner.store
    }
    /// What is served right now.
    pub fn registry(&self) -> Arc<Registry> {
        self.inner.registry.load_full()
    }
    /// Hashes of the OpenAPI documents.
    pub(crate) fn openapi(&self) -> &crate::openapi::Cache {
        &self.inner.openapi
    }
    /// What was asked so far.
    pub(crate) fn requests(&self) -> &Requests {
        &self.inner.requests
    }
    /// What runs beside it in this process: `scheduler` and `controller-manager`, as ComponentStatus tells.
    pub fn vitals(&self) -> &Vitals {
        &self.inner.vitals
    }
    /// The authorizer chain.
    pub fn authorizer(&self) -> &Authorizer {
        &self.inner.authorizer
    }
    /// Keys, authentication, admission and what else stands between the network and the store.
    pub fn edges(&self) -> &Edges {
        &self.inner.edges
    }
    /// Becomes true when the server closes.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.inner.closing.subscribe()
    }

    /// Lines of watches that several are told.
    pub(crate) fn lines(&self) -> &Lines {
        &self.inner.lines
    }
    /// Changes when other resources are served than before.
    pub(crate) fn registered(&self) -> watch::Receiver<()> {
        self.inner.registered.subscribe()
    }

    pub(crate) fn authorize(&self, user: &User, info: &RequestInfo) -> Result<(), ApiError> {
        self.inner.authorizer.authorize(user, info)
    }

    pub(crate) async fn service_turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.inner.services.clone().lock_owned().await
    }

    /// Rebuilds the registry from the stored CRDs and APIServices.
    pub(crate) async fn refresh_registry(&self) {
        let _turn = self.inner.rebuilding.lock().await;
        let before = self.registry();
        self.inner.registry.store(Arc::new(crd::registry(&self.inner.store, &before)));
        self.inner.registered.send_replace(());
    }

    /// A stored object in the version of `resource`.
    pub(crate) async fn in_version(&self, resource: &Resource, object: &Object) -> Result<Value, ApiError> {
        let stored = vec![(object.value(), resource.wrote_before(object))];
        let converted = crd::convert::from_storage(&**self.store(), resource, stored).await?;
        Ok(converted.into_iter().next().unwrap_or_default())
    }

    /// Stored objects in the version of `resource`, converted together.
    pub(crate) async fn in_versions(
        &self,
        resource: &Resource,
        objects: &[Arc<Object>],
    ) -> Result<Vec<Value>, ApiError> {
        let stored = objects.iter().map(|object| (object.value(), resource.wrote_before(object))).collect();
        crd::convert::from_storage(&**self.store(), resource, stored).await
    }

    /// An object of the version of `resource` as it is stored.
    pub(crate) async fn to_storage(&self, resource: &Resource, object: Value) -> Result<Value, ApiError> {
        crd::convert::to_storage(&**self.store(), &self.registry(), resource, object).await
    }
}
