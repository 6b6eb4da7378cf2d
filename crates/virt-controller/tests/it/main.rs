//! The controllers on the real API server in this process; the kubelet and virt-handler are played by the tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod cluster;
mod eviction;
mod fencing;
mod interleavings;
mod lifecycle;
mod local_disks;
mod loss;
mod migration;
mod storage;
mod trouble;
