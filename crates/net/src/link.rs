//! Links, addresses and routes over rtnetlink, in this network namespace or another.
//!
//! Guarantees: every `ensure_*` is idempotent and leaves what it names in the asked state; every `remove_*` succeeds when
//! there is nothing to remove. A [`Netlink`] belongs to the namespace it was opened in, whichever thread uses it.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, MulticastGroup, RouteMessageBuilder,
};

/// A refused operation: what was tried, and the kernel's answer as the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The netlink socket could not be made.
    #[error("cannot open a netlink socket")]
    Open(#[source] std::io::Error),
    /// The namespace could not be entered.
    #[error("cannot open a netlink socket in another network namespace")]
    Enter(#[source] sys::Error),
    /// A request was refused.
    #[error("cannot {op}")]
    Request {
        /// What was tried, with its names.
        op: String,
        /// The kernel's answer.
        #[source]
        source: rtnetlink::Error,
    },
    /// A link that must exist does not.
    #[error("there is no network interface {0}")]
    NoLink(String),
    /// A link that was to be made has the name of another.
    #[error("there is another network interface {0}")]
    Taken(String),
}

/// The result of link operations.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn refused(op: String) -> impl FnOnce(rtnetlink::Error) -> Error {
    move |source| Error::Request { op, source }
}

/// Whether the kernel answered with this errno.
pub(crate) fn is_errno(error: &rtnetlink::Error, errnos: &[rustix::io::Errno]) -> bool {
    match error {
        rtnetlink::Error::NetlinkError(message) => {
            errnos.iter().any(|errno| message.raw_code().unsigned_abs() == errno.raw_os_error().unsigned_abs())
        }
        _ => false,
    }
}

pub(crate) const ABSENT: &[rustix::io::Errno] = &[
    rustix::io::Errno::NODEV,
    rustix::io::Errno::SRCH,
    rustix::io::Errno::NOENT,
    rustix::io::Errno::ADDRNOTAVAIL,
    rustix::io::Errno::NXIO,
];

/// What is known of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Hardware address, empty when it has none.
    pub mac: Vec<u8>,
    /// Maximum transmission unit.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Index of the bridge it is a port of.
    pub controller: Option<u32>,
}

impl Link {
    fn from_message(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: Vec::new(),
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            controller: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(mac) => link.mac.clone_from(mac),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Controller(index) => link.controller = Some(*index),
                _ => {}
            }
        }
        link
    }
}

fn is_bridge(message: &LinkMessage) -> bool {
    let infos = message.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    infos.flatten().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Bridge)))
}

/// News of links of one network namespace: that something changed, not what.
pub struct Changes {
    /// The socket is open for as long as there is a handle.
    _handle: Handle,
    news: BoxStream<'static, ()>,
}

impl Changes {
    /// Of this thread's network namespace, from now on. Needs a tokio runtime.
    pub fn follow() -> Result<Self> {
        let (connection, handle, messages) =
            rtnetlink::new_multicast_connection(&[MulticastGroup::Link]).map_err(Error::Open)?;
        #[expect(clippy::disallowed_methods, reason = "this crate is below kit; the task ends with the last handle")]
        tokio::spawn(connection);
        Ok(Changes { _handle: handle, news: messages.map(drop).boxed() })
    }

    /// Waits for the next change; what comes at the same time is one. None when the socket has ended: what is there has to be
    /// read, and followed again.
    pub async fn next(&mut self) -> Option<()> {
        self.news.next().await?;
        while let Some(Some(())) = self.news.next().now_or_never() {}
        Some(())
    }
}

/// A route that goes through a gateway, or straight out of an interface when there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination; a zero prefix length is the default route.
    pub to: IpNet,
    /// Next hop.
    pub via: Option<IpAddr>,
    /// Interface to leave by; the kernel finds it from the gateway when None.
    pub link: Option<u32>,
}

/// A netlink socket of one network namespace.
#[derive(Clone, Debug)]
pub struct Netlink {
    handle: Handle,
}

impl Netlink {
    /// A socket in this thread's network namespace. Needs a tokio runtime.
    pub fn open() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::Open)?;
        #[expect(clippy::disallowed_methods, reason = "this crate is below kit; the task ends with the last handle")]
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// A socket in the network namespace `netns`. Needs a tokio runtime.
    pub fn open_in(netns: BorrowedFd<'_>) -> Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let opened = sys::namespace::in_netns(netns, || {
            let _entered = runtime.enter();
            Self::open()
        });
        opened.map_err(Error::Enter)?
    }

    /// The handle, for requests this module does not know.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// All links.
    pub async fn links(&self) -> Result<Vec<Link>> {
        let all = self.handle.link().get().execute().try_collect::<Vec<_>>().await;
        Ok(all.map_err(refused("list network interfaces".into()))?.iter().map(Link::from_message).collect())
    }

    /// The names of the bridges, in order; those of Open vSwitch are none.
    pub async fn bridges(&self) -> Result<Vec<String>> {
        let all = self.handle.link().get().execute().try_collect::<Vec<_>>().await;
        let all = all.map_err(refused("list bridges".into()))?;
        let mut names: Vec<String> =
            all.iter().filter(|message| is_bridge(message)).map(|message| Link::from_message(message).name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The link of that name, if any.
    pub async fn find(&self, name: &str) -> Result<Option<Link>> {
        let mut found = self.handle.link().get().match_name(name).execute();
        match found.try_next().await {
            Ok(message) => Ok(message.as_ref().map(Link::from_message)),
            Err(error) if is_errno(&error, ABSENT) => Ok(None),
            Err(error) => Err(refused(format!("look up network interface {name}"))(error)),
        }
    }

    /// The link of that name, which must exist.
    pub async fn get(&self, name: &str) -> Result<Link> {
        self.find(name).await?.ok_or_else(|| Error::NoLink(name.to_owned()))
    }

    /// Whether there is an interface of this name.
    pub async fn has(&self, name: &str) -> Result<bool> {
        Ok(self.find(name).await?.is_some())
    }

    /// Makes a bridge, or takes the one that is there, and brings it up. It keeps its hardware address whatever ports come
    /// and go.
    pub async fn ensure_bridge(&self, name: &str) -> Result<Link> {
        if self.find(name).await?.is_none() {
            let request = self.handle.link().add(LinkBridge::new(name).up().build());
            request.execute().await.map_err(refused(format!("create bridge {name}")))?;
        }
        self.set_up(name).await?;
        let bridge = self.get(name).await?;
        // Unless it was set, the address is the lowest one of the ports: a new port changes it, and who has just learnt the
        // old one sends into the void until he asks again, seconds later.
        let own = LinkMessageBuilder::<LinkUnspec>::new().address(bridge.mac.clone());
        self.change(name, "keep the hardware address of", own).await?;
        Ok(bridge)
    }

    /// Makes a pair of virtual interfaces: `name` here, `peer` in the network namespace `netns`.
    pub async fn add_veth(&self, name: &str, peer: &str, netns: BorrowedFd<'_>) -> Result<()> {
        let other = LinkMessageBuilder::<LinkUnspec>::new().name(peer).setns_by_fd(netns.as_fd().as_raw_fd()).build();
        let message = LinkMessageBuilder::<LinkVeth>::new(name, peer)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(other)))
            .build();
        let request = self.handle.link().add(message);
        request.execute().await.map_err(refused(format!("create the interface pair {name}, {peer}")))
    }

    /// Brings a link up.
    pub async fn set_up(&self, name: &str) -> Result<()> {
        self.change(name, "bring up", LinkMessageBuilder::<LinkUnspec>::new().up()).await
    }

    /// Takes a link down: nothing passes it, and its neighbours see it without carrier.
    pub async fn set_down(&self, name: &str) -> Result<()> {
        self.change(name, "take down", LinkMessageBuilder::<LinkUnspec>::new().down()).await
    }

    /// Sets the largest packet a link carries.
    pub async fn set_mtu(&self, name: &str, mtu: u32) -> Result<()> {
        self.change(name, "set the MTU of", LinkMessageBuilder::<LinkUnspec>::new().mtu(mtu)).await
    }

    /// Makes `name` a port of `bridge`.
    pub async fn set_bridge(&self, name: &str, bridge: &str) -> Result<()> {
        let bridge = self.get(bridge).await?;
        self.change(name, "attach to a bridge", LinkMessageBuilder::<LinkUnspec>::new().controller(bridge.index)).await
    }

    /// Stops a bridge's port from learning which hardware addresses are behind it: frames for them go to every port.
    pub async fn stop_learning(&self, name: &str) -> Result<()> {
        let link = self.get(name).await?;
        let request = self.handle.link().set_port(LinkBridgePort::new(link.index).learning(false).build());
        request.execute().await.map_err(refused(format!("stop {name} from learning addresses")))
    }

    /// Applies a change to the link of that name.
    pub async fn change(&self, name: &str, op: &str, change: LinkMessageBuilder<LinkUnspec>) -> Result<()> {
        let link = self.get(name).await?;
        let request = self.handle.link().set(change.index(link.index).build());
        request.execute().await.map_err(refused(format!("{op} network interface {name}")))
    }

    /// Deletes a link.
    pub async fn remove_link(&self, name: &str) -> Result<()> {
        let Some(link) = self.find(name).await? else { return Ok(()) };
        match self.handle.link().del(link.index).execute().await {
            Err(error) if !is_errno(&error, ABSENT) => Err(refused(format!("delete network interface {name}"))(error)),
            _ => Ok(()),
        }
    }

    /// The addresses of a link.
    pub async fn addresses(&self, link: &Link) -> Result<Vec<IpNet>> {
        let request = self.handle.address().get().set_link_index_filter(link.index);
        let all = request.execute().try_collect::<Vec<_>>().await;
        let all = all.map_err(refused(format!("list the addresses of {}", link.name)))?;
        Ok(all.iter().filter(|message| message.header.index == link.index).filter_map(address_of).collect())
    }

    /// Gives a link an address. IPv6 skips duplicate address detection: these networks have one owner, and detection
    /// would make the address unusable for a second.
    pub async fn ensure_address(&self, name: &str, address: IpNet) -> Result<()> {
        let link = self.get(name).await?;
        let mut request = self.handle.address().add(link.index, address.addr(), address.prefix_len()).replace();
        if address.addr().is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(refused(format!("give {name} the address {address}")))
    }

    /// Takes an address away from a link.
    pub async fn remove_address(&self, name: &str, address: IpNet) -> Result<()> {
        let link = self.get(name).await?;
        let mut found =
            self.handle.address().get().set_link_index_filter(link.index).set_address_filter(address.addr()).execute();
        let op = || format!("take the address {address} from {name}");
        while let Some(message) = found.try_next().await.map_err(refused(op()))? {
            match self.handle.address().del(message).execute().await {
                Err(error) if !is_errno(&error, ABSENT) => return Err(refused(op())(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets a link's hardware address.
    pub async fn set_mac(&self, name: &str, mac: [u8; 6]) -> Result<()> {
        self.change(name, "set the hardware address of", LinkMessageBuilder::<LinkUnspec>::new().address(mac.to_vec()))
            .await
    }

    /// The routes of the main table, both families.
    pub async fn routes(&self) -> Result<Vec<Route>> {
        let mut found = Vec::new();
        let v4 = RouteMessageBuilder::<std::net::Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<std::net::Ipv6Addr>::new().build();
        for filter in [v4, v6] {
            let all = self.handle.route().get(filter).execute().try_collect::<Vec<_>>().await;
            let all = all.map_err(refused("list routes".into()))?;
            found.extend(all.iter().filter(|message| message.header.table == 254).filter_map(route_of));
        }
        Ok(found)
    }

    /// Adds a route, replacing the one to the same destination.
    pub async fn ensure_route(&self, route: &Route) -> Result<()> {
        let what = format!("add a route to {}", route.to);
        let message = route_message(route).ok_or_else(|| refused(what.clone())(rtnetlink::Error::RequestFailed))?;
        self.handle.route().add(message).replace().execute().await.map_err(refused(what))
    }

    /// Removes a route.
    pub async fn remove_route(&self, route: &Route) -> Result<()> {
        let what = format!("remove the route to {}", route.to);
        let message = route_message(route).ok_or_else(|| refused(what.clone())(rtnetlink::Error::RequestFailed))?;
        match self.handle.route().del(message).execute().await {
            Err(error) if !is_errno(&error, ABSENT) => Err(refused(what)(error)),
            _ => Ok(()),
        }
    }
}

/// None when destination and gateway are of different families.
fn route_message(route: &Route) -> Option<RouteMessage> {
    let mut builder =
        RouteMessageBuilder::<IpAddr>::new().destination_prefix(route.to.network(), route.to.prefix_len()).ok()?;
    if let Some(via) = route.via {
        builder = builder.gateway(via).ok()?;
    } else {
        builder = builder.scope(rtnetlink::packet_route::route::RouteScope::Link);
    }
    if let Some(link) = route.link {
        builder = builder.output_interface(link);
    }
    Some(builder.build())
}

fn address_of(message: &AddressMessage) -> Option<IpNet> {
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            // On point-to-point links `Address` is the peer and `Local` is ours.
            AddressAttribute::Local(local) => address = Some(*local),
            AddressAttribute::Address(other) if address.is_none() => address = Some(*other),
            _ => {}
        }
    }
    IpNet::new(address?, message.header.prefix_len).ok()
}

fn route_of(message: &RouteMessage) -> Option<Route> {
    use rtnetlink::packet_route::route::RouteAddress;
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    };
    let any: IpAddr = match message.header.address_family {
        rtnetlink::packet_route::AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
        rtnetlink::packet_route::AddressFamily::Inet6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let (mut to, mut via, mut link) = (any, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => to = ip(address)?,
            RouteAttribute::Gateway(address) => via = ip(address),
            RouteAttribute::Oif(index) => link = Some(*index),
            _ => {}
        }
    }
    Some(Route { to: IpNet::new(to, message.header.destination_prefix_length).ok()?, via, link })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    fn fresh_netns() -> Option<OwnedFd> {
        use sys::namespace::{Namespace, current_netns, unshare};
        let made = std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().ok()?;
        made.ok()
    }

    #[tokio::test]
    async fn a_bridge_keeps_its_hardware_address() {
        let (Some(one), Some(two)) = (fresh_netns(), fresh_netns()) else { return };
        let here = Netlink::open_in(one.as_fd()).unwrap();
        let bridge = here.ensure_bridge("br0").await.unwrap();
        // Below any address that was drawn at random, which has the bit for those that are not a vendor's.
        for (port, mac) in [("low", [0, 0, 0, 0, 0, 2]), ("lower", [0, 0, 0, 0, 0, 1])] {
            here.add_veth(port, &format!("{port}-end"), two.as_fd()).await.unwrap();
            here.set_mac(port, mac).await.unwrap();
            here.set_bridge(port, "br0").await.unwrap();
        }
        assert_eq!(here.get("br0").await.unwrap().mac, bridge.mac);
        here.remove_link("lower").await.unwrap();
        assert_eq!(here.ensure_bridge("br0").await.unwrap().mac, bridge.mac);
    }

    #[tokio::test]
    async fn a_bridge_with_a_port_addresses_and_routes() {
        let (Some(one), Some(two)) = (fresh_netns(), fresh_netns()) else { return };
        let here = Netlink::open_in(one.as_fd()).unwrap();
        let there = Netlink::open_in(two.as_fd()).unwrap();
        for _ in 0..2 {
            here.ensure_bridge("br0").await.unwrap();
            here.ensure_address("br0", "10.1.0.1/24".parse().unwrap()).await.unwrap();
            here.ensure_address("br0", "fd00:1::1/64".parse().unwrap()).await.unwrap();
        }
        here.add_veth("port0", "eth0", two.as_fd()).await.unwrap();
        here.set_bridge("port0", "br0").await.unwrap();
        here.stop_learning("port0").await.unwrap();
        assert!(matches!(here.stop_learning("port1").await, Err(Error::NoLink(name)) if name == "port1"));
        here.set_up("port0").await.unwrap();
        there.ensure_address("eth0", "10.1.0.2/24".parse().unwrap()).await.unwrap();
        there.set_mtu("eth0", 1400).await.unwrap();
        there.set_up("eth0").await.unwrap();

        let bridge = here.get("br0").await.unwrap();
        assert_eq!(here.get("port0").await.unwrap().controller, Some(bridge.index));
        assert_eq!(there.get("eth0").await.unwrap().mtu, 1400);
        let addresses = here.addresses(&bridge).await.unwrap();
        assert!(addresses.contains(&"10.1.0.1/24".parse().unwrap()));
        assert!(addresses.contains(&"fd00:1::1/64".parse().unwrap()));

        let gateway = Some("10.1.0.1".parse().unwrap());
        let route = Route { to: "0.0.0.0/0".parse().unwrap(), via: gateway, link: None };
        there.ensure_route(&route).await.unwrap();
        there.ensure_route(&route).await.unwrap();
        assert!(there.routes().await.unwrap().iter().any(|r| r.to == route.to && r.via == gateway));
        there.remove_route(&route).await.unwrap();
        there.remove_route(&route).await.unwrap();
        here.remove_link("br0").await.unwrap();
        here.remove_link("br0").await.unwrap();
        assert_eq!(here.find("br0").await.unwrap(), None);
        assert!(matches!(here.get("br0").await, Err(Error::NoLink(name)) if name == "br0"));
    }
}
