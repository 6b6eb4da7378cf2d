//! Storage: claims and volumes are bound, made, attached, grown and deleted.
//!
//! ```text
//!  claim --> binding --no volume fits--> provision --CreateVolume--> driver
//!              ^  |                                                    ^
//!   scheduler -+  +--> volume Bound --> attach (pod's node) -----------+  ControllerPublishVolume
//!   (binder: first consumer)       +--> expand (a larger request) -----+  ControllerExpandVolume
//! ```
//!
//! A driver that brings its own sidecars is left to them, function by function: see [`driver`]. Clusters of somebody
//! else's
//! serve none: there the same controllers run beside the driver, see [`beside`].

mod attach;
pub(crate) mod binder;
mod binding;
mod capability;
mod capacity;
mod driver;
mod ephemeral;
mod expand;
mod facts;
mod fit;
mod health;
mod kinds;
mod names;
mod place;
mod plan;
mod provision;
mod secret;
pub mod sidecar;
mod snapshot;
mod topology;
mod turned;
mod write;

use std::sync::Arc;

pub use driver::{Drivers, Socket};

use crate::context::Context;

/// Runs all controllers of storage until the context's shutdown.
pub async fn run(ctx: Context) {
    let fleet = Arc::new(driver::Fleet::new(ctx.clone()));
    tokio::join!(
        binding::run(ctx.clone()),
        ephemeral::run(ctx.clone()),
        provision::run(ctx.clone(), fleet.clone()),
        attach::run(ctx.clone()),
        attach::publish::run(ctx.clone(), fleet.clone()),
        expand::run(ctx.clone(), fleet.clone()),
        snapshot::run(ctx.clone(), fleet.clone()),
        capacity::publish::run(ctx.clone(), fleet.clone()),
        health::run(ctx.clone(), fleet.clone()),
    );
}
