//! Router advertisements (RFC 4861) for one guest: "ask DHCPv6 for an address, and send the rest to me".
//!
//! [`advertisement`] is pure; [`serve`] sends one at once, one for each solicitation, and one from time to time.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::Duration;

use ipnet::Ipv6Net;
use tokio::net::UdpSocket;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
/// Between unsolicited advertisements; well below the lifetime that they announce.
const INTERVAL: Duration = Duration::from_secs(300);

/// What is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// On-link prefix.
    pub prefix: Ipv6Net,
    /// Hardware address of the router's interface.
    pub mac: [u8; 6],
    /// Link MTU.
    pub mtu: u32,
    /// Whether the guest may use this router for everything else.
    pub default_router: bool,
}

/// The ICMPv6 message, its checksum left to the kernel.
pub fn advertisement(announce: &Announcement) -> Vec<u8> {
    let lifetime: u16 = if announce.default_router { 9000 } else { 0 };
    let mut message = vec![ADVERTISEMENT, 0, 0, 0];
    // Hop limit 64; "managed" and "other configuration": both by DHCPv6.
    message.extend([64, 0xc0]);
    message.extend(lifetime.to_be_bytes());
    message.extend([0; 8]);
    // Source link-layer address.
    message.extend([1, 1]);
    message.extend(announce.mac);
    // MTU.
    message.extend([5, 1, 0, 0]);
    message.extend(announce.mtu.to_be_bytes());
    // Prefix information: on-link, not for address autoconfiguration, for ever.
    message.extend([3, 4, announce.prefix.prefix_len(), 0x80]);
    message.extend(u32::MAX.to_be_bytes());
    message.extend(u32::MAX.to_be_bytes());
    message.extend([0; 4]);
    message.extend(announce.prefix.network().octets());
    message
}

/// Whether an ICMPv6 message is a router solicitation.
pub fn is_solicitation(message: &[u8]) -> bool {
    message.len() >= 8 && message[0] == SOLICITATION && message[1] == 0
}

/// A raw socket on `link` (of index `index`) in the calling thread's network namespace.
pub fn socket(link: &str, index: u32) -> std::io::Result<std::net::UdpSocket> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
    socket.bind_device(Some(link.as_bytes()))?;
    socket.join_multicast_v6(&ALL_ROUTERS, index)?;
    socket.set_multicast_if_v6(index)?;
    // RFC 4861, 6.1.2: receivers drop what was forwarded.
    socket.set_multicast_hops_v6(255)?;
    socket.set_unicast_hops_v6(255)?;
    socket.set_multicast_loop_v6(false)?;
    socket.set_nonblocking(true)?;
    // The standard type for datagrams: sending and receiving are the same calls on a raw socket.
    Ok(socket.into())
}

/// Announces for as long as it is polled.
pub async fn serve(socket: UdpSocket, index: u32, announce: Announcement) {
    let to = SocketAddrV6::new(ALL_NODES, 0, 0, index);
    let message = advertisement(&announce);
    let mut tick = tokio::time::interval(INTERVAL);
    let mut buffer = [0; 512];
    loop {
        tokio::select! {
            _ = tick.tick() => {
                if let Err(error) = socket.send_to(&message, to).await {
                    // The link may not be up yet, or its address tentative: the guest asks again.
                    tracing::debug!(%error, "a router advertisement was not sent");
                }
            }
            read = socket.recv(&mut buffer) => match read {
                Ok(length) if is_solicitation(&buffer[..length]) => tick.reset_immediately(),
                Ok(_) => {}
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message() {
        let announce = Announcement {
            prefix: "fd10:0:2::/120".parse().unwrap(),
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1450,
            default_router: true,
        };
        let message = advertisement(&announce);
        assert_eq!(message.len(), 16 + 8 + 8 + 32);
        assert_eq!(&message[..8], [134, 0, 0, 0, 64, 0xc0, 0x23, 0x28]);
        assert_eq!(message[16 + 8 + 8 + 2], 120);
        let silent = Announcement { default_router: false, ..announce };
        assert_eq!(&advertisement(&silent)[6..8], [0, 0]);
    }

    #[test]
    fn solicitations() {
        assert!(is_solicitation(&[133, 0, 1, 2, 0, 0, 0, 0]));
        assert!(!is_solicitation(&[133, 0, 1]));
        assert!(!is_solicitation(&[134, 0, 1, 2, 0, 0, 0, 0]));
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn only_a_whole_message_of_the_one_type_is_a_solicitation(message in proptest::collection::vec(any::<u8>(), 0..64)) {
            let whole = message.len() >= 8 && message[..2] == [133, 0];
            prop_assert_eq!(super::is_solicitation(&message), whole);
        }
    }
}
