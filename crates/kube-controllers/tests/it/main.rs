//! Every controller on the real API server in this process.

mod cluster;
mod collection;
mod services;
mod scheduling;
mod workloads;
