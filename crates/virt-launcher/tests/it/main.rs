//! The launcher from the outside: its driver on libvirt's test driver, and a real guest under QEMU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod backup;
mod boot;
#[path = "../../../libvirt/tests/it/daemon.rs"]
#[allow(dead_code, reason = "these tests need less of it")]
mod daemon;
mod driver;
mod memory_dump;
mod migration;
mod support;
