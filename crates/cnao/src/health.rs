//! Health over TLS, shown to the kubelet's probes, which look at no authority.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kit::health::{self, Ready};
use kit::shutdown::CancellationToken;
use kit::{Task, certs, clock, server, tls};
use tokio::net::TcpListener;

use crate::Error;

/// As long as any process lives.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// TLS with a certificate of `program`'s own making.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn configuration(program: &'static str) -> Result<Arc<tls::Changing>, Error> {
    let (material, now) = (tls::Material::new(), clock::now());
    let authority = certs::Authority::generate(program, now, LIFETIME).map_err(Error::Certificates)?;
    let leaf = certs::Leaf { name: program.into(), role: program.into(), ..Default::default() };
    let pair = authority.issue(&leaf, now, LIFETIME).map_err(Error::Certificates)?;
    material.set(&pair).map_err(Error::setup("use the certificate"))?;
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
