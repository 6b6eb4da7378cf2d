//! The embedded cluster's API server, as a library that yields a router.
//!
//! ```text
//! TLS or in-process client -> authentication -> RequestInfo -> authorization -> delegated versions | REST
//!                                                                                  |
//!            admission <- schemas, strategies <- registry (built-ins and CRDs)  <--+--> store -> watches
//! ```
//!
//! Below it are two crates: `apimachinery`, what can be said of objects without a server, and `kube-store`. Its modules use each
//! other one way, from the ways in to the state and what that is made of:
//!
//! ```text
//! startup, router, availability -> rest -> after_write -> bootstrap, certificates, crd_finalizer
//!                                   +--> strategy -> server -> edges -> admission, stream, aggregation, authn, pki
//!                                                      +-----> crd -> registry -> hook -> dial -> view
//! ```
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use k8s_openapi::api::core::v1::ConfigMap;
//! let server = kube_apiserver::ApiServer::in_memory().await.unwrap();
//! let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(server.client());
//! assert!(maps.list(&Default::default()).await.unwrap().items.is_empty());
//! # });
//! ```

mod accept;
pub mod admission;
mod after_write;
pub mod aggregation;
pub mod authn;
pub mod authz;
pub mod availability;
pub mod body;
pub mod bootstrap;
mod certificates;
pub mod config;
pub mod crd;
mod crd_finalizer;
mod csr;
pub mod dial;
pub mod discovery;
pub mod edges;
mod flow;
pub mod hook;
mod lines;
mod metrics;
pub mod openapi;
pub mod pki;
pub mod registry;
mod rest;
mod router;
pub mod serve;
mod server;
mod stamp;
mod startup;
mod strategy;
pub mod stream;
pub mod table;
mod validation;
pub mod view;

pub use apimachinery::request;
pub use config::Config;
pub use kube_store as store;
pub use server::ApiServer;
pub use startup::Error;
