//! An admission policy that warns whoever makes an object of a kind that no controller acts on.

use std::collections::BTreeMap;

use api::unserved::{KINDS, Kind};
use serde_json::{Value, json};

const NAME: &str = "kubevirt-kinds-without-controller";

/// The policy and its binding. Nothing is refused by it, whatever becomes of it.
pub fn render() -> [Value; 2] {
    let mut groups: BTreeMap<&str, Vec<&Kind>> = BTreeMap::new();
    for kind in KINDS {
        groups.entry(kind.group).or_default().push(kind);
    }
    let rules = groups.iter().map(|(group, kinds)| {
        let resources: Vec<&str> = kinds.iter().map(|kind| kind.plural).collect();
        json!({ "apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": ["CREATE"] })
    });
    let validations = KINDS.iter().map(|kind| {
        let other =
            format!("request.resource.group != '{}' || request.resource.resource != '{}'", kind.group, kind.plural);
        json!({ "expression": other, "message": kind.warning() })
    });
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": NAME },
            "spec": {
                "failurePolicy": "Ignore",
                "matchConstraints": { "resourceRules": rules.collect::<Vec<_>>() },
                "validations": validations.collect::<Vec<_>>(),
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": NAME },
            "spec": { "policyName": NAME, "validationActions": ["Warn"] },
        }),
    ]
}
