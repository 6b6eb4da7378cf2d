//! An HTTPS server: TLS whose peers are known to the handlers, HTTP/1.1 with upgrades and HTTP/2.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
};
use rustls::pki_types::CertificateDer;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::{Chain, certs, shutdown::CancellationToken, tls::Configuration};

const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_secs(5);
const CONNECTIONS: usize = 1024;

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
}

/// Serves `router` over TLS until `stop`; then finishes running requests for a few seconds.
pub async fn serve_tls(listener: TcpListener, config: impl Configuration, router: Router, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    // A bound on connections is a bound on memory, whoever connects.
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        let acceptor = TlsAcceptor::from(config.current());
        let (router, watcher) = (router.clone(), graceful.watcher());
        crate::spawn("connection", async move {
            connection(stream, address, acceptor, router, watcher).await;
            drop(slot);
        })
        .detach();
    }
    let _ = timeout(DRAIN, graceful.shutdown()).await;
}

async fn connection(stream: TcpStream, address: SocketAddr, acceptor: TlsAcceptor, router: Router, watcher: Watcher) {
    let _ = stream.set_nodelay(true);
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%address, error = %Chain(&error), "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let certificates = stream
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect())
        .unwrap_or_default();
    let peer = Peer { address, certificates };
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS);
    builder.http2().timer(TokioTimer::new());
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(serving.into_owned()).await {
        tracing::trace!(%address, %error, "connection ended");
    }
}
