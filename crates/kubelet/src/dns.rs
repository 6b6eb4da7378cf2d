//! Cluster DNS: the cluster's names from the Services, everything else from the host's name servers.
//!
//! ```text
//!  View ── Zone::build ──▶ Zone ──┐
//!  query bytes ───────────────── answer ──▶ reply | forward | silence
//! ```
//!
//! Guarantees: no query makes it panic, allocate beyond the message's size or wait without bound; a name of the
//! cluster never leaves the cluster; before the Services are known the answer is "try again", never "does not exist".

pub mod answer;
mod forward;
mod share;
pub mod zone;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

use crate::service_view::View;
use answer::{Outcome, Transport, answer};
use share::Shares;
use zone::Zone;

/// What the server must know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses to listen on, port 53.
    pub addresses: Vec<IpAddr>,
    /// Domain of the cluster.
    pub domain: String,
    /// Ranges whose reverse names belong to the cluster.
    pub own_ranges: Vec<IpNet>,
    /// Name servers for everything else, asked in this order until one knows.
    pub resolvers: Vec<SocketAddr>,
}

/// Where name servers listen.
pub const PORT: u16 = 53;
/// Queries being forwarded at the same time, and connections being served: of everybody, and of one client.
const FORWARDS: [usize; 2] = [256, 64];
const CONNECTIONS: [usize; 2] = [64, 16];
const IDLE: Duration = Duration::from_secs(10);

struct Server {
    settings: Settings,
    zone: RwLock<Option<Arc<Zone>>>,
    forwards: Arc<Shares>,
    connections: Arc<Shares>,
}

/// Serves until the sender of `services` is gone.
///
/// # Errors
/// When a socket cannot be bound.
pub async fn run(settings: Settings, mut services: watch::Receiver<Option<Arc<View>>>) -> std::io::Result<()> {
    let mut udp = Vec::new();
    let mut tcp = Vec::new();
    for address in &settings.addresses {
        udp.push(Arc::new(UdpSocket::bind(SocketAddr::new(*address, PORT)).await?));
        tcp.push(TcpListener::bind(SocketAddr::new(*address, PORT)).await?);
    }
    let server = Arc::new(Server {
        settings,
        zone: RwLock::new(None),
        forwards: Shares::new(FORWARDS[0], FORWARDS[1]),
        connections: Shares::new(CONNECTIONS[0], CONNECTIONS[1]),
    });
    let udp: Vec<_> = udp.into_iter().map(|socket| kit::spawn("dns-udp", server.clone().datagrams(socket))).collect();
    let tcp: Vec<_> = tcp.into_iter().map(|listener| kit::spawn("dns-tcp", server.clone().accept(listener))).collect();
    loop {
        if let Some(view) = services.borrow_and_update().clone() {
            let zone = Arc::new(Zone::build(&view, &server.settings.domain));
            *server.zone.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(zone);
        }
        if services.changed().await.is_err() {
            drop((udp, tcp));
            return Ok(());
        }
    }
}

impl Server {
    fn answer(&self, query: &[u8], transport: Transport) -> Outcome {
        let zone = self.zone.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        answer(zone.as_deref(), &self.settings, query, transport, rand::random::<u32>() as usize)
    }

    async fn datagrams(self: Arc<Self>, socket: Arc<UdpSocket>) {
        let mut buffer = vec![0; answer::MAX_DATAGRAM];
        loop {
            let (length, client) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    // A client that went away is reported on the next read; the socket itself is fine.
                    tracing::debug!(%error, "receive");
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            match self.answer(&buffer[..length], Transport::Datagram) {
                Outcome::Silence => {}
                Outcome::Reply(reply) => {
                    let _ = socket.send_to(&reply, client).await;
                }
                Outcome::Forward(pending) => {
                    // Who asks for too much at once asks again.
                    let Some(share) = self.forwards.take(client.ip()) else { continue };
                    let (server, socket) = (self.clone(), socket.clone());
                    let forwarding = async move {
                        let reply = forward::resolve(&server.settings.resolvers, pending, Transport::Datagram).await;
                        let _ = socket.send_to(&reply, client).await;
                        drop(share);
                    };
                    kit::spawn("dns-forward", forwarding).detach();
                }
            }
        }
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, client)) => {
                    let Some(share) = self.connections.take(client.ip()) else { continue };
                    let server = self.clone();
                    let serving = async move {
                        if let Err(error) = server.connection(stream, client.ip()).await {
                            tracing::debug!(%error, "connection ended");
                        }
                        drop(share);
                    };
                    kit::spawn("dns-connection", serving).detach();
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn connection(&self, mut stream: TcpStream, client: IpAddr) -> std::io::Result<()> {
        loop {
            let reading = async {
                let length = stream.read_u16().await?;
                let mut query = vec![0; usize::from(length)];
                stream.read_exact(&mut query).await?;
                Ok::<_, std::io::Error>(query)
            };
            let query = match tokio::time::timeout(IDLE, reading).await {
                Ok(Ok(query)) => query,
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Ok(()),
            };
            let reply = match self.answer(&query, Transport::Stream) {
                Outcome::Silence => return Ok(()),
                Outcome::Reply(reply) => reply,
                Outcome::Forward(pending) => {
                    let Some(_share) = self.forwards.take(client) else { return Ok(()) };
                    forward::resolve(&self.settings.resolvers, pending, Transport::Stream).await
                }
            };
            let Ok(length) = u16::try_from(reply.len()) else { return Ok(()) };
            let framed = [&length.to_be_bytes(), reply.as_slice()].concat();
            let writing = tokio::time::timeout(IDLE, stream.write_all(&framed)).await;
            writing.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?;
        }
    }
}
