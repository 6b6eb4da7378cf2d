//! The controller functions of one CSI driver, run on each of its nodes (what sidecars call node deployment): what the provisioner, resizer and
//! snapshotter sidecars do, for clusters whose control plane serves no drivers.
//!
//! Nobody is elected. What is to be done belongs to the node of the driver that can reach it, and among several to the
//! first that is ready: each decides that by itself, from the same objects.

use std::sync::Arc;

use kit::controller::Context;
use tokio_util::sync::CancellationToken;

pub use super::driver::Sidecar;
use super::driver::{Drivers, Fleet};
use super::{capacity, expand, health, kinds, modify, provision, snapshot};

/// Serves the driver that `drivers` opens until `shutdown`.
pub async fn run(client: kube::Client, drivers: Drivers, sidecar: Sidecar, shutdown: CancellationToken) {
    let ctx = Context::new(client, kinds::kept(), shutdown);
    let fleet = Arc::new(Fleet::new(ctx.clone(), drivers.sidecar(sidecar)));
    ctx.spawn(provision::run(ctx.clone(), fleet.clone()));
    ctx.spawn(expand::run(ctx.clone(), fleet.clone()));
    ctx.spawn(modify::run(ctx.clone(), fleet.clone()));
    ctx.spawn(snapshot::sidecar(ctx.clone(), fleet.clone()));
    ctx.spawn(capacity::publish::run(ctx.clone(), fleet.clone()));
    ctx.spawn(health::run(ctx.clone(), fleet));
    ctx.drained().await;
}
