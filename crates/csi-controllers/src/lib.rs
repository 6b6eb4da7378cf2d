//! The controllers that call CSI drivers: volumes are made, attached, grown, copied and deleted, and their room and health told.
//!
//! ```text
//!  claim --------> provision ----------------+  CreateVolume, DeleteVolume
//!  attachment ---> attach -------------------+  ControllerPublishVolume
//!  larger claim -> expand -------------------+--> driver
//!  other class --> modify -------------------+  ControllerModifyVolume
//!  snapshot -----> snapshot -----------------+  CreateSnapshot
//!  class, node --> capacity    volume --> health
//! ```
//!
//! They run in a control plane ([`run`]), which leaves a driver to its own sidecars function by function (see [`sidecar`]); or
//! beside one driver on clusters whose control plane calls none ([`node_deployment`]). Binding claims to volumes is not theirs.

mod attach;
mod capability;
pub mod capacity;
mod driver;
mod expand;
pub mod facts;
mod health;
mod kinds;
mod modify;
pub mod names;
pub mod node_deployment;
pub mod place;
mod provision;
mod secret;
pub mod sidecar;
mod snapshot;
pub mod topology;

use std::sync::Arc;

use kit::controller::Context;

pub use driver::{Drivers, Socket};
pub use kinds::{VolumeAttributesClass, kept};

/// Runs all of them, for the drivers that `drivers` opens, until the context's shutdown.
pub async fn run(ctx: Context, drivers: Drivers) {
    let fleet = Arc::new(driver::Fleet::new(ctx.clone(), drivers));
    tokio::join!(
        provision::run(ctx.clone(), fleet.clone()),
        attach::run(ctx.clone(), fleet.clone()),
        expand::run(ctx.clone(), fleet.clone()),
        modify::run(ctx.clone(), fleet.clone()),
        snapshot::run(ctx.clone(), fleet.clone()),
        capacity::publish::run(ctx.clone(), fleet.clone()),
        health::run(ctx, fleet),
    );
}
