//! Admission policies that bind each node agent's token to its own node.
//!
//! RBAC grants by kind; a stolen token of one node could otherwise rewrite every other node's machines.

use api::kubevirt::words::label;
use serde_json::{Value, json};

use super::Input;

const NODE: &str = "request.userInfo.extra['authentication.kubernetes.io/node-name'][0]";

/// Two policies and their bindings.
pub fn render(input: &Input) -> Vec<Value> {
    let user = format!("system:serviceaccount:{}:kubevirt-handler", input.namespace);
    let mut out = Vec::new();
    out.extend(policy(
        "kubevirt-handler-own-node",
        &user,
        &json!({ "apiGroups": [""], "apiVersions": ["*"], "resources": ["nodes"], "operations": ["CREATE", "UPDATE"] }),
        &format!("object.metadata.name == {NODE}"),
        "virt-handler may change only the node it runs on",
    ));
    let labelled = |key: &str| {
        format!(
            "(has(oldObject.metadata.labels) && '{key}' in oldObject.metadata.labels && \
             oldObject.metadata.labels['{key}'] == {NODE})"
        )
    };
    // A machine is of the node it runs on, and of the one virt-controller has it moved to.
    let theirs = format!("{} || {}", labelled(label::NODE_NAME), labelled(label::MIGRATION_TARGET_NODE));
    out.extend(policy(
        "kubevirt-handler-own-machines",
        &user,
        &json!({
            "apiGroups": ["kubevirt.io"], "apiVersions": ["*"],
            "resources": ["virtualmachineinstances", "virtualmachineinstances/*"], "operations": ["CREATE", "UPDATE"],
        }),
        &format!("oldObject != null && ({theirs})"),
        "virt-handler may change only the virtual machines of the node it runs on, or those being moved to it",
    ));
    out
}

fn policy(name: &str, user: &str, rule: &Value, check: &str, message: &str) -> [Value; 2] {
    let bound = "has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra";
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [rule] },
                "matchConditions": [
                    { "name": "is-virt-handler", "expression": format!("request.userInfo.username == '{user}'") },
                ],
                "validations": [
                    { "expression": bound, "message": "the token of virt-handler is not bound to a node" },
                    { "expression": check, "message": message },
                ],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        }),
    ]
}
