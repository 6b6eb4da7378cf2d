//! Migrations that leave this node, in figures.

use domain::MigrationProgress;
use kit::store::Key;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Context;

/// A gauge of a migration.
type Gauge = (&'static str, &'static str, fn(&MigrationProgress) -> u64);

const GAUGES: [Gauge; 4] = [
    ("kubevirt_vmi_migration_data_processed_bytes", "Data that the migration has sent", |of| of.processed),
    ("kubevirt_vmi_migration_data_remaining_bytes", "Data that the migration has yet to send", |of| of.remaining),
    ("kubevirt_vmi_migration_dirty_memory_rate_bytes", "Memory that the guest changes, a second", |of| of.dirty_rate),
    ("kubevirt_vmi_migration_memory_transfer_rate_bytes", "Memory that the migration sends, a second", |of| of.rate),
];

/// The figures of the guests in a [`Context`].
pub(crate) struct Figures(pub(crate) Context);

impl std::fmt::Debug for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Figures").finish_non_exhaustive()
    }
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let keys = self.0.vmis.keys();
        let under_way = keys.into_iter().filter_map(|key| {
            let (_, progress, gone) = self.0.guest(&key)?.migration();
            let progress = progress.filter(|progress| progress.outcome.is_none() && !gone)?;
            Some((key, progress))
        });
        write(encoder, &self.0.node, &under_way.collect::<Vec<_>>())
    }
}

fn write(
    mut encoder: DescriptorEncoder<'_>,
    node: &str,
    under_way: &[(Key, MigrationProgress)],
) -> Result<(), std::fmt::Error> {
    let labels =
        |key: &Key| [("node", node.to_owned()), ("namespace", key.namespace.clone()), ("name", key.name.clone())];
    for (name, help, of) in GAUGES {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (key, progress) in under_way {
            let value = i64::try_from(of(progress)).unwrap_or(i64::MAX);
            ConstGauge::new(value).encode(family.encode_family(&labels(key))?)?;
        }
    }
    // The encoder adds the suffix of counters, `_total`.
    let (name, help) = ("kubevirt_vmi_migration_data_bytes", "Data that the migration has to send in all");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (key, progress) in under_way {
        ConstCounter::new(progress.total).encode(family.encode_family(&labels(key))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Fixed(Vec<(Key, MigrationProgress)>);

    impl Collector for Fixed {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            write(encoder, "n1", &self.0)
        }
    }

    #[test]
    fn a_migration_under_way_is_told_with_its_guest() {
        let progress = MigrationProgress {
            total: 9,
            processed: 4,
            remaining: 5,
            rate: 2,
            dirty_rate: 1,
            ..MigrationProgress::default()
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Fixed(vec![(Key::new("ns", "vm"), progress)])));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = r#"{node="n1",namespace="ns",name="vm"}"#;
        let expect = [
            format!("kubevirt_vmi_migration_data_processed_bytes{of} 4"),
            format!("kubevirt_vmi_migration_data_remaining_bytes{of} 5"),
            format!("kubevirt_vmi_migration_dirty_memory_rate_bytes{of} 1"),
            format!("kubevirt_vmi_migration_memory_transfer_rate_bytes{of} 2"),
            format!("kubevirt_vmi_migration_data_bytes_total{of} 9"),
        ];
        assert_eq!(lines, expect);
    }
}
