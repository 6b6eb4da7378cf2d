//! The embedded cluster's API server, as a library that yields a router.

pub mod error;
pub mod registry;
pub mod request;
pub mod schema;
