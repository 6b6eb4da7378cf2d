//! What holds for a migration: the cluster's configuration with every default filled in, and a policy's words over it. Pure.

use api::kubevirt::v1::{DowntimeTuningOptions, ExperimentalMigrationOptions, KubeVirt, VMIMConfigurationOptions};
use api::migrations::v1alpha1::MigrationPolicySpec;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::context::Context;

/// Seconds without progress, and seconds for each GiB, after which a migration is given up.
const PATIENCE_SECONDS: i64 = 150;

/// Finds stalls of every migration, by the settings of its policy.
const STALL_DETECTION: &str = "MigrationStallDetection";
/// Lets policies have the pause grow.
const DOWNTIME_TUNING: &str = "MigrationDowntimeTuning";

/// How many migrations may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In the cluster.
    pub cluster: usize,
    /// Away from one node.
    pub outbound: usize,
}

/// The limits of a complete configuration.
pub fn limits(configuration: &VMIMConfigurationOptions) -> Limits {
    let count = |limit: Option<i64>, default: usize| limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(default);
    Limits {
        cluster: count(configuration.parallel_migrations_per_cluster, 5),
        outbound: count(configuration.parallel_outbound_migrations_per_node, 2),
    }
}

/// How long a migration waits for claims that the launcher has for work of its own.
pub fn utility_volumes_timeout(configuration: &VMIMConfigurationOptions) -> SignedDuration {
    SignedDuration::from_secs(configuration.utility_volumes_timeout.unwrap_or(PATIENCE_SECONDS).max(0))
}

/// What holds for migrations that no policy is about.
pub(crate) fn current(context: &Context) -> VMIMConfigurationOptions {
    of_cluster(context.stores.kubevirts.list().first())
}

/// The configuration of `kubevirt` (none: all defaults).
pub fn of_cluster(kubevirt: Option<&KubeVirt>) -> VMIMConfigurationOptions {
    let said = kubevirt.and_then(|kv| kv.spec.configuration.as_ref()).and_then(|c| c.migrations.clone());
    let said = said.map(|said| *said).unwrap_or_default();
    let post_copy = said.allow_post_copy.unwrap_or(false);
    VMIMConfigurationOptions {
        allow_auto_converge: Some(said.allow_auto_converge.unwrap_or(false)),
        allow_post_copy: Some(post_copy),
        // Who allows post-copy has accepted a disruption already.
        allow_workload_disruption: Some(said.allow_workload_disruption.unwrap_or(post_copy)),
        bandwidth_per_migration: Some(said.bandwidth_per_migration.unwrap_or_else(|| Quantity("0".to_owned()))),
        completion_timeout_per_gi_b: Some(said.completion_timeout_per_gi_b.unwrap_or(PATIENCE_SECONDS)),
        disable_tls: Some(said.disable_tls.unwrap_or(false)),
        experimental: None,
        match_se_linux_level_on_migration: Some(said.match_se_linux_level_on_migration.unwrap_or(true)),
        max_downtime_ms: said.max_downtime_ms,
        network: said.network,
        node_drain_taint_key: Some(said.node_drain_taint_key.unwrap_or_else(|| "kubevirt.io/drain".to_owned())),
        parallel_migrations_per_cluster: Some(said.parallel_migrations_per_cluster.unwrap_or(5)),
        parallel_outbound_migrations_per_node: Some(said.parallel_outbound_migrations_per_node.unwrap_or(2)),
        progress_timeout: Some(said.progress_timeout.unwrap_or(PATIENCE_SECONDS)),
        unsafe_migration_override: Some(said.unsafe_migration_override.unwrap_or(false)),
        utility_volumes_timeout: Some(said.utility_volumes_timeout.unwrap_or(PATIENCE_SECONDS)),
    }
}

/// `base`, with what `policy` says in its place.
pub fn with_policy(mut base: VMIMConfigurationOptions, policy: &MigrationPolicySpec) -> VMIMConfigurationOptions {
    over(&mut base.allow_auto_converge, &policy.allow_auto_converge);
    over(&mut base.bandwidth_per_migration, &policy.bandwidth_per_migration);
    over(&mut base.completion_timeout_per_gi_b, &policy.completion_timeout_per_gi_b);
    over(&mut base.max_downtime_ms, &policy.max_downtime_ms);
    over(&mut base.allow_post_copy, &policy.allow_post_copy);
    over(&mut base.allow_workload_disruption, &policy.allow_post_copy);
    over(&mut base.allow_workload_disruption, &policy.allow_workload_disruption);
    if let Some(said) = &policy.experimental {
        experimental(base.experimental.get_or_insert_default(), said);
    }
    base
}

fn experimental(base: &mut ExperimentalMigrationOptions, said: &ExperimentalMigrationOptions) {
    over(&mut base.compression, &said.compression);
    if let Some(said) = &said.downtime_tuning {
        let base = base.downtime_tuning.get_or_insert_with(DowntimeTuningOptions::default);
        over(&mut base.cooldown_seconds, &said.cooldown_seconds);
        over(&mut base.initial_ms, &said.initial_ms);
        over(&mut base.start_after_iteration, &said.start_after_iteration);
        over(&mut base.steps, &said.steps);
    }
    if let Some(said) = &said.stall_detector {
        let base = base.stall_detector.get_or_insert_default();
        over(&mut base.completion_timeout_factor, &said.completion_timeout_factor);
        over(&mut base.ewma_alpha, &said.ewma_alpha);
        over(&mut base.patience_window_decay_factor, &said.patience_window_decay_factor);
        over(&mut base.precopy_possible_factor, &said.precopy_possible_factor);
        over(&mut base.search_local_minima, &said.search_local_minima);
        over(&mut base.stall_margin, &said.stall_margin);
        over(&mut base.stall_progress_timeout, &said.stall_progress_timeout);
        over(&mut base.switchover_timeout, &said.switchover_timeout);
    }
}

/// What is left of the experiments under these feature gates.
pub fn gated(mut configuration: VMIMConfigurationOptions, gates: &[String]) -> VMIMConfigurationOptions {
    let on = |gate: &str| gates.iter().any(|named| named == gate);
    let mut experimental = configuration.experimental.unwrap_or_default();
    if on(STALL_DETECTION) {
        experimental.stall_detector.get_or_insert_default();
    } else {
        experimental.stall_detector = None;
    }
    if !on(DOWNTIME_TUNING) {
        experimental.downtime_tuning = None;
    }
    configuration.experimental = Some(experimental).filter(|left| *left != ExperimentalMigrationOptions::default());
    configuration
}

fn over<T: Clone>(base: &mut Option<T>, said: &Option<T>) {
    if said.is_some() {
        base.clone_from(said);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(cluster: Value, policy: Value, expect: &[(&str, Value)]) {
        let kubevirt =
            serde_json::from_value(json!({ "spec": { "configuration": { "migrations": cluster } } })).unwrap();
        let found = with_policy(of_cluster(Some(&kubevirt)), &serde_json::from_value(policy).unwrap());
        let found = serde_json::to_value(found).unwrap();
        for (path, value) in expect {
            assert_eq!(found.pointer(path).unwrap_or(&Value::Null), value, "{path}");
        }
    }

    #[test]
    fn defaults() {
        let expect = [
            ("/allowAutoConverge", json!(false)),
            ("/allowPostCopy", json!(false)),
            ("/allowWorkloadDisruption", json!(false)),
            ("/bandwidthPerMigration", json!("0")),
            ("/completionTimeoutPerGiB", json!(150)),
            ("/disableTLS", json!(false)),
            ("/nodeDrainTaintKey", json!("kubevirt.io/drain")),
            ("/parallelMigrationsPerCluster", json!(5)),
            ("/parallelOutboundMigrationsPerNode", json!(2)),
            ("/progressTimeout", json!(150)),
            ("/unsafeMigrationOverride", json!(false)),
            ("/network", Value::Null),
        ];
        check(json!({}), json!({}), &expect);
        assert_eq!(limits(&of_cluster(None)), Limits { cluster: 5, outbound: 2 });
    }

    #[test]
    fn a_policy_is_over_the_cluster() {
        let cluster = json!({ "bandwidthPerMigration": "64Mi", "progressTimeout": 10, "allowAutoConverge": true });
        let policy =
            json!({ "bandwidthPerMigration": "1Gi", "completionTimeoutPerGiB": 0, "allowAutoConverge": false });
        let expect = [
            ("/bandwidthPerMigration", json!("1Gi")),
            ("/completionTimeoutPerGiB", json!(0)),
            ("/progressTimeout", json!(10)),
            ("/allowAutoConverge", json!(false)),
        ];
        check(cluster, policy, &expect);
    }

    #[test]
    fn disruption_follows_post_copy_until_it_is_said() {
        let disruption = |value: bool| [("/allowWorkloadDisruption", json!(value))];
        check(json!({ "allowPostCopy": true }), json!({}), &disruption(true));
        check(json!({ "allowPostCopy": true, "allowWorkloadDisruption": false }), json!({}), &disruption(false));
        check(json!({}), json!({ "allowPostCopy": true }), &disruption(true));
        check(json!({}), json!({ "allowPostCopy": true, "allowWorkloadDisruption": false }), &disruption(false));
    }

    #[test]
    fn experiments_are_merged_field_by_field() {
        let policy = json!({ "experimental": { "compression": "zstd", "downtimeTuning": { "steps": 3 } } });
        let expect = [("/experimental/compression", json!("zstd")), ("/experimental/downtimeTuning/steps", json!(3))];
        check(json!({}), policy, &expect);
    }

    #[test]
    fn experiments_need_their_gates() {
        #[track_caller]
        fn check(said: &str, gates: &[&str], expect: &str) {
            let experimental: Value = serde_json::from_str(said).unwrap();
            let said = serde_json::from_value(json!({ "experimental": experimental })).unwrap();
            let gates: Vec<String> = gates.iter().map(|gate| (*gate).to_owned()).collect();
            let found = serde_json::to_value(gated(said, &gates)).unwrap();
            assert_eq!(found["experimental"], serde_json::from_str::<Value>(expect).unwrap());
        }
        check("null", &[], "null");
        check("null", &["MigrationStallDetection"], r#"{"stallDetector":{}}"#);
        let all = r#"{"compression":"zstd","downtimeTuning":{"steps":2},"stallDetector":{"stallMargin":7}}"#;
        check(all, &[], r#"{"compression":"zstd"}"#);
        check(all, &["MigrationDowntimeTuning"], r#"{"compression":"zstd","downtimeTuning":{"steps":2}}"#);
        check(all, &["MigrationStallDetection", "MigrationDowntimeTuning"], all);
    }
}
