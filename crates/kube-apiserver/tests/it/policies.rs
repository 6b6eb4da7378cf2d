//! Validating admission policies through the API: parameters, variables, the authorizer, actions and their words.

use apimachinery::request::User;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};

async fn post(client: &Client, kind: &str, body: Value) -> Result<Value, Error> {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}");
    let request = http::Request::post(path).header("content-type", "application/json");
    client.request(request.body(body.to_string().into_bytes()).unwrap()).await
}

/// A policy `p` about config maps, and its binding `b`.
async fn bound(spec: Value, binding: Value) -> (ApiServer, Client) {
    let server = super::server().await;
    let client = server.client();
    let mut policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]}}});
    json_patch::merge(&mut policy["spec"], &spec);
    let mut bound = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    json_patch::merge(&mut bound["spec"], &binding);
    post(&client, "validatingadmissionpolicies", policy).await.unwrap();
    post(&client, "validatingadmissionpolicybindings", bound).await.unwrap();
    (server, client)
}

async fn create(client: &Client, name: &str, data: Value) -> Result<ConfigMap, Error> {
    let map = json!({"metadata": {"name": name}, "data": data});
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await
}

#[track_caller]
fn denied(outcome: Result<ConfigMap, Error>, code: u16, reason: &str, message: &str) {
    let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
    assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (code, reason, message));
}

#[tokio::test]
async fn parameters_variables_and_messages() {
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "not-limits", "expression": "object.metadata.name != 'limits'"}],
        "variables": [{"name": "most", "expression": "int(params.data.most)"},
            {"name": "n", "expression": "size(object.?data.orValue({}))"},
            {"name": "broken", "expression": "object.no.such"}],
        "validations": [{"expression": "variables.n <= variables.most", "reason": "Forbidden",
            "messageExpression": "'has ' + string(variables.n) + ' of ' + string(variables.most)"}]});
    let binding = json!({"paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    let (_server, client) = bound(spec, binding).await;
    denied(
        create(&client, "x", json!({})).await,
        422,
        "Invalid",
        "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
    );
    // Without parameters nothing can be written, the parameters included: they come before the binding.
    let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/b";
    let allow = json!({"spec": {"paramRef": {"parameterNotFoundAction": "Allow"}}});
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    client.request::<Value>(request.body(allow.to_string().into_bytes()).unwrap()).await.unwrap();
    create(&client, "limits", json!({"most": "1"})).await.unwrap();
    create(&client, "one", json!({"a": "1"})).await.unwrap();
    denied(
        create(&client, "two", json!({"a": "1", "b": "2"})).await,
        403,
        "Forbidden",
        "configmaps \"two\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: has 2 of 1",
    );
}

#[tokio::test]
async fn the_authorizer_answers_for_the_user_and_for_others() {
    let spec = json!({"validations": [
        {"expression": "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()", "message": "may not read secrets"},
        {"expression": "!authorizer.serviceAccount('default', 'nobody').group('').resource('pods').check('create').allowed()"},
        {"expression": "authorizer.requestResource.check('create').allowed()"},
        {"expression": "authorizer.path('/healthz').check('get').allowed()"},
        {"expression": "namespaceObject.metadata.name == 'default' && request.operation == 'CREATE' && oldObject == null"}]});
    let (server, client) = bound(spec, json!({})).await;
    create(&client, "a", json!({})).await.unwrap();
    let rbac = [
        (
            "roles",
            json!({"metadata": {"name": "maps"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]}),
        ),
        (
            "rolebindings",
            json!({"metadata": {"name": "maps"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "maps"},
            "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}]}),
        ),
    ];
    for (kind, body) in rbac {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/default/{kind}");
        let request = http::Request::post(path).header("content-type", "application/json");
        client.request::<Value>(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    }
    let ann = server.client_as(User { name: "ann".into(), ..User::default() });
    denied(
        create(&ann, "b", json!({})).await,
        422,
        "Invalid",
        "configmaps \"b\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: may not read secrets",
    );
}

#[tokio::test]
async fn failures_and_costs_follow_the_policy() {
    let items: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let list = format!("[{}]", items.join(","));
    let hostile = format!("{list}.all(a, {list}.all(b, {list}.all(c, a + b + c >= 0)))");
    let (_server, client) = bound(json!({"validations": [{"expression": hostile}]}), json!({})).await;
    let Err(Error::Api(status)) = create(&client, "a", json!({})).await else { panic!("expected a refusal") };
    assert!(status.message.ends_with("resulted in error: operation cancelled: actual cost limit exceeded"));
    let (_server, client) =
        bound(json!({"validations": [{"expression": "object.data.missing == 'x'"}]}), json!({})).await;
    denied(
        create(&client, "a", json!({"k": "v"})).await,
        422,
        "Invalid",
        "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: expression 'object.data.missing == 'x'' resulted in error: no such key: missing",
    );
    let spec = json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.data.missing == 'x'"}]});
    let (_server, client) = bound(spec, json!({})).await;
    create(&client, "a", json!({"k": "v"})).await.unwrap();
}

#[tokio::test]
async fn the_status_tells_of_wrong_types() {
    let spec =
        json!({"validations": [{"expression": "object.date.size() > 1"}, {"expression": "object.data.size() > 0"}]});
    let (_server, client) = bound(spec, json!({})).await;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/p";
    let policy: Value = client.request(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
    assert_eq!(
        policy["status"],
        json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": [{"fieldRef": "spec.validations[0].expression",
            "warning": "v1, Kind=ConfigMap: ERROR: <input>:1:7: undefined field 'date'\n | object.date.size() > 1\n | ......^"}]}})
    );
}

#[tokio::test]
async fn broken_policies_are_refused() {
    let client = super::server().await.client();
    let refused = async |kind: &str, body: Value, expect: &str| match post(&client, kind, body).await {
        Err(Error::Api(status)) => assert!(status.message.contains(expect), "{}", status.message),
        other => panic!("expected a refusal, got {other:?}"),
    };
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]);
    let policy = |validations: Value| json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules}, "validations": validations}});
    let policies = "validatingadmissionpolicies";
    refused(
        policies,
        policy(json!([{"expression": "object.("}])),
        "spec.validations[0].expression: Invalid value: \"object.(\": compilation failed: ERROR: <input>:1:",
    )
    .await;
    for (expression, why) in [
        ("1 + 1", "must evaluate to bool but got int"),
        ("nobody == 1", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'nobody'"),
        ("request.foo == 1", "compilation failed: ERROR: <input>:1:8: undefined field 'foo'"),
        ("params.data.x == 'y'", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'params'"),
    ] {
        refused(policies, policy(json!([{"expression": expression}])), why).await;
    }
    refused(
        policies,
        policy(json!([])),
        "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
    )
    .await;
    let binding =
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny", "Warn"]}});
    refused(
        "validatingadmissionpolicybindings",
        binding,
        "spec.validationActions: Invalid value: \"array\": must not contain both Deny and Warn",
    )
    .await;
    let hook = json!({"metadata": {"name": "h"}, "webhooks": [{"name": "short", "admissionReviewVersions": ["v1"],
        "sideEffects": "Some", "timeoutSeconds": 40, "clientConfig": {"url": "http://a"}}]});
    refused(
        "validatingwebhookconfigurations",
        hook.clone(),
        "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
    )
    .await;
    refused(
        "validatingwebhookconfigurations",
        hook.clone(),
        "webhooks[0].timeoutSeconds: Invalid value: 40: the timeout value must be between 1 and 30 seconds",
    )
    .await;
    refused(
        "validatingwebhookconfigurations",
        hook,
        "webhooks[0].clientConfig.url: Invalid value: \"http://a\": 'https' is the only allowed URL scheme",
    )
    .await;
}

#[tokio::test]
async fn warnings_do_not_refuse() {
    let spec = json!({"validations": [{"expression": "false", "message": "not nice"}]});
    let (_server, client) = bound(spec, json!({"validationActions": ["Warn", "Audit"]})).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    create(&client, "a", json!({})).await.unwrap();
    maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "v"}}))).await.unwrap();
    let request = http::Request::post("/api/v1/namespaces/default/configmaps")
        .header("content-type", "application/json")
        .body(kube::client::Body::from(json!({"metadata": {"name": "odd"}}).to_string().into_bytes()))
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(
        response.headers()["warning"],
        "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': not nice\""
    );
}
