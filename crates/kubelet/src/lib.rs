//! The embedded cluster's node agent: pods through CRI, and the machine, network, Services and DNS they live in.
//!
//! ```text
//!   API server  --watch-->  pods  --one worker each-->  CRI, volumes, probes  -->  containerd
//!        ^                    ^                                                        |
//!        +--- pod status -----+------------------- events.v1 --------------------------+
//! ```
//!
//! Invariants: it knows nothing of virtual machines; whatever must survive its restart lies in the runtime (labels and
//! annotations) or in the API, so that a restart touches no container.

mod agent;
pub mod cni;
mod collection;
mod context;
mod csi;
mod devices;
mod disk_space;
pub mod dns;
mod error;
mod followed;
mod images;
mod logs;
pub mod netpol;
pub mod networks;
pub mod node;
mod pod;
mod pods;
pub mod proxy;
mod registration;
mod resources;
mod runtime;
mod server;
pub mod service_view;
pub mod simulated;
mod volumes;

pub use agent::{Config, Server, run};
pub use error::{Error, Result};
