//! The HyperConverged operator and its webhook on our own API server, in process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod admission;
mod cluster;
mod downloads;
mod guard;
mod injector;
mod lifecycle;
mod versions;
