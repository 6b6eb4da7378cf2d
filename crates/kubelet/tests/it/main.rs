//! The kubelet on a real containerd, driven through the real API server in this process.
//!
//! Needs root, containerd, runc and the CNI plugins; says so and fails when they are missing.

mod image;
mod machine;
mod pods;
mod streams;
