//! How far a worker is, as its metrics say.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kit::Chain;
use kube::ResourceExt;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Port of a worker's metrics.
const PORT: u16 = 8443;
/// A worker that does not answer is asked again at the next pass.
const PATIENCE: Duration = Duration::from_secs(3);
/// Metrics of a worker are a page; more is not read.
const LONGEST: u64 = 1 << 16;

/// What a worker says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Percent of the whole.
    pub percent: f64,
    /// Bytes that came from the source.
    pub fetched: Option<u64>,
    /// Bytes that the source has.
    pub total: Option<u64>,
}

/// How far a worker is, and how that reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Far {
    /// Percent of the whole.
    pub percent: f64,
    /// Bytes, speed and what is left, where they are known.
    pub message: String,
}

/// Asks workers how far they are.
pub trait Progress: Send + Sync {
    /// What the worker at `address` says of what it does for `owner`; none when it does not say.
    fn of(&self, address: IpAddr, owner: String) -> Pin<Box<dyn Future<Output = Option<Figures>> + Send + '_>>;
}

/// How far `pod` is with what it does for `owner`.
pub async fn of_pod(progress: &dyn Progress, pod: &Pod, owner: &str) -> Option<Far> {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"))?;
    let address = status.pod_ip.as_deref()?.parse().ok()?;
    let figures = progress.of(address, owner.to_owned()).await?;
    tracing::trace!(pod = pod.name_any(), ?figures, "progress");
    let worker = status.container_statuses.as_ref().and_then(|all| all.first());
    let began = worker.and_then(|worker| worker.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    let spent = began.and_then(|began| Duration::try_from(kit::clock::now().duration_since(began.0)).ok());
    Some(Far { percent: figures.percent, message: told(&figures, spent.unwrap_or_default()) })
}

/// `12.0 MiB of 64.0 MiB, 3.0 MiB/s, 17 s left`: as much of it as is known.
#[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
fn told(figures: &Figures, spent: Duration) -> String {
    let mebibytes = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    let Some(fetched) = figures.fetched.filter(|fetched| *fetched > 0).map(|fetched| fetched as f64) else {
        return String::new();
    };
    let mut text = mebibytes(fetched);
    if let Some(total) = figures.total {
        text = format!("{text} of {}", mebibytes(total as f64));
    }
    if spent.as_secs() > 0 {
        let speed = fetched / spent.as_secs_f64();
        text = format!("{text}, {}/s", mebibytes(speed));
        if let Some(total) = figures.total {
            text = format!("{text}, {:.0} s left", ((total as f64 - fetched) / speed).max(0.0));
        }
    }
    text
}

/// Asks over the network.
pub struct Scrape(TlsConnector);

impl Scrape {
    /// One that takes what it is told as it is: the figure is shown to users and decides nothing, so the worker's certificate,
    /// which it made for itself, need not be known.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new() -> Result<Self, kit::tls::Error> {
        Ok(Self(TlsConnector::from(kit::tls::unchecked_client()?)))
    }

    async fn fetch(&self, address: IpAddr) -> std::io::Result<String> {
        let stream = TcpStream::connect((address, PORT)).await?;
        let mut stream = self.0.connect(ServerName::IpAddress(address.into()), stream).await?;
        let host = match address {
            IpAddr::V4(address) => format!("{address}:{PORT}"),
            IpAddr::V6(address) => format!("[{address}]:{PORT}"),
        };
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = Vec::new();
        let read = stream.take(LONGEST).read_to_end(&mut text).await;
        // Some servers end the connection without ending TLS first; what came is whole lines all the same.
        if text.is_empty() {
            read?;
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Progress for Scrape {
    fn of(&self, address: IpAddr, owner: String) -> Pin<Box<dyn Future<Output = Option<Figures>> + Send + '_>> {
        Box::pin(async move {
            match tokio::time::timeout(PATIENCE, self.fetch(address)).await {
                Ok(Ok(text)) => figures(&text, &owner),
                Ok(Err(error)) => {
                    tracing::debug!(%address, error = %Chain(&error), "a worker's metrics cannot be read");
                    None
                }
                Err(_) => None,
            }
        })
    }
}

/// What the metrics of workers are named after.
const WORKS: [&str; 4] =
    ["kubevirt_cdi_import_", "kubevirt_cdi_clone_", "kubevirt_cdi_ovirt_", "kubevirt_cdi_openstack_populator_"];

/// The figures of `owner`, of whichever worker's metrics.
fn figures(metrics: &str, owner: &str) -> Option<Figures> {
    let label = format!("ownerUID=\"{owner}\"");
    let value = |metric: &str| {
        let line = metrics.lines().find(|line| {
            let (name, rest) = line.split_once('{').unwrap_or_default();
            WORKS.iter().any(|work| name.strip_prefix(work) == Some(metric)) && rest.contains(&label)
        })?;
        line.rsplit_once('}')?.1.split_whitespace().next()?.parse::<f64>().ok()
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float that is too large becomes the largest"
    )]
    let bytes = |metric: &str| value(metric).filter(|bytes| *bytes >= 0.0).map(|bytes| bytes as u64);
    let percent = value("progress_total").filter(|percent| (0.0..=100.0).contains(percent))?;
    Some(Figures { percent, fetched: bytes("fetched_bytes_total"), total: bytes("source_bytes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_only_known_figures() {
        let check = |fetched: Option<u64>, total: Option<u64>, spent: u64, expect: &str| {
            assert_eq!(told(&Figures { percent: 0.0, fetched, total }, Duration::from_secs(spent)), expect);
        };
        check(None, None, 9, "");
        check(Some(12 << 20), None, 0, "12.0 MiB");
        check(Some(12 << 20), None, 4, "12.0 MiB, 3.0 MiB/s");
        check(Some(12 << 20), Some(63 << 20), 4, "12.0 MiB of 63.0 MiB, 3.0 MiB/s, 17 s left");
    }

    #[test]
    fn the_owners_figures_are_found() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# TYPE kubevirt_cdi_import_progress counter\n\
            kubevirt_cdi_import_progress_total{ownerUID=\"a\"} 13.45\nkubevirt_cdi_clone_progress_total{ownerUID=\"b\"} 7\n";
        let percent = |owner: &str| figures(text, owner).map(|figures| figures.percent);
        assert_eq!((percent("a"), percent("b"), percent("c")), (Some(13.45), Some(7.0), None));
        assert_eq!(figures("kubevirt_cdi_import_progress_total{ownerUID=\"a\"} 1e9", "a"), None);
    }
}
