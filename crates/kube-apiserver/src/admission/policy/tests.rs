//! Policies by data: an expression and a request, and the words of the refusal.

use serde_json::json;

use apimachinery::request::{RequestInfo, User};

use super::bound::GROUP;
use super::*;
use crate::admission::Operation;
use crate::registry::Resource;
use crate::view::Fixed;

fn resource() -> Resource {
    Resource {
        group: "kubevirt.io".into(),
        version: "v1".into(),
        storage_version: "v1".into(),
        kind: "VirtualMachineInstance".into(),
        list_kind: "VirtualMachineInstanceList".into(),
        plural: "virtualmachineinstances".into(),
        singular: "virtualmachineinstance".into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        verbs: Vec::new(),
        status_subresource: false,
        scale: None,
        subresources: Vec::new(),
        schema: Arc::default(),
        rules: None,
        columns: Vec::new(),
        crd: None,
        crd_revision: 0,
        deprecation: String::new(),
        conversion_webhook: None,
        selectable_fields: Vec::new(),
    }
}

fn attributes(node: &str) -> Attributes {
    let mut user = User { name: "system:serviceaccount:kubevirt:handler".into(), ..User::default() };
    user.extra.insert("authentication.kubernetes.io/node-name".into(), vec!["n1".into()]);
    let object = json!({"metadata": {"name": "vm", "namespace": "ns", "labels": {"kubevirt.io/nodeName": node}}, "spec": {"n": 3}});
    Attributes {
        info: RequestInfo { version: "v1".into(), ..RequestInfo::default() },
        user,
        resource: Arc::new(resource()),
        operation: Operation::Update,
        namespace: "ns".into(),
        name: "vm".into(),
        object: Some(object.clone()),
        old: Some(Arc::new(object)),
        options: json!({}),
        dry_run: false,
    }
}

fn check(spec: &Value, action: &str, node: &str, expect: Result<&[&str], &str>) {
    let mut policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": ["kubevirt.io"],
        "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["*"]}]}}});
    for (key, value) in spec.as_object().unwrap() {
        policy["spec"][key] = value.clone();
    }
    let view = Fixed::default().with(GROUP, "validatingadmissionpolicies", policy).with(
        GROUP,
        "validatingadmissionpolicybindings",
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": [action]}}),
    );
    let view: Arc<dyn View> = Arc::new(view);
    let authorizer = Authorizer::new(view.clone());
    let mut warnings = Vec::new();
    let policies = Policies::new(view);
    let outcome = futures::executor::block_on(policies.check(
        &attributes(node),
        &Registry::default(),
        &authorizer,
        &mut warnings,
    ))
    .map_err(|e| e.message);
    match expect {
        Ok(expected) => {
            assert_eq!(outcome, Ok(()), "{spec}");
            assert_eq!(warnings, expected);
        }
        Err(part) => {
            let message = outcome.unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}

const OWN_NODE: &str = "object.metadata.labels['kubevirt.io/nodeName'] == request.userInfo.extra['authentication.kubernetes.io/node-name'][0]";

#[test]
fn an_agent_reaches_only_its_own_node() {
    let spec = json!({"validations": [{"expression": OWN_NODE, "message": "not your node"}]});
    check(&spec, "Deny", "n1", Ok(&[]));
    check(
        &spec,
        "Deny",
        "n2",
        Err(
            "virtualmachineinstances.kubevirt.io \"vm\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not your node",
        ),
    );
    check(
        &spec,
        "Warn",
        "n2",
        Ok(&["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': not your node"]),
    );
}

#[test]
fn variables_conditions_and_failures() {
    check(
        &json!({"variables": [{"name": "n", "expression": "object.spec.n"}], "validations": [{"expression": "variables.n < 3"}]}),
        "Deny",
        "n1",
        Err("failed expression: variables.n < 3"),
    );
    check(
        &json!({"matchConditions": [{"name": "c", "expression": "object.spec.n > 5"}], "validations": [{"expression": "false"}]}),
        "Deny",
        "n1",
        Ok(&[]),
    );
    check(
        &json!({"validations": [{"expression": "object.spec.missing == 1"}]}),
        "Deny",
        "n1",
        Err("resulted in error"),
    );
    check(
        &json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.spec.missing == 1"}]}),
        "Deny",
        "n1",
        Ok(&[]),
    );
    check(
        &json!({"validations": [{"expression": "object.spec.n < 3", "messageExpression": "'n is ' + string(object.spec.n)"}]}),
        "Deny",
        "n1",
        Err("denied request: n is 3"),
    );
    check(
        &json!({"validations": [{"expression": "has(object.spec.n) && request.operation == 'UPDATE' && oldObject.spec.n == 3"}]}),
        "Deny",
        "n1",
        Ok(&[]),
    );
}
