//! The bridge itself.

use net::link::Netlink;
use rtnetlink::LinkBridge;
use rtnetlink::packet_route::link::InfoKind;

use super::config::Config;
use crate::error::Error;
use crate::links::{self, Described};
use crate::sysctl;

/// Why a field about VLANs cannot act on this node.
pub(super) const NO_VLANS: &str = "the kernel of this node cannot filter VLANs at bridges (it is built without \
                                   CONFIG_BRIDGE_VLAN_FILTERING): vlan and vlanTrunk have to be left out, or the container has to \
                                   run on another node";

/// The network's bridge: as it is found, or made.
pub(super) async fn ensure(node: &Netlink, config: &Config) -> Result<Described, Error> {
    let name = &config.bridge;
    if links::find(node, name).await?.is_none() {
        make(node, config).await?;
    }
    let bridge = links::get(node, name).await?;
    if bridge.kind() != Some(InfoKind::Bridge) {
        return Err(Error::Node(format!(
            "bridge is {name:?}: there is an interface of that name, which is no bridge: name another"
        )));
    }
    if config.has_vlans() {
        match bridge.filters_vlans() {
            Some(true) => {}
            // Whoever made it may have ports whose frames would then be dropped.
            Some(false) => {
                return Err(Error::Node(format!(
                    "the bridge {name} does not filter VLANs, so vlan and vlanTrunk cannot act: turn it on, as by \
                     `ip link set {name} type bridge vlan_filtering 1`"
                )));
            }
            None => return Err(Error::Node(NO_VLANS.to_owned())),
        }
    }
    if !bridge.is_up() {
        node.set_up(name).await?;
    }
    if config.promiscuous && !bridge.is_promiscuous() {
        links::change(node, name, "have all frames taken by", links::no_change().promiscuous(true)).await?;
    }
    links::get(node, name).await
}

async fn make(node: &Netlink, config: &Config) -> Result<(), Error> {
    let name = &config.bridge;
    let mut wanted = LinkBridge::new(name);
    if config.has_vlans() {
        wanted = wanted.vlan_filtering(true);
    }
    if let Some(mtu) = config.mtu {
        wanted = wanted.mtu(mtu);
    }
    let made = node.handle().link().add(wanted.build()).execute().await;
    match made {
        Ok(()) => {}
        // Another container's call was faster.
        Err(_) if node.has(name).await? => return Ok(()),
        Err(rtnetlink::Error::NetlinkError(message))
            if config.has_vlans() && message.raw_code() == -rustix::io::Errno::OPNOTSUPP.raw_os_error() =>
        {
            return Err(Error::Node(NO_VLANS.to_owned()));
        }
        Err(error) => return Err(links::refused(format!("create bridge {name}"))(error)),
    }
    // The address that it has now stays: unless it was set, it follows the ports, and who has learnt it sends into the void.
    let made = links::get(node, name).await?;
    links::change(node, name, "keep the hardware address of", links::no_change().address(made.mac())).await?;
    // What routers among the containers say is not the node's configuration.
    let own = sys::namespace::current_netns();
    let own = own.map_err(|source| Error::Namespace { path: "/proc/thread-self/ns/net".to_owned(), source })?;
    sysctl::write_if_there(std::os::fd::AsFd::as_fd(&own), &["net", "ipv6", "conf", name, "accept_ra"], "0")
}
