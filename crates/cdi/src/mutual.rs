//! One request to an upload server: TLS where both ends show a certificate, and a body that flows while it is made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A server on the cluster's own network answers at once or not at all.
const CONNECT: Duration = Duration::from_secs(10);

/// Why a request did not reach the server, or its answer not us.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// PEM that is not what it should be.
    #[error("cannot use the {what}")]
    Pem {
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No connection.
    #[error("cannot connect to {server}")]
    Connect {
        server: String,
        #[source]
        source: std::io::Error,
    },
    /// A connection that broke.
    #[error("the connection to {server} failed")]
    Exchange {
        server: String,
        #[source]
        source: hyper::Error,
    },
}

/// Who we are, and whom we trust; all PEM.
pub(crate) struct Identity<'a> {
    pub(crate) certificate: &'a str,
    pub(crate) key: &'a str,
    pub(crate) authorities: &'a str,
}

impl Identity<'_> {
    /// As a configuration of connections.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        type Boxed = Box<dyn std::error::Error + Send + Sync>;
        let unusable = |what| move |source: Boxed| Error::Pem { what, source };
        let certificates = |text: &str, what| {
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
            read.map_err(|e| unusable(what)(e.into()))
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(self.authorities, "authority of upload servers")? {
            roots.add(root).map_err(|e| unusable("authority of upload servers")(e.into()))?;
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|e| unusable("client key")(e.into()))?;
        let chain = certificates(self.certificate, "client certificate")?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| unusable("TLS provider")(e.into()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|e| unusable("client certificate")(e.into()))?;
        Ok(Arc::new(config))
    }
}

/// Connects to `host`, whose certificate has to be for that name, and sends `request`.
pub(crate) async fn send(
    config: Arc<ClientConfig>,
    host: &str,
    port: u16,
    request: Request<Body>,
) -> Result<Response<Incoming>, Error> {
    send_to(config, host, port, None, request).await
}

/// As [`send`], to the address `dial` where one is given.
pub(crate) async fn send_to(
    config: Arc<ClientConfig>,
    host: &str,
    port: u16,
    dial: Option<SocketAddr>,
    request: Request<Body>,
) -> Result<Response<Incoming>, Error> {
    let failed = |source| Error::Connect { server: host.to_owned(), source };
    let late = |_| failed(std::io::ErrorKind::TimedOut.into());
    let name = ServerName::try_from(host.to_owned()).map_err(|e| failed(std::io::Error::other(e)))?;
    let connect = async {
        let stream = match dial {
            Some(address) => TcpStream::connect(address).await?,
            None => TcpStream::connect((host, port)).await?,
        };
        stream.set_nodelay(true)?;
        TlsConnector::from(config).connect(name, stream).await
    };
    let stream = tokio::time::timeout(CONNECT, connect).await.map_err(late)?.map_err(failed)?;
    let broken = |source| Error::Exchange { server: host.to_owned(), source };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The connection ends with the exchange it carries.
    kit::spawn("connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an upload server ended");
        }
    })
    .detach();
    sender.send_request(request).await.map_err(broken)
}
