//! Policies about migrations. What is not changed is not judged again.

use api::kubevirt::v1::{ExperimentalMigrationOptions, StallDetectorOptions};
use api::migrations::v1alpha1::{MigrationPolicy, MigrationPolicySpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kit::admission::{Cause, Request, Verdict};
use meta::quantity::Amount;

use super::{Rules, invalid, strict};

const STALL_DETECTION: &str = "MigrationStallDetection";
const DOWNTIME_TUNING: &str = "MigrationDowntimeTuning";
/// The longest pause that QEMU can be allowed, in milliseconds.
const LONGEST_PAUSE: i64 = 2_000_000;

/// `/migration-policy-validate-create`.
pub fn policy(request: &Request, rules: &Rules) -> Verdict {
    let policy: MigrationPolicy = match strict::decode(&request.object) {
        Ok(policy) => policy,
        Err(causes) => return Verdict::Invalid(causes),
    };
    let old = serde_json::from_value::<MigrationPolicy>(request.old_object.clone()).map(|old| old.spec).ok();
    let causes = spec(old.as_ref(), &policy.spec, rules);
    if causes.is_empty() { Verdict::Allow { warnings: warnings(&policy.spec) } } else { Verdict::Invalid(causes) }
}

fn spec(old: Option<&MigrationPolicySpec>, new: &MigrationPolicySpec, rules: &Rules) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut refuse = |field: &str, message: String| causes.push(invalid(format!("spec.{field}"), message));
    if new.completion_timeout_per_gi_b.is_some_and(|seconds| seconds < 0) {
        refuse("completionTimeoutPerGiB", "must not be negative".to_owned());
    }
    if let Some(pause) = new.max_downtime_ms.filter(|_| changed(old, new, |spec| &spec.max_downtime_ms)) {
        if !(1..=LONGEST_PAUSE).contains(&pause) {
            refuse("maxDowntimeMs", format!("must be in range 1-{LONGEST_PAUSE}"));
        }
        if !rules.is_on(STALL_DETECTION) && !rules.is_on(DOWNTIME_TUNING) {
            let gates = format!("the {STALL_DETECTION} or {DOWNTIME_TUNING} feature gate");
            refuse("maxDowntimeMs", format!("maxDowntimeMs cannot be modified without enabling {gates}"));
        }
    }
    let modes = |spec: &MigrationPolicySpec| (spec.allow_post_copy, spec.allow_workload_disruption);
    if modes(new) == (Some(true), Some(false)) && old.map(modes) != Some(modes(new)) {
        let message = "AllowWorkloadDisruption must be true when AllowPostCopy is true";
        refuse("allowWorkloadDisruption", message.to_owned());
    }
    match new.bandwidth_per_migration.as_ref().map(|bandwidth| (bandwidth, bandwidth.0.parse::<Amount>())) {
        Some((_, Ok(amount))) if amount < Amount::ZERO => {
            refuse("bandwidthPerMigration", "must not be negative".to_owned());
        }
        Some((said, Err(error))) => refuse("bandwidthPerMigration", format!("{:?}: {error}", said.0)),
        _ => {}
    }
    let before = old.and_then(|old| old.experimental.as_ref());
    if let Some(experimental) = &new.experimental {
        causes.extend(experiments(before, experimental, rules));
    }
    causes
}

fn changed<T: PartialEq>(
    old: Option<&MigrationPolicySpec>,
    new: &MigrationPolicySpec,
    of: impl Fn(&MigrationPolicySpec) -> &T,
) -> bool {
    old.is_none_or(|old| of(old) != of(new))
}

fn experiments(
    old: Option<&ExperimentalMigrationOptions>,
    new: &ExperimentalMigrationOptions,
    rules: &Rules,
) -> Vec<Cause> {
    let mut causes = Vec::new();
    let known = [
        ("downtimeTuning", DOWNTIME_TUNING, new.downtime_tuning.is_some(), {
            old.is_none_or(|old| old.downtime_tuning != new.downtime_tuning)
        }),
        ("stallDetector", STALL_DETECTION, new.stall_detector.is_some(), {
            old.is_none_or(|old| old.stall_detector != new.stall_detector)
        }),
    ];
    for (name, gate, said, changed) in known {
        if said && changed && !rules.is_on(gate) {
            let message = format!("experimental.{name} cannot be modified without enabling the {gate} feature gate");
            causes.push(invalid(format!("spec.experimental.{name}"), message));
        }
    }
    if let Some(detector) = &new.stall_detector {
        causes.extend(factors(detector));
    }
    causes
}

fn factors(detector: &StallDetectorOptions) -> Vec<Cause> {
    let bounds: [(&str, &Option<Quantity>, i64, Option<i64>); 4] = [
        ("ewmaAlpha", &detector.ewma_alpha, 1, Some(1)),
        ("precopyPossibleFactor", &detector.precopy_possible_factor, 1000, None),
        ("patienceWindowDecayFactor", &detector.patience_window_decay_factor, 0, Some(1)),
        ("completionTimeoutFactor", &detector.completion_timeout_factor, 1000, None),
    ];
    let mut causes = Vec::new();
    for (name, said, least_milli, most) in bounds {
        let Some(said) = said else { continue };
        let message = match said.0.parse::<Amount>().map(Amount::milli_value) {
            Err(error) => format!("{:?}: {error}", said.0),
            Ok(milli) if milli < least_milli && least_milli == 1 => "must be greater than 0".to_owned(),
            Ok(milli) if milli < least_milli => format!("must be greater than or equal to {}", least_milli / 1000),
            Ok(milli) => match most.filter(|most| milli > most * 1000) {
                Some(most) => format!("must be less than or equal to {most}"),
                None => continue,
            },
        };
        causes.push(invalid(format!("spec.experimental.stallDetector.{name}"), message));
    }
    causes
}

fn warnings(spec: &MigrationPolicySpec) -> Vec<String> {
    let (guest, namespace) = (&spec.selectors.virtual_machine_instance_selector, &spec.selectors.namespace_selector);
    let compression = spec.experimental.as_ref().and_then(|experimental| experimental.compression.as_deref());
    let mut warnings = Vec::new();
    if guest.is_empty() && namespace.is_empty() {
        warnings.push("spec.selectors names no label: the policy is about every VM".to_owned());
    }
    if compression == Some("zstd") && spec.allow_post_copy == Some(true) {
        let why = "QEMU cannot do both, and nothing is compressed where post-copy is allowed";
        warnings.push(format!("spec.experimental.compression is left out with spec.allowPostCopy: {why}"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use api::kubevirt::v1::KubeVirtConfiguration;
    use serde_json::{Value, json};

    use super::*;

    fn judge(old: Value, mut new: Value, gates: &[&str]) -> Verdict {
        let object =
            |spec: Value| if spec.is_null() { spec } else { json!({ "metadata": { "name": "p" }, "spec": spec }) };
        if new.get("selectors").is_none() {
            new["selectors"] = json!({ "namespaceSelector": { "team": "a" } });
        }
        let configuration = json!({ "developerConfiguration": { "featureGates": gates } });
        let configuration: KubeVirtConfiguration = serde_json::from_value(configuration).unwrap();
        let request = Request { object: object(new), old_object: object(old), ..Default::default() };
        policy(&request, &Rules::of(&configuration, "kubevirt"))
    }

    #[track_caller]
    fn check(new: Value, gates: &[&str], expect: &[&str]) {
        let found = match judge(Value::Null, new, gates) {
            Verdict::Invalid(causes) => causes.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect(),
            _ => Vec::new(),
        };
        assert_eq!(found, expect);
    }

    const ALL: [&str; 2] = [STALL_DETECTION, DOWNTIME_TUNING];

    #[test]
    fn numbers_have_bounds() {
        check(json!({ "bandwidthPerMigration": "1Gi", "completionTimeoutPerGiB": 0 }), &[], &[]);
        let both =
            ["spec.completionTimeoutPerGiB: must not be negative", "spec.bandwidthPerMigration: must not be negative"];
        check(json!({ "bandwidthPerMigration": "-1", "completionTimeoutPerGiB": -1 }), &[], &both);
        check(json!({ "maxDowntimeMs": 1 }), &ALL, &[]);
        check(json!({ "maxDowntimeMs": 2_000_001 }), &ALL, &["spec.maxDowntimeMs: must be in range 1-2000000"]);
        let word = "spec.allowWorkloadDisruption: AllowWorkloadDisruption must be true when AllowPostCopy is true";
        check(json!({ "allowPostCopy": true, "allowWorkloadDisruption": false }), &[], &[word]);
    }

    #[test]
    fn experiments_need_their_gates() {
        let all = json!({ "compression": "zstd", "downtimeTuning": {}, "stallDetector": {} });
        check(json!({ "experimental": all, "maxDowntimeMs": 900 }), &ALL, &[]);
        let expect = [
            "spec.maxDowntimeMs: maxDowntimeMs cannot be modified without enabling the MigrationStallDetection or \
             MigrationDowntimeTuning feature gate",
            "spec.experimental.downtimeTuning: experimental.downtimeTuning cannot be modified without enabling the \
             MigrationDowntimeTuning feature gate",
            "spec.experimental.stallDetector: experimental.stallDetector cannot be modified without enabling the \
             MigrationStallDetection feature gate",
        ];
        let spec = json!({ "experimental": all, "maxDowntimeMs": 900 });
        check(spec.clone(), &[], &expect);
        assert!(matches!(judge(spec.clone(), spec, &[]), Verdict::Allow { .. }), "they were there before");
    }

    #[test]
    fn factors_have_bounds() {
        let detector = |name: &str, value: &str| json!({ "experimental": { "stallDetector": { name: value } } });
        let path = |rest: &str| format!("spec.experimental.stallDetector.{rest}");
        for (name, value) in [("ewmaAlpha", "0.4"), ("ewmaAlpha", "1"), ("patienceWindowDecayFactor", "0")] {
            check(detector(name, value), &ALL, &[]);
        }
        for (name, value, why) in [
            ("ewmaAlpha", "0", "must be greater than 0"),
            ("ewmaAlpha", "1.5", "must be less than or equal to 1"),
            ("precopyPossibleFactor", "500m", "must be greater than or equal to 1"),
            ("completionTimeoutFactor", "0.9", "must be greater than or equal to 1"),
            ("patienceWindowDecayFactor", "-1", "must be greater than or equal to 0"),
        ] {
            check(detector(name, value), &ALL, &[&path(&format!("{name}: {why}"))]);
        }
    }

    #[test]
    fn a_policy_without_selectors_or_with_ignored_fields_is_warned_of() {
        let warned = |spec: Value| match judge(Value::Null, spec, &[]) {
            Verdict::Allow { warnings } => warnings.len(),
            _ => 99,
        };
        assert_eq!(warned(json!({})), 0);
        assert_eq!(warned(json!({ "selectors": {} })), 1);
        assert_eq!(warned(json!({ "allowPostCopy": true, "experimental": { "compression": "zstd" } })), 1);
    }
}
