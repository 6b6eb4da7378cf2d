//! The embedded cluster's node agent: pods through CRI, and the machine, network, Services and DNS they live in.
//!
//! ```text
//!   API server  --watch-->  pods  --one worker each-->  CRI, volumes, probes  -->  containerd
//!        ^                    ^                                                        |
//!        +--- pod status -----+------------------- events.v1 --------------------------+
//! ```
//!
//! Invariants: it knows nothing of virtual machines; whatever must survive its restart lies in the runtime (labels and
//! annotations), in the API, or in records below its directory, so that a restart touches no container.

mod agent;
mod allocation;
mod claim;
pub mod cni;
mod collection;
mod config;
mod context;
mod csi;
mod device_claims;
mod device_drivers;
mod devices;
mod disk_space;
pub mod dns;
mod drivers;
mod error;
#[cfg(test)]
mod fake_runtime;
mod fields;
mod file_group;
mod followed;
mod image_pulls;
mod images;
mod inventory;
mod known;
mod labels;
mod link_device;
mod logs;
mod mounted;
mod netns;
pub mod netpol;
pub mod networks;
pub mod node;
mod owner;
mod pod;
mod pods;
pub mod proxy;
mod registration;
mod resources;
mod runtime;
mod sandbox;
mod server;
pub mod service_view;
pub mod simulated;
pub mod uplink;
mod volumes;

pub use agent::run;
pub use config::{Config, Server};
pub use error::{Error, Result};
