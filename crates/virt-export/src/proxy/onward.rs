//! The way on: one request on a connection of its own to an export server, whose certificate has to be for its name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::Response;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Proxy;

/// A server on the cluster's own network answers at once or not at all.
const CONNECT: Duration = Duration::from_secs(10);
/// What concerns one connection only.
const HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "transfer-encoding",
];

/// Why a request did not reach the server, or its answer not us.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot use the authorities of export servers")]
    Authorities(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot connect to {host}")]
    Connect {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the connection to {host} failed")]
    Exchange {
        host: String,
        #[source]
        source: hyper::Error,
    },
}

/// Passes `request` on to `host`, which is reached at an address, for the path `rest`, and the answer back.
pub(super) async fn forward(
    proxy: &Proxy,
    (host, address): (&str, SocketAddr),
    rest: &str,
    request: Request,
) -> Result<Response, Error> {
    let config = config(proxy).await?;
    let connect = |source| Error::Connect { host: host.to_owned(), source };
    let name = ServerName::try_from(host.to_owned()).map_err(|error| connect(std::io::Error::other(error)))?;
    let dial = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(config).connect(name, stream).await
    };
    let late = |_| connect(std::io::ErrorKind::TimedOut.into());
    let stream = tokio::time::timeout(CONNECT, dial).await.map_err(late)?.map_err(connect)?;
    let broken = |source| Error::Exchange { host: host.to_owned(), source };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The connection ends with the exchange it carries.
    kit::spawn("connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an export server ended");
        }
    })
    .detach();
    let answer = sender.send_request(onward(request, host, rest)).await.map_err(broken)?;
    let (mut parts, body) = answer.into_parts();
    strip(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

fn onward(request: Request, host: &str, rest: &str) -> http::Request<Body> {
    let (mut parts, body) = request.into_parts();
    strip(&mut parts.headers);
    parts.headers.extend(HeaderValue::try_from(host).ok().map(|host| (header::HOST, host)));
    let mut out = http::Request::new(body);
    *out.method_mut() = parts.method;
    *out.uri_mut() = Uri::try_from(rest).unwrap_or_default();
    *out.headers_mut() = parts.headers;
    out
}

fn strip(headers: &mut HeaderMap) {
    for name in HOP {
        headers.remove(name);
    }
}

async fn config(proxy: &Proxy) -> Result<Arc<ClientConfig>, Error> {
    let text = tokio::fs::read(&proxy.authorities).await.map_err(|error| Error::Authorities(error.into()))?;
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(&text) {
        let root = root.map_err(|error| Error::Authorities(error.into()))?;
        roots.add(root).map_err(|error| Error::Authorities(error.into()))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Authorities(error.into()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
