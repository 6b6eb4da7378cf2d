//! Opening a server: the store and the keys, the registry, and the objects every cluster has.

use std::sync::Arc;

use apimachinery::error::ApiError;
use kube_store::{OpenError, Store};

use crate::authz::Authorizer;
use crate::config::Config;
use crate::edges::Edges;
use crate::view::View;
use crate::{ApiServer, bootstrap, certificates, crd_finalizer};

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
        source: crate::pki::PkiError,
    },
    /// The objects every cluster has.
    #[error("cannot create the objects every cluster has")]
    Bootstrap {
        /// Why.
        #[source]
        source: ApiError,
    },
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
        let server = Self::of(config, store, authorizer, edges);
        server.refresh_registry().await;
        bootstrap::objects::run(&server).await.map_err(|source| Error::Bootstrap { source })?;
        bootstrap::run(&server).await.map_err(|source| Error::Bootstrap { source })?;
        crd_finalizer::resume_deletions(&server);
        certificates::resume(&server).await;
        kit::spawn("expiry", kube_store::expiry::run(Arc::downgrade(server.store()), kit::clock::now)).detach();
        Ok(server)
    }

    /// A server that keeps nothing, for tests.
    pub async fn in_memory() -> Result<Self, Error> {
        Self::open(Config::default()).await
    }
}
