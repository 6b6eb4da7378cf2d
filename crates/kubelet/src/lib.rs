//! The embedded cluster's node agent: pods through CRI, and the machine, network, Services and DNS they live in.

pub mod cni;
pub mod node;
