//! The network edge: TLS listeners in front of the router, with the connections that [`kit::server`] keeps within bounds.
//!
//! Every request carries its peer and, if it showed one, the user of its certificate.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Extensions;
use kit::server::{Peer, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub mod fairness;
mod held;
pub mod tls;

pub use kit::connections::Bounds;

use crate::authn::certificate::PeerCertificate;
use tls::{Followed, Tls};

/// Put into the extensions of every request that came over the network.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The peer.
    pub peer: SocketAddr,
}

/// Serves `router` on all listeners until `shutdown`.
pub async fn serve(listeners: Vec<TcpListener>, tls: Arc<Tls>, router: axum::Router, shutdown: CancellationToken) {
    let bounds = Bounds { total: 8192, strangers: 1024, per_user: 1024, ..Bounds::default() };
    serve_within(bounds, listeners, tls, router, shutdown).await;
}

/// The same with bounds of one's own.
pub async fn serve_within(
    bounds: Bounds,
    listeners: Vec<TcpListener>,
    tls: Arc<Tls>,
    router: axum::Router,
    shutdown: CancellationToken,
) {
    let extensions = |peer: &Peer| {
        let mut known = Extensions::new();
        known.insert(Connection { peer: peer.address });
        if let Some(leaf) = peer.certificates.first() {
            known.insert(PeerCertificate::read(leaf.as_ref()));
        }
        known
    };
    kit::server::serve(listeners, Settings { tls: Followed(tls), bounds, extensions }, router, shutdown).await;
}
