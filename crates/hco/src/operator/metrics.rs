//! What the operator counts.

use std::sync::Arc;

use api::hco::HyperConverged;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::context::Context;
use crate::child::Child;
use crate::patches;

struct Facts(Arc<Context>);

impl std::fmt::Debug for Facts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Facts")
    }
}

impl Collector for Facts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let hco = self.0.active();
        gauge(
            &mut encoder,
            "kubevirt_hco_hyperconverged_cr_exists",
            "Is the HyperConverged custom resource exists (1) or not (0)",
            i64::from(hco.is_some()),
        )?;
        let health = hco.as_ref().map_or(2, health);
        let help = "Indicates whether the system health status is healthy (0), warning (1), or error (2), by aggregating the \
                    conditions of HCO and its secondary resources";
        gauge(&mut encoder, "kubevirt_hco_system_health_status", help, health)?;
        let percent =
            hco.as_ref().and_then(|hco| hco.spec.virtualization.higher_workload_density.memory_overcommit_percentage);
        gauge(
            &mut encoder,
            "kubevirt_hco_memory_overcommit_percentage",
            "Indicates the cluster-wide configured VM memory overcommit percentage",
            percent.unwrap_or(100),
        )?;
        overwritten(&self.0, &mut encoder)?;
        unsafe_modifications(hco.as_ref(), &mut encoder)
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: i64) -> Result<(), std::fmt::Error> {
    let gauge = ConstGauge::new(value);
    let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(metric)
}

fn overwritten(context: &Context, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let name = "kubevirt_hco_out_of_band_modifications";
    let help = "Count of out-of-band modifications overwritten by HCO";
    let counter = ConstCounter::new(0u64);
    let mut family = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
    for child in Child::ALL {
        let kind = child.kind();
        let labels = [("component_name", format!("{}/{}", kind.kind.to_ascii_lowercase(), kind.name))];
        ConstCounter::new(context.children.overwritten(child)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn unsafe_modifications(
    hco: Option<&HyperConverged>,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), std::fmt::Error> {
    let name = "kubevirt_hco_unsafe_modifications";
    let help = "Count of unsafe modifications in the HyperConverged annotations";
    let family = Family::<Vec<(&'static str, String)>, Gauge>::default();
    for annotation in hco.map(patches::present).unwrap_or_default() {
        let count = hco.map_or(0, |hco| patches::operations(hco, annotation));
        let labels = vec![("annotation_name", annotation.to_owned())];
        family.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let metric = encoder.encode_descriptor(name, help, None, family.metric_type())?;
    family.encode(metric)
}

fn health(hco: &HyperConverged) -> i64 {
    match hco.status.as_ref().and_then(|status| status.system_health_status.as_deref()) {
        Some("healthy") => 0,
        Some("warning") => 1,
        _ => 2,
    }
}

/// All of it, as of when it is asked.
pub(super) fn registry(context: Arc<Context>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Facts(context)));
    registry
}
