//! What stands in the way of emptying a node or of updating launchers, in figures.

use api::kubevirt::constants::eviction_strategy;
use api::kubevirt::eviction;
use api::kubevirt::v1::VirtualMachineInstance;
use kube::ResourceExt;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::context::Context;
use crate::facts::instance::is_final;

/// Whether the guest is to be moved when its node is emptied, and cannot be.
fn is_non_evictable(vmi: &VirtualMachineInstance, cluster: &str) -> bool {
    eviction::strategy(vmi, cluster) == eviction_strategy::LIVE_MIGRATE && !eviction::can_move(vmi)
}

/// The gauges of `context`.
pub(crate) fn encode(context: &Context, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let cluster = context.settings().eviction_strategy;
    let help = "Whether the guest is to be moved when its node is emptied, and cannot be";
    let mut family = encoder.encode_descriptor("kubevirt_vmi_non_evictable", help, None, MetricType::Gauge)?;
    for vmi in context.stores.vmis.list().iter().filter(|vmi| !is_final(vmi)) {
        let node = vmi.status.as_ref().and_then(|status| status.node_name.clone()).unwrap_or_default();
        let labels = [("node", node), ("namespace", vmi.namespace().unwrap_or_default()), ("name", vmi.name_any())];
        ConstGauge::new(i64::from(is_non_evictable(vmi, &cluster))).encode(family.encode_family(&labels)?)?;
    }
    let counted = context.stores.kubevirts.list().into_iter().filter_map(|kubevirt| kubevirt.status);
    let outdated = counted.filter_map(|status| status.outdated_virtual_machine_instance_workloads).next();
    let gauge = ConstGauge::new(i64::from(outdated.unwrap_or_default()));
    let help = "Guests whose launcher is of another build than new ones";
    gauge.encode(encoder.encode_descriptor("kubevirt_vmi_number_of_outdated", help, None, gauge.metric_type())?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_who_must_be_moved_and_cannot_is_in_the_way() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(strategy: Value, movable: &str, cluster: &str, expect: bool) {
            let vmi = json!({
                "spec": { "domain": { "devices": {} }, "evictionStrategy": strategy },
                "status": { "conditions": [{ "type": "LiveMigratable", "status": movable }] },
            });
            assert_eq!(
                is_non_evictable(&serde_json::from_value(vmi).unwrap(), cluster),
                expect,
                "{strategy} {movable}"
            );
        }
        check(json!("LiveMigrate"), "False", "None", true);
        check(json!("LiveMigrate"), "True", "None", false);
        check(json!("LiveMigrateIfPossible"), "False", "None", false);
        check(json!("None"), "False", "LiveMigrate", false);
        check(Value::Null, "False", "LiveMigrate", true);
        check(Value::Null, "False", "None", false);
    }
}
