//! The node as gateway of the network: an address of the bridge, or of a VLAN on it.

use std::net::IpAddr;
use std::os::fd::AsFd as _;

use ipnet::IpNet;
use net::link::Netlink;
use rtnetlink::LinkVlan;

use super::config::Config;
use super::port;
use crate::error::Error;
use crate::result::{Address, Answer, Route};
use crate::{addressing, links, sysctl};

/// Names the gateways that the plugin for addresses left open, and the routes by them. Pure.
pub(super) fn complete(answer: &mut Answer, config: &Config) {
    for ip in answer.ips.iter_mut().filter(|ip| ip.gateway.is_none() && config.gateway) {
        ip.gateway = Some(addressing::first_of(ip.address));
    }
    if !config.default_gateway {
        return;
    }
    for ip in &answer.ips {
        let everywhere = addressing::everywhere(ip.address.addr());
        if !answer.routes.iter().any(|route| route.dst == everywhere) {
            answer.routes.push(Route::new(everywhere, ip.gateway));
        }
    }
}

/// Gives the bridge the addresses of the gateways, and has the node pass packets on.
pub(super) async fn serve(node: &Netlink, config: &Config, ips: &[Address]) -> Result<(), Error> {
    let name = match config.vlan {
        Some(id) => vlan(node, &config.bridge, id).await?,
        None => config.bridge.clone(),
    };
    let own = sys::namespace::current_netns();
    let own = own.map_err(|source| Error::Namespace { path: "/proc/thread-self/ns/net".to_owned(), source })?;
    for ip in ips {
        let Some(gateway) = ip.gateway else { continue };
        let address = IpNet::new_assert(gateway, ip.address.prefix_len());
        give(node, &name, address, config.force_address).await?;
        let forwarding: &[&str] = match gateway {
            IpAddr::V4(_) => &["net", "ipv4", "ip_forward"],
            IpAddr::V6(_) => &["net", "ipv6", "conf", "all", "forwarding"],
        };
        // Written only when it has to be: a node whose settings cannot be changed may have it already.
        if sysctl::read(own.as_fd(), forwarding)? != "1" {
            sysctl::write(own.as_fd(), forwarding, "1")?;
        }
    }
    Ok(())
}

/// Which of the addresses that `name` has are in the way of `wanted`. Pure.
fn in_the_way(held: &[IpNet], wanted: IpNet) -> Vec<IpNet> {
    let link_local = |net: &IpNet| matches!(net.addr(), IpAddr::V6(address) if address.is_unicast_link_local());
    let same = held.iter().filter(|net| net.addr().is_ipv4() == wanted.addr().is_ipv4() && !link_local(net));
    // Of IPv4 a bridge has one network; of IPv6 several, which do not overlap.
    let clash =
        |net: &&IpNet| wanted.addr().is_ipv4() || net.contains(&wanted.network()) || wanted.contains(&net.network());
    same.filter(clash).filter(|net| **net != wanted).copied().collect()
}

async fn give(node: &Netlink, name: &str, wanted: IpNet, force: bool) -> Result<(), Error> {
    let link = node.get(name).await?;
    let held = node.addresses(&link).await?;
    if held.contains(&wanted) {
        return Ok(());
    }
    for other in in_the_way(&held, wanted) {
        if !force {
            let text = format!("{name} has the address {other}, not {wanted}: set forceAddress, or the same network");
            return Err(Error::Node(text));
        }
        node.remove_address(name, other).await?;
    }
    Ok(node.ensure_address(name, wanted).await?)
}

/// The node's own interface in a VLAN of the bridge.
async fn vlan(node: &Netlink, bridge: &str, id: u16) -> Result<String, Error> {
    let name = format!("{bridge}.{id}");
    if name.len() > 15 {
        return Err(Error::Node(format!(
            "the gateway's interface {name} would have more than 15 characters: name the bridge shorter"
        )));
    }
    let index = links::get(node, bridge).await?.index();
    port::add_vlan(node, bridge, index, id, false, true).await?;
    if links::find(node, &name).await?.is_none() {
        let message = LinkVlan::new(&name, index, id).up().build();
        let made = node.handle().link().add(message).execute().await;
        made.map_err(links::refused(format!("create {name}, the gateway's interface in VLAN {id}")))?;
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_network_of_ipv4_and_several_of_ipv6() {
        let check = |held: &[&str], wanted: &str, expect: &[&str]| {
            assert_eq!(in_the_way(&nets(held), wanted.parse().unwrap()), nets(expect), "{held:?} {wanted}");
        };
        check(&["10.2.0.1/24", "fe80::1/64"], "10.1.0.1/24", &["10.2.0.1/24"]);
        check(&["10.1.0.1/24"], "10.1.0.1/24", &[]);
        check(&["fd00:2::1/64", "10.1.0.1/24"], "fd00:1::1/64", &[]);
        check(&["fd00:1::2/64", "fe80::1/64"], "fd00:1::1/64", &["fd00:1::2/64"]);
    }
}
