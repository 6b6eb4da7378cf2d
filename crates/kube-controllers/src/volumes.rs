//! Storage: claims are bound to volumes, and volumes attached to where pods need them. Drivers are called by `csi-controllers`.
//!
//! ```text
//!  claim --> binding --no volume fits--> csi_controllers --CreateVolume--> driver
//!              ^  |                                  ^
//!   scheduler -+  +--> volume Bound --> attach ------+  VolumeAttachment
//!   (binder: first consumer)            (pod's node)
//! ```

mod attach;
pub(crate) mod binder;
mod binding;
mod ephemeral;
mod fit;
mod plan;
mod turned;

use crate::context::Context;

/// Runs all controllers of storage until the context's shutdown.
pub async fn run(ctx: Context) {
    let drivers = ctx.options.drivers.clone();
    tokio::join!(
        binding::run(ctx.clone()),
        ephemeral::run(ctx.clone()),
        attach::run(ctx.clone()),
        csi_controllers::run(ctx.frame(), drivers),
    );
}
