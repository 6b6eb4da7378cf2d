//! A DHCPv6 server for one guest (RFC 8415): one non-temporary address, decided beforehand.
//!
//! [`answer`] is pure; [`serve`] moves datagrams.

use std::net::{Ipv6Addr, SocketAddr};

use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, IANA, Message, MessageType, OptionCode, Status, StatusCode};
use dhcproto::{Decodable, Decoder, Encodable};
use tokio::net::UdpSocket;

const LARGEST: usize = 2048;
const FOREVER: u32 = u32::MAX;
/// All DHCP relay agents and servers.
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// What the guest is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The guest's address.
    pub address: Ipv6Addr,
    /// Hardware address of this server, of which its identifier is made.
    pub server_mac: [u8; 6],
    /// Name servers.
    pub dns: Vec<Ipv6Addr>,
    /// Search domains.
    pub search: Vec<String>,
}

impl Offer {
    /// DUID-LL of this server (RFC 8415, 11.4).
    fn server_id(&self) -> Vec<u8> {
        [&[0, 3, 0, 1][..], &self.server_mac].concat()
    }
}

/// The reply to one datagram, if it deserves one.
pub fn answer(datagram: &[u8], offer: &Offer) -> Option<Vec<u8>> {
    let request = Message::decode(&mut Decoder::new(datagram)).ok()?;
    let options = request.opts();
    let client = match options.get(OptionCode::ClientId) {
        Some(DhcpOption::ClientId(id)) => Some(id.clone()),
        _ => None,
    };
    let for_us = match options.get(OptionCode::ServerId) {
        Some(DhcpOption::ServerId(id)) => Some(*id == offer.server_id()),
        _ => None,
    };
    // RFC 8415, 16: who must, and who must not, name a server.
    let accepted = match request.msg_type() {
        MessageType::Solicit | MessageType::Confirm | MessageType::Rebind => client.is_some() && for_us.is_none(),
        MessageType::Request | MessageType::Renew | MessageType::Release | MessageType::Decline => {
            client.is_some() && for_us == Some(true)
        }
        MessageType::InformationRequest => for_us != Some(false),
        _ => false,
    };
    if !accepted {
        return None;
    }
    let rapid = options.get(OptionCode::RapidCommit).is_some();
    let kind = match request.msg_type() {
        MessageType::Solicit if !rapid => MessageType::Advertise,
        _ => MessageType::Reply,
    };
    let mut reply = Message::new_with_id(kind, request.xid());
    let out = reply.opts_mut();
    out.insert(DhcpOption::ServerId(offer.server_id()));
    if let Some(client) = client {
        out.insert(DhcpOption::ClientId(client));
    }
    if request.msg_type() == MessageType::Solicit && rapid {
        out.insert(DhcpOption::RapidCommit);
    }
    match request.msg_type() {
        MessageType::Release | MessageType::Decline => out.insert(status(Status::Success, "released")),
        MessageType::Confirm => {
            let on_link = addresses(options).all(|address| address == offer.address);
            out.insert(status(if on_link { Status::Success } else { Status::NotOnLink }, "checked"));
        }
        MessageType::InformationRequest => {}
        _ => {
            for option in options.get_all(OptionCode::IANA).unwrap_or_default() {
                if let DhcpOption::IANA(asked) = option {
                    out.insert(DhcpOption::IANA(lease(asked.id, offer)));
                }
            }
        }
    }
    if !offer.dns.is_empty() {
        out.insert(DhcpOption::DomainNameServers(offer.dns.clone()));
    }
    let names: Vec<_> = offer.search.iter().filter_map(|domain| domain.parse().ok()).collect();
    if !names.is_empty() {
        out.insert(DhcpOption::DomainSearchList(names));
    }
    reply.to_vec().ok()
}

fn lease(id: u32, offer: &Offer) -> IANA {
    let mut opts = DhcpOptions::new();
    opts.insert(DhcpOption::IAAddr(IAAddr {
        addr: offer.address,
        preferred_life: FOREVER,
        valid_life: FOREVER,
        opts: DhcpOptions::new(),
    }));
    IANA { id, t1: FOREVER, t2: FOREVER, opts }
}

fn addresses(options: &DhcpOptions) -> impl Iterator<Item = Ipv6Addr> + '_ {
    options.get_all(OptionCode::IANA).unwrap_or_default().iter().flat_map(|option| match option {
        DhcpOption::IANA(ia) => ia.opts.iter().filter_map(address).collect::<Vec<_>>(),
        _ => Vec::new(),
    })
}

fn address(option: &DhcpOption) -> Option<Ipv6Addr> {
    match option {
        DhcpOption::IAAddr(held) => Some(held.addr),
        _ => None,
    }
}

fn status(status: Status, msg: &str) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: msg.to_owned() })
}

/// A server socket on `link` (of index `index`) in the calling thread's network namespace.
pub fn socket(link: &str, index: u32) -> std::io::Result<std::net::UdpSocket> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_only_v6(true)?;
    socket.bind_device(Some(link.as_bytes()))?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 547)).into())?;
    socket.join_multicast_v6(&SERVERS, index)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Answers for as long as it is polled.
pub async fn serve(socket: UdpSocket, offer: Offer) {
    let mut buffer = vec![0; LARGEST];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        if let Some(reply) = answer(&buffer[..length], &offer)
            && let Err(error) = socket.send_to(&reply, from).await
        {
            tracing::debug!(%error, "a DHCPv6 reply was not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer {
            address: "fd10:0:2::2".parse().unwrap(),
            server_mac: [2, 0, 0, 0, 0, 9],
            dns: vec!["fd00:10:96::a".parse().unwrap()],
            search: vec!["cluster.local".into()],
        }
    }

    fn message(kind: MessageType, server: Option<Vec<u8>>) -> Message {
        let mut message = Message::new_with_id(kind, [1, 2, 3]);
        message.opts_mut().insert(DhcpOption::ClientId(vec![0, 3, 0, 1, 5, 5, 5, 5, 5, 5]));
        message.opts_mut().insert(DhcpOption::IANA(IANA { id: 4, t1: 0, t2: 0, opts: DhcpOptions::new() }));
        if let Some(server) = server {
            message.opts_mut().insert(DhcpOption::ServerId(server));
        }
        message
    }

    #[track_caller]
    fn check(kind: MessageType, server: Option<Vec<u8>>, expect: Option<(MessageType, bool)>) {
        let reply = answer(&message(kind, server).to_vec().unwrap(), &offer()).map(|bytes| {
            let reply = Message::decode(&mut Decoder::new(&bytes)).unwrap();
            assert_eq!(reply.xid(), [1, 2, 3]);
            (reply.msg_type(), addresses(reply.opts()).any(|a| a == offer().address))
        });
        assert_eq!(reply, expect);
    }

    #[test]
    fn the_exchange() {
        let us = || Some(offer().server_id());
        check(MessageType::Solicit, None, Some((MessageType::Advertise, true)));
        check(MessageType::Solicit, us(), None);
        check(MessageType::Request, us(), Some((MessageType::Reply, true)));
        check(MessageType::Request, Some(vec![1]), None);
        check(MessageType::Request, None, None);
        check(MessageType::Renew, us(), Some((MessageType::Reply, true)));
        check(MessageType::Rebind, None, Some((MessageType::Reply, true)));
        check(MessageType::Confirm, None, Some((MessageType::Reply, false)));
        check(MessageType::Release, us(), Some((MessageType::Reply, false)));
        check(MessageType::InformationRequest, None, Some((MessageType::Reply, false)));
        check(MessageType::Advertise, None, None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = answer(&bytes, &offer());
        }
    }
}
