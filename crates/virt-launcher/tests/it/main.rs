//! The launcher from the outside: its driver on libvirt's test driver, and a real guest under QEMU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod boot;
mod driver;
mod support;
