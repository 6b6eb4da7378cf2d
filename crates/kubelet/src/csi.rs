//! Storage by CSI drivers: they register on a socket, and their Node service stages, publishes, measures and grows volumes.
//!
//! ```text
//!  plugins_registry/*.sock ──registry──▶ Drivers ──▶ CSINode, topology labels          (node_object)
//!                                           │
//!  pod ─▶ claim ─▶ PersistentVolume ─▶ request ─▶ attached? ─▶ stage ─▶ publish ─▶ path or device
//! ```
//!
//! Invariants: what is staged or published is on record below the kubelet's directory before the driver is asked, and
//! the record goes after the driver took it back; so whoever starts anew knows what to undo, with or without the driver.

mod attachment;
pub(crate) mod expansion;
pub(crate) mod node_object;
pub(crate) mod registry;
mod secrets;
pub(crate) mod stats;
pub(crate) mod teardown;
mod tokens;
pub(crate) mod volume;
