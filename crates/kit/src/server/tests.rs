//! Servers among clients that say nothing.

use axum::routing::get;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
