//! What the KubeVirt object configures beyond certificates, placement, TLS and migrations: what makes no sense is refused, and
//! a warning names what is not acted on. Pure.

use api::unserved::{self, Answer, FEATURE_GATES, Found, KUBEVIRT, KUBEVIRT_ANNOTATIONS};
use kit::admission::Cause;
use serde_json::Value;

const PATH: &str = "spec.configuration";
fn at<'a>(kubevirt: &'a Value, path: &str) -> &'a Value {
    kubevirt.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&Value::Null)
}

fn gates<'a>(kubevirt: &'a Value, field: &str) -> Vec<&'a str> {
    let listed = at(kubevirt, &format!("{PATH}.developerConfiguration.{field}")).as_array();
    listed.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What is said and not acted on.
pub(super) fn warnings(kubevirt: &Value) -> Vec<String> {
    let mut warnings: Vec<String> =
        found(kubevirt).filter(|one| one.answer == Answer::Warned).map(|one| one.message).collect();
    let idle: Vec<&str> =
        gates(kubevirt, "featureGates").into_iter().filter(|gate| !FEATURE_GATES.contains(gate)).collect();
    if !idle.is_empty() {
        warnings.push(format!(
            "{PATH}.developerConfiguration.featureGates: {} changes nothing in this version: what is served needs no gate, and \
             what is not is refused where it is asked for",
            idle.join(", ")
        ));
    }
    warnings
}

fn found(kubevirt: &Value) -> impl Iterator<Item = Found> {
    let annotations =
        unserved::keys(KUBEVIRT_ANNOTATIONS, &kubevirt["metadata"]["annotations"], "metadata.annotations");
    unserved::found(KUBEVIRT, kubevirt, "").into_iter().chain(annotations)
}

/// What makes no sense.
pub(super) fn causes(kubevirt: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut refuse = |field: String, message: String| {
        causes.push(Cause { reason: "FieldValueInvalid", field, message });
    };
    for refused in found(kubevirt).filter(|one| one.answer != Answer::Warned) {
        refuse(refused.field, refused.message);
    }
    let ratio = format!("{PATH}.additionalGuestMemoryOverheadRatio");
    if let Some(text) = at(kubevirt, &ratio).as_str().filter(|text| !text.is_empty()) {
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 1.0 => {}
            Ok(_) => refuse(
                ratio.clone(),
                format!("{ratio}: ratio provided, {text}, cannot be smaller than 1.0: set 1.0 or more"),
            ),
            Err(error) => {
                let message =
                    format!("{ratio}: ratio provided, {text}, cannot be parsed into float: {error}: write it like 1.5");
                refuse(ratio.clone(), message);
            }
        }
    }
    let disabled = gates(kubevirt, "disabledFeatureGates");
    for gate in gates(kubevirt, "featureGates").into_iter().filter(|gate| disabled.contains(gate)) {
        let message = format!(
            "feature gate {gate:?} exists on both \"FeatureGates\" and \"DisabledFeatureGates\": take it out of one of them"
        );
        refuse(format!("{PATH}.developerConfiguration.featureGates"), message);
    }
    let numbers = [
        ("developerConfiguration.cpuAllocationRatio", 1, i64::MAX, "at least 1: so many virtual processors share one"),
        (
            "developerConfiguration.memoryOvercommit",
            1,
            i64::MAX,
            "at least 1: percent of a guest's memory that a node must have",
        ),
        ("developerConfiguration.pvcTolerateLessSpaceUpToPercent", 0, 100, "from 0 to 100"),
        ("developerConfiguration.minimumReservePVCBytes", 0, i64::MAX, "0 or more"),
    ];
    for (field, least, most, rule) in numbers {
        let path = format!("{PATH}.{field}");
        let Some(number) = at(kubevirt, &path).as_i64() else { continue };
        // Clients that know no absent numbers send zero.
        if number != 0 && !(least..=most).contains(&number) {
            refuse(path.clone(), format!("{path} is {number}: must be {rule}"));
        }
    }
    let words: [(&str, &[&str]); 5] = [
        ("spec.configuration.roleAggregationStrategy", &["AggregateToDefault", "Manual"]),
        ("spec.configuration.evictionStrategy", &["None", "LiveMigrate", "LiveMigrateIfPossible", "External"]),
        ("spec.imagePullPolicy", &["Always", "IfNotPresent", "Never"]),
        ("spec.configuration.imagePullPolicy", &["Always", "IfNotPresent", "Never"]),
        ("spec.uninstallStrategy", &["RemoveWorkloads", "BlockUninstallIfWorkloadsExist"]),
    ];
    for (path, known) in words {
        let said = at(kubevirt, path).as_str().unwrap_or_default();
        if !said.is_empty() && !known.contains(&said) {
            refuse(path.to_owned(), format!("{path} is {said:?}: must be one of {}", known.join(", ")));
        }
    }
    update_methods(kubevirt, &mut refuse);
    causes
}

fn update_methods(kubevirt: &Value, refuse: &mut impl FnMut(String, String)) {
    let path = "spec.workloadUpdateStrategy";
    let said = at(kubevirt, path);
    for (index, method) in said["workloadUpdateMethods"].as_array().into_iter().flatten().enumerate() {
        if !matches!(method.as_str(), Some("LiveMigrate" | "Evict")) {
            let field = format!("{path}.workloadUpdateMethods[{index}]");
            refuse(field.clone(), format!("{field} is {method}: must be LiveMigrate or Evict"));
        }
    }
    if let Some(size) = said["batchEvictionSize"].as_i64().filter(|size| *size < 0) {
        let field = format!("{path}.batchEvictionSize");
        refuse(field.clone(), format!("{field} is {size}: must be 0 or more"));
    }
    if let Some(text) = said["batchEvictionInterval"].as_str().filter(|text| kit::duration::parse(text).is_none()) {
        let field = format!("{path}.batchEvictionInterval");
        refuse(field.clone(), format!("{field} is {text:?}, which is not a duration: write it like 1m or 30s"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ignored_fields_are_warned_of() {
        let told = |spec: Value| warnings(&json!({ "spec": spec }));
        assert_eq!(
            told(json!({ "configuration": { "liveUpdateConfiguration": {}, "permittedHostDevices": null } })),
            [""; 0]
        );
        let devices = json!({ "pciHostDevices": [{ "pciVendorSelector": "10de:1eb8", "resourceName": "a/b" }] });
        let line = "spec.configuration.permittedHostDevices is not acted on in this version: devices of the host are not handed to guests";
        assert_eq!(told(json!({ "configuration": { "permittedHostDevices": devices } })), [line]);
        let gates = told(
            json!({ "configuration": { "developerConfiguration": { "featureGates": ["IncrementalBackup", "VSOCK"] } } }),
        );
        assert!(gates[0].contains(": VSOCK changes nothing"), "{gates:?}");
        let level = "spec.configuration.migrations.matchSELinuxLevelOnMigration is not acted on in this version: \
                     launcher pods are given no SELinux level of their own";
        let migrations = |said: Value| told(json!({ "configuration": { "migrations": said } }));
        assert_eq!(migrations(json!({ "matchSELinuxLevelOnMigration": true })), [level]);
        assert_eq!(migrations(json!({ "allowPostCopy": true, "network": "fast" })), [""; 0]);
        let annotated =
            json!({ "metadata": { "annotations": { "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity": "" } } });
        let parity = "metadata.annotations[alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity] is not acted on in this \
                      version: virtual CPUs are not pinned";
        assert_eq!(warnings(&annotated), [parity]);
    }

    #[test]
    fn invalid_configuration_is_refused_by_field() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(spec: Value, expect: &[(&str, &str)]) {
            let found = causes(&json!({ "spec": spec }));
            assert_eq!(found.len(), expect.len(), "{found:?}");
            for (cause, (field, part)) in found.iter().zip(expect) {
                assert_eq!(cause.field, *field);
                assert!(cause.message.contains(part), "{}", cause.message);
            }
        }
        check(json!({}), &[]);
        let roles = |text: &str| json!({ "configuration": { "roleAggregationStrategy": text } });
        check(roles("AggregateToDefault"), &[]);
        let field = "spec.configuration.roleAggregationStrategy";
        let manual = "roleAggregationStrategy Manual cannot be used in this version: the roles are always aggregated to \
                      admin, edit and view: set AggregateToDefault, or remove it";
        check(roles("Manual"), &[(field, manual)]);
        check(roles("None"), &[(field, "is \"None\": must be one of AggregateToDefault, Manual")]);
        let ratio = |text: &str| json!({ "configuration": { "additionalGuestMemoryOverheadRatio": text } });
        let field = "spec.configuration.additionalGuestMemoryOverheadRatio";
        check(ratio("1.5"), &[]);
        check(ratio("0.5"), &[(field, "ratio provided, 0.5, cannot be smaller than 1.0")]);
        check(ratio("half"), &[(field, "ratio provided, half, cannot be parsed into float")]);
        let both = json!({ "configuration": { "developerConfiguration": { "featureGates": ["A", "B"], "disabledFeatureGates": ["B"] } } });
        check(both, &[("spec.configuration.developerConfiguration.featureGates", "feature gate \"B\" exists on both")]);
        let developer = json!({ "configuration": { "developerConfiguration": { "memoryOvercommit": -5, "cpuAllocationRatio": 0 } } });
        check(developer, &[("spec.configuration.developerConfiguration.memoryOvercommit", "is -5")]);
        check(
            json!({ "uninstallStrategy": "Keep" }),
            &[("spec.uninstallStrategy", "\"Keep\": must be one of RemoveWorkloads")],
        );
        check(
            json!({ "workloadUpdateStrategy": { "workloadUpdateMethods": ["Reboot"], "batchEvictionInterval": "1d" } }),
            &[
                ("spec.workloadUpdateStrategy.workloadUpdateMethods[0]", "must be LiveMigrate or Evict"),
                ("spec.workloadUpdateStrategy.batchEvictionInterval", "\"1d\", which is not a duration"),
            ],
        );
    }
}
