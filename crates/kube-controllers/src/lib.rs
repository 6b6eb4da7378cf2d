//! The built-in controllers and the scheduler of the embedded cluster.
//!
//! Each controller is a pure plan (observed state to steps and status, tested by data) and a thin executor. All share
//! one watch per kind ([`kit::store::Shared`]); nothing polls, nothing is rewritten at intervals, a status is written only
//! when it changes. They know Kubernetes' own kinds and, through discovery, any other; none by name.

pub mod attributes_class;
mod claim;
mod context;
pub mod cronjob;
pub mod csr;
pub mod daemonset;
pub mod deployment;
pub mod devices;
pub mod disruption;
pub mod endpoints;
pub mod eviction;
pub mod gc;
mod held;
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
use futures::future::BoxFuture;
pub use kit::controller::{Error, Result};
use kit::vital::Vital;
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
    /// Where the scheduler (`scheduler`) and the controllers (`controller-manager`) say that they run.
    pub vitals: kit::vital::Vitals,
}

/// Runs everything until `shutdown`, then waits for it to stop.
pub async fn run(client: kube::Client, options: Options, shutdown: CancellationToken) -> Result<()> {
    let vitals = options.vitals.clone();
    let ctx = Context::new(client, options, shutdown);
    begin(&ctx, vitals.begin("scheduler"), scheduler::run(ctx.clone()));
    let controllers: Vec<BoxFuture<'static, ()>> = vec![
        Box::pin(serviceaccount::run(ctx.clone())),
        Box::pin(deployment::run(ctx.clone())),
        Box::pin(replicaset::run(ctx.clone())),
        Box::pin(daemonset::run(ctx.clone())),
        Box::pin(job::run(ctx.clone())),
        Box::pin(cronjob::run(ctx.clone())),
        Box::pin(csr::run(ctx.clone())),
        Box::pin(statefulset::run(ctx.clone())),
        Box::pin(token::run(ctx.clone())),
        Box::pin(protection::run(ctx.clone())),
        Box::pin(attributes_class::run(ctx.clone())),
        Box::pin(volumes::run(ctx.clone())),
        Box::pin(devices::run(ctx.clone())),
        Box::pin(quota::run(ctx.clone())),
        Box::pin(roles::run(ctx.clone())),
        Box::pin(disruption::run(ctx.clone())),
        Box::pin(endpoints::run(ctx.clone())),
        Box::pin(ipaddress::run(ctx.clone())),
        Box::pin(namespace::run(ctx.clone())),
        Box::pin(node::run(ctx.clone())),
        Box::pin(eviction::run(ctx.clone())),
        Box::pin(podgc::run(ctx.clone())),
        Box::pin(gc::run(ctx.clone())),
    ];
    for controller in controllers {
        begin(&ctx, vitals.begin("controller-manager"), controller);
    }
    ctx.drained().await;
    Ok(())
}

/// Runs a task that says so as long as it does.
fn begin(ctx: &Context, running: Vital, task: impl Future<Output = ()> + Send + 'static) {
    ctx.spawn(async move {
        let _running = running;
        task.await;
    });
}
