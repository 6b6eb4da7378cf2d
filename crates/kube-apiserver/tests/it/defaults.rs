//! Built-in kinds against how a real server stored them, or why it refused them.

use kube::{Client, Error};
use serde_json::{Value, json};

use super::server;

/// What differs for good reason: chosen at random, or set by controllers that are not here.
fn comparable(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "finalizers"] {
        metadata.remove(field);
    }
    let spec = &mut object["spec"];
    for field in ["clusterIP", "clusterIPs"] {
        if spec[field] != json!("None") && spec[field] != json!(["None"]) && !spec[field].is_null() {
            spec[field] = json!("some");
        }
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if port["nodePort"].is_number() {
            port["nodePort"] = 1.into();
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("lastPhaseTransitionTime");
    }
    for volume in object["spec"].get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(sources) = volume.get_mut("projected").and_then(|p| p["sources"].as_array_mut()) {
            // The facts come from a server that also projects the service CA.
            sources.retain(|source| source["configMap"]["name"] != "openshift-service-ca.crt");
        }
    }
    let mut text = serde_json::to_string(&clean(object)).unwrap();
    for (start, length) in [("kube-api-access-", 5), ("controller-uid\":\"", 36)] {
        let mut from = 0;
        while let Some(at) = text[from..].find(start).map(|at| at + from + start.len()) {
            text.replace_range(at..at + length, "x");
            from = at;
        }
    }
    serde_json::from_str(&text).unwrap()
}

/// Without nulls and empty statuses.
fn clean(value: Value) -> Value {
    match value {
        Value::Object(map) => map.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, clean(v))).collect(),
        Value::Array(items) => items.into_iter().map(clean).collect(),
        other => other,
    }
}

fn plural(kind: &str) -> String {
    match kind {
        "NetworkPolicy" => "networkpolicies".into(),
        "Ingress" => "ingresses".into(),
        "Endpoints" => "endpoints".into(),
        "StorageClass" | "PriorityClass" => format!("{}es", kind.to_lowercase()),
        other => format!("{}s", other.to_lowercase()),
    }
}

async fn create(client: &Client, object: &Value) -> Result<Value, Error> {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap();
    let cluster = [
        "Namespace",
        "Node",
        "PersistentVolume",
        "StorageClass",
        "CSIDriver",
        "PriorityClass",
        "APIService",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "CustomResourceDefinition",
    ];
    let root = if version.contains('/') { "apis" } else { "api" };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let place = if cluster.contains(&kind) { String::new() } else { format!("namespaces/{namespace}/") };
    let request = http::Request::post(format!("/{root}/{version}/{place}{}?dryRun=All", plural(kind)))
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())
        .unwrap();
    client.request(request).await
}

#[tokio::test]
async fn objects_are_stored_as_a_real_server_stores_them() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../testdata/defaults.json")).unwrap();
    let client = server().await.client();
    let mut different = Vec::new();
    for case in cases.iter().filter(|case| case.get("stored").is_some()) {
        let kind = case["in"]["kind"].as_str().unwrap();
        // A definition's status is filled in at once here; the taint of a new node is the node controller's to set.
        if matches!(kind, "CustomResourceDefinition" | "Node") {
            continue;
        }
        match create(&client, &case["in"]).await {
            Ok(object) => {
                let (got, expect) = (comparable(object), comparable(case["stored"].clone()));
                if got != expect {
                    different.push(format!("{kind}\n  got    {got}\n  expect {expect}"));
                }
            }
            Err(error) => different.push(format!("{kind}: {error:?}")),
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[tokio::test]
async fn refusals_say_what_a_real_server_says() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../testdata/defaults.json")).unwrap();
    let client = server().await.client();
    for case in &cases {
        let Some(refused) = case["refused"].as_str() else { continue };
        let error = create(&client, &case["in"]).await.unwrap_err();
        let Error::Api(status) = error else { panic!("{error:?}") };
        // kubectl prints a refusal with causes as a list of them, and others as they are.
        let causes: Vec<String> = status
            .details
            .as_ref()
            .into_iter()
            .flat_map(|d| &d.causes)
            .map(|c| format!("{}: {}", c.field, c.message))
            .collect();
        if causes.is_empty() {
            assert!(refused.ends_with(&status.message), "{refused}\n{}", status.message);
        } else {
            let mut expected: Vec<&str> = match refused.split_once("is invalid: \n* ") {
                Some((_, list)) => list.split("\n* ").collect(),
                None => vec![refused.split_once("is invalid: ").unwrap().1],
            };
            expected.sort_unstable();
            let mut got = causes.clone();
            got.sort_unstable();
            assert_eq!(got, expected);
        }
    }
}
