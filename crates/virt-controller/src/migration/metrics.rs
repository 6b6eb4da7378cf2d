//! Migrations in figures: how many are in which phase, how each of them ended, and how long they took to get there.

use std::sync::{Arc, OnceLock};

use api::kubevirt::constants::migration_phase as phase;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::context::Context;
use crate::facts::migration_state;
use crate::facts::migrations::phase_of;
use crate::{evictable, snapshot};

type Labels<const N: usize> = [(&'static str, String); N];

/// Seconds from a migration's creation until it entered a phase, by phase.
pub(super) type Ages = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

/// Half a second to half an hour.
const BUCKETS: [f64; 13] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0];

/// The figures; empty until this replica leads.
#[derive(Clone, Debug)]
pub struct Figures {
    context: Arc<OnceLock<Context>>,
    /// Counted where the status is written.
    ages: Ages,
}

impl Default for Figures {
    fn default() -> Self {
        let ages = Ages::new_with_constructor(|| Histogram::new(BUCKETS));
        Self { context: Arc::default(), ages }
    }
}

impl Figures {
    pub(super) fn ages(&self) -> &Ages {
        &self.ages
    }

    /// From now on these are the figures of `context`.
    pub fn of(&self, context: Context) {
        // A replica leads once in its life.
        let _ = self.context.set(context);
    }
}

/// One of the four counts, or neither: what is over is told one by one.
fn count_of(now: &str) -> Option<&'static str> {
    match now {
        phase::UNSET => Some("unset"),
        phase::PENDING => Some("pending"),
        phase::SCHEDULING => Some("scheduling"),
        phase::SUCCEEDED | phase::FAILED => None,
        _ => Some("running"),
    }
}

/// How often each phase occurs, in the order of the metrics.
fn counts(migrations: &[Migration]) -> [(&'static str, i64); 4] {
    ["pending", "scheduling", "running", "unset"].map(|word| {
        let found = migrations.iter().filter(|migration| count_of(phase_of(migration)) == Some(word)).count();
        (word, i64::try_from(found).unwrap_or(i64::MAX))
    })
}

/// Labels of the migrations that ended in `phase`.
fn ended<'a>(migrations: &'a [Migration], phase: &'a str) -> impl Iterator<Item = Labels<3>> + 'a {
    migrations.iter().filter(move |migration| phase_of(migration) == phase).map(|migration| {
        [
            ("vmi", migration.spec.vmi_name.clone().unwrap_or_default()),
            ("vmim", migration.name_any()),
            ("namespace", migration.namespace().unwrap_or_default()),
        ]
    })
}

/// The last migration of a guest.
#[derive(Debug, PartialEq, Eq)]
struct Last {
    /// Of the guest and of its migration.
    labels: Labels<4>,
    start: Option<i64>,
    /// When it ended, and how.
    end: Option<(i64, &'static str)>,
}

/// When the last migration of each guest began and ended.
fn times(guests: &[VirtualMachineInstance], migrations: &[Migration]) -> Vec<Last> {
    let seconds = |time: &Option<Time>| time.as_ref().map(|at| at.0.as_second());
    let of_guest = |guest: &VirtualMachineInstance| {
        let last = migration_state::of(guest)?;
        let uid = last.migration_uid.as_deref();
        let name = migrations.iter().find(|migration| migration.metadata.uid.as_deref() == uid)?.name_any();
        let labels = [
            ("node", guest.status.as_ref().and_then(|status| status.node_name.clone()).unwrap_or_default()),
            ("namespace", guest.namespace().unwrap_or_default()),
            ("name", guest.name_any()),
            ("migration_name", name),
        ];
        let how = if migration_state::failed(last) { "failed" } else { "succeeded" };
        let end = seconds(&last.end_timestamp).map(|at| (at, how));
        Some(Last { labels, start: seconds(&last.start_timestamp), end })
    };
    guests.iter().filter_map(of_guest).collect()
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(context) = self.context.get() else { return Ok(()) };
        evictable::encode(context, &mut encoder)?;
        snapshot::metrics::encode(context, &mut encoder)?;
        let migrations = context.stores.migrations.list();
        for (word, found) in counts(&migrations) {
            let (name, help) =
                (format!("kubevirt_vmi_migrations_in_{word}_phase"), format!("Migrations in the {word} phase"));
            let gauge = ConstGauge::new(found);
            gauge.encode(encoder.encode_descriptor(&name, &help, None, gauge.metric_type())?)?;
        }
        for (word, phase) in [("succeeded", phase::SUCCEEDED), ("failed", phase::FAILED)] {
            let (name, help) = (format!("kubevirt_vmi_migration_{word}"), format!("Whether the migration {word}"));
            let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Gauge)?;
            for labels in ended(&migrations, phase) {
                ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
            }
        }
        let times = times(&context.stores.vmis.list(), &migrations);
        let (name, help) = ("kubevirt_vmi_migration_start_time_seconds", "When the guest's last migration began");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for last in &times {
            if let Some(at) = last.start {
                ConstGauge::new(at).encode(family.encode_family(&last.labels)?)?;
            }
        }
        let (name, help) = ("kubevirt_vmi_migration_end_time_seconds", "When the guest's last migration ended");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for Last { labels: [node, namespace, name, migration], end, .. } in times {
            if let Some((at, status)) = end {
                let labels = [node, namespace, name, migration, ("status", status.to_owned())];
                ConstGauge::new(at).encode(family.encode_family(&labels)?)?;
            }
        }
        let name = "kubevirt_vmi_migration_phase_transition_time_from_creation_seconds";
        let help = "Seconds from the migration's creation until it entered a phase";
        self.ages.encode(encoder.encode_descriptor(name, help, None, MetricType::Histogram)?)
    }
}

/// Notes that `migration` entered `phases` now.
pub(super) fn observe(ages: &Ages, migration: &Migration, phases: &[&'static str], now: jiff::Timestamp) {
    let Some(created) = migration.creation_timestamp() else { return };
    let age = now.duration_since(created.0).as_secs_f64().max(0.0);
    for entered in phases {
        ages.get_or_create(&[("phase", *entered)]).observe(age);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn phases_are_counted() {
        let migrations: Vec<Migration> = ["", "Pending", "Pending", "Scheduling", "Scheduled", "Running", "Failed"]
            .iter()
            .map(|phase| serde_json::from_value(json!({ "metadata": { "name": "m" }, "status": { "phase": phase } })))
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(counts(&migrations), [("pending", 2), ("scheduling", 1), ("running", 2), ("unset", 1)]);
        assert_eq!((ended(&migrations, "Failed").count(), ended(&migrations, "Succeeded").count()), (1, 0));
    }

    #[test]
    fn the_last_migration_is_told_with_its_name() {
        let state = json!({ "migrationUid": "u", "startTimestamp": "1970-01-01T00:00:01Z",
            "endTimestamp": "1970-01-01T00:00:03Z", "failed": true });
        let guest = json!({ "metadata": { "name": "vm", "namespace": "ns" },
            "status": { "nodeName": "n", "migrationState": state } });
        let guest = serde_json::from_value(guest).unwrap();
        let migration = serde_json::from_value(json!({ "metadata": { "name": "m", "uid": "u" } })).unwrap();
        let found = times(&[guest], &[migration]);
        let [Last { labels, start, end }] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(labels.each_ref().map(|(_, value)| value.as_str()), ["n", "ns", "vm", "m"]);
        assert_eq!((start, end), (&Some(1), &Some((3, "failed"))));
    }
}
