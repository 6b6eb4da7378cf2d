//! FlowSchemas and PriorityLevelConfigurations through the API, and what they do to requests from the network.

use axum::body::Body;
use http::{Request, Response, StatusCode};
use kube::{Client, Error};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use kube_apiserver::serve::Connection;
use serde_json::{Value, json};
use tower::ServiceExt;

const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

async fn call(client: &Client, method: &str, path: &str, body: Value) -> Result<Value, Error> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(format!("{GROUP}{path}")).header("content-type", kind);
    client.request(request.body(body).unwrap()).await
}

async fn get(client: &Client, path: &str) -> Value {
    call(client, "GET", path, Value::Null).await.unwrap()
}

#[track_caller]
fn refused(outcome: Result<Value, Error>, message: &str) {
    let Err(Error::Api(status)) = outcome else { panic!("expected a refusal, got {outcome:?}") };
    assert_eq!(status.code, 422);
    assert!(status.message.contains(message), "{}", status.message);
}

/// The answer to Ann, who comes over the network.
async fn ask(server: &ApiServer, path: &str) -> Response<Body> {
    let mut request = Request::get(path).body(Body::empty()).unwrap();
    let groups = vec!["system:authenticated".to_owned()];
    request.extensions_mut().insert(User { name: "ann".into(), groups, ..User::default() });
    request.extensions_mut().insert(Connection { peer: ([127, 0, 0, 1], 1).into() });
    server.network_router().oneshot(request).await.unwrap()
}

fn uids(response: &Response<Body>) -> [&str; 2] {
    ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"]
        .map(|name| response.headers().get(name).map_or("", |value| value.to_str().unwrap()))
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

fn of_ann(level: &str) -> Value {
    json!({"metadata": {"name": "ann"}, "spec": {"matchingPrecedence": 300,
        "priorityLevelConfiguration": {"name": level}, "rules": [{
            "subjects": [{"kind": "User", "user": {"name": "ann"}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": [""], "resources": ["*"], "namespaces": ["*"]}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/version"]}]}]}})
}

fn dangling(schema: &Value) -> (&str, &str) {
    let said = &schema["status"]["conditions"][0];
    (said["type"].as_str().unwrap(), said["status"].as_str().unwrap())
}

#[tokio::test]
async fn requests_are_of_the_level_their_schema_names() {
    let server = super::server().await;
    let client = server.client();
    let default = [
        get(&client, "/flowschemas/global-default").await,
        get(&client, "/prioritylevelconfigurations/global-default").await,
    ];
    let answer = ask(&server, "/version").await;
    assert_eq!((answer.status(), uids(&answer)), (StatusCode::OK, [uid(&default[0]), uid(&default[1])]));

    // A schema whose level is not there says so, and matches nothing.
    call(&client, "POST", "/flowschemas", of_ann("shut")).await.unwrap();
    assert_eq!(dangling(&get(&client, "/flowschemas/ann").await), ("Dangling", "True"));
    assert_eq!(uids(&ask(&server, "/version").await)[0], uid(&default[0]));

    // A level without any seat serves nobody.
    let level = json!({"metadata": {"name": "shut"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}}});
    let level = call(&client, "POST", "/prioritylevelconfigurations", level).await.unwrap();
    let schema = get(&client, "/flowschemas/ann").await;
    assert_eq!(dangling(&schema), ("Dangling", "False"));
    let answer = ask(&server, "/version").await;
    assert_eq!((answer.status(), uids(&answer)), (StatusCode::TOO_MANY_REQUESTS, [uid(&schema), uid(&level)]));
    assert_eq!(answer.headers()["retry-after"], "1");
    assert_eq!(ask(&server, "/healthz").await.status(), StatusCode::OK);

    // A watch holds no seat, and says of which level it is.
    let answer = ask(&server, "/api/v1/namespaces/default/configmaps?watch=1").await;
    assert_eq!((answer.status(), uids(&answer)), (StatusCode::FORBIDDEN, [uid(&schema), uid(&level)]));
    let answer = ask(&server, "/api/v1/namespaces/default/configmaps").await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);

    // With seats, it serves.
    let seats = json!({"spec": {"limited": {"nominalConcurrencyShares": 10}}});
    call(&client, "PATCH", "/prioritylevelconfigurations/shut", seats).await.unwrap();
    let answer = ask(&server, "/version").await;
    assert_eq!((answer.status(), uids(&answer)), (StatusCode::OK, [uid(&schema), uid(&level)]));
    call(&client, "DELETE", "/flowschemas/ann", Value::Null).await.unwrap();
    assert_eq!(uids(&ask(&server, "/version").await)[0], uid(&default[0]));
}

#[tokio::test]
async fn deleted_shipped_objects_come_back() {
    let server = super::server().await;
    let client = server.client();
    for (plural, name) in
        [("flowschemas", "catch-all"), ("prioritylevelconfigurations", "exempt"), ("flowschemas", "probes")]
    {
        let path = format!("/{plural}/{name}");
        let before = get(&client, &path).await;
        call(&client, "DELETE", &path, Value::Null).await.unwrap();
        let after = get(&client, &path).await;
        assert_ne!(uid(&before), uid(&after));
        assert_eq!(before["spec"], after["spec"]);
    }
    // What is written back as it was read is accepted.
    let path = "/flowschemas/exempt";
    call(&client, "PUT", path, get(&client, path).await).await.unwrap();
    let moved = json!({"spec": {"matchingPrecedence": 5}});
    refused(call(&client, "PATCH", path, moved).await, "spec of 'exempt' must equal the fixed value");

    let path = "/prioritylevelconfigurations/system";
    let shares = json!({"spec": {"limited": {"nominalConcurrencyShares": 77}}});
    let said = |level: &Value| level["spec"]["limited"]["nominalConcurrencyShares"].as_i64();
    call(&client, "PATCH", path, shares.clone()).await.unwrap();
    assert_eq!(said(&get(&client, path).await), Some(30));
    let own = json!({"metadata": {"annotations": {AUTOUPDATE: "false"}}});
    call(&client, "PATCH", path, own).await.unwrap();
    call(&client, "PATCH", path, shares).await.unwrap();
    assert_eq!(said(&get(&client, path).await), Some(77));
    let again = json!({"metadata": {"annotations": {AUTOUPDATE: "true"}}});
    call(&client, "PATCH", path, again).await.unwrap();
    assert_eq!(said(&get(&client, path).await), Some(30));
}

#[tokio::test]
async fn broken_schemas_and_levels_are_refused() {
    let client = super::server().await.client();
    let empty = json!({"metadata": {"name": "x"}, "spec": {}});
    refused(
        call(&client, "POST", "/flowschemas", empty.clone()).await,
        "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
    );
    refused(
        call(&client, "POST", "/prioritylevelconfigurations", empty).await,
        "spec.type: Unsupported value: \"\": supported values: \"Exempt\", \"Limited\"",
    );
}
