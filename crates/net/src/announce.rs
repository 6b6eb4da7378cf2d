//! Telling a network where an address is now: gratuitous ARP (RFC 5227) and unsolicited neighbour advertisements (RFC 4861).
//!
//! [`frame`] is pure; [`send`] puts it on a link of the calling thread's network namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const EVERYBODY: [u8; 6] = [0xff; 6];
/// Of all IPv6 nodes on a link.
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ICMPV6: u8 = 58;
const ADVERTISEMENT: u8 = 136;

/// The Ethernet frame that says that `address` is at `mac`.
pub fn frame(mac: [u8; 6], address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp(mac, address),
        IpAddr::V6(address) => advertisement(mac, address),
    }
}

/// Sends the frame on the link of this index.
///
/// # Errors
/// When the kernel refuses.
pub fn send(index: u32, mac: [u8; 6], address: IpAddr) -> sys::Result<()> {
    sys::packet::send(index, &frame(mac, address))
}

/// Sender and target are the address itself: a question that nobody answers, and whose asker everybody notes.
fn arp(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(EVERYBODY);
    frame.extend(mac);
    frame.extend([0x08, 0x06]);
    // Ethernet, IPv4, lengths of both, request.
    frame.extend([0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

fn advertisement(mac: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    const OVERRIDE: [u8; 4] = [0x20, 0, 0, 0];
    let mut message = vec![ADVERTISEMENT, 0, 0, 0];
    message.extend(OVERRIDE);
    message.extend(address.octets());
    // Target link-layer address, in units of eight bytes.
    message.extend([2, 1]);
    message.extend(mac);
    let length = u8::try_from(message.len()).unwrap_or_default();
    let sum = checksum(address, length, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::with_capacity(86);
    frame.extend(ALL_NODES_MAC);
    frame.extend(mac);
    frame.extend([0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 0, length, ICMPV6, 255]);
    frame.extend(address.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame
}

/// RFC 4443: over the addresses, the length, the protocol and the message.
fn checksum(from: Ipv6Addr, length: u8, message: &[u8]) -> u16 {
    let head = [from.octets(), ALL_NODES.octets()].concat();
    let tail = [0, 0, 0, length, 0, 0, 0, ICMPV6];
    let mut sum: u32 = [&head[..], &tail, message]
        .iter()
        .flat_map(|part| part.chunks(2))
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn gratuitous_arp() {
        let frame = frame(MAC, "10.0.2.2".parse().unwrap());
        assert_eq!(frame.len(), 42);
        assert_eq!(&frame[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!(
            (&frame[22..28], &frame[28..32], &frame[38..42]),
            (&MAC[..], &[10, 0, 2, 2][..], &[10, 0, 2, 2][..])
        );
    }

    #[test]
    fn unsolicited_advertisement() {
        let frame = frame(MAC, "fd00::2".parse().unwrap());
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(&frame[54..56], [136, 0]);
        assert_eq!(&frame[80..], MAC);
        // A message with its own checksum sums up to nothing.
        assert_eq!(checksum("fd00::2".parse().unwrap(), 32, &frame[54..]), 0);
    }
}
