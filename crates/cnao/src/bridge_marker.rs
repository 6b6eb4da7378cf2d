//! bridge-marker: a node says which bridges it has, so that pods that need one are scheduled to where it is.
//!
//! ```text
//! netlink: a link changes --> bridges of the node --plan (pure)--> status.capacity["bridge.network.kubevirt.io/NAME"] = 1000
//! ```
//! The kubelet offers what stands in the capacity. A NetworkAttachmentDefinition asks for it by its annotation
//! `k8s.v1.cni.cncf.io/resourceName`.

pub mod manifests;
mod plan;

use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kit::Chain;
use kit::health::Ready;
use kit::shutdown::{self, CancellationToken};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use net::link::{Changes, Netlink};
use serde_json::json;

use crate::{Error, health};

/// Its command.
pub const PROGRAM: &str = "bridge-marker";
/// How often the node is read again, whatever changed or did not.
const LOOK: Duration = Duration::from_secs(600);
/// How long it waits after a failure, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Command line of bridge-marker.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Port for health.
    #[arg(long, default_value_t = 8081)]
    pub health_probe_port: u16,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    let ready = Ready::default();
    let address = (Ipv4Addr::LOCALHOST.into(), args.health_probe_port);
    let _health = health::serve(PROGRAM, address, ready.clone(), &stop).await?;
    mark(&client, &args.node_name, &ready, &stop).await;
    Ok(())
}

/// Keeps the node's marks as its bridges are, until `stop`. `ready` is true once they are.
pub async fn mark(client: &Client, node: &str, ready: &Ready, stop: &CancellationToken) {
    let mut pause = PAUSES.0;
    loop {
        let done = tokio::select! {
            done = follow(client, node, ready, &mut pause) => done,
            () = stop.cancelled() => return,
        };
        if let Err(error) = done {
            tracing::warn!(node, error = %Chain(&error), "will look again");
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSES.1),
            () = stop.cancelled() => return,
        }
    }
}

/// Follows the links until something fails.
async fn follow(client: &Client, node: &str, ready: &Ready, pause: &mut Duration) -> Result<(), Error> {
    // First the news, then the look: nothing falls between.
    let mut changes = Changes::follow().map_err(Error::setup("follow the links of the node"))?;
    let links = Netlink::open().map_err(Error::setup("read the links of the node"))?;
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let bridges = links.bridges().await.map_err(Error::setup("read the bridges of the node"))?;
        let held = nodes.get(node).await.map_err(Error::api("read", "node", node))?;
        let capacity = held.status.and_then(|status| status.capacity).unwrap_or_default();
        if let Some(change) = plan::change(&capacity, &bridges) {
            let patch = Patch::Merge(json!({ "status": { "capacity": change } }));
            let written = nodes.patch_status(node, &PatchParams::default(), &patch).await;
            written.map_err(Error::api("patch", "node", node))?;
            tracing::info!(node, ?bridges, "marked");
        }
        ready.set(true);
        *pause = PAUSES.0;
        match tokio::time::timeout(LOOK, changes.next()).await {
            Ok(Some(())) | Err(_) => {}
            Ok(None) => return Ok(()),
        }
    }
}
