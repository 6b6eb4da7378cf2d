//! The sockets: datagrams and connections, each with a limit.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kit::Task;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::answer::{MAX_DATAGRAM, Transport, answer};
use super::zone::Zone;

/// Connections at once; who comes later waits until one ends, which is soon.
const CONNECTIONS: usize = 64;
/// How long a connection may say nothing, or take to hear.
const IDLE: Duration = Duration::from_secs(5);

/// What is answered from.
#[derive(Debug, Default)]
pub struct Served {
    zone: RwLock<Option<Arc<Zone>>>,
}

impl Served {
    /// Answers from a copy of `zone` from now on.
    pub fn put(&self, zone: &Zone) {
        *self.zone.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(zone.clone()));
    }

    fn answer(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner).clone();
        answer(zone.as_deref(), query, transport)
    }
}

/// The sockets at work; dropping it closes them.
pub struct Server {
    /// Where it listens, by UDP and by TCP.
    pub address: SocketAddr,
    _tasks: [Task<()>; 2],
}

/// Serves at `address`.
///
/// # Errors
/// When a socket cannot be bound.
pub async fn serve(address: SocketAddr, served: Arc<Served>) -> std::io::Result<Server> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let socket = Arc::new(UdpSocket::bind(address).await?);
    let tasks =
        [kit::spawn("dns-udp", datagrams(socket, served.clone())), kit::spawn("dns-tcp", accept(listener, served))];
    Ok(Server { address, _tasks: tasks })
}

async fn datagrams(socket: Arc<UdpSocket>, served: Arc<Served>) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, client)) => {
                if let Some(reply) = served.answer(&buffer[..length], Transport::Datagram) {
                    // Who does not hear it asks again.
                    let _ = socket.send_to(&reply, client).await;
                }
            }
            Err(error) => {
                // A client that went away is reported on the next read; the socket itself is fine.
                tracing::debug!(%error, "receive");
                tokio::task::yield_now().await;
            }
        }
    }
}

async fn accept(listener: TcpListener, served: Arc<Served>) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = served.clone();
                kit::spawn("dns-connection", async move {
                    if let Err(error) = converse(stream, &served).await {
                        tracing::debug!(%error, "connection");
                    }
                    drop(seat);
                })
                .detach();
            }
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Each message follows its length.
async fn converse(mut stream: TcpStream, served: &Served) -> std::io::Result<()> {
    loop {
        let mut query = Vec::new();
        let read = async {
            let length = stream.read_u16().await?;
            query.resize(usize::from(length), 0);
            stream.read_exact(&mut query).await
        };
        match tokio::time::timeout(IDLE, read).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        }
        let Some(reply) = served.answer(&query, Transport::Stream) else { return Ok(()) };
        let mut framed = u16::try_from(reply.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
        framed.extend(reply);
        match tokio::time::timeout(IDLE, stream.write_all(&framed)).await {
            Ok(written) => written?,
            Err(_) => return Ok(()),
        }
    }
}
