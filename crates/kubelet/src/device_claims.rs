//! Claims on devices: their drivers register on a socket, prepare the devices before a pod starts, and take them back
//! after it.
//!
//! ```text
//!  plugins_registry/*.sock ──registration──▶ Plugins
//!                                              │
//!  pod ─▶ claim, reserved for it ─▶ record ─▶ NodePrepareResources ─▶ CDI ids ─▶ devices, mounts, env of containers
//!  pod gone ─▶ record ─▶ NodeUnprepareResources ─▶ no record
//! ```
//!
//! Invariants: a claim is on record below the kubelet's directory before a driver is asked to prepare it, and the record
//! goes after every driver has taken it back; a driver is asked for what the claim says, of pods it is reserved for alone;
//! what one driver stalls holds up the pods that use it and no other.

pub(crate) mod cdi;
mod claim;
mod prepare;
mod slices;

pub(crate) use prepare::{for_container, prepare, release};
pub(crate) use slices::{withdraw, withdraw_absent};
