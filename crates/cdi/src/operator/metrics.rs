//! What the operator counts.

use api::cdi::v1beta1::CDI;
use kit::store::Store;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

struct Ready(Store<CDI>);

impl std::fmt::Debug for Ready {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Ready")
    }
}

impl Collector for Ready {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let ready = self.0.list().iter().any(|cdi| {
            let conditions = cdi.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
        });
        let gauge = ConstGauge::new(i64::from(ready));
        let metric =
            encoder.encode_descriptor("kubevirt_cdi_cr_ready", "CDI install ready", None, gauge.metric_type())?;
        gauge.encode(metric)
    }
}

/// Whether CDI is installed, as of when it is asked.
pub(crate) fn registry(cdis: Store<CDI>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Ready(cdis)));
    registry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_cdi_is_there_is_told() {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry(Store::default())).unwrap();
        let expect = "# HELP kubevirt_cdi_cr_ready CDI install ready\n# TYPE kubevirt_cdi_cr_ready gauge\nkubevirt_cdi_cr_ready 0\n";
        assert!(text.contains(expect), "{text}");
    }
}
