//! How far a pod has come, for the controller that scrapes it: metrics over https, with a certificate nobody checks.

use std::sync::Arc;
use std::time::Duration;

use disk::Progress;
use kit::shutdown::CancellationToken;
use kit::{Task, certs, tls};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::{Error, security};

/// As long as any pod that fills a volume lives.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is filled: the metrics are named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// An image from elsewhere.
    Import,
    /// The content of another claim.
    Clone,
    /// A disk of an oVirt engine.
    Ovirt,
    /// An image of an OpenStack cloud.
    OpenStack,
}

impl Work {
    fn prefix(self) -> &'static str {
        match self {
            Self::Import => "kubevirt_cdi_import",
            Self::Clone => "kubevirt_cdi_clone",
            Self::Ovirt => "kubevirt_cdi_ovirt",
            Self::OpenStack => "kubevirt_cdi_openstack_populator",
        }
    }

    /// What its progress is called.
    fn help(self) -> &'static str {
        match self {
            Self::Import => "The import progress in percentage",
            Self::Clone => "The clone progress in percentage",
            Self::Ovirt | Self::OpenStack => "Progress of volume population",
        }
    }
}

/// Counters that move while they are read.
pub(crate) trait Counters: std::fmt::Debug + Send + Sync + 'static {
    /// Bytes that came from the source.
    fn fetched(&self) -> u64;
    /// Bytes that were written.
    fn written(&self) -> u64;
    /// Bytes that there are, once they are known.
    fn total(&self) -> Option<u64>;
    /// From 0 to 1, where that is known.
    fn fraction(&self) -> Option<f64>;
}

impl Counters for Progress {
    fn fetched(&self) -> u64 {
        Progress::fetched(self)
    }

    fn written(&self) -> u64 {
        Progress::written(self)
    }

    fn total(&self) -> Option<u64> {
        Progress::total(self)
    }

    fn fraction(&self) -> Option<f64> {
        Progress::fraction(self)
    }
}

#[derive(Debug)]
struct Scraped {
    work: Work,
    owner: String,
    progress: Arc<dyn Counters>,
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let owner = [("ownerUID", self.owner.as_str())];
        let prefix = self.work.prefix();
        let percent = self.progress.fraction().unwrap_or(0.0) * 100.0;
        let mut counter = |name: &str, help: &str, value: f64| {
            let metric = ConstCounter::new(value);
            let name = format!("{prefix}_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, metric.metric_type())?;
            metric.encode(family.encode_family(&owner)?)
        };
        counter("progress", self.work.help(), percent)?;
        counter("fetched_bytes", "Bytes that came from the source", self.progress.fetched() as f64)?;
        counter("written_bytes", "Bytes that were written to the volume", self.progress.written() as f64)?;
        if let Some(total) = self.progress.total() {
            let metric = ConstGauge::new(total as f64);
            let name = format!("{prefix}_source_bytes");
            let kind = metric.metric_type();
            let mut family = encoder.encode_descriptor(&name, "Bytes that the source has", None, kind)?;
            metric.encode(family.encode_family(&owner)?)?;
        }
        if self.work == Work::Import {
            let labels = [owner[0], ("phase", self.phase())];
            let help = "The current processing phase of the import";
            let metric = ConstGauge::new(1);
            let kind = metric.metric_type();
            let mut family = encoder.encode_descriptor("kubevirt_cdi_import_phase_info", help, None, kind)?;
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Scraped {
    /// There is one pass, and so nothing between the beginning and the end that other importers have phases for.
    fn phase(&self) -> &'static str {
        match self.progress.fraction() {
            Some(whole) if whole >= 1.0 => "Complete",
            _ if self.progress.fetched() == 0 => "Info",
            _ => "TransferDataFile",
        }
    }
}

fn registry(work: Work, owner: &str, progress: Arc<dyn Counters>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scraped { work, owner: owner.to_owned(), progress }));
    registry
}

/// Serves the metrics on `port` for as long as the task is held.
///
/// # Errors
/// When no certificate can be made or the port is taken.
pub(crate) async fn serve(work: Work, owner: &str, progress: Arc<dyn Counters>, port: u16) -> Result<Task<()>, Error> {
    let now = kit::clock::now();
    let authority = certs::Authority::generate("cdi-metrics", now, LIFETIME).map_err(Error::Certificates)?;
    let leaf = certs::Leaf { name: "cdi-metrics".into(), role: "cdi-metrics".into(), ..certs::Leaf::default() };
    let material = tls::Material::new();
    material
        .set(&authority.issue(&leaf, now, LIFETIME).map_err(Error::Certificates)?)
        .map_err(Error::setup("use the certificate of the metrics"))?;
    let config = security::of_environment(material, None).map_err(Error::setup("serve the metrics"))?;
    let listener = TcpListener::bind(("::", port)).await;
    // A node without IPv6 has no such address.
    let listener = match listener {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await.map_err(Error::setup("listen for the metrics"))?,
    };
    let router = kit::metrics::router(registry(work, owner, progress));
    let serving = kit::server::serve_tls(listener, config, router, CancellationToken::new());
    Ok(kit::spawn("metrics", serving))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of work for `uid-1`, none of which is done.
    fn told(work: Work) -> String {
        let mut text = String::new();
        let registry = registry(work, "uid-1", Arc::new(Progress::default()));
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn workers_tell_what_dashboards_ask_for() {
        for (work, metric, help) in [
            (Work::Import, "kubevirt_cdi_import_progress", "The import progress in percentage"),
            (Work::Clone, "kubevirt_cdi_clone_progress", "The clone progress in percentage"),
            (Work::Ovirt, "kubevirt_cdi_ovirt_progress", "Progress of volume population"),
            (Work::OpenStack, "kubevirt_cdi_openstack_populator_progress", "Progress of volume population"),
        ] {
            let text = told(work);
            for line in [
                format!("# HELP {metric} {help}\n"),
                format!("# TYPE {metric} counter\n"),
                format!("{metric}_total{{ownerUID=\"uid-1\"}} 0"),
            ] {
                assert!(text.contains(&line), "{line:?} is missing in {text}");
            }
        }
        let phase = "kubevirt_cdi_import_phase_info{ownerUID=\"uid-1\",phase=\"Info\"} 1\n";
        assert!(told(Work::Import).contains(phase));
        assert!(!told(Work::Clone).contains("phase"));
    }

    #[test]
    fn bytes_are_told_too() {
        let text = told(Work::Import);
        assert!(text.contains("kubevirt_cdi_import_written_bytes_total{ownerUID=\"uid-1\"} 0"), "{text}");
    }
}
