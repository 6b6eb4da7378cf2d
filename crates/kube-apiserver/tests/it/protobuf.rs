//! Answers in protobuf, as Go's clients ask for them.

use apimachinery::request::User;
use axum::body::{Body, Bytes};
use futures::TryStreamExt;
use http::{Request, Response, StatusCode, header};
use kube_apiserver::body;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::server;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const GO: &str = "application/vnd.kubernetes.protobuf,application/json";

struct Client(axum::Router);

impl Client {
    async fn new() -> Self {
        Self(server().await.network_router().layer(axum::Extension(User::admin())))
    }

    async fn send(&self, method: &str, path: &str, accept: &str, body: Value) -> Response<Body> {
        let bytes = if body.is_null() { Vec::new() } else { body::to_protobuf(&body).unwrap() };
        self.send_as(method, path, accept, PROTOBUF, bytes).await
    }

    async fn send_as(&self, method: &str, path: &str, accept: &str, sent: &str, bytes: Vec<u8>) -> Response<Body> {
        let request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        let request = request.header(header::CONTENT_TYPE, sent).body(Body::from(bytes)).unwrap();
        self.0.clone().oneshot(request).await.unwrap()
    }

    /// The code and the media type of an answer, and what it says.
    async fn told(&self, method: &str, path: &str, accept: &str, body: Value) -> (u16, String, Value) {
        read(self.send(method, path, accept, body).await).await
    }
}

async fn read(answer: Response<Body>) -> (u16, String, Value) {
    let media_type = answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let code = answer.status().as_u16();
    let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let value = if media_type == PROTOBUF { message(&bytes) } else { serde_json::from_slice(&bytes).unwrap() };
    (code, media_type, value)
}

/// An object; of a list the items alone, which are maps here.
fn message(bytes: &[u8]) -> Value {
    body::protobuf(bytes).unwrap_or_else(|error| json!({"unread": error.message}))
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn objects_and_refusals_are_told_in_protobuf() {
    let client = Client::new().await;
    for accept in [PROTOBUF, GO] {
        let name = format!("a{}", accept.len());
        let (code, media_type, created) = client.told("POST", MAPS, accept, map(&name)).await;
        assert_eq!((code, media_type.as_str(), &created["data"]), (201, PROTOBUF, &json!({"k": "v"})));
        let (code, media_type, got) = client.told("GET", &format!("{MAPS}/{name}"), accept, Value::Null).await;
        assert_eq!((code, media_type.as_str(), &got), (200, PROTOBUF, &created));
        let (code, media_type, status) = client.told("GET", &format!("{MAPS}/none"), accept, Value::Null).await;
        assert_eq!((code, media_type.as_str()), (404, PROTOBUF));
        assert_eq!(
            (&status["kind"], &status["reason"], &status["code"]),
            (&json!("Status"), &json!("NotFound"), &json!(404))
        );
        let scale = "/apis/apps/v1/namespaces/default/deployments/none/scale";
        assert_eq!(client.told("GET", scale, accept, Value::Null).await.1, PROTOBUF);
        let gone = client.told("DELETE", &format!("{MAPS}/{name}"), accept, Value::Null).await;
        assert_eq!((gone.0, gone.2["status"].as_str()), (200, Some("Success")));
    }
}

#[tokio::test(start_paused = true)]
async fn lists_and_metadata_are_told_in_protobuf() {
    let client = Client::new().await;
    client.send("POST", MAPS, PROTOBUF, map("a")).await;
    let json =
        client.told("GET", &format!("{MAPS}?fieldSelector=metadata.name=a"), "application/json", Value::Null).await.2;
    let list = client.send("GET", &format!("{MAPS}?fieldSelector=metadata.name=a"), GO, Value::Null).await;
    assert_eq!(list.headers()[header::CONTENT_TYPE], PROTOBUF);
    let bytes = axum::body::to_bytes(list.into_body(), usize::MAX).await.unwrap();
    assert_eq!(bytes, body::to_protobuf(&json).unwrap());

    let metadata = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let (code, media_type, partial) = client.told("GET", &format!("{MAPS}/a"), &metadata, Value::Null).await;
    assert_eq!((code, media_type.as_str()), (200, PROTOBUF));
    assert_eq!(
        (&partial["kind"], &partial["metadata"]),
        (&json!("PartialObjectMetadata"), &json["items"][0]["metadata"])
    );
    let table = format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
    let (code, _, refused) = client.told("GET", MAPS, &table, Value::Null).await;
    assert_eq!(code, 406);
    let message = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    assert_eq!(refused["message"], message);
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_told_in_frames() {
    let client = Client::new().await;
    let created = client.told("POST", MAPS, PROTOBUF, map("a")).await.2;
    let path = format!(
        "{MAPS}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
        &fieldSelector=metadata.name%3Da&timeoutSeconds=30"
    );
    let answer = client.send("GET", &path, GO, Value::Null).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()[header::CONTENT_TYPE], format!("{PROTOBUF};stream=watch"));
    client.send("DELETE", &format!("{MAPS}/a"), PROTOBUF, Value::Null).await;
    let chunks: Vec<Bytes> = answer.into_body().into_data_stream().try_collect().await.unwrap();
    let events = events(&chunks.concat());
    let words: Vec<&str> = events.iter().map(|(word, _)| word.as_str()).collect();
    assert_eq!(words, ["ADDED", "BOOKMARK", "DELETED"]);
    assert_eq!(events[0].1, created);
    assert_eq!(events[1].1["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(events[2].1["metadata"]["name"], "a");

    let old = client.send("GET", &format!("{MAPS}?watch=1&resourceVersion=99999999"), GO, Value::Null).await;
    assert_ne!(old.status(), StatusCode::NOT_ACCEPTABLE);
}

/// The events of frames: four bytes of length, then the word and the object of an event.
fn events(mut bytes: &[u8]) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (event, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        bytes = rest;
        let word = usize::from(event[1]);
        let start = event.windows(4).position(|four| four == b"k8s\0").unwrap();
        events.push((String::from_utf8(event[2..2 + word].to_vec()).unwrap(), message(&event[start..])));
    }
    events
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_told_in_the_next_form() {
    let client = Client::new().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let (code, media_type, created) =
        client.told("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", PROTOBUF, crd).await;
    assert_eq!((code, media_type.as_str()), (201, PROTOBUF));
    assert_eq!(created["spec"]["versions"][0]["schema"]["openAPIV3Schema"], schema);
    let things = "/apis/example.com/v1/things";
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}).to_string();
    let created = client.send_as("POST", things, GO, "application/json", thing.into_bytes()).await;
    assert_eq!(
        (created.status(), &created.headers()[header::CONTENT_TYPE]),
        (StatusCode::CREATED, &"application/json".parse().unwrap())
    );
    let (code, media_type, list) = client.told("GET", things, GO, Value::Null).await;
    assert_eq!((code, media_type.as_str(), list["items"].as_array().unwrap().len()), (200, "application/json", 1));
    let (code, media_type, refused) = client.told("GET", things, PROTOBUF, Value::Null).await;
    assert_eq!((code, media_type.as_str()), (406, "application/json"));
    assert_eq!(refused["message"], "only the following media types are accepted: application/json, application/yaml");
    let metadata = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let (_, media_type, partial) = client.told("GET", &format!("{things}/a"), &metadata, Value::Null).await;
    assert_eq!((media_type.as_str(), &partial["metadata"]["name"]), (PROTOBUF, &json!("a")));
}
