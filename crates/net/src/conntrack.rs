//! The kernel's list of connections: which flows it translates, and making it forget some of them.
//!
//! A datagram protocol has no end of connection, so a translated flow would keep its endpoint as long as its client talks; and
//! an endpoint that is gone cannot tell the client of a connection that it ended.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr as Kernel};

/// A refused operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The netlink socket could not be made or used.
    #[error("cannot ask the kernel for its connections")]
    Socket(#[source] std::io::Error),
    /// The kernel refused.
    #[error("the kernel refused to {op}: error {code}")]
    Refused {
        /// What.
        op: &'static str,
        /// Its number for why.
        code: i32,
    },
}

/// A flow as it was begun, and where its answers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Transport protocol number.
    pub protocol: u8,
    /// Whom the client addressed.
    pub addressed: SocketAddr,
    /// Who answers; another than the addressed one when the flow is translated.
    pub answering: SocketAddr,
    /// The client's side of it as the kernel words it, by which it is found again.
    key: Vec<u8>,
}

/// TCP's number.
pub const TCP: u8 = 6;
/// UDP's number.
pub const UDP: u8 = 17;

const DUMP: u16 = 0x301;
const REQUEST_ACK: u16 = 0x5;
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 0x8000;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
/// Errno of a flow that ended meanwhile.
const GONE: i32 = -2;

/// Makes the kernel forget the flows that `is_stale` names, and returns how many. Blocks.
pub fn forget(is_stale: impl Fn(&Flow) -> bool) -> Result<usize, Error> {
    let socket = open()?;
    let mut forgotten = 0;
    for family in [2, 10] {
        for flow in list(&socket, family)?.into_iter().filter(&is_stale) {
            send(&socket, &message(DELETE, REQUEST_ACK, family, &attribute(TUPLE_ORIGINAL | NESTED, &flow.key)))?;
            match replies(&socket, "forget a flow", |_| {})? {
                GONE => {}
                _ => forgotten += 1,
            }
        }
    }
    Ok(forgotten)
}

fn open() -> Result<Socket, Error> {
    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(Error::Socket)?;
    socket.bind_auto().map_err(Error::Socket)?;
    socket.connect(&Kernel::new(0, 0)).map_err(Error::Socket)?;
    Ok(socket)
}

fn send(socket: &Socket, message: &[u8]) -> Result<(), Error> {
    socket.send(message, 0).map_err(Error::Socket).map(drop)
}

/// Reads until the answer is complete. Returns the kernel's code: 0, or [`GONE`].
fn replies(socket: &Socket, op: &'static str, mut each: impl FnMut(&[u8])) -> Result<i32, Error> {
    loop {
        let (bytes, _) = socket.recv_from_full().map_err(Error::Socket)?;
        for (kind, body) in messages(&bytes) {
            match kind {
                DONE => return Ok(0),
                ERROR => {
                    let code = body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                    return if matches!(code, 0 | GONE) { Ok(code) } else { Err(Error::Refused { op, code }) };
                }
                _ => each(body),
            }
        }
    }
}

fn list(socket: &Socket, family: u8) -> Result<Vec<Flow>, Error> {
    send(socket, &message(GET, DUMP, family, &[]))?;
    let mut flows = Vec::new();
    replies(socket, "list connections", |body| flows.extend(flow(body)))?;
    Ok(flows)
}

/// Header of netlink, header of netfilter, attributes.
fn message(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(20 + attributes.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The messages of a datagram: type and what follows the header. Stops at the first that is cut short.
fn messages(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(body) = bytes.get(16..length) else { break };
        found.push((kind, body));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// The value of the attribute of this kind, if it is there whole.
fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & !0xc000;
        let value = bytes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn flow(body: &[u8]) -> Option<Flow> {
    let attributes = body.get(4..)?;
    let key = find(attributes, TUPLE_ORIGINAL)?;
    let (protocol, _, addressed) = tuple(key)?;
    let (_, answering, _) = tuple(find(attributes, TUPLE_REPLY)?)?;
    Some(Flow { protocol, addressed, answering, key: key.to_vec() })
}

/// Protocol, source, destination.
fn tuple(bytes: &[u8]) -> Option<(u8, SocketAddr, SocketAddr)> {
    let (addresses, protocol) = (find(bytes, TUPLE_ADDRESSES)?, find(bytes, TUPLE_PROTOCOL)?);
    let ip = |v4: u16, v6: u16| match find(addresses, v4) {
        Some(octets) => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?))),
        None => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(find(addresses, v6)?).ok()?))),
    };
    let port = |kind: u16| find(protocol, kind)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let number = *find(protocol, 1)?.first()?;
    Some((number, SocketAddr::new(ip(1, 3)?, port(2)?), SocketAddr::new(ip(2, 4)?, port(3)?)))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let addresses = [attribute(1, &from.0), attribute(2, &to.0)].concat();
        let protocol =
            [attribute(1, &[UDP]), attribute(2, &from.1.to_be_bytes()), attribute(3, &to.1.to_be_bytes())].concat();
        [attribute(TUPLE_ADDRESSES | NESTED, &addresses), attribute(TUPLE_PROTOCOL | NESTED, &protocol)].concat()
    }

    fn translated() -> Vec<u8> {
        let (client, service, pod) = (([10, 0, 0, 1], 4000), ([10, 96, 0, 9], 53), ([10, 0, 0, 2], 5353));
        let original = attribute(TUPLE_ORIGINAL | NESTED, &side(client, service));
        [original, attribute(TUPLE_REPLY | NESTED, &side(pod, client))].concat()
    }

    #[test]
    fn a_translated_flow() {
        let bytes = message(0x100, 0, 2, &translated());
        let [(kind, body)] = messages(&bytes)[..] else { panic!("one message") };
        let flow = flow(body).unwrap();
        assert_eq!((kind, flow.protocol), (0x100, UDP));
        assert_eq!(
            (flow.addressed.to_string(), flow.answering.to_string()),
            ("10.96.0.9:53".into(), "10.0.0.2:5353".into())
        );
        assert_eq!(flow.key, side(([10, 0, 0, 1], 4000), ([10, 96, 0, 9], 53)));
    }

    #[test]
    fn truncated_messages_are_ignored() {
        let whole = message(0x100, 0, 2, &translated());
        for length in 0..whole.len() {
            assert!(messages(&whole[..length]).is_empty());
            // A header that promises more than there is, and attributes that do.
            let _ = flow(&whole[..length]);
            let _ = flow(whole.get(16..length).unwrap_or_default());
        }
    }

    /// In a namespace of its own: a flow the kernel knows, and then does not.
    #[test]
    fn the_kernel_lists_and_forgets() {
        use std::net::UdpSocket;
        use sys::namespace::{Namespace, unshare};
        let thread = std::thread::spawn(|| {
            let up = |program: &str, words: &[&str]| {
                std::process::Command::new(program).args(words).status().is_ok_and(|s| s.success())
            };
            if unshare(&[Namespace::Net]).is_err() || !up("ip", &["link", "set", "lo", "up"]) {
                return;
            }
            crate::nft::load("table ip t {\n chain c {\n type nat hook output priority -100\n udp dport 5000 dnat to 127.0.0.1:6000\n }\n}\n").unwrap();
            let (server, client) =
                (UdpSocket::bind("127.0.0.1:6000").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            client.send_to(b"x", "127.0.0.1:5000").unwrap();
            server.recv_from(&mut [0; 1]).unwrap();
            let ours = |flow: &Flow| {
                flow.protocol == UDP
                    && flow.answering == "127.0.0.1:6000".parse().unwrap()
                    && flow.addressed.port() == 5000
            };
            assert_eq!(forget(ours).unwrap(), 1);
            assert_eq!(forget(ours).unwrap(), 0);
        });
        thread.join().unwrap();
    }
}
