//! Addresses and routes of the container's interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use futures::TryStreamExt as _;
use ipnet::IpNet;
use net::link::Netlink;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteMetric, RouteScope};
use serde_json::json;

use crate::error::Error;
use crate::result::{Address, Route};
use crate::{links, sysctl};

/// How long an IPv6 address may be looked for at others before it is used.
const DETECTION: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

/// What is routed to where in the container.
pub(crate) struct Inside<'a> {
    pub(crate) netns: BorrowedFd<'a>,
    pub(crate) netlink: &'a Netlink,
    /// The interface.
    pub(crate) name: &'a str,
    /// Whether IPv6 addresses are looked for at others first.
    pub(crate) detect: bool,
}

impl Inside<'_> {
    /// Before the interface is up: neighbours are told when it is, and it may have IPv6 addresses.
    pub(crate) fn prepare(&self, ips: &[Address]) -> Result<(), Error> {
        let of = |family: &'static str, name: &'static str| ["net", family, "conf", self.name, name];
        sysctl::write_if_there(self.netns, &of("ipv4", "arp_notify"), "1")?;
        sysctl::write_if_there(self.netns, &of("ipv6", "ndisc_notify"), "1")?;
        if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
            sysctl::write_if_there(self.netns, &of("ipv6", "disable_ipv6"), "0")?;
        }
        Ok(())
    }

    /// Gives the interface its addresses.
    pub(crate) async fn address(&self, ips: &[Address]) -> Result<(), Error> {
        let index = links::get(self.netlink, self.name).await?.index();
        for Address { address, .. } in ips {
            if address.addr().is_ipv4() || !self.detect {
                self.netlink.ensure_address(self.name, *address).await?;
                continue;
            }
            let request = self.netlink.handle().address().add(index, address.addr(), address.prefix_len());
            let op = format!("give {} the address {address}", self.name);
            request.execute().await.map_err(links::refused(op))?;
        }
        Ok(())
    }

    /// Makes the routes, once the interface is up. Those without a gateway go by that of the first address of their family.
    pub(crate) async fn route(&self, routes: &[Route], ips: &[Address]) -> Result<(), Error> {
        let index = links::get(self.netlink, self.name).await?.index();
        for route in routes {
            let message = message(&with_gateway(route, ips), index)?;
            let op = format!("add a route to {} by {}", route.dst, self.name);
            self.netlink.handle().route().add(message).execute().await.map_err(links::refused(op))?;
        }
        Ok(())
    }

    /// Waits until IPv6 addresses are known to be nobody else's.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        let index = links::get(self.netlink, self.name).await?.index();
        let settled = async {
            loop {
                let found = self.netlink.handle().address().get().set_link_index_filter(index).execute();
                let found = found.try_collect::<Vec<_>>().await;
                let found = found.map_err(links::refused(format!("list the addresses of {}", self.name)))?;
                let mut waits = false;
                for message in found.iter().filter(|message| message.header.index == index) {
                    let has = |flag: AddressFlags, short: AddressHeaderFlags| {
                        let long = message
                            .attributes
                            .iter()
                            .any(|one| matches!(one, AddressAttribute::Flags(all) if all.contains(flag)));
                        long || message.header.flags.contains(short)
                    };
                    if has(AddressFlags::Dadfailed, AddressHeaderFlags::Dadfailed) {
                        let text = "has an IPv6 address that another host of the network has: give it another, or release that one";
                        return Err(Error::Node(format!("{} {text}", self.name)));
                    }
                    waits |= has(AddressFlags::Tentative, AddressHeaderFlags::Tentative);
                }
                if !waits {
                    return Ok(());
                }
                tokio::time::sleep(DETECTION.0).await;
            }
        };
        tokio::time::timeout(DETECTION.1, settled).await.unwrap_or_else(|_| {
            let limit = DETECTION.1.as_secs();
            Err(Error::Node(format!(
                "the IPv6 addresses of {} were not usable within {limit} s: set enabledad to false",
                self.name
            )))
        })
    }

    /// Compares with what was made; the error names what is missing.
    pub(crate) async fn check(&self, ips: &[&Address], routes: &[Route], all: &[Address]) -> Result<(), Error> {
        let link = self.netlink.get(self.name).await?;
        let addresses = self.netlink.addresses(&link).await?;
        if let Some(gone) = ips.iter().find(|ip| !addresses.contains(&ip.address)) {
            return Err(Error::Changed(format!("{} does not have the address {} any more", self.name, gone.address)));
        }
        let there = self.netlink.routes().await?;
        let main = routes.iter().filter(|route| route.table.is_none_or(|table| table == 254));
        for route in main.map(|route| with_gateway(route, all)) {
            if !there.iter().any(|one| one.to == route.dst.trunc() && (route.gw.is_none() || one.via == route.gw)) {
                return Err(Error::Changed(format!("the container does not have the route to {} any more", route.dst)));
            }
        }
        Ok(())
    }
}

fn with_gateway(route: &Route, ips: &[Address]) -> Route {
    let own = |ip: &&Address| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4();
    let linked = route.scope.is_some_and(|scope| scope >= u8::from(RouteScope::Link));
    let gw = route.gw.or_else(|| ips.iter().find(own).filter(|_| !linked)?.gateway);
    Route { gw, ..route.clone() }
}

fn message(route: &Route, index: u32) -> Result<RouteMessage, Error> {
    let wrong = |_| Error::field("routes", &json!(route.dst), "the gateway of an IPv6 destination has an IPv6 address");
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(route.dst.network(), route.dst.prefix_len())
        .map_err(wrong)?
        .output_interface(index);
    let scope = route.scope.map(RouteScope::from);
    builder = match route.gw {
        Some(gateway) => builder.gateway(gateway).map_err(wrong)?.scope(scope.unwrap_or(RouteScope::Universe)),
        None => builder.scope(scope.unwrap_or(RouteScope::Link)),
    };
    if let Some(priority) = route.priority {
        builder = builder.priority(priority);
    }
    if let Some(table) = route.table {
        builder = builder.table_id(table);
    }
    let metrics: Vec<_> =
        [route.mtu.map(RouteMetric::Mtu), route.advmss.map(RouteMetric::Advmss)].into_iter().flatten().collect();
    let mut message = builder.build();
    if !metrics.is_empty() {
        message.attributes.push(RouteAttribute::Metrics(metrics));
    }
    Ok(message)
}

/// The gateway of a network that names none: its first address.
pub(crate) fn first_of(network: IpNet) -> IpAddr {
    match network.network() {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits().wrapping_add(1)).into(),
    }
}

/// The route to everywhere, of the family of `like`.
pub(crate) fn everywhere(like: IpAddr) -> IpNet {
    match like {
        IpAddr::V4(_) => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
        IpAddr::V6(_) => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_go_by_the_gateway_of_their_family() {
        let ip = |text: &str, gateway: Option<&str>| Address {
            address: text.parse().unwrap(),
            gateway: gateway.map(|text| text.parse().unwrap()),
            interface: None,
        };
        let ips = [ip("10.1.0.2/24", Some("10.1.0.1")), ip("fd00:1::2/64", None)];
        let check = |to: &str, expect: Option<&str>| {
            let found = with_gateway(&Route::new(to.parse().unwrap(), None), &ips).gw;
            assert_eq!(found, expect.map(|text| text.parse().unwrap()), "{to}");
        };
        check("192.0.2.0/24", Some("10.1.0.1"));
        check("fd00:2::/64", None);
        let linked = Route { scope: Some(253), ..Route::new("192.0.2.0/24".parse().unwrap(), None) };
        assert_eq!(with_gateway(&linked, &ips).gw, None);
        let mixed = Route::new("fd00:2::/64".parse().unwrap(), Some("192.0.2.1".parse().unwrap()));
        assert!(message(&mixed, 1).unwrap_err().to_string().contains("has an IPv6 address"));
        assert_eq!(first_of("10.1.0.9/24".parse().unwrap()).to_string(), "10.1.0.1");
        assert_eq!(first_of("fd00:1::9/64".parse().unwrap()).to_string(), "fd00:1::1");
    }
}
