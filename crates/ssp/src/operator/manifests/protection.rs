//! Machines that are not deleted while a label says so: a policy that the API server decides by itself.

use serde_json::{Value, json};

const NAME: &str = "kubevirt-vm-deletion-protection";
const LABEL: &str = "kubevirt.io/vm-delete-protection";

/// The policy, and that it denies.
pub fn render() -> Vec<Value> {
    let free = format!(
        "!has(oldObject.metadata.labels) || !('{LABEL}' in oldObject.metadata.labels) || \
         !(oldObject.metadata.labels['{LABEL}'] in ['true', 'True'])"
    );
    let message = format!(
        "'VirtualMachine ' + string(oldObject.metadata.name) + ' cannot be deleted, disable/remove label \\'{LABEL}\\' from VirtualMachine before deleting it'"
    );
    vec![
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": NAME },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": ["kubevirt.io"], "apiVersions": ["v1", "v1alpha3"], "operations": ["DELETE"],
                    "resources": ["virtualmachines"],
                }] },
                "validations": [{ "expression": free, "messageExpression": message }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": NAME }, "spec": { "policyName": NAME, "validationActions": ["Deny"] },
        }),
    ]
}
