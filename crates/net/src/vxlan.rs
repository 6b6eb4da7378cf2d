//! VXLAN links whose frames for everybody go to a list of peers, so that bridges on several machines are one segment.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures::{StreamExt, TryStreamExt};
use rtnetlink::LinkVxlan;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::link::{ABSENT, Netlink, Result, is_errno, refused};

/// Stands for every address that has not been learnt.
const EVERYBODY: [u8; 6] = [0; 6];

/// One end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End<'a> {
    /// Name of the link.
    pub name: &'a str,
    /// Which segment; the same at all ends.
    pub vni: u32,
    /// This machine's address.
    pub local: IpAddr,
    /// UDP port; the same at all ends.
    pub port: u16,
    /// Largest packet. One that the way below cannot carry in one piece goes in several.
    pub mtu: u32,
}

impl Netlink {
    /// Makes the link, or takes the one of that name, and brings it up.
    ///
    /// # Errors
    /// When the kernel refuses, as for a segment that has another link here.
    pub async fn ensure_vxlan(&self, end: &End<'_>) -> Result<()> {
        if self.find(end.name).await?.is_none() {
            // Bound to no link below: a packet that is larger than that one's would never get out, unless it is cut.
            let link = LinkVxlan::new(end.name, end.vni).port(end.port).learning(true);
            let link = match end.local {
                IpAddr::V4(v4) => link.local(v4),
                IpAddr::V6(v6) => link.local6(v6),
            };
            let made = self.handle().link().add(link.build()).execute().await;
            made.map_err(refused(format!("create the tunnel {} (segment {})", end.name, end.vni)))?;
        }
        self.set_mtu(end.name, end.mtu).await?;
        self.set_up(end.name).await
    }

    /// Has frames for everybody, and for addresses not learnt yet, go to these peers and no other.
    ///
    /// # Errors
    /// When there is no such link, or the kernel refuses.
    pub async fn set_peers(&self, name: &str, peers: &BTreeSet<IpAddr>) -> Result<()> {
        let index = self.get(name).await?.index;
        let known = self.peers(name, index).await?;
        for gone in known.difference(peers) {
            let removed = self.handle().neighbours().del(entry(index, *gone)).execute().await;
            match removed {
                Err(error) if !is_errno(&error, ABSENT) => {
                    return Err(refused(format!("take the peer {gone} from {name}"))(error));
                }
                _ => {}
            }
        }
        for new in peers.difference(&known) {
            self.append(entry(index, *new)).await.map_err(refused(format!("give {name} the peer {new}")))?;
        }
        Ok(())
    }

    async fn peers(&self, name: &str, index: u32) -> Result<BTreeSet<IpAddr>> {
        let request = self.handle().neighbours().get().set_address_family(AddressFamily::Bridge);
        let all: Vec<NeighbourMessage> =
            request.execute().try_collect().await.map_err(refused(format!("list the peers of {name}")))?;
        Ok(all.iter().filter(|message| message.header.ifindex == index).filter_map(peer).collect())
    }

    /// There are several entries for everybody: the library's own request would replace the first.
    async fn append(&self, message: NeighbourMessage) -> std::result::Result<(), rtnetlink::Error> {
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewNeighbour(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND;
        let mut answers = self.handle().clone().request(request)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload {
                return Err(rtnetlink::Error::NetlinkError(error));
            }
        }
        Ok(())
    }
}

fn entry(index: u32, peer: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.flags = NeighbourFlags::Own;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(EVERYBODY.to_vec()));
    message.attributes.push(NeighbourAttribute::Destination(match peer {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    }));
    message
}

/// The peer of an entry for everybody.
fn peer(message: &NeighbourMessage) -> Option<IpAddr> {
    let mut everybody = false;
    let mut found = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => everybody = mac.as_slice() == EVERYBODY,
            NeighbourAttribute::Destination(address) => found = ip(address),
            _ => {}
        }
    }
    found.filter(|_| everybody)
}

/// The library goes by the family, which is that of bridges here.
fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        NeighbourAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        NeighbourAddress::Other(bytes) => {
            let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from)).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[tokio::test]
    async fn peers_come_and_go() {
        use sys::namespace::{Namespace, current_netns, unshare};
        let made = std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().unwrap();
        let Ok(netns) = made else { return };
        let here = Netlink::open_in(netns.as_fd()).unwrap();
        let local = "192.0.2.1".parse().unwrap();
        let end = End { name: "vx0", vni: 77, local, port: 4789, mtu: 9000 };
        for _ in 0..2 {
            here.ensure_vxlan(&end).await.unwrap();
        }
        let link = here.get("vx0").await.unwrap();
        assert_eq!((link.mtu, link.up), (9000, true));
        for list in [&["192.0.2.2", "192.0.2.3"][..], &["192.0.2.3", "192.0.2.4"], &["192.0.2.3", "192.0.2.4"], &[]] {
            let peers: BTreeSet<IpAddr> = list.iter().map(|text| text.parse().unwrap()).collect();
            here.set_peers("vx0", &peers).await.unwrap();
            assert_eq!(here.peers("vx0", link.index).await.unwrap(), peers);
        }
        let other = here.ensure_vxlan(&End { name: "vx1", ..end }).await.unwrap_err();
        assert_eq!(other.to_string(), "cannot create the tunnel vx1 (segment 77)");
    }
}
