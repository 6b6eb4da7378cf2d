//! The embedded cluster's API server, as a library that yields a router.

pub mod discovery;
pub mod error;
pub mod patch;
pub mod registry;
pub mod request;
pub mod schema;
pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod serve;
