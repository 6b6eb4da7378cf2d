//! The port of a bridge: hairpin, isolation, VLANs.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryStreamExt as _;
use net::link::Netlink;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgePortState, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridgePort, LinkAttribute, LinkExtentMask,
};
use rtnetlink::{LinkBridgePort, LinkBridgeVlan};

use super::config::Config;
use crate::call::digest;
use crate::error::Error;
use crate::links::{self, Described};

/// The VLAN that bridges give each port, unless an administrator has set another.
const DEFAULT: u16 = 1;
/// How long a port may take to forward frames.
const FORWARDING: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(2));

/// What ports of a network have as their alias, by which GC finds them.
pub(super) fn alias(network: &str) -> String {
    format!("ferrovirt-cni {}", digest(&[network]))
}

/// The VLANs of a port, each with whether its frames are without a tag. Pure.
fn vlans(config: &Config) -> BTreeMap<u16, bool> {
    let mut all: BTreeMap<u16, bool> = config.trunk.iter().map(|id| (*id, false)).collect();
    all.extend(config.vlan.map(|id| (id, true)));
    all
}

/// Sets the port `name` up as the network says.
pub(super) async fn set(node: &Netlink, name: &str, config: &Config) -> Result<(), Error> {
    let index = links::get(node, name).await?.index();
    if config.hairpin || config.isolate {
        let wanted = LinkBridgePort::new(index).hairpin(config.hairpin).isolated(config.isolate);
        let op = format!("set hairpinMode and portIsolation at {name}");
        node.handle().link().set_port(wanted.build()).execute().await.map_err(links::refused(op))?;
    }
    if !config.has_vlans() {
        return Ok(());
    }
    for (id, untagged) in vlans(config) {
        add_vlan(node, name, index, id, untagged, false).await?;
    }
    if !config.default_vlan && !vlans(config).contains_key(&DEFAULT) {
        let message = LinkBridgeVlan::new(index).vlan(DEFAULT, BridgeVlanInfoFlags::empty()).build();
        let op = format!("take {name} out of VLAN {DEFAULT}");
        node.handle().link().del_with_message(message).execute().await.map_err(links::refused(op))?;
    }
    Ok(())
}

/// Takes the port, or with `own` the bridge, into a VLAN.
pub(super) async fn add_vlan(
    node: &Netlink,
    name: &str,
    index: u32,
    id: u16,
    untagged: bool,
    own: bool,
) -> Result<(), Error> {
    let flags =
        if untagged { BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged } else { BridgeVlanInfoFlags::empty() };
    let mut message = LinkBridgeVlan::new(index);
    if own {
        message = message.bridge_self();
    }
    let request = node.handle().link().set(message.vlan(id, flags).build());
    request.execute().await.map_err(links::refused(format!("take {name} into VLAN {id}")))
}

/// Waits until frames pass.
pub(super) async fn forwards(node: &Netlink, name: &str) -> Result<(), Error> {
    let open = async {
        while !state(&links::get(node, name).await?) {
            tokio::time::sleep(FORWARDING.0).await;
        }
        Ok(())
    };
    // A bridge that runs the spanning tree protocol takes its time, and says so to nobody.
    tokio::time::timeout(FORWARDING.1, open).await.unwrap_or(Ok(()))
}

fn state(port: &Described) -> bool {
    let state = port.port(|info| match info {
        InfoBridgePort::State(state) => Some(*state == BridgePortState::Forwarding),
        _ => None,
    });
    state == Some(true)
}

/// Compares the port with what the network says.
pub(super) async fn check(node: &Netlink, name: &str, config: &Config) -> Result<(), Error> {
    let port = links::get(node, name).await?;
    let hairpin = port.port(|info| if let InfoBridgePort::HairpinMode(on) = info { Some(*on) } else { None });
    let isolated = port.port(|info| if let InfoBridgePort::Isolated(on) = info { Some(*on) } else { None });
    for (field, wanted, found) in
        [("hairpinMode", config.hairpin, hairpin), ("portIsolation", config.isolate, isolated)]
    {
        if found.is_some_and(|found| found != wanted) {
            return Err(Error::Changed(format!("{field} of the port {name} is not {wanted} any more")));
        }
    }
    if !config.has_vlans() {
        return Ok(());
    }
    let there = vlans_of(node, name, port.index()).await?;
    if let Some((id, _)) = vlans(config).into_iter().find(|(id, untagged)| there.get(id) != Some(untagged)) {
        return Err(Error::Changed(format!("the port {name} is not in VLAN {id} any more as it was")));
    }
    Ok(())
}

async fn vlans_of(node: &Netlink, name: &str, index: u32) -> Result<BTreeMap<u16, bool>, Error> {
    let request = node.handle().link().get().set_filter_mask(AddressFamily::Bridge, vec![LinkExtentMask::Brvlan]);
    let all = request.execute().try_collect::<Vec<_>>().await;
    let all = all.map_err(links::refused(format!("list the VLANs of {name}")))?;
    let mut found = BTreeMap::new();
    for attribute in all.iter().filter(|message| message.header.index == index).flat_map(|message| &message.attributes)
    {
        let LinkAttribute::AfSpecBridge(specs) = attribute else { continue };
        for spec in specs {
            if let AfSpecBridge::VlanInfo(BridgeVlanInfo { vid, flags }) = spec {
                found.insert(*vid, flags.contains(BridgeVlanInfoFlags::Pvid));
            }
        }
    }
    Ok(found)
}
