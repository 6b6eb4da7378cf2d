//! The controllers on the real API server in this process; the kubelet and virt-handler are played by the tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod backup;
mod chosen;
mod clone;
mod cluster;
mod data_volumes;
mod eviction;
mod exports;
mod fencing;
mod health;
mod hotplug;
mod interleavings;
mod lifecycle;
mod live_update;
mod local_disks;
mod loss;
mod memory_dump;
mod migration;
mod pool;
mod quotas;
mod replicaset;
mod snapshot;
mod state;
mod storage;
mod template;
mod template_request;
mod trouble;
mod volumes_update;
