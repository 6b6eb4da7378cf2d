//! The webhooks, all answered by template-validator.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{Input, validator};
use crate::operator::MANAGER;
use crate::operator::names::DEPLOYMENT;
use crate::validator::judge;
use crate::words;

/// The configuration. Only what names rules or a template is asked about, so that no other machine waits for an answer.
pub fn render(input: &Input) -> Vec<Value> {
    let ca = BASE64_STANDARD.encode(&input.ca_bundle);
    let webhook = |name: &str, path: &str, rules: Value| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": { "namespace": input.namespace, "name": DEPLOYMENT, "path": path, "port": 443 },
                "caBundle": ca,
            },
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10,
            "rules": rules,
        })
    };
    let rule = |(group, resource): (&str, &str), versions: &[&str], operations: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": versions, "resources": [resource], "operations": operations, "scope": "*",
        })
    };
    let machine = ("kubevirt.io", "virtualmachines");
    let mut machines = webhook(
        "virtualmachine-admission.ssp.kubevirt.io",
        judge::MACHINES,
        json!([rule(machine, &["v1", "v1alpha3"], &["CREATE", "UPDATE"])]),
    );
    machines["matchConditions"] = json!([{ "name": "has-rules", "expression": has_rules() }]);
    let mut templates = webhook(
        "template-admission.ssp.kubevirt.io",
        judge::TEMPLATES,
        json!([
            rule(words::OPENSHIFT, &["v1"], &["DELETE"]),
            rule(words::KUBEVIRT, &["v1alpha1", "v1beta1"], &["DELETE"]),
        ]),
    );
    templates["objectSelector"] = json!({ "matchLabels": { (words::TYPE): words::BASE } });
    // Who takes all templates away with the product, and who ends a namespace.
    let own = format!("system:serviceaccount:{}:{MANAGER}", input.namespace);
    let ends = "system:serviceaccount:kube-system:namespace-controller";
    templates["matchConditions"] = json!([{
        "name": "not-our-operator", "expression": format!("!(request.userInfo.username in ['{own}', '{ends}'])"),
    }]);
    vec![json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": DEPLOYMENT, "labels": validator::selector() },
        "webhooks": [machines, templates],
    })]
}

/// Addresses of the configuration.
pub fn addresses(input: &Input) -> Vec<String> {
    render(input).iter().map(kit::apply::address).collect()
}

/// A machine that names its own rules or a template, in labels or annotations.
fn has_rules() -> String {
    let has = |map: &str, key: &str| format!("(has(object.metadata.{map}) && '{key}' in object.metadata.{map})");
    [has("annotations", words::VALIDATIONS), has("labels", words::TEMPLATE), has("annotations", words::TEMPLATE)]
        .join(" || ")
}
