//! Servers among clients that say nothing.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use axum::routing::get;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::certs::{Authority, Leaf};
use crate::clock;
use crate::tls::{self, Material};

const SMALL: Bounds =
    Bounds { total: 16, strangers: 4, per_user: 2, patience: Duration::from_secs(20), idle: Duration::from_secs(90) };

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn served(bounds: Bounds, router: Router) -> Served {
    let (now, hour) = (clock::now(), Duration::from_secs(3600));
    let authority = Authority::generate("test", now, hour).unwrap();
    let material = Material::new();
    material.set(&authority.issue(&Leaf { name: "server".into(), ..Leaf::default() }, now, hour).unwrap()).unwrap();
    let config = tls::server(material, None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    crate::spawn("served", serve_tls_within(bounds, listener, config, router, stop.clone())).detach();
    Served { address, stop }
}

impl Served {
    async fn silent(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn secured(&self) -> TlsStream<TcpStream> {
        let name = ServerName::try_from("server").unwrap();
        let connector = TlsConnector::from(tls::unchecked_client().unwrap());
        connector.connect(name, self.silent().await).await.unwrap()
    }
}

/// The head of the answer to a GET.
async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: server\r\n\r\n").await.unwrap();
    let mut buffer = [0; 1024];
    let count = timeout(Duration::from_secs(10), stream.read(&mut buffer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

/// Until the other side has ended the connection.
async fn ended(mut stream: impl AsyncReadExt + Unpin) {
    let mut rest = Vec::new();
    let _ = timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await.expect("the connection stays");
}

#[tokio::test]
async fn connections_that_say_nothing_keep_nobody_out() {
    let served = served(SMALL, Router::new().route("/", get(|| async { "ok" }))).await;
    let mut silent = Vec::new();
    // More than there are places in all.
    for _ in 0..3 * SMALL.total {
        silent.push(served.silent().await);
    }
    let mut client = served.secured().await;
    assert!(ask(&mut client).await.starts_with("HTTP/1.1 200"), "refused");
    // The oldest of the silent ones were shown out.
    ended(silent.swap_remove(0)).await;
}

#[tokio::test]
async fn beyond_its_share_a_peer_loses_connections_and_others_lose_none() {
    let served = served(SMALL, Router::new().route("/", get(|| async { "ok" }))).await;
    let mut kept = served.secured().await;
    assert!(ask(&mut kept).await.starts_with("HTTP/1.1 200"));
    let mut greedy = Vec::new();
    for _ in 0..3 * SMALL.total {
        let mut stream = served.secured().await;
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
        greedy.push(stream);
    }
    // Of what it opened beyond its two, four stay at most.
    ended(greedy.swap_remove(3)).await;
    assert!(ask(&mut kept).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_connection_without_a_request_ends() {
    let quick = Duration::from_millis(200);
    let served = served(Bounds { patience: quick, idle: quick, ..SMALL }, Router::new()).await;
    ended(served.secured().await).await;
}

/// Reads some bytes, and no more until it is told to go on.
struct Slow {
    stream: TlsStream<TcpStream>,
    first: usize,
    waits: tokio::sync::oneshot::Receiver<()>,
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.first == 0 && !self.waits.is_terminated() && Pin::new(&mut self.waits).poll(cx).is_pending() {
            return Poll::Pending;
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.first = self.first.saturating_sub(into.filled().len() - before);
        read
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_response_that_is_read_slowly_outlives_the_limit_of_idle_connections() {
    // More than sockets hold, and less than the client says that it takes at once: the server has nothing more to ask for.
    const SIZE: usize = 48 << 20;
    const WINDOW: u32 = 64 << 20;
    let soon = Duration::from_millis(100);
    let router = Router::new().route("/", get(|| async { vec![7_u8; SIZE] }));
    let served = served(Bounds { patience: soon, idle: soon, ..SMALL }, router).await;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let (go_on, waits) = tokio::sync::oneshot::channel();
    let slow = Slow { stream: served.secured().await, first: 64 << 10, waits };
    let (mut asking, connection) = builder.handshake(TokioIo::new(slow)).await.unwrap();
    let connection = crate::spawn("connection", connection);
    let request = hyper::Request::get("https://server/").body(Body::empty()).unwrap();
    let response = asking.send_request(request).await.unwrap();
    sleep(GRACE + Duration::from_secs(1)).await;
    go_on.send(()).unwrap();
    let read = axum::body::to_bytes(Body::new(response.into_body()), 2 * SIZE).await;
    drop(connection);
    assert_eq!(read.map(|bytes| bytes.len()).ok(), Some(SIZE));
}
