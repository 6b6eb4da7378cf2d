//! A DHCP server for one guest (RFC 2131, 2132, 3442): it hands out exactly one address, decided beforehand.
//!
//! [`answer`] is pure; [`serve`] moves datagrams. What a guest sends is read from a bounded buffer, and anything that does
//! not parse or is meant for others is dropped without a word.

use std::net::Ipv4Addr;

use dhcproto::v4::{self, DhcpOption, Message, MessageType, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable};
use ipnet::Ipv4Net;
use tokio::net::UdpSocket;

/// Larger than any DHCP message that fits an Ethernet frame.
const LARGEST: usize = 2048;
/// Leases that outlive the machine, as KubeVirt gives them (RFC 2131: all ones is infinity).
const FOREVER: u32 = u32::MAX;

/// What the guest is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Hardware address served; others are ignored.
    pub mac: [u8; 6],
    /// The guest's address with its network.
    pub address: Ipv4Net,
    /// This server, as the guest sees it.
    pub server: Ipv4Addr,
    /// Default gateway.
    pub router: Option<Ipv4Addr>,
    /// Further routes, destination and gateway.
    pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// Name servers.
    pub dns: Vec<Ipv4Addr>,
    /// Search domains, the first is also the domain name.
    pub search: Vec<String>,
    /// Link MTU.
    pub mtu: u16,
    /// Host name, without domain; empty says nothing.
    pub hostname: String,
    /// NTP servers.
    pub ntp: Vec<Ipv4Addr>,
    /// Options 66 and 67 of network boots.
    pub tftp_server: String,
    /// Boot file.
    pub boot_file: String,
    /// Site-specific options 224-254 as text.
    pub private: Vec<(u8, String)>,
}

/// The reply to one datagram, if it deserves one.
pub fn answer(datagram: &[u8], offer: &Offer) -> Option<Vec<u8>> {
    let request = Message::decode(&mut Decoder::new(datagram)).ok()?;
    if request.opcode() != v4::Opcode::BootRequest || request.chaddr() != offer.mac {
        return None;
    }
    let kind = match request.opts().get(OptionCode::MessageType)? {
        DhcpOption::MessageType(kind) => *kind,
        _ => return None,
    };
    // A client that chose another server is none of ours.
    if let Some(DhcpOption::ServerIdentifier(chosen)) = request.opts().get(OptionCode::ServerIdentifier)
        && *chosen != offer.server
    {
        return None;
    }
    let asked = match request.opts().get(OptionCode::RequestedIpAddress) {
        Some(DhcpOption::RequestedIpAddress(address)) => Some(*address),
        _ if !request.ciaddr().is_unspecified() => Some(request.ciaddr()),
        _ => None,
    };
    let ours = offer.address.addr();
    let reply = match kind {
        MessageType::Discover => MessageType::Offer,
        MessageType::Request if asked.is_none_or(|a| a == ours) => MessageType::Ack,
        MessageType::Request => MessageType::Nak,
        MessageType::Inform => MessageType::Ack,
        _ => return None,
    };
    let mut message = Message::default();
    message
        .set_opcode(v4::Opcode::BootReply)
        .set_xid(request.xid())
        .set_flags(request.flags())
        .set_giaddr(request.giaddr())
        .set_siaddr(offer.server)
        .set_chaddr(request.chaddr());
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(reply));
    options.insert(DhcpOption::ServerIdentifier(offer.server));
    if reply != MessageType::Nak {
        tell(options, offer, kind != MessageType::Inform);
        if kind == MessageType::Inform {
            message.set_ciaddr(request.ciaddr());
        } else {
            message.set_yiaddr(ours);
        }
    }
    message.to_vec().ok()
}

fn tell(options: &mut v4::DhcpOptions, offer: &Offer, lease: bool) {
    if lease {
        options.insert(DhcpOption::AddressLeaseTime(FOREVER));
    }
    options.insert(DhcpOption::SubnetMask(offer.address.netmask()));
    options.insert(DhcpOption::InterfaceMtu(offer.mtu));
    if let Some(router) = offer.router {
        options.insert(DhcpOption::Router(vec![router]));
    }
    if !offer.routes.is_empty() {
        // RFC 3442: a client that reads this option ignores the Router option, so the default route is repeated here.
        let default = offer.router.map(|router| (Ipv4Net::default(), router));
        options.insert(DhcpOption::ClasslessStaticRoute(
            default.into_iter().chain(offer.routes.iter().copied()).collect(),
        ));
    }
    if !offer.dns.is_empty() {
        options.insert(DhcpOption::DomainNameServer(offer.dns.clone()));
    }
    if !offer.ntp.is_empty() {
        options.insert(DhcpOption::NtpServers(offer.ntp.clone()));
    }
    if !offer.hostname.is_empty() {
        options.insert(DhcpOption::Hostname(offer.hostname.clone()));
    }
    if let Some(domain) = offer.search.first() {
        options.insert(DhcpOption::DomainName(domain.clone()));
    }
    let names: Vec<_> = offer.search.iter().filter_map(|domain| domain.parse().ok()).collect();
    if !names.is_empty() {
        options.insert(DhcpOption::DomainSearch(names));
    }
    if !offer.tftp_server.is_empty() {
        options.insert(DhcpOption::TFTPServerName(offer.tftp_server.clone().into_bytes()));
    }
    if !offer.boot_file.is_empty() {
        options.insert(DhcpOption::BootfileName(offer.boot_file.clone().into_bytes()));
    }
    for (code, text) in &offer.private {
        options.insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::Unknown(*code), text.clone().into_bytes())));
    }
}

/// A server socket on `link` in the calling thread's network namespace.
pub fn socket(link: &str) -> std::io::Result<std::net::UdpSocket> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_broadcast(true)?;
    socket.bind_device(Some(link.as_bytes()))?;
    socket.bind(&std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, 67)).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Answers for as long as it is polled. Replies are broadcast: the guest may not have its address yet.
pub async fn serve(socket: UdpSocket, offer: Offer) {
    let mut buffer = vec![0; LARGEST];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        if let Some(reply) = answer(&buffer[..length], &offer) {
            let unicast = from.ip() == std::net::IpAddr::V4(offer.address.addr());
            let to = if unicast { from.ip() } else { Ipv4Addr::BROADCAST.into() };
            if let Err(error) = socket.send_to(&reply, (to, 68)).await {
                tracing::debug!(%error, "a DHCP reply was not sent");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer {
            mac: [2, 0, 0, 0, 0, 1],
            address: "10.0.2.2/24".parse().unwrap(),
            server: [10, 0, 2, 1].into(),
            router: Some([10, 0, 2, 1].into()),
            routes: vec![("172.16.0.0/12".parse().unwrap(), [10, 0, 2, 9].into())],
            dns: vec![[10, 96, 0, 10].into()],
            search: vec!["default.svc.cluster.local".into(), "cluster.local".into()],
            mtu: 1450,
            hostname: "vm".into(),
            ntp: vec![],
            tftp_server: String::new(),
            boot_file: String::new(),
            private: vec![(240, "x".into())],
        }
    }

    fn request(kind: MessageType, asked: Option<[u8; 4]>, mac: [u8; 6]) -> Vec<u8> {
        let mut message = Message::default();
        message.set_opcode(v4::Opcode::BootRequest).set_xid(7).set_chaddr(&mac);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        if let Some(asked) = asked {
            message.opts_mut().insert(DhcpOption::RequestedIpAddress(asked.into()));
        }
        message.to_vec().unwrap()
    }

    #[track_caller]
    fn check(kind: MessageType, asked: Option<[u8; 4]>, expect: Option<MessageType>) {
        let reply = answer(&request(kind, asked, [2, 0, 0, 0, 0, 1]), &offer());
        let got = reply.map(|bytes| {
            let message = Message::decode(&mut Decoder::new(&bytes)).unwrap();
            assert_eq!(message.xid(), 7);
            message.opts().msg_type().unwrap()
        });
        assert_eq!(got, expect);
    }

    #[test]
    fn the_exchange() {
        check(MessageType::Discover, None, Some(MessageType::Offer));
        check(MessageType::Request, Some([10, 0, 2, 2]), Some(MessageType::Ack));
        check(MessageType::Request, None, Some(MessageType::Ack));
        check(MessageType::Request, Some([10, 0, 2, 77]), Some(MessageType::Nak));
        check(MessageType::Inform, None, Some(MessageType::Ack));
        check(MessageType::Release, None, None);
        assert_eq!(answer(&request(MessageType::Discover, None, [9; 6]), &offer()), None);
    }

    #[test]
    fn an_offer_carries_everything() {
        let bytes = answer(&request(MessageType::Discover, None, [2, 0, 0, 0, 0, 1]), &offer()).unwrap();
        let message = Message::decode(&mut Decoder::new(&bytes)).unwrap();
        assert_eq!(message.yiaddr(), Ipv4Addr::new(10, 0, 2, 2));
        let has = |code| message.opts().get(code).cloned();
        assert_eq!(has(OptionCode::InterfaceMtu), Some(DhcpOption::InterfaceMtu(1450)));
        assert_eq!(has(OptionCode::Hostname), Some(DhcpOption::Hostname("vm".into())));
        assert_eq!(has(OptionCode::Router), Some(DhcpOption::Router(vec![[10, 0, 2, 1].into()])));
        let Some(DhcpOption::ClasslessStaticRoute(routes)) = has(OptionCode::ClasslessStaticRoute) else { panic!() };
        assert_eq!(routes.len(), 2, "the default route comes along");
        assert!(has(OptionCode::DomainSearch).is_some());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = answer(&bytes, &offer());
        }
    }
}
