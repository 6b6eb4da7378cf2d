//! What the API server asks the webhooks about.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{Input, MUTATOR};
use crate::kubemacpool::names::SERVICE;
use crate::kubemacpool::opting::{PODS, VIRTUAL_MACHINES};
use crate::kubemacpool::{pod, webhook};

pub(super) fn render(input: &Input) -> Value {
    let machines = json!({
        "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "resources": ["virtualmachines"], "scope": "Namespaced",
        "operations": ["CREATE", "UPDATE"],
    });
    let pods = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced", "operations": ["CREATE"],
    });
    let mut machines = hook(input, VIRTUAL_MACHINES, webhook::VIRTUAL_MACHINES, &machines);
    machines["namespaceSelector"] = input.virtual_machines.selector(VIRTUAL_MACHINES, None);
    let mut pods = hook(input, PODS, webhook::PODS, &pods);
    pods["namespaceSelector"] = input.pods.selector(PODS, Some(&input.namespace));
    // All other pods are made without us.
    let asks = format!("has(object.metadata.annotations) && {:?} in object.metadata.annotations", pod::NETWORKS);
    pods["matchConditions"] = json!([{ "name": "asks-for-networks", "expression": asks }]);
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": MUTATOR }, "webhooks": [machines, pods],
    })
}

fn hook(input: &Input, name: &str, path: &str, rule: &Value) -> Value {
    json!({
        "name": name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": {
            "service": { "namespace": input.namespace, "name": SERVICE, "path": path, "port": 443 },
            "caBundle": BASE64_STANDARD.encode(&input.ca_bundle),
        },
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "reinvocationPolicy": "Never",
        "sideEffects": "NoneOnDryRun", "timeoutSeconds": 10,
        "rules": [rule],
    })
}
