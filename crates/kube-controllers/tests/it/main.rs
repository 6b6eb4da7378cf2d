//! Every controller on the real API server in this process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]
#![allow(clippy::large_futures, clippy::needless_pass_by_value, reason = "few live at a time, and cases are literals")]

mod batch;
mod cluster;
mod collection;
mod cronjobs;
mod devices;
mod driver;
mod nodes;
mod recording;
mod scheduling;
mod services;
mod sidecar;
mod snapshots;
mod storage;
mod vitals;
mod workloads;
