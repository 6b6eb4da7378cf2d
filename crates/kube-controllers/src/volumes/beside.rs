//! The controller functions of one CSI driver, run beside it on each of its nodes: what the provisioner, resizer and
//! snapshotter sidecars do, for clusters whose control plane serves no drivers.
//!
//! Nobody is elected. What is to be done belongs to the node of the driver that can reach it, and among several to the
//! first
//! that is ready: each decides that by itself, from the same objects.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::driver::{Drivers, Fleet};
use super::{capacity, expand, facts, health, place, provision, snapshot, topology};
use crate::Options;
use crate::context::Context;
use crate::store::Key;

/// Beside which driver, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The driver's name.
    pub driver: String,
    /// The node whose driver is called.
    pub node: String,
    /// Where the objects go that say how much room there is.
    pub namespace: String,
}

/// Serves the driver that `drivers` opens until `shutdown`.
pub async fn run(client: kube::Client, drivers: Drivers, beside: Beside, shutdown: CancellationToken) {
    let options = Options { drivers: drivers.beside(beside), ..Options::default() };
    let ctx = Context::new(client, options, shutdown);
    let fleet = Arc::new(Fleet::new(ctx.clone()));
    ctx.spawn(provision::run(ctx.clone(), fleet.clone()));
    ctx.spawn(expand::run(ctx.clone(), fleet.clone()));
    ctx.spawn(snapshot::beside(ctx.clone(), fleet.clone()));
    ctx.spawn(capacity::publish::run(ctx.clone(), fleet.clone()));
    ctx.spawn(health::run(ctx.clone(), fleet));
    ctx.drained().await;
}

/// Whether the claim's volume is for this process to make: where the provisioner of the whole cluster would make it.
pub(super) fn makes(ctx: &Context, fleet: &Fleet, claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
    if fleet.beside().is_none() {
        return true;
    }
    let driver = &class.provisioner;
    let selected = facts::selected_node(claim);
    if facts::waits_for_consumer(class) && !selected.is_empty() {
        return fleet.is_ours(driver, Some(selected), None);
    }
    let (nodes, registered) = (ctx.store::<Node>().all(), ctx.store::<CSINode>());
    let near = place::of_source(ctx, claim);
    let near = near.and_then(|place| nodes.iter().find(|node| place::is_at(&place, node)));
    let chosen = near.and_then(|node| {
        let registered = registered.get(&Key::new("", node.name_any()))?;
        topology::segment_of(node, &registered, driver)
    });
    let all = topology::segments(&nodes, &registered.all(), driver);
    // What cannot be placed anywhere has to be said by one of them.
    let wanted = topology::requirement(class, &claim.name_any(), chosen, &all).ok().flatten();
    let affinity = wanted.and_then(|wanted| topology::affinity(wanted.preferred.get(..1)?));
    fleet.is_ours(driver, None, affinity.as_ref())
}
