//! Network addons: what networks of virtual machines take beside the cluster's own.
//!
//! ```text
//! NetworkAddonsConfig --> operator --> kubemacpool: VMs and pods --webhook--> a MAC address for each interface, which no other has
//!                                  |-> multus: networks beside the pods' own, where the kubelets attach none
//!                                  |-> ipam: VMIs and their pods --webhook--> an IPAMClaim for each network that keeps addresses
//!                                  |-> bridge-marker: the bridges of each node --> its capacity, for who schedules pods
//!                                  |-> linux-bridge: the CNI plugins bridge and tuning, on each node
//!                                  |-> macvtap: links of each node as devices of its kubelet
//!                                  `-> secondary-dns: names of machines on their secondary networks
//! ```

pub mod base;
pub mod bridge_marker;
mod constraints;
mod error;
mod health;
pub mod ipam;
pub mod kubemacpool;
pub mod linux_bridge;
pub mod macvtap;
pub mod multus;
pub mod operator;
pub mod release;
pub mod secondary_dns;

pub use error::Error;
