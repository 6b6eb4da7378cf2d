//! What the operator counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Counted while the operator works; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Templates that somebody changed, and that are as they were.
    pub restored: Counter,
    succeeded: Arc<AtomicBool>,
}

impl Metrics {
    /// Notes whether the last try to bring about what the object says was good.
    pub fn reconciled(&self, good: bool) {
        self.succeeded.store(good, Ordering::Release);
    }

    /// All of it, as of when it is asked.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let help = "The total number of common templates restored by the operator back to their original state";
        registry.register("kubevirt_ssp_common_templates_restored", help, self.restored.clone());
        registry.register_collector(Box::new(self.clone()));
        registry
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new(i64::from(self.succeeded.load(Ordering::Acquire)));
        let (name, help) = (
            "kubevirt_ssp_operator_reconcile_succeeded",
            "Set to 1 if the reconcile process of all operands completes with no errors, and to 0 otherwise",
        );
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
    }
}
