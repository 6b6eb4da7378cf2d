//! Port forwarding: a websocket on one side, TCP or UDP to the address of the guest's pod on the other.
//!
//! A binary frame is a piece of the stream (TCP) or one datagram (UDP).

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{Message, WebSocket};
use axum::response::Response;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::address::address;
use super::{Context, Object};
use crate::cluster;
use crate::status::{Refusal, conflict};

const PROTOCOL: &str = "plain.kubevirt.io";
const DIAL: Duration = Duration::from_secs(10);
const LINGER: Duration = Duration::from_secs(5);
const PIECE: usize = 32 * 1024;
/// A guest that was cut off, or has lost its address, says nothing any more. One that is paused or moves has a few minutes.
const SILENT_FOR: Duration = Duration::from_secs(15);
const ASKED_TIMES: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

fn parse(rest: &[String]) -> Result<(u16, Transport), Refusal> {
    let port = rest.first().and_then(|port| port.parse().ok()).filter(|port| *port > 0);
    let port = port.ok_or_else(|| Refusal::bad_request("the port must be a number from 1 to 65535"))?;
    match rest.get(1).map(|word| word.to_ascii_lowercase()).as_deref() {
        None | Some("tcp") => Ok((port, Transport::Tcp)),
        Some("udp") => Ok((port, Transport::Udp)),
        Some(other) => Err(Refusal::bad_request(format!("protocol {other} cannot be forwarded: tcp and udp can"))),
    }
}

pub(super) async fn serve(
    context: &Context,
    object: &Object,
    rest: &[String],
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let (port, transport) = parse(rest)?;
    let (client, namespace, name) = (&context.client, &object.namespace, &object.name);
    let vmi = match object.resource {
        "virtualmachines" => {
            let vm = cluster::vm(client, namespace, name).await?;
            let vmi = cluster::find_vmi(client, namespace, name).await?;
            let name = vm.metadata.name.as_deref().unwrap_or_default();
            vmi.ok_or_else(|| conflict("virtualmachine", name, "VMI is not started"))?
        }
        _ => cluster::vmi(client, namespace, name).await?,
    };
    let pods = cluster::launchers(client, &vmi).await?;
    let target = SocketAddr::new(address(&vmi, &pods)?, port);
    let upgrade = upgrade.protocols([PROTOCOL]).max_message_size(1 << 20);
    let unreachable = |error: &dyn std::fmt::Display| {
        Refusal::unreachable(format!("the guest does not answer on port {port}: {error}"))
    };
    match transport {
        Transport::Tcp => {
            let dialled = timeout(DIAL, TcpStream::connect(target)).await;
            let stream = dialled.map_err(|error| unreachable(&error))?.map_err(|error| unreachable(&error))?;
            let asking = socket2::TcpKeepalive::new().with_time(SILENT_FOR).with_interval(SILENT_FOR);
            let asking = asking.with_retries(ASKED_TIMES);
            socket2::SockRef::from(&stream).set_tcp_keepalive(&asking).map_err(|error| unreachable(&error))?;
            Ok(upgrade.on_upgrade(move |socket| tcp(socket, stream)))
        }
        Transport::Udp => {
            let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(any).await.map_err(|error| unreachable(&error))?;
            socket.connect(target).await.map_err(|error| unreachable(&error))?;
            Ok(upgrade.on_upgrade(move |websocket| udp(websocket, socket)))
        }
    }
}

async fn tcp(socket: WebSocket, stream: TcpStream) {
    let (mut send, mut receive) = socket.split();
    let (mut read, mut write) = stream.into_split();
    let to_guest = async {
        while let Some(Ok(message)) = receive.next().await {
            match message {
                Message::Binary(bytes) if write.write_all(&bytes).await.is_err() => return,
                Message::Close(_) => break,
                _ => {}
            }
        }
        let _ = write.shutdown().await;
    };
    let from_guest = async {
        let mut buffer = vec![0; PIECE];
        while let Ok(length) = read.read(&mut buffer).await {
            if length == 0 || send.send(Message::Binary(buffer[..length].to_vec().into())).await.is_err() {
                break;
            }
        }
        let _ = send.close().await;
    };
    // The guest ending the stream ends the forward; the client ending it leaves the guest a moment to answer.
    tokio::select! {
        () = async { to_guest.await; tokio::time::sleep(LINGER).await } => {}
        () = from_guest => {}
    }
}

async fn udp(socket: WebSocket, guest: UdpSocket) {
    let (mut send, mut receive) = socket.split();
    let mut buffer = vec![0; 65_536];
    loop {
        tokio::select! {
            message = receive.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    // A datagram that cannot be sent is lost, as datagrams are.
                    let _ = guest.send(&bytes).await;
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
            received = guest.recv(&mut buffer) => match received {
                Ok(length) => {
                    if send.send(Message::Binary(buffer[..length].to_vec().into())).await.is_err() {
                        return;
                    }
                }
                // The guest's port is closed now; it may open.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rest: &[&str], expect: Option<(u16, Transport)>) {
        let rest: Vec<String> = rest.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(parse(&rest).ok(), expect);
    }

    #[test]
    fn ports_and_protocols() {
        check(&["22"], Some((22, Transport::Tcp)));
        check(&["53", "udp"], Some((53, Transport::Udp)));
        check(&["22", "sctp"], None);
        check(&["0"], None);
        check(&["ssh"], None);
    }
}
