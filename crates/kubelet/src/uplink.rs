//! What a cable does for bridges of one name on several machines: a tunnel from each node to all others.
//!
//! Each such bridge has a VXLAN port of its own, in a segment that is told by the bridge's name alone, so that nodes need not
//! agree on anything. Nodes come and go with their Node objects.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::{reflector, watcher};
use net::link::{Error, Netlink};
use net::vxlan::End;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::followed::{changes, is_ready};

/// How the tunnels' names begin.
const PREFIX: &str = "fvl";
const PORT: u16 = 4789;
/// More than guests are usually told. What the way between nodes cannot carry in one piece goes in several.
const MTU: u32 = 9000;
/// How long the list of nodes is waited for: a bridge is of use on its own too.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects bridges of this node with those of the others. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Uplinks {
    local: IpAddr,
    peers: watch::Receiver<Option<BTreeSet<IpAddr>>>,
}

impl Uplinks {
    /// Gives the bridge its tunnel.
    ///
    /// # Errors
    /// When there is no such bridge, or the kernel refuses.
    pub(super) async fn connect(&self, bridge: &str) -> Result<(), Error> {
        let netlink = Netlink::open()?;
        let (name, vni) = segment(bridge);
        let end = End { name: &name, vni, local: self.local, port: PORT, mtu: MTU };
        netlink.ensure_vxlan(&end).await?;
        netlink.set_bridge(&name, bridge).await?;
        let mut peers = self.peers.clone();
        // Without a list there are no peers yet: the task below adds them to every tunnel when they are known.
        let known = tokio::time::timeout(PATIENCE, peers.wait_for(Option::is_some)).await;
        drop(known);
        let now = self.peers.borrow().clone().unwrap_or_default();
        netlink.set_peers(&name, &now).await
    }
}

/// Name and number of the tunnel of a bridge. Two bridges that got the same would be refused by the kernel.
fn segment(bridge: &str) -> (String, u32) {
    let digest = Sha256::digest(bridge.as_bytes());
    let vni = digest.iter().take(3).fold(0, |all, byte| all << 8 | u32::from(*byte));
    (format!("{PREFIX}{vni:06x}"), vni.max(1))
}

/// The uplinks of the node `name` with these addresses, and the task that keeps them true.
pub fn uplinks(
    client: kube::Client,
    name: &str,
    addresses: &[IpAddr],
) -> Option<(Uplinks, impl Future<Output = ()> + Send + use<>)> {
    let local = *addresses.first()?;
    let (publish, peers) = watch::channel(None);
    let (store, writer) = reflector::store::<Node>();
    let own = name.to_owned();
    let task = async move {
        let trim = |node: &mut Node| node.spec = None;
        let mut changed = changes(Api::all(client), watcher::Config::default(), writer, trim).boxed();
        while changed.next().await.is_some() {
            if !is_ready(&store) {
                continue;
            }
            let now: BTreeSet<IpAddr> = store.state().iter().filter_map(|node| address(node, &own, local)).collect();
            let new = publish.send_if_modified(|known| {
                let new = known.as_ref() != Some(&now);
                *known = Some(now.clone());
                new
            });
            if new && let Err(error) = follow(&now).await {
                tracing::warn!(error = %kit::Chain(&error), "bridges do not reach all other nodes");
            }
        }
    };
    Some((Uplinks { local, peers }, task))
}

/// The address by which another node is reached, of the same family as our own.
fn address(node: &Node, own: &str, local: IpAddr) -> Option<IpAddr> {
    let labels = node.metadata.labels.as_ref();
    let kind = labels.and_then(|labels| labels.get("node.kubernetes.io/instance-type"));
    // Simulated nodes run nothing.
    if node.metadata.name.as_deref() == Some(own) || kind.is_some_and(|kind| kind == crate::labels::SIMULATED) {
        return None;
    }
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse::<IpAddr>().ok()).find(|ip| ip.is_ipv4() == local.is_ipv4())
}

/// Gives every tunnel of this node these peers.
async fn follow(peers: &BTreeSet<IpAddr>) -> Result<(), Error> {
    let netlink = Netlink::open()?;
    for link in netlink.links().await?.iter().filter(|link| link.name.starts_with(PREFIX)) {
        netlink.set_peers(&link.name, peers).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_segment_is_told_by_the_name() {
        let (name, vni) = segment("br1");
        assert_eq!(segment("br1"), (name.clone(), vni));
        assert_ne!(segment("br2").1, vni);
        assert!(name.len() <= 15 && vni > 0 && vni < 1 << 24);
    }

    #[test]
    fn peers_are_the_other_nodes() {
        let local = "10.88.0.11".parse().unwrap();
        let check = |name: &str, kind: &str, addresses: &[&str], expect: Option<&str>| {
            let list: Vec<_> = addresses.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
            let labels = json!({"node.kubernetes.io/instance-type": kind});
            let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"addresses": list}});
            let found = address(&serde_json::from_value(node).unwrap(), "node1", local);
            assert_eq!(found.map(|ip| ip.to_string()).as_deref(), expect, "{name}");
        };
        check("node1", "", &["10.88.0.11"], None);
        check("node2", "", &["fd00::12", "10.88.0.12"], Some("10.88.0.12"));
        check("node3", "", &["fd00::13"], None);
        check("simulated1", "simulated", &["10.88.1.1"], None);
    }
}
