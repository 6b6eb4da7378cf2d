//! Connections to whoever answers: what is asked of them decides nothing that a stranger must not decide.

use std::sync::Arc;

use rustls::ClientConfig;
use tls_verify::ServerVerifier;

use super::{Error, provider};

/// A client's configuration that takes every certificate. That the server has the key of what it shows is checked all the
/// same.
///
/// # Errors
/// When the provider lacks a protocol version.
pub fn unchecked_client() -> Result<Arc<ClientConfig>, Error> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Error::Rustls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier::anybody(provider())))
        .with_no_client_auth();
    Ok(Arc::new(config))
}
