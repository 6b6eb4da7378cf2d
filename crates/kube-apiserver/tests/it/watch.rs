//! watch.

use apimachinery::request::User;
use axum::body::{Body, BodyDataStream};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use kube_apiserver::ApiServer;
use serde_json::json;
use tower::ServiceExt;

use super::{forgetful, server};

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap()
}

fn said(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(o) => format!("+{}", o.name_any()),
        WatchEvent::Modified(o) => format!("~{}", o.name_any()),
        WatchEvent::Deleted(o) => format!("-{}", o.name_any()),
        WatchEvent::Bookmark(b) => format!("@{}", b.metadata.annotations.len()),
        WatchEvent::Error(e) => format!("!{}", e.code),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_list_misses_and_repeats_nothing() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    api.create(&PostParams::default(), &map("before")).await.unwrap();
    let list = api.list(&ListParams::default()).await.unwrap();
    api.create(&PostParams::default(), &map("a")).await.unwrap();
    let version = list.metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "w"}}))).await.unwrap();
    api.delete("before", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(said(&events.try_next().await.unwrap().unwrap()));
    }
    assert_eq!(seen, ["+a", "~a", "-before"]);
    // Idle: the next thing told is a bookmark, a minute later.
    assert_eq!(said(&events.try_next().await.unwrap().unwrap()), "@0");
}

#[tokio::test(start_paused = true)]
async fn selectors_turn_changes_into_arrivals_and_departures() {
    let api: Api<Pod> = Api::default_namespaced(server().await.client());
    let pod = json!({"metadata": {"name": "p", "labels": {"on": "yes"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let created = api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let params = WatchParams::default().labels("on=yes");
    let mut events = api.watch(&params, &created.resource_version().unwrap()).await.unwrap().boxed();
    for value in ["no", "yes"] {
        let patch = json!({"metadata": {"labels": {"on": value}}});
        api.patch("p", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    assert!(matches!(events.try_next().await.unwrap(), Some(WatchEvent::Deleted(_))));
    assert!(matches!(events.try_next().await.unwrap(), Some(WatchEvent::Added(_))));
}

/// The chunks of a watch of pods, as bytes.
async fn chunks(server: &ApiServer, query: &str) -> BodyDataStream {
    chunks_as(server, query, "application/json").await
}

async fn chunks_as(server: &ApiServer, query: &str, accept: &str) -> BodyDataStream {
    let request = http::Request::get(format!("/api/v1/namespaces/default/pods?watch=true&resourceVersion={query}"));
    let request = request.header("accept", accept);
    let router = server.router().layer(axum::Extension(User::admin()));
    let answer = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body().into_data_stream()
}

#[tokio::test]
async fn watchers_are_handed_the_same_bytes() {
    let server = server().await;
    let api: Api<Pod> = Api::default_namespaced(server.client());
    let pod = json!({"metadata": {"name": "p", "labels": {"on": "yes"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let begin = server.store().revision();
    let mut watchers = Vec::new();
    for query in [format!("{begin}"), format!("{begin}"), format!("{begin}&labelSelector=on%3Dyes")] {
        watchers.push(chunks(&server, &query).await);
    }
    let mut selecting = chunks(&server, &format!("{begin}&labelSelector=on%3Dyes")).await;
    api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    for value in ["yes", "still"] {
        let mut lines = Vec::new();
        for watcher in &mut watchers {
            lines.push(watcher.next().await.unwrap().unwrap());
        }
        let event: serde_json::Value = serde_json::from_slice(&lines[0]).unwrap();
        assert_eq!(event["object"]["metadata"]["labels"]["on"], value);
        // Two who see the same are handed the same bytes, not a copy.
        assert_eq!(lines[0].as_ptr(), lines[1].as_ptr());
        assert_eq!(lines[0].as_ptr() == lines[2].as_ptr(), value == "yes");
        let line = selecting.next().await.unwrap().unwrap();
        assert_eq!(line.as_ptr(), lines[2].as_ptr());
        if value == "yes" {
            let patch = json!({"metadata": {"labels": {"on": "still"}}});
            api.patch("p", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        } else {
            let left: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(
                (left["type"].as_str(), &left["object"]["metadata"]["labels"]["on"]),
                (Some("DELETED"), &json!("yes"))
            );
        }
    }
}

#[tokio::test]
async fn rows_and_metadata_are_made_once_for_all_watchers() {
    let server = server().await;
    let api: Api<Pod> = Api::default_namespaced(server.client());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let begin = server.store().revision().to_string();
    let mut watchers = Vec::new();
    for shape in ["Table", "PartialObjectMetadata"] {
        let accept = format!("application/json;as={shape};g=meta.k8s.io;v=v1");
        for query in [begin.clone(), begin.clone(), format!("{begin}&includeObject=None")] {
            watchers.push(chunks_as(&server, &query, &accept).await);
        }
    }
    api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let mut shared = 0;
    for round in 0..5 {
        let mut lines = Vec::new();
        for watcher in &mut watchers {
            lines.push(watcher.next().await.unwrap().unwrap());
        }
        let event = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap();
        let (row, bare, metadata) = (event(&lines[0]), event(&lines[2]), event(&lines[3]));
        assert_eq!(row["object"]["columnDefinitions"].is_array(), round == 0, "columns are told once");
        assert_eq!(row["object"]["rows"][0]["object"]["metadata"]["name"], "p");
        assert_eq!(bare["object"]["rows"][0]["object"], json!(null));
        assert_eq!(metadata["object"]["metadata"]["name"], "p");
        shared += usize::from(lines[0].as_ptr() == lines[1].as_ptr());
        assert_eq!(lines[3].as_ptr(), lines[4].as_ptr());
        let patch = json!({"metadata": {"labels": {"round": round.to_string()}}});
        api.patch("p", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    // Ages are told to the second, which may pass between two watchers.
    assert!(shared >= 3, "{shared} of 5 rows were shared");
}

#[tokio::test]
async fn a_position_too_old_is_gone() {
    let api: Api<ConfigMap> = Api::default_namespaced(forgetful().await.client());
    let first = api.create(&PostParams::default(), &map("m")).await.unwrap();
    for n in 0..40 {
        let patch = json!({"data": {"k": n.to_string()}});
        api.patch("m", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    let mut events = api.watch(&WatchParams::default(), &first.resource_version().unwrap()).await.unwrap().boxed();
    assert_eq!(said(&events.try_next().await.unwrap().unwrap()), "!410");
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_bookmark() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    api.create(&PostParams::default(), &map("a")).await.unwrap();
    let params = WatchParams::default().initial_events();
    let mut events = api.watch(&params, "0").await.unwrap().boxed();
    assert_eq!(said(&events.try_next().await.unwrap().unwrap()), "+a");
    assert_eq!(said(&events.try_next().await.unwrap().unwrap()), "@1");
}

#[tokio::test]
async fn a_reflector_follows() {
    use kube::runtime::{WatchStreamExt, reflector, watcher};
    let api: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let (reader, writer) = reflector::store();
    let stream = watcher(api.clone(), watcher::Config::default()).reflect(writer).applied_objects();
    let mut stream = stream.boxed();
    api.create(&PostParams::default(), &map("a")).await.unwrap();
    tokio::select! {
        ready = reader.wait_until_ready() => ready.unwrap(),
        () = async { while stream.try_next().await.unwrap().is_some() {} } => {}
    }
    assert!(reader.get(&reflector::ObjectRef::new("a").within("default")).is_some());
}
