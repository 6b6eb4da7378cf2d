//! The controllers on the real API server in this process; the kubelet and virt-handler are played by the tests.

mod cluster;
mod lifecycle;
mod trouble;
