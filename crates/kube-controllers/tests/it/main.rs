//! Every controller on the real API server in this process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod batch;
mod cluster;
mod collection;
mod driver;
mod nodes;
mod scheduling;
mod services;
mod storage;
mod workloads;
