//! Connections to servers of the product other than the API server.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tls_verify::ServerVerifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::fault::Fault;

/// A connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Believes `authorities` beside those of the system, or, when that is `insecure`, anybody. A certificate among them that is no
/// authority's is believed of the server whose own it is.
pub(crate) fn connector(insecure: bool, authorities: Option<&str>) -> Result<TlsConnector, Fault> {
    let builder = ClientConfig::builder();
    let provider = builder.crypto_provider().clone();
    let config = if insecure {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier::anybody(provider)))
            .with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let cannot = |e| Fault::new("cannot use the authorities of the server").because(e);
        let mut known = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(authorities.unwrap_or_default().as_bytes()).flatten() {
            roots.add(certificate.clone()).map_err(cannot)?;
            known.push(certificate);
        }
        let verifier = ServerVerifier::known(roots, known, provider);
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
