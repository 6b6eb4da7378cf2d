//! The built-in controllers and the scheduler of the embedded cluster.
//!
//! Each controller is a pure plan (observed state to steps and status, tested by data) and a thin executor. All share
//! one watch per kind ([`kit::store::Shared`]); nothing polls, nothing is rewritten at intervals, a status is written only
//! when it changes. They know Kubernetes' own kinds and, through discovery, any other; none by name.

mod claim;
mod context;
pub mod cronjob;
pub mod csr;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod endpoints;
pub mod eviction;
pub mod gc;
pub mod ipaddress;
pub mod job;
mod kinds;
pub mod namespace;
pub mod node;
pub mod podgc;
pub mod protection;
pub mod quota;
pub mod replicaset;
mod resources;
mod revision;
pub mod roles;
pub mod scheduler;
pub mod serviceaccount;
pub mod statefulset;
pub mod token;
pub mod volumes;

pub use context::Context;
pub use kit::controller::{Error, Result};
use tokio_util::sync::CancellationToken;

/// How the control plane is set up.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// PEM bundle that verifies the API server, published in every namespace; empty publishes nothing.
    pub root_ca: String,
    /// The cluster's pod ranges, each with the prefix length a node gets out of it; the first is the primary family.
    pub pod_cidrs: Vec<(ipnet::IpNet, u8)>,
    /// How CSI drivers on nodes are reached; the default reaches none, and serves none.
    pub drivers: csi_controllers::Drivers,
}

/// Runs everything until `shutdown`, then waits for it to stop.
pub async fn run(client: kube::Client, options: Options, shutdown: CancellationToken) -> Result<()> {
    let ctx = Context::new(client, options, shutdown);
    ctx.spawn(serviceaccount::run(ctx.clone()));
    ctx.spawn(scheduler::run(ctx.clone()));
    ctx.spawn(deployment::run(ctx.clone()));
    ctx.spawn(replicaset::run(ctx.clone()));
    ctx.spawn(daemonset::run(ctx.clone()));
    ctx.spawn(job::run(ctx.clone()));
    ctx.spawn(cronjob::run(ctx.clone()));
    ctx.spawn(csr::run(ctx.clone()));
    ctx.spawn(statefulset::run(ctx.clone()));
    ctx.spawn(token::run(ctx.clone()));
    ctx.spawn(protection::run(ctx.clone()));
    ctx.spawn(volumes::run(ctx.clone()));
    ctx.spawn(quota::run(ctx.clone()));
    ctx.spawn(roles::run(ctx.clone()));
    ctx.spawn(disruption::run(ctx.clone()));
    ctx.spawn(endpoints::run(ctx.clone()));
    ctx.spawn(ipaddress::run(ctx.clone()));
    ctx.spawn(namespace::run(ctx.clone()));
    ctx.spawn(node::run(ctx.clone()));
    ctx.spawn(eviction::run(ctx.clone()));
    ctx.spawn(podgc::run(ctx.clone()));
    ctx.spawn(gc::run(ctx.clone()));
    ctx.drained().await;
    Ok(())
}
