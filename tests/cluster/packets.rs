//! Packets between pods of two nodes: as large as the path takes and larger, by each protocol that a Service may have.

use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, node, until};
use rustix::net::{AddressFamily, SocketType, ipproto};
use serde_json::json;

use crate::pods::{apply, sh};
use crate::survival::ferrovirt;

/// From pod `near` to pod `far`, which serves files on port 8080, by its addresses and by its Services.
pub(crate) fn pass_whole(space: &Namespace) -> Result<()> {
    let ports = json!([{"name": "datagrams", "port": 9001, "protocol": "UDP", "targetPort": 9101},
        {"name": "associations", "port": 9002, "protocol": "SCTP", "targetPort": 9102}]);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "packets"},
        "spec": {"selector": {"app": "far"}, "ports": ports, "ipFamilyPolicy": "PreferDualStack"}});
    apply(space, &[service])?;
    let mtu = the_same_mtu(space)?;
    let service = space.get("service", "packets")?;
    let pod = space.get("pod", "far")?;
    let (near, far) = (network_of(space, "near")?, network_of(space, "far")?);
    let listed =
        pod["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str()?.parse().ok());
    for address in listed {
        let address: IpAddr = address;
        echoes(space, address, mtu)?;
        let of_family = |ip: &IpAddr| ip.is_ipv4() == address.is_ipv4();
        let services = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
        let service = services.filter_map(|ip| ip.as_str()?.parse().ok()).find(of_family);
        datagrams(&near, &far, mtu, &[Some((address, 9101)), service.map(|ip| (ip, 9001))])?;
        if let (Some(service), true) = (service, address.is_ipv4()) {
            associations(&near, &far, service)?;
        }
    }
    stream(space)
}

/// Both pods, and the path between their nodes, take packets of one size: nobody has to find out.
fn the_same_mtu(space: &Namespace) -> Result<usize> {
    let of = |pod: &str| -> Result<usize> { Ok(sh(space, pod, "cat /sys/class/net/eth0/mtu")?.trim().parse()?) };
    let (near, far) = (of("near")?, of("far")?);
    for node in ["node1", "node2"] {
        let between = ferrovirt(&["node", "exec", node, "--", "cat", "/sys/class/net/eth0/mtu"])?;
        let between: usize = between.trim().parse()?;
        ensure!(near == far && near == between, "{near} and {far}, but {between} between {node} and the other");
    }
    Ok(near)
}

/// The largest packet passes at the first try, marked as not to be divided; larger ones are divided and put together.
fn echoes(space: &Namespace, address: IpAddr, mtu: usize) -> Result<()> {
    let largest = mtu - if address.is_ipv4() { 28 } else { 48 };
    for size in [largest, largest + 1, 20_000] {
        sh(space, "near", &format!("busybox ping -c 1 -W 5 -s {size} {address}"))
            .with_context(|| format!("{size} bytes to {address}"))?;
    }
    Ok(())
}

/// A pod's network, by a process of it.
fn network_of(space: &Namespace, pod: &str) -> Result<PathBuf> {
    let uid = space.get("pod", pod)?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let first = node::processes(&uid)?.into_iter().next().with_context(|| format!("pod {pod} has no process"))?;
    Ok(PathBuf::from(format!("/proc/{}/ns/net", first.pid)))
}

/// A socket in that network.
fn datagram_socket(network: &Path, any: IpAddr, port: u16) -> Result<UdpSocket> {
    let socket = sys::namespace::in_netns_at(network, || UdpSocket::bind((any, port)))??;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    Ok(socket)
}

/// Datagrams of each size arrive as they were sent, and so do their answers.
fn datagrams(near: &Path, far: &Path, mtu: usize, ways: &[Option<(IpAddr, u16)>]) -> Result<()> {
    for way in ways.iter().flatten() {
        let any: IpAddr = if way.0.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let server = datagram_socket(far, any, 9101)?;
        let client = datagram_socket(near, any, 0)?;
        let whole = mtu - if way.0.is_ipv4() { 28 } else { 48 };
        let mut buffer = vec![0; 65536];
        for size in [whole, whole + 1, 60_000] {
            let sent: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
            until(&format!("{size} bytes came to {} and back", way.0), || {
                client.send_to(&sent, way)?;
                let (length, asker) = server.recv_from(&mut buffer)?;
                ensure!(buffer[..length] == sent, "{length} other bytes came");
                server.send_to(&sent, asker)?;
                let (length, answering) = client.recv_from(&mut buffer)?;
                ensure!(buffer[..length] == sent && answering.ip() == way.0, "{length} other bytes from {answering}");
                Ok(Some(()))
            })?;
        }
    }
    Ok(())
}

/// The first packets of an SCTP association are led to the Service's pod and back. They are written by hand: not every
/// kernel has SCTP sockets, and those that lead packets on need none.
fn associations(near: &Path, far: &Path, service: IpAddr) -> Result<()> {
    const INIT: u8 = 1;
    const INIT_ACK: u8 = 2;
    let raw = |network: &Path| -> Result<UdpSocket> {
        let open = || rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::SCTP));
        let socket = UdpSocket::from(sys::namespace::in_netns_at(network, open)??);
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        Ok(socket)
    };
    let (client, server) = (raw(near)?, raw(far)?);
    let mut buffer = [0; 2048];
    until("an SCTP association was begun and answered", || {
        client.send_to(&association((40_000, 9002), 0, INIT), (service, 0))?;
        let (length, asker) = server.recv_from(&mut buffer)?;
        ensure!(header(&buffer[..length])? == (40_000, 9102, 0), "{:?}", header(&buffer[..length])?);
        server.send_to(&association((9102, 40_000), TAG, INIT_ACK), asker)?;
        let (length, answering) = client.recv_from(&mut buffer)?;
        ensure!(header(&buffer[..length])? == (9002, 40_000, TAG), "{:?}", header(&buffer[..length])?);
        ensure!(answering.ip() == service, "{answering} answered");
        Ok(Some(()))
    })
}

/// What the client calls its side.
const TAG: u32 = 0x1234_5678;

/// A packet with one chunk that begins an association, or answers that.
fn association((from, to): (u16, u16), tag: u32, kind: u8) -> Vec<u8> {
    let mut packet = [from.to_be_bytes(), to.to_be_bytes()].concat();
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    // Its tag, window, streams out and in, first number.
    packet.extend([kind, 0, 0, 20]);
    packet.extend([TAG.to_be_bytes(), 65_536u32.to_be_bytes(), [0, 1, 0, 1], 1u32.to_be_bytes()].concat());
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// Ports and tag of the SCTP packet in an IPv4 packet, whose checksum is right.
fn header(packet: &[u8]) -> Result<(u16, u16, u32)> {
    let mut sctp = packet.get(usize::from(packet[0] & 15) * 4..).context("no payload")?.to_vec();
    ensure!(sctp.len() >= 12, "{} bytes are no SCTP packet", sctp.len());
    let sum = u32::from_le_bytes([sctp[8], sctp[9], sctp[10], sctp[11]]);
    sctp[8..12].fill(0);
    ensure!(crc32c(&sctp) == sum, "the checksum is wrong");
    let port = |at: usize| u16::from_be_bytes([sctp[at], sctp[at + 1]]);
    Ok((port(0), port(2), u32::from_be_bytes([sctp[4], sctp[5], sctp[6], sctp[7]])))
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}

/// A file of many packets arrives as it is.
fn stream(space: &Namespace) -> Result<()> {
    let make =
        "busybox dd if=/dev/urandom of=/tmp/www/large bs=1M count=32 2>/dev/null; busybox sha256sum < /tmp/www/large";
    let expect = sh(space, "far", make)?;
    let got = sh(space, "near", "busybox timeout 30 busybox wget -qO- http://far/large | busybox sha256sum")?;
    ensure!(got == expect, "{got} instead of {expect}");
    sh(space, "far", "rm /tmp/www/large").map(drop)
}
