//! Looks at the interface that the runtime made for a pod.

use std::os::fd::AsFd;
use std::path::Path;

use net::cni::Made;
use net::link::Netlink;
use pod_networks::Interface;

/// The pod network's name, which is that of its CNI configuration.
const POD_NETWORK: &str = "pods";
const POD_INTERFACE: &str = "eth0";

/// The pod's own interface, which the runtime had made. What cannot be found out is left out.
pub(super) async fn of_pod_network(netns: &Path) -> Interface {
    Interface {
        network: POD_NETWORK.to_owned(),
        name: POD_INTERFACE.to_owned(),
        made: look(netns).await.unwrap_or_default(),
        default: true,
    }
}

async fn look(netns: &Path) -> Option<Made> {
    let netns = sys::namespace::open_netns(netns).ok()?;
    let netlink = Netlink::open_in(netns.as_fd()).ok()?;
    let link = netlink.find(POD_INTERFACE).await.ok()??;
    let addresses = netlink.addresses(&link).await.ok()?;
    let local = |address: &std::net::IpAddr| match address {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    Some(Made {
        mac: Some(link.mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")),
        addresses: addresses.iter().filter(|net| !local(&net.addr())).map(ToString::to_string).collect(),
        mtu: Some(link.mtu.into()),
    })
}
