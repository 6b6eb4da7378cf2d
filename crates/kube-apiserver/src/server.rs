//! The server: store, registry and gates put together, and the ways in.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::watch;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};
use kube_store::{Object, OpenError, Store};

use crate::authz::Authorizer;
use crate::authz::view::View;
use crate::config::Config;
use crate::edges::Edges;
use crate::metrics::Requests;
use crate::registry::{Registry, Resource};
use crate::rest::watching::lines::Lines;
use crate::{crd, rest};

/// Why a server could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error("cannot open the API server's store")]
    Store {
        /// Why.
        #[source]
        source: OpenError,
    },
    /// The keys.
    #[error("cannot open the cluster's keys")]
    Keys {
        /// Why.
        #[source]
        source: crate::bootstrap::pki::PkiError,
    },
    /// The objects every cluster has.
    #[error("cannot create the objects every cluster has")]
    Bootstrap {
        /// Why.
        #[source]
        source: ApiError,
    },
}

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
    /// Opens the server: reads the store, builds the registry, creates what every cluster has.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let store =
            Store::open(config.data_dir.as_deref(), config.watch_history).map_err(|source| Error::Store { source })?;
        let authorizer = Authorizer::new(store.clone());
        let view: Arc<dyn View> = store.clone();
        let edges = Edges::open(config.pki_dir.as_ref(), &view, &authorizer, config.data_dir.is_some())
            .map_err(|source| Error::Keys { source })?;
        let server = Self {
            inner: Arc::new(Inner {
                config,
                store,
                registry: ArcSwap::default(),
                authorizer,
                edges,
                openapi: crate::openapi::Cache::default(),
                requests: Requests::default(),
                lines: Lines::default(),
                closing: watch::Sender::new(false),
                registered: watch::Sender::new(()),
                services: Arc::default(),
                rebuilding: tokio::sync::Mutex::default(),
            }),
        };
        server.refresh_registry().await;
        crate::registry::bootstrap::run(&server).await.map_err(|source| Error::Bootstrap { source })?;
        crate::bootstrap::run(&server).await.map_err(|source| Error::Bootstrap { source })?;
        crd::resume_deletions(&server);
        crate::certificates::resume(&server).await;
        tokio::spawn(kube_store::expiry::run(Arc::downgrade(server.store())));
        Ok(server)
    }

    /// A server that keeps nothing, for tests.
    pub async fn in_memory() -> Result<Self, Error> {
        Self::open(Config::default()).await
    }

    /// The whole API as a service. Requests must carry a [`User`] in their extensions, put there by an authentication
    /// layer; one without is refused.
    pub fn router(&self) -> axum::Router {
        axum::Router::new().fallback(entry).with_state(self.clone())
    }

    /// A client in this process, as administrator.
    pub fn client(&self) -> kube::Client {
        self.client_as(User::admin())
    }

    /// The same for a component, whose name what it writes bears.
    pub fn client_named(&self, component: &'static str) -> kube::Client {
        let agent = http::HeaderValue::from_static(component);
        let named = axum::middleware::map_request(move |mut request: Request| {
            request.headers_mut().entry(http::header::USER_AGENT).or_insert_with(|| agent.clone());
            std::future::ready(request)
        });
        kube::Client::new(self.router().layer(named).layer(axum::Extension(User::admin())), "default")
    }

    /// A client in this process, as `user`: authorization and admission apply.
    pub fn client_as(&self, user: User) -> kube::Client {
        let router = self.router().layer(axum::Extension(user));
        kube::Client::new(router, "default")
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

    /// Called after every write that left an object behind.
    pub(crate) async fn written(&self, resource: &Resource, object: &Arc<Object>) {
        if resource.group.is_empty()
            && resource.plural == "namespaces"
            && !object.terminating()
            && let Err(error) = crate::registry::bootstrap::default_account(self, &object.key.name).await
        {
            tracing::warn!(%error, namespace = %object.key.name, "cannot create the default service account");
        }
        if resource.plural == "validatingadmissionpolicies" {
            crate::admission::policy::typecheck::settle(self, object).await;
        }
        if resource.group == "certificates.k8s.io" {
            crate::certificates::after_write(self, object).await;
        }
        if matches!(resource.group.as_str(), "apiextensions.k8s.io" | "apiregistration.k8s.io") {
            self.refresh_registry().await;
            if resource.group == "apiextensions.k8s.io" {
                crd::after_write(self, object).await;
            }
        }
    }

    /// Called after an object has gone.
    pub(crate) async fn removed(&self, resource: &Resource, _object: &Arc<Object>) {
        match resource.group.as_str() {
            "apiextensions.k8s.io" => crd::after_removal(self).await,
            "apiregistration.k8s.io" => self.refresh_registry().await,
            _ => {}
        }
    }

    /// `/healthz`, `/version`, discovery, OpenAPI.
    pub(crate) async fn non_resource(&self, info: &RequestInfo, parts: &http::request::Parts) -> Response {
        rest::documents::serve(self, info, parts)
    }
}

async fn entry(State(server): State<ApiServer>, request: Request) -> Response {
    rest::handle(server, request).await.into_response()
}

impl View for Store {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.tree(&storage_key(group, resource), namespace, name)
    }
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let snapshot = Self::list(self, &storage_key(group, resource), namespace);
        self.trees(&snapshot)
    }
    fn count(&self, group: &str, resource: &str, namespace: &str) -> usize {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        Self::list(self, &storage_key(group, resource), namespace).objects.len()
    }
    fn revision(&self, group: &str, resource: &str) -> u64 {
        self.changed_at(&storage_key(group, resource))
    }
}

fn storage_key(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}
