//! An HTTPS server: TLS whose peers are known to the handlers, HTTP/1.1 with upgrades and HTTP/2.
//!
//! Guarantees: a client that is slow in its handshake, its headers or its body holds one connection and no more; floods of
//! connections, of headers or of cancelled requests end the connections they come over ([`connections`](crate::connections));
//! upgraded connections live until either side ends, and count until then; after `stop` no connection is accepted, and those
//! that exist get a few seconds to finish.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use http::Extensions;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::address::neighbourhood;
use crate::connections::{Bounds, Connected, Connections, Introduction, Seat, Seated, until_read};
use crate::shutdown::CancellationToken;
use crate::tls::Configuration;
use crate::{Chain, certs};

const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(3);
/// How long an HTTP/2 client may take to answer a ping. What it was sent before lies in front of the ping: one that reads a download
/// slowly, as it may, has megabytes to go.
const ANSWER: Duration = Duration::from_secs(300);
/// Bytes of one request's headers.
const HEADER_BYTES: u32 = 64 * 1024;
/// Requests which a client may have cancelled before they were looked at.
const RESETS: usize = 100;
/// Requests of one connection at a time.
const STREAMS: u32 = 250;

/// Who is at the other end; an extension of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificates, leaf first; empty when it showed none. They were verified as the configuration says.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

impl Peer {
    /// Who the leaf says it is.
    pub fn identity(&self) -> Option<certs::Identity> {
        certs::identity(self.certificates.first()?)
    }

    /// Whose share of the connections this one is of: of the certificate's holder, else of the address.
    fn holder(&self) -> String {
        match self.identity() {
            Some(who) => format!("{} {} {}", who.name, who.role, who.node.unwrap_or_default()),
            None => neighbourhood(self.address.ip()),
        }
    }
}

/// What a server is besides its router.
pub struct Settings<C, E> {
    /// Its certificate, and what is asked of clients.
    pub tls: C,
    /// How many connections, and how long they may be idle.
    pub bounds: Bounds,
    /// What every request of a connection carries besides its [`Peer`].
    pub extensions: E,
}

/// Serves `router` over TLS until `stop`; then finishes running requests for a few seconds.
pub async fn serve_tls(listener: TcpListener, config: impl Configuration, router: Router, stop: CancellationToken) {
    serve_tls_within(Bounds::default(), listener, config, router, stop).await;
}

/// The same with bounds of one's own.
pub async fn serve_tls_within(
    bounds: Bounds,
    listener: TcpListener,
    config: impl Configuration,
    router: Router,
    stop: CancellationToken,
) {
    let settings = Settings { tls: config, bounds, extensions: |_: &Peer| Extensions::new() };
    serve(vec![listener], settings, router.layer(middleware::from_fn(introduce)), stop).await;
}

/// Whoever has sent a request is known: by his certificate, or by his address.
async fn introduce(request: Request, next: Next) -> Response {
    if let (Some(peer), Some(introduction)) =
        (request.extensions().get::<Peer>(), request.extensions().get::<Introduction>())
        && !introduction.is_made()
    {
        introduction.introduce(&peer.holder());
    }
    next.run(request).await
}

/// Serves `router` on all listeners until `stop`. The router is to say who has authenticated, by [`Introduction`].
pub async fn serve<C, E>(listeners: Vec<TcpListener>, settings: Settings<C, E>, router: Router, stop: CancellationToken)
where
    C: Configuration,
    E: Fn(&Peer) -> Extensions + Send + Sync + 'static,
{
    let edge = Arc::new(Edge {
        slots: Arc::new(Semaphore::new(settings.bounds.total)),
        connections: Connections::new(settings.bounds),
        tasks: TaskTracker::new(),
        abort: CancellationToken::new(),
        settings,
        router,
        stop,
    });
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(edge.clone().accept(listener));
    }
    while accepting.join_next().await.is_some() {}
    edge.tasks.close();
    if timeout(GRACE, edge.tasks.wait()).await.is_err() {
        edge.abort.cancel();
        edge.tasks.wait().await;
    }
}

struct Edge<C, E> {
    settings: Settings<C, E>,
    router: Router,
    stop: CancellationToken,
    abort: CancellationToken,
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
    connections: Arc<Connections>,
}

impl<C, E> Edge<C, E>
where
    C: Configuration,
    E: Fn(&Peer) -> Extensions + Send + Sync + 'static,
{
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = self.next(&listener) => accepted,
            };
            let Some((stream, address, slot)) = accepted else { continue };
            let edge = self.clone();
            self.tasks.spawn(async move {
                let connected = edge.connections.enter();
                let seat = Seat::new(connected.clone(), slot);
                tokio::select! {
                    () = edge.abort.cancelled() => {}
                    () = connected.shown_out() => tracing::debug!(%address, "too many connections: an idle one is closed"),
                    () = edge.connection(stream, address, &connected, seat) => {}
                }
            });
        }
    }

    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let slot = self.slots.clone().acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok((stream, address)) => Some((stream, address, slot)),
            Err(error) => {
                // Out of descriptors, most likely: give connections time to end instead of spinning.
                tracing::warn!(error = %Chain(&error), "accept failed");
                sleep(Duration::from_millis(100)).await;
                None
            }
        }
    }

    async fn connection(&self, stream: TcpStream, address: SocketAddr, connected: &Arc<Connected>, seat: Seat) {
        let _ = stream.set_nodelay(true);
        let acceptor = TlsAcceptor::from(self.settings.tls.current());
        let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%address, error = %Chain(&error), "TLS handshake failed");
                return;
            }
            Err(_) => return,
        };
        let chain = stream.get_ref().1.peer_certificates();
        let certificates =
            chain.map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect()).unwrap_or_default();
        let peer = Peer { address, certificates };
        let mut known = (self.settings.extensions)(&peer);
        known.insert(peer);
        known.insert(Introduction(connected.clone()));
        let router = self.router.clone();
        let service = tower::service_fn(move |request: hyper::Request<Incoming>| {
            let (router, known) = (router.clone(), known.clone());
            async move {
                let pending = known.get::<Introduction>().map(|introduction| introduction.0.request());
                let mut request = request.map(Body::new);
                request.extensions_mut().extend(known);
                let response = router.oneshot(request).await?;
                Ok::<_, Infallible>(until_read(response, pending))
            }
        });
        let builder = protocols();
        let io = TokioIo::new(Seated::new(stream, seat));
        let serving = builder.serve_connection_with_upgrades(io, TowerToHyperService::new(service));
        tokio::pin!(serving);
        let outcome = tokio::select! {
            outcome = serving.as_mut() => Some(outcome),
            () = self.stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                Some(serving.as_mut().await)
            }
            () = connected.idle() => {
                serving.as_mut().graceful_shutdown();
                // The last response may have left this program and not have reached its reader. By HTTP/2 a client confirms the end, once
                // it has read what was sent before; by HTTP/1 there is nothing to confirm, and what was written is still delivered.
                timeout(ANSWER, serving.as_mut()).await.ok()
            }
        };
        if let Some(Err(error)) = outcome {
            tracing::debug!(%address, %error, "connection ended");
        }
    }
}

fn protocols() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(4 * HEADER_BYTES as usize)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_BYTES)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(RESETS)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(ANSWER);
    builder
}

#[cfg(test)]
mod tests;
