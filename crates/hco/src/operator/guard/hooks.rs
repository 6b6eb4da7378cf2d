//! The webhook's Service and configurations, the conversion, and the policy. Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{MANAGER, SERVICE};
use crate::webhook;

/// The definition of the HyperConverged object.
pub(crate) const DEFINITION: &str = "hyperconvergeds.hco.kubevirt.io";

pub(super) fn service(namespace: &str) -> Value {
    let metadata = json!({ "name": SERVICE, "namespace": namespace });
    let ports = json!([{ "name": "https", "port": 443, "targetPort": "https", "protocol": "TCP" }]);
    kit::workload::service(&metadata, &json!({ "name": webhook::PROGRAM }), &ports)
}

pub(super) fn render(namespace: &str, bundle: &str) -> Vec<Value> {
    let rule = |operations: &[&str]| {
        json!({
            "apiGroups": ["hco.kubevirt.io"], "apiVersions": ["v1"], "resources": ["hyperconvergeds"], "scope": "Namespaced",
            "operations": operations,
        })
    };
    let validate = hook(
        namespace,
        bundle,
        "validate-hco.kubevirt.io",
        webhook::VALIDATE,
        &rule(&["CREATE", "UPDATE", "DELETE"]),
        30,
    );
    let mutate = hook(namespace, bundle, "mutate-hco.kubevirt.io", webhook::MUTATE, &rule(&["CREATE", "UPDATE"]), 10);
    let namespaces = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["namespaces"], "scope": "Cluster", "operations": ["DELETE"],
    });
    let mut guard = hook(namespace, bundle, "validate-ns-hco.kubevirt.io", webhook::NAMESPACES, &namespaces, 10);
    guard["objectSelector"] = json!({ "matchLabels": { "kubernetes.io/metadata.name": namespace } });
    let configuration = |kind: &str, name: &str, hooks: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": name }, "webhooks": hooks,
        })
    };
    let mut all = vec![
        configuration("ValidatingWebhookConfiguration", "validate-hco.kubevirt.io", json!([validate, guard])),
        configuration("MutatingWebhookConfiguration", "mutate-hco.kubevirt.io", json!([mutate])),
    ];
    all.extend(policy(namespace));
    all
}

fn hook(namespace: &str, bundle: &str, name: &str, path: &str, rule: &Value, seconds: u32) -> Value {
    // The operator holds and releases the object whether its webhook runs or not.
    let account = format!("system:serviceaccount:{namespace}:{MANAGER}");
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": client(namespace, bundle, path),
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": seconds,
        "matchConditions": [{
            "name": "not-our-operator", "expression": format!("request.userInfo.username != '{account}'"),
        }],
        "rules": [rule],
    })
}

fn client(namespace: &str, bundle: &str, path: &str) -> Value {
    let mut client = json!({ "service": { "namespace": namespace, "name": SERVICE, "path": path, "port": 443 } });
    if !bundle.is_empty() {
        client["caBundle"] = json!(BASE64_STANDARD.encode(bundle));
    }
    client
}

/// The conversion of the definition, and nothing else of it.
pub(super) fn conversion(namespace: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": DEFINITION },
        "spec": { "conversion": {
            "strategy": "Webhook",
            "webhook": { "clientConfig": client(namespace, bundle, webhook::CONVERT), "conversionReviewVersions": ["v1"] },
        } },
    })
}

/// HyperConverged objects are made in one namespace; their one name is in the definition.
fn policy(namespace: &str) -> [Value; 2] {
    let name = "hyperconverged-namespace-policy";
    let message = format!("HyperConverged CR can only be created in the '{namespace}' namespace.");
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["hco.kubevirt.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["hyperconvergeds"],
            }] },
            "validations": [{ "expression": format!("request.namespace == '{namespace}'"), "message": message }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    [policy, binding]
}
