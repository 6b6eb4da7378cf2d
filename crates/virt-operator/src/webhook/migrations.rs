//! What the KubeVirt object says about migrations: each field is acted on, or a warning says that it is not. Pure.

use api::{kubevirt::v1::MigrationConfiguration, quantity::Amount};
use kit::admission::Cause;
use serde_json::Value;

const PATH: &str = "spec.configuration.migrations";
/// The longest pause that QEMU can be allowed, in milliseconds.
const LONGEST_PAUSE: i64 = 2_000_000;

/// Every field of the schema, with why it is not acted on where it is not.
const FIELDS: [(&str, Option<&str>); 15] = [
    ("allowAutoConverge", None),
    ("allowPostCopy", None),
    ("allowWorkloadDisruption", None),
    ("bandwidthPerMigration", None),
    ("completionTimeoutPerGiB", None),
    ("disableTLS", None),
    ("matchSELinuxLevelOnMigration", Some("launcher pods are given no SELinux level of their own")),
    ("maxDowntimeMs", None),
    ("network", None),
    ("nodeDrainTaintKey", None),
    ("parallelMigrationsPerCluster", None),
    ("parallelOutboundMigrationsPerNode", None),
    ("progressTimeout", None),
    ("unsafeMigrationOverride", None),
    ("utilityVolumesTimeout", None),
];

fn said(kubevirt: &Value) -> &Value {
    kubevirt.pointer("/spec/configuration/migrations").unwrap_or(&Value::Null)
}

/// What is said and not acted on.
pub(super) fn warnings(kubevirt: &Value) -> Vec<String> {
    let ignored = FIELDS.iter().filter_map(|(field, why)| Some((field, (*why)?)));
    ignored
        .filter(|(field, _)| !said(kubevirt)[**field].is_null())
        .map(|(field, why)| format!("{PATH}.{field} is not acted on in this version: {why}"))
        .collect()
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
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn kubevirt(migrations: Value) -> Value {
        json!({ "spec": { "configuration": { "migrations": migrations } } })
    }

    #[test]
    fn no_field_of_the_schema_is_forgotten() {
        let path = "../../xtask/data/kubevirt-openapi.json";
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let properties = schema["definitions"]["v1.MigrationConfiguration"]["properties"].as_object().unwrap();
        let known: BTreeSet<&str> = FIELDS.iter().map(|(field, _)| *field).collect();
        assert_eq!(properties.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
    }

    #[test]
    fn what_is_not_acted_on_is_said() {
        assert_eq!(warnings(&json!({})), Vec::<String>::new());
        assert_eq!(warnings(&kubevirt(json!({ "allowPostCopy": true, "network": "fast" }))), Vec::<String>::new());
        let level = "spec.configuration.migrations.matchSELinuxLevelOnMigration is not acted on in this version: \
                     launcher pods are given no SELinux level of their own";
        assert_eq!(warnings(&kubevirt(json!({ "matchSELinuxLevelOnMigration": true }))), [level]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
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
