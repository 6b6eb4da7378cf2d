//! Lists in pages and at revisions, and watches from them, over REST.

use futures::StreamExt;
use http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Error};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};

use super::{forgetful, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn get(client: &Client, query: &str) -> Result<Value, kube::core::Status> {
    let request = Request::get(format!("{MAPS}?{query}")).body(Vec::new()).unwrap();
    match client.request(request).await {
        Ok(value) => Ok(value),
        Err(Error::Api(status)) => Err(*status),
        Err(other) => panic!("{other}"),
    }
}

async fn with_maps(server: ApiServer, count: usize) -> (Client, Api<ConfigMap>) {
    let client = server.client();
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for n in 0..count {
        create(&maps, &format!("m{n:02}")).await;
    }
    (client, maps)
}

async fn create(maps: &Api<ConfigMap>, name: &str) {
    let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|o| o["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_show_one_revision_whatever_happens_between_them() {
    let (client, maps) = with_maps(server().await, 5).await;
    let first = get(&client, "limit=2").await.unwrap();
    assert_eq!(names(&first), ["m00", "m01"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    maps.delete("m03", &DeleteParams::default()).await.unwrap();
    create(&maps, "m02a").await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = get(&client, &format!("limit=9&continue={token}")).await.unwrap();
    assert_eq!(names(&second), ["m02", "m03", "m04"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(second["metadata"]["continue"].is_null());
    let both = format!("continue={token}&resourceVersion=5&resourceVersionMatch=Exact");
    assert_eq!(get(&client, &both).await.unwrap_err().code, 422);
    assert_eq!(get(&client, "continue=nonsense").await.unwrap_err().code, 400);
}

#[tokio::test]
async fn a_forgotten_page_can_be_resumed_inconsistently() {
    let (client, maps) = with_maps(forgetful().await, 4).await;
    let first = get(&client, "limit=2").await.unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    for n in 0..40 {
        create(&maps, &format!("x{n:02}")).await;
        maps.delete(&format!("x{n:02}"), &DeleteParams::default()).await.unwrap();
    }
    let expired = get(&client, &format!("limit=2&continue={token}")).await.unwrap_err();
    assert_eq!((expired.code, expired.reason.as_str()), (410, "Expired"));
    assert!(expired.message.starts_with("The provided continue parameter is too old"), "{}", expired.message);
    let resume = expired.metadata.unwrap().continue_.unwrap();
    let rest = get(&client, &format!("limit=2&continue={resume}")).await.unwrap();
    assert_eq!(names(&rest), ["m02", "m03"]);
    assert_ne!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn a_revision_is_shown_exactly_or_at_least() {
    let (client, maps) = with_maps(server().await, 2).await;
    let then = get(&client, "").await.unwrap()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    create(&maps, "later").await;
    for (how, expect) in [("resourceVersionMatch=Exact", 2), ("limit=10", 2), ("resourceVersionMatch=NotOlderThan", 3)]
    {
        let list = get(&client, &format!("resourceVersion={then}&{how}")).await.unwrap();
        assert_eq!(names(&list).iter().filter(|name| name.starts_with(['m', 'l'])).count(), expect, "{how}");
    }
    for query in ["resourceVersion=999999", "resourceVersion=999999&resourceVersionMatch=Exact"] {
        let ahead = get(&client, query).await.unwrap_err();
        assert_eq!((ahead.code, ahead.reason.as_str()), (504, "Timeout"));
        assert!(ahead.message.starts_with("Too large resource version: 999999, current: "), "{}", ahead.message);
    }
    assert_eq!(get(&client, "resourceVersion=abc").await.unwrap_err().code, 400);
    let one = |query: &str| Request::get(format!("{MAPS}/later?resourceVersion={query}")).body(Vec::new()).unwrap();
    client.request::<Value>(one(&then)).await.unwrap();
    match client.request::<Value>(one("999999")).await {
        Err(Error::Api(status)) => assert_eq!((status.code, status.reason.as_str()), (504, "Timeout")),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn a_list_of_many_frames_is_whole() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    for n in 0..40 {
        let map = json!({"metadata": {"name": format!("m{n:02}")}, "data": {"k": "x".repeat(20_000)}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }
    let list = get(&server.client(), "").await.unwrap();
    assert_eq!(names(&list).len(), 40);
    assert!(list["items"].as_array().unwrap().iter().all(|map| map["data"]["k"].as_str().unwrap().len() == 20_000));
}

/// The lines of a watch until it is quiet.
async fn watched(client: &Client, query: &str, lines: usize) -> Vec<String> {
    let request = Request::get(format!("{MAPS}?watch=true&{query}")).body(Vec::new()).unwrap();
    let stream = client.request_events::<Value>(request).await.unwrap();
    let events: Vec<_> = stream.take(lines).collect().await;
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or("-").to_owned();
    let said = |event: Result<kube::api::WatchEvent<Value>, Error>| match event.unwrap() {
        kube::api::WatchEvent::Added(o) => format!("+{}", name(&o)),
        kube::api::WatchEvent::Modified(o) => format!("~{}", name(&o)),
        kube::api::WatchEvent::Deleted(o) => format!("-{}", name(&o)),
        kube::api::WatchEvent::Bookmark(b) => {
            let end = b.metadata.annotations.get("k8s.io/initial-events-end").map_or("", String::as_str);
            format!("@{end}")
        }
        kube::api::WatchEvent::Error(status) => format!("!{}", status.code),
    };
    events.into_iter().map(said).collect()
}

#[tokio::test(start_paused = true)]
async fn send_initial_events_decides_how_a_watch_begins() {
    let (client, maps) = with_maps(server().await, 2).await;
    let list = "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=90";
    assert_eq!(watched(&client, &format!("{list}&sendInitialEvents=true"), 3).await, ["+m00", "+m01", "@true"]);
    assert_eq!(watched(&client, "timeoutSeconds=5", 9).await, ["+m00", "+m01"]);
    assert_eq!(watched(&client, "timeoutSeconds=5&resourceVersion=0", 9).await, ["+m00", "+m01"]);
    // Nothing to begin with: the first thing told is a bookmark.
    assert_eq!(watched(&client, &format!("{list}&sendInitialEvents=false"), 9).await, ["@"]);
    assert_eq!(watched(&client, "fieldSelector=metadata.name%3Dm01&timeoutSeconds=5", 9).await, ["+m01"]);
    maps.delete("m01", &DeleteParams::default()).await.unwrap();
    assert_eq!(watched(&client, "timeoutSeconds=5", 9).await, ["+m00"]);
}
