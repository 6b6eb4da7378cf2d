//! Snapshots in figures: when each that succeeded did.

use api::snapshot::v1beta1::VirtualMachineSnapshot;
use kube::ResourceExt;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::plan::phase;
use crate::context::Context;

/// The machine, the snapshot and their namespace, and the second at which the snapshot became usable.
type Success = ([(&'static str, String); 3], i64);

fn success(snapshot: &VirtualMachineSnapshot) -> Option<Success> {
    let status = snapshot.status.as_ref().filter(|status| status.phase.as_deref() == Some(phase::SUCCEEDED))?;
    let mut ready =
        status.conditions.iter().filter(|condition| condition.type_ == "Ready" && condition.status == "True");
    let at = ready.next()?.last_transition_time.as_ref()?.0.as_second();
    let labels = [
        ("name", snapshot.spec.source.name.clone()),
        ("snapshot_name", snapshot.name_any()),
        ("namespace", snapshot.namespace().unwrap_or_default()),
    ];
    Some((labels, at))
}

/// Tells of every snapshot.
pub(crate) fn encode(context: &Context, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let (name, help) =
        ("kubevirt_vmsnapshot_succeeded_timestamp_seconds", "When the snapshot of the virtual machine succeeded");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, at) in context.stores.snapshots.list().iter().filter_map(success) {
        ConstGauge::new(at).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_success_has_its_time() {
        #[track_caller]
        fn check(phase: &str, expect: Option<i64>) {
            let ready: Value =
                json!({ "type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z" });
            let snapshot = serde_json::from_value(json!({
                "metadata": { "name": "s", "namespace": "ns" }, "spec": { "source": { "kind": "VirtualMachine", "name": "vm" } },
                "status": { "phase": phase, "conditions": [ready] },
            }))
            .unwrap();
            let found = success(&snapshot);
            assert_eq!(found.as_ref().map(|(_, at)| *at), expect);
            if let Some((labels, _)) = found {
                assert_eq!(labels.map(|(_, value)| value), ["vm", "s", "ns"]);
            }
        }
        check("Succeeded", Some(7));
        check("Failed", None);
        check("InProgress", None);
    }
}
