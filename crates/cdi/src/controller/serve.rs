//! What the controller answers: whether it is well, and what it has counted.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kit::certs::{Authority, Leaf};
use kit::shutdown::CancellationToken;
use kit::{Task, clock, health, metrics, server, tls};
use kube::Client;
use prometheus_client::registry::Registry;

use crate::controller::context::Context;
use crate::controller::metrics as figures;
use crate::{Error, security};

const NAME: &str = "cdi-controller";
/// The certificate is made at each start; processes are replaced far sooner.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Serves health at once, and metrics as soon as there is something to count.
///
/// # Errors
/// When there is no certificate, or nobody may listen on `port`.
pub async fn start(
    client: &Client,
    port: u16,
    counted: Counted,
    stop: &CancellationToken,
) -> Result<[Task<()>; 2], Error> {
    let authority = Authority::generate(NAME, clock::now(), LIFETIME).map_err(Error::Certificates)?;
    let leaf = Leaf { name: NAME.to_owned(), role: NAME.to_owned(), node: None, dns: vec![NAME.to_owned()] };
    let pair = authority.issue(&leaf, clock::now(), LIFETIME).map_err(Error::Certificates)?;
    let material = tls::Material::new();
    material.set(&pair).map_err(Error::setup("use the certificate"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let following = security::follow(client, config.clone());
    let listener =
        tokio::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.map_err(Error::setup("listen"))?;
    let ready = health::Ready::default();
    // A replica that waits its turn is as healthy as the one that leads.
    ready.set(true);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(counted));
    let router: Router = health::router(ready).merge(metrics::router(registry));
    Ok([following, kit::spawn("server", server::serve_tls(listener, config, router, stop.clone()))])
}

/// The figures of this replica, once it leads.
#[derive(Clone, Debug, Default)]
pub struct Counted(Arc<std::sync::OnceLock<Context>>);

impl Counted {
    /// From now on the figures are those of `context`.
    pub fn of(&self, context: Context) {
        // Only the first can win, and there is only one.
        let _ = self.0.set(context);
    }
}

impl prometheus_client::collector::Collector for Counted {
    fn encode(&self, encoder: prometheus_client::encoding::DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        match self.0.get() {
            Some(context) => figures::encode(context, encoder),
            None => Ok(()),
        }
    }
}
