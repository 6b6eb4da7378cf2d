//! The programs of the network addons on our own API server, in process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod bridge_marker;
mod cluster;
mod ipam;
mod kubemacpool;
mod multus;
mod operator;
mod secondary_dns;
