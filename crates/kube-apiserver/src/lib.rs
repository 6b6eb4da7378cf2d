//! The embedded cluster's API server, as a library that yields a router.
//!
//! ```text
//! TLS or in-process client -> authentication -> RequestInfo -> authorization -> delegated versions | REST
//!                                                                                  |
//!            admission <- schemas, strategies <- registry (built-ins and CRDs)  <--+--> store -> watches
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

pub mod admission;
pub mod aggregation;
pub mod authn;
pub mod authz;
pub mod body;
pub mod bootstrap;
mod certificates;
pub mod config;
pub mod crd;
pub mod discovery;
pub mod edges;
pub mod hook;
mod metrics;
pub mod openapi;
pub mod registry;
mod rest;
pub mod serve;
mod server;
pub mod stream;
pub mod table;

pub use apimachinery::request;
pub use config::Config;
pub use kube_store as store;
pub use server::{ApiServer, Error};
