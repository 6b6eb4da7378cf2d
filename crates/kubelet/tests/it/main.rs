//! The kubelet on a real containerd, driven through the real API server in this process.
//!
//! Needs root, containerd, runc and the CNI plugins; says so and fails when they are missing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what a failed test shows")]
#![allow(clippy::large_futures, reason = "one test holds the whole cluster")]

mod claims;
mod csi;
mod driver;
mod image;
mod machine;
mod pods;
mod simulated;
mod streams;
