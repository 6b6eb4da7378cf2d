//! A guest's way from this node to another, or from another to this one.
//!
//! ```text
//!   source node                                              target node
//!   [vmi::outgoing] Migrate --> launcher                     [vmi::incoming] plug, Expect --> launcher
//!      ^                    | connections of libvirt, QEMU      |   says where it listens (status)
//!      +---- descriptors ---+                                   v
//!      +================== one TLS stream each ==============> [channel] --> sockets of libvirt, QEMU
//!   started, progress, ended (status)                        has arrived, taken over (status)
//! ```
//! This is what both sides need; what is done about a VMI is in `vmi`, which has the guests. [`plan`] and [`status`] are pure.
//! Nothing of the guest's memory is looked at on the way; only who sends it.

pub(crate) mod address;
pub(crate) mod channel;
mod moving;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod post_copy;
pub(crate) mod status;

use api::kubevirt::v1::VirtualMachineInstanceMigrationState as State;
use kit::peer::Peers;
use kube::Client;

pub(crate) use moving::{Arrival, Arrivals, Moving, Sending, Welcome, lock};

/// What this process needs to meet the agents of other nodes.
pub(crate) struct Road {
    /// How agents recognise each other.
    pub peers: Peers,
    /// This process's address, as other nodes reach it.
    pub address: String,
    /// The port that agents listen on.
    pub port: u16,
    /// The namespace of the agents' pods.
    pub namespace: String,
    /// The API server.
    pub client: Client,
}

/// The UID of the migration that a state is about.
pub(crate) fn uid(state: &State) -> &str {
    state.migration_uid.as_deref().unwrap_or_default()
}
