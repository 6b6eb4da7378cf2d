//! The network edge: TLS listeners in front of the router.
//!
//! Guarantees: a client that is slow in its handshake, its headers or its body holds one connection and no more; floods of
//! connections, of headers or of cancelled requests end the connections they come over ([`guests`]); upgraded connections
//! (exec, port-forward, console) live until either side ends, and count until then; after `shutdown` no connection is accepted and those that
//! exist get a few seconds to finish.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub mod fairness;
pub mod guests;
mod held;
mod seat;
pub mod tls;

use crate::authn::certificate::PeerCertificate;
use guests::{Bounds, Guest, Guests, Introduction};
use seat::{Seat, Seated};
use tls::Tls;

const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(3);
/// Bytes of one request's headers.
const HEADER_BYTES: usize = 64 * 1024;
/// Requests which a client may have cancelled before they were looked at.
const RESETS: usize = 100;

/// Put into the extensions of every request that came over the network.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The peer.
    pub peer: SocketAddr,
}

/// Serves `router` on all listeners until `shutdown`.
pub async fn serve(listeners: Vec<TcpListener>, tls: Arc<Tls>, router: axum::Router, shutdown: CancellationToken) {
    serve_within(Bounds::default(), listeners, tls, router, shutdown).await;
}

/// The same with bounds of one's own.
pub async fn serve_within(
    bounds: Bounds,
    listeners: Vec<TcpListener>,
    tls: Arc<Tls>,
    router: axum::Router,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(bounds.total));
    let guests = Guests::new(bounds);
    let abort = CancellationToken::new();
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let edge = Edge {
            tls: tls.clone(),
            router: router.clone(),
            shutdown: shutdown.clone(),
            abort: abort.clone(),
            connections: connections.clone(),
            slots: slots.clone(),
            guests: guests.clone(),
        };
        accepting.spawn(edge.accept(listener));
    }
    while accepting.join_next().await.is_some() {}
    connections.close();
    if tokio::time::timeout(GRACE, connections.wait()).await.is_err() {
        abort.cancel();
        connections.wait().await;
    }
}

#[derive(Clone)]
struct Edge {
    tls: Arc<Tls>,
    router: axum::Router,
    shutdown: CancellationToken,
    abort: CancellationToken,
    connections: TaskTracker,
    slots: Arc<Semaphore>,
    guests: Arc<Guests>,
}

impl Edge {
    async fn accept(self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                () = self.shutdown.cancelled() => return,
                accepted = self.next(&listener) => accepted,
            };
            let Some((stream, peer, slot)) = accepted else { continue };
            let edge = self.clone();
            self.connections.spawn(async move {
                let abort = edge.abort.clone();
                let guest = edge.guests.enter();
                let seat = Seat::new(guest.clone(), slot);
                tokio::select! {
                    () = abort.cancelled() => {}
                    () = guest.shown_out() => tracing::debug!(%peer, "too many connections: an idle one is closed"),
                    () = edge.connection(stream, peer, &guest, seat) => {}
                }
            });
        }
    }

    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
        let slot = self.slots.clone().acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok((stream, peer)) => Some((stream, peer, slot)),
            Err(error) => {
                // Out of descriptors, most likely: give connections time to end instead of spinning.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                None
            }
        }
    }

    async fn connection(self, stream: TcpStream, peer: SocketAddr, guest: &Arc<Guest>, seat: Seat) {
        let _ = stream.set_nodelay(true);
        let acceptor = tokio_rustls::TlsAcceptor::from(self.tls.current());
        let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                return;
            }
            Err(_) => return,
        };
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.map(|leaf| PeerCertificate::read(leaf.as_ref()));
        let router = self.router;
        let introduction = Introduction(guest.clone());
        let service = tower::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let router = router.clone();
            let certificate = certificate.clone();
            let introduction = introduction.clone();
            async move {
                let pending = introduction.0.request();
                let mut request = request.map(axum::body::Body::new);
                request.extensions_mut().insert(Connection { peer });
                request.extensions_mut().insert(introduction);
                if let Some(certificate) = certificate {
                    request.extensions_mut().insert(certificate);
                }
                let response = tower::ServiceExt::oneshot(router, request).await?;
                Ok::<_, std::convert::Infallible>(held::until_read(response, pending))
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .max_buf_size(4 * HEADER_BYTES)
            .keep_alive(true);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(250)
            .max_header_list_size(HEADER_BYTES as u32)
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(RESETS)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        let connection = builder
            .serve_connection_with_upgrades(TokioIo::new(Seated::new(stream, seat)), TowerToHyperService::new(service));
        tokio::pin!(connection);
        let outcome = tokio::select! {
            outcome = connection.as_mut() => Some(outcome),
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                Some(connection.as_mut().await)
            }
            () = guest.idle() => {
                connection.as_mut().graceful_shutdown();
                tokio::time::timeout(GRACE, connection.as_mut()).await.ok()
            }
        };
        if let Some(Err(error)) = outcome {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }
}

impl crate::ApiServer {
    /// The router as the network sees it: fairness behind authentication, in front of everything else.
    pub fn network_router(&self) -> axum::Router {
        let edges = self.edges();
        self.router()
            .layer(axum::middleware::from_fn_with_state(edges.fairness.clone(), fairness::layer))
            .layer(axum::middleware::from_fn_with_state(edges.authenticator.clone(), crate::authn::layer))
    }

    /// Serves the API on TLS listeners until `shutdown`.
    pub async fn serve(&self, listeners: Vec<TcpListener>, tls: Arc<Tls>, shutdown: CancellationToken) {
        let closing = async {
            shutdown.cancelled().await;
            self.close();
        };
        tokio::join!(closing, serve(listeners, tls, self.network_router(), shutdown.clone()));
    }
}
