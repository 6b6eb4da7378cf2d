//! The API server as its clients see it, in process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "tests end at the first surprise"
)]

mod access;
mod apply;
mod certificates;
mod components;
mod conversion;
mod corpus;
mod crd;
mod defaults;
mod delegation;
mod devices;
mod documents;
mod extensions;
mod flows;
mod hostile;
mod killed;
mod lists;
mod mutating_policies;
mod objects;
mod page;
mod policies;
mod properties;
mod protobuf;
mod reach;
mod resize;
mod served;
mod storage;
mod store;
mod streams;
mod versions;
mod watch;
mod webhooks;

use kube_apiserver::{ApiServer, Config};

/// A fresh server.
async fn server() -> ApiServer {
    ApiServer::in_memory().await.unwrap()
}

/// A server that forgets quickly.
async fn forgetful() -> ApiServer {
    ApiServer::open(Config { watch_history: 16, ..Config::default() }).await.unwrap()
}
