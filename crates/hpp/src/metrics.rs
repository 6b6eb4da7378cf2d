//! What the driver and the operator measure, and that they are alive: over TLS, for whoever asks.

use std::fmt::Debug;
use std::net::Ipv6Addr;

use kit::health::{self, Ready};
use kit::shutdown::CancellationToken;
use kit::{Task, server, tls};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::Error;

/// A fact that is looked at when it is asked for.
pub(crate) struct Fact<F> {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) holds: F,
}

impl<F> Debug for Fact<F> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Fact").field(&self.name).finish()
    }
}

impl<F: Fn() -> bool + Send + Sync + 'static> Collector for Fact<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new(i64::from((self.holds)()));
        gauge.encode(encoder.encode_descriptor(self.name, self.help, None, gauge.metric_type())?)
    }
}

impl<F: Fn() -> bool + Send + Sync + 'static> Fact<F> {
    pub(crate) fn registry(self) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        registry
    }
}

/// Serves `/metrics`, `/healthz` and, as `ready` says, `/readyz` on a port until `stop`. The certificate is shown to probes and to who reads the
/// metrics,
/// who look at no authority.
///
/// # Errors
/// When the port is taken, or no certificate can be made.
pub(crate) async fn serve(
    name: &str,
    port: u16,
    registry: Registry,
    ready: Ready,
    stop: &CancellationToken,
) -> Result<Task<()>, Error> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| Error::Metrics { port, source: error };
    let material = tls::Material::of_its_own(name).map_err(|error| failed(error.into()))?;
    let config = tls::server(material, None).map_err(|error| failed(error.into()))?;
    let address = (Ipv6Addr::UNSPECIFIED, port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| failed(error.into()))?;
    let router = health::router(ready).merge(kit::metrics::router(registry));
    Ok(kit::spawn("metrics", server::serve_tls(listener, config, router, stop.clone())))
}
