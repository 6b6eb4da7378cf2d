//! The driver on a real socket, asked as the CSI specification allows it to be asked: every call, its errors, and that
//! it
//! may be made twice. Publishing mounts and attaches, so the tests run as root.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod controller;
mod disk;
mod foreign;
mod legacy;
mod node;
mod operator;
mod plugin;
mod quota;
mod reflink;
mod sanity;
mod shared;
mod snapshots;
mod specification;
