//! `/virtualmachinebackups-validate` and `/virtualmachinebackuptrackers-validate`: what no controller could carry out. Pure.
//!
//! What the fields must look like is in the schemas.

use api::backup::v1alpha1::VirtualMachineBackup;
use api::kubevirt::constants::tracking::GATE;
use kit::admission::{Request, Verdict};

use super::{Rules, deleting, invalid, unsupported};

/// A new or changed backup.
pub fn backup(request: &Request, rules: &Rules) -> Verdict {
    if deleting(&request.object) || request.operation == "UPDATE" {
        return Verdict::allow();
    }
    let backup: VirtualMachineBackup = match serde_json::from_value(request.object.clone()) {
        Ok(backup) => backup,
        Err(error) => return Verdict::Invalid(vec![invalid("spec".to_owned(), error.to_string())]),
    };
    let mut causes = Vec::new();
    if !rules.is_on(GATE) {
        causes.push(unsupported("spec".to_owned(), gate_is_off()));
    }
    if let Some(text) = backup.spec.ttl_duration.as_deref()
        && kit::duration::parse(text).is_none()
    {
        let message = format!("spec.ttlDuration {text:?} is no duration: write it like 2h30m");
        causes.push(invalid("spec.ttlDuration".to_owned(), message));
    }
    Verdict::of_causes(causes)
}

/// A new or changed tracker.
pub fn tracker(request: &Request, rules: &Rules) -> Verdict {
    if deleting(&request.object) || request.operation == "UPDATE" || rules.is_on(GATE) {
        return Verdict::allow();
    }
    Verdict::Invalid(vec![unsupported("spec".to_owned(), gate_is_off())])
}

fn gate_is_off() -> String {
    format!(
        "the feature gate {GATE} is off: add it to spec.configuration.developerConfiguration.featureGates of the KubeVirt object"
    )
}

#[cfg(test)]
mod tests {
    use api::kubevirt::v1::KubeVirtConfiguration;
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(gates: Value, more: Value, expect: &[&str]) {
        let configuration = json!({ "developerConfiguration": { "featureGates": gates } });
        let configuration: KubeVirtConfiguration = serde_json::from_value(configuration).unwrap();
        let rules = Rules::of(&configuration, "kubevirt");
        let source = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" });
        let mut spec = json!({ "source": source, "pvcName": "out" });
        json_patch::merge(&mut spec, &more);
        let request: Request = serde_json::from_value(json!({
            "uid": "u", "operation": "CREATE", "object": { "metadata": { "name": "b" }, "spec": spec },
        }))
        .unwrap();
        let found = match backup(&request, &rules) {
            Verdict::Invalid(causes) => causes.into_iter().map(|cause| cause.field).collect(),
            _ => Vec::new(),
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn backups_that_cannot_be_made_are_refused_by_field() {
        let on = || json!(["IncrementalBackup"]);
        check(on(), json!({ "ttlDuration": "2h" }), &[]);
        check(json!([]), json!({}), &["spec"]);
        check(on(), json!({ "mode": "Pull", "tokenSecretRef": "t" }), &[]);
        check(on(), json!({ "ttlDuration": "soon" }), &["spec.ttlDuration"]);
    }
}
