//! The frame every component stands in: tasks, clock, stores, queues, events, leases, certificates, servers.
//!
//! Small plain functions, no framework: a component calls what it needs. Nothing here knows what a virtual machine is.

#![warn(missing_docs)]

pub mod address;
pub mod admission;
pub mod apply;
pub mod backoff;
pub mod certs;
mod chain;
pub mod client;
pub mod clock;
pub mod connections;
pub mod controller;
pub mod cron;
pub mod customize;
pub mod drift;
pub mod duration;
pub mod events;
pub mod gate;
pub mod health;
pub mod keyring;
pub mod lease;
pub mod merge_patch;
pub mod metrics;
pub mod operator;
pub mod peer;
pub mod queue;
pub mod refusal;
pub mod served;
pub mod server;
pub mod shutdown;
pub mod store;
mod task;
pub mod tls;
pub mod vital;
pub mod workload;

pub use chain::Chain;
pub use task::{Task, spawn};
