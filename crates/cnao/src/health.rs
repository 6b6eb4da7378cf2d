//! Health over TLS, shown to the kubelet's probes, which look at no authority.

use std::net::IpAddr;
use std::sync::Arc;

use kit::health::{self, Ready};
use kit::shutdown::CancellationToken;
use kit::{Task, server, tls};
use tokio::net::TcpListener;

use crate::Error;

/// TLS with a certificate of `program`'s own making.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn configuration(program: &'static str) -> Result<Arc<tls::Changing>, Error> {
    let material = tls::Material::of_its_own(program).map_err(Error::setup("make a certificate"))?;
    tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))
}

/// Answers for `program` at `address`, for as long as the task is held.
///
/// # Errors
/// When the address is taken, or the certificate cannot be made.
pub(crate) async fn serve(
    program: &'static str,
    address: (IpAddr, u16),
    ready: Ready,
    stop: &CancellationToken,
) -> Result<Task<()>, Error> {
    let config = configuration(program)?;
    let listener = TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    Ok(kit::spawn("health", server::serve_tls(listener, config, health::router(ready), stop.clone())))
}
