//! Every controller on the real API server in this process.

mod batch;
mod cluster;
mod collection;
mod nodes;
mod scheduling;
mod services;
mod workloads;
