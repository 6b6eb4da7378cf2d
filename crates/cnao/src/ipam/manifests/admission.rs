//! What the API server asks the webhook about, and what it decides by itself.

use api::kubevirt::constants::label::{APP, APP_VIRT_LAUNCHER};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::Input;
use crate::ipam::names::{DEFAULT_NETWORK, MUTATOR, NETWORKS, PRIMARY_CLAIM, REFERENCE, SERVICE};
use crate::ipam::webhook;

/// The name of the webhook.
const HOOK: &str = "ipam-claims.k8s.cni.cncf.io";
/// The policy, and its binding.
const POLICY: &str = "kubevirt-ipam-controller-claims-of-pods";

pub(super) fn webhook(input: &Input) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": MUTATOR },
        "webhooks": [{
            "name": HOOK,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": { "namespace": input.base.namespace, "name": SERVICE, "path": webhook::PATH, "port": 443 },
                "caBundle": BASE64_STANDARD.encode(&input.ca_bundle),
            },
            "failurePolicy": "Fail", "matchPolicy": "Equivalent",
            // Another webhook may add networks after this one was asked.
            "reinvocationPolicy": "IfNeeded",
            "sideEffects": "NoneOnDryRun", "timeoutSeconds": 10,
            "objectSelector": { "matchLabels": { APP: APP_VIRT_LAUNCHER } },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced",
                "operations": ["CREATE", "UPDATE"],
            }],
        }],
    })
}

/// A pod that is no launcher's names a claim only if its writer may write claims: whoever may could name the addresses in one. Launchers'
/// pods are judged by the webhook. Of a binding, the annotations become the pod's.
pub(super) fn policy() -> [Value; 2] {
    let keys = json!([NETWORKS, DEFAULT_NETWORK, PRIMARY_CLAIM]).to_string();
    let held = |of: &str| format!("(has({of}.metadata.annotations) ? {of}.metadata.annotations : {{}})");
    let written = format!(
        "variables.new.exists(key, key in {keys} && (oldObject == null || !(key in variables.old) || variables.old[key] != variables.new[key]))"
    );
    // Letters may be written by their number in JSON.
    let named = format!(
        "'{PRIMARY_CLAIM}' in variables.new || ['{NETWORKS}', '{DEFAULT_NETWORK}'].exists(key, key in variables.new && \
         (variables.new[key].lowerAscii().contains('{REFERENCE}') || variables.new[key].contains('\\\\u')))"
    );
    let launcher = format!(
        "request.resource.resource == 'pods' && (!has(request.subResource) || request.subResource == '') && has(object.metadata.labels) && \
         '{APP}' in object.metadata.labels && object.metadata.labels['{APP}'] == '{APP_VIRT_LAUNCHER}'"
    );
    let may = "authorizer.group('k8s.cni.cncf.io').resource('ipamclaims').namespace(request.namespace).check('update').allowed()";
    let message = format!(
        "'the pod names an IPAMClaim, and User \"' + request.userInfo.username + '\" cannot update resource \"ipamclaims\" in API group \
         \"k8s.cni.cncf.io\" in the namespace \"' + request.namespace + '\": leave {REFERENCE} and {PRIMARY_CLAIM} out'"
    );
    let variable = |name: &str, expression: String| json!({ "name": name, "expression": expression });
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": POLICY },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                    "resources": ["pods", "pods/status", "pods/binding", "pods/ephemeralcontainers", "pods/resize"],
                }] },
                "matchConditions": [{
                    "name": "asks-for-networks",
                    "expression": format!("has(object.metadata.annotations) && object.metadata.annotations.exists(key, key in {keys})"),
                }],
                "variables": [
                    variable("new", held("object")),
                    variable("old", format!("oldObject == null ? {{}} : {}", held("oldObject"))),
                ],
                "validations": [{
                    "expression": format!("!({written}) || !({named}) || ({launcher}) || {may}"),
                    "messageExpression": message, "reason": "Forbidden",
                }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": POLICY }, "spec": { "policyName": POLICY, "validationActions": ["Deny"] },
        }),
    ]
}
