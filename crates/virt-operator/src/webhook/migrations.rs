//! What the KubeVirt object says about migrations: values that make no sense are refused. Pure.

use api::kubevirt::v1::MigrationConfiguration;
use kit::admission::Cause;
use meta::quantity::Amount;
use serde_json::Value;

const PATH: &str = "spec.configuration.migrations";
/// The longest pause that QEMU can be allowed, in milliseconds.
const LONGEST_PAUSE: i64 = 2_000_000;

fn said(kubevirt: &Value) -> &Value {
    kubevirt.pointer("/spec/configuration/migrations").unwrap_or(&Value::Null)
}

/// What makes no sense.
pub(super) fn causes(kubevirt: &Value) -> Vec<Cause> {
    let Ok(said) = serde_json::from_value::<Option<MigrationConfiguration>>(said(kubevirt).clone()) else {
        // The schema has refused it.
        return Vec::new();
    };
    let said = said.unwrap_or_default();
    let mut causes = Vec::new();
    let mut refuse = |field: &str, message: String| {
        causes.push(Cause { reason: "FieldValueInvalid", field: format!("{PATH}.{field}"), message });
    };
    let counts = [
        ("completionTimeoutPerGiB", said.completion_timeout_per_gi_b, 0),
        ("progressTimeout", said.progress_timeout, 0),
        ("utilityVolumesTimeout", said.utility_volumes_timeout, 0),
        ("parallelMigrationsPerCluster", said.parallel_migrations_per_cluster, 1),
        ("parallelOutboundMigrationsPerNode", said.parallel_outbound_migrations_per_node, 1),
    ];
    for (field, count, least) in counts {
        if let Some(count) = count.filter(|count| *count < least) {
            refuse(field, format!("is {count}: must be greater than or equal to {least}"));
        }
    }
    if said.max_downtime_ms.is_some_and(|pause| !(1..=LONGEST_PAUSE).contains(&pause)) {
        refuse("maxDowntimeMs", format!("must be in range 1-{LONGEST_PAUSE}"));
    }
    match said.bandwidth_per_migration.as_ref().map(|bandwidth| (bandwidth, bandwidth.0.parse::<Amount>())) {
        Some((_, Ok(amount))) if amount < Amount::ZERO => {
            refuse("bandwidthPerMigration", "must not be negative".to_owned());
        }
        Some((said, Err(error))) => refuse("bandwidthPerMigration", format!("{:?}: {error}", said.0)),
        _ => {}
    }
    if (said.allow_post_copy, said.allow_workload_disruption) == (Some(true), Some(false)) {
        let message = "AllowWorkloadDisruption must be true when AllowPostCopy is true";
        refuse("allowWorkloadDisruption", message.to_owned());
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn kubevirt(migrations: Value) -> Value {
        json!({ "spec": { "configuration": { "migrations": migrations } } })
    }

    #[test]
    fn invalid_migration_settings_are_refused_by_field() {
        #[track_caller]
        fn check(migrations: Value, expect: &[&str]) {
            let found = causes(&kubevirt(migrations));
            let found: Vec<_> = found.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
            let expect: Vec<_> = expect.iter().map(|rest| format!("{PATH}.{rest}")).collect();
            assert_eq!(found, expect);
        }
        check(Value::Null, &[]);
        check(json!({ "progressTimeout": 0, "parallelMigrationsPerCluster": 1, "bandwidthPerMigration": "64Mi" }), &[]);
        check(json!({ "progressTimeout": -1 }), &["progressTimeout: is -1: must be greater than or equal to 0"]);
        let none = "parallelMigrationsPerCluster: is 0: must be greater than or equal to 1";
        check(json!({ "parallelMigrationsPerCluster": 0 }), &[none]);
        check(json!({ "maxDowntimeMs": 0 }), &["maxDowntimeMs: must be in range 1-2000000"]);
        check(json!({ "bandwidthPerMigration": "-1" }), &["bandwidthPerMigration: must not be negative"]);
        let both = "allowWorkloadDisruption: AllowWorkloadDisruption must be true when AllowPostCopy is true";
        check(json!({ "allowPostCopy": true, "allowWorkloadDisruption": false }), &[both]);
    }
}
