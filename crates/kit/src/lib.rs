//! The frame every component stands in: tasks, clock, stores, queues, events, leases, certificates, servers.
//!
//! Small plain functions, no framework: a component calls what it needs. Nothing here knows what a virtual machine is.

pub mod admission;
pub mod backoff;
pub mod certs;
mod chain;
pub mod client;

pub mod clock;
pub mod events;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod peer;
pub mod queue;
pub mod server;
pub mod shutdown;
pub mod store;
mod task;
pub mod tls;

pub use chain::Chain;
pub use task::{Task, spawn};
