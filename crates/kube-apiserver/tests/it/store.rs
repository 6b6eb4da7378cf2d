//! The store across restarts.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use kube_apiserver::{ApiServer, Config};
use kube_store::{Key, Store, WriteError};
use serde_json::json;

fn config(dir: &std::path::Path) -> Config {
    Config { data_dir: Some(dir.to_owned()), ..Config::default() }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test]
async fn objects_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = ApiServer::open(config(dir.path())).await.unwrap();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client());
    let first = api.create(&PostParams::default(), &map("a")).await.unwrap();
    drop((api, server));
    // The client's own task ends, and with it the last hold on the store.
    tokio::task::yield_now().await;
    let server = ApiServer::open(config(dir.path())).await.unwrap();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client());
    let found = api.get("a").await.unwrap();
    assert_eq!((found.uid(), found.resource_version()), (first.uid(), first.resource_version()));
    let list = api.list(&ListParams::default()).await.unwrap();
    let number = |text: Option<String>| text.unwrap().parse::<u64>().unwrap();
    assert!(number(list.metadata.resource_version) >= number(first.resource_version()));
    let next = api.create(&PostParams::default(), &map("b")).await.unwrap();
    assert!(number(next.resource_version()) > number(first.resource_version()), "revisions never repeat");
}

#[tokio::test]
async fn a_damaged_file_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    drop(ApiServer::open(config(dir.path())).await.unwrap());
    let file = dir.path().join("objects.redb");
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length / 3).unwrap();
    let error = ApiServer::open(config(dir.path())).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("objects.redb"), "{source}");
}

/// Many writers share transactions; each write that was answered is there afterwards, once, with a revision of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = ApiServer::open(config(dir.path())).await.unwrap();
    let store = server.store().clone();
    drop(server);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..16 {
        let store = store.clone();
        writers.spawn(async move {
            let mut revisions = Vec::new();
            for n in 0..25 {
                let key = Key::new("things", "default", &format!("{writer}-{n}"));
                let created = store.create(key.clone(), json!({"metadata": {}, "n": n})).await.unwrap();
                assert_eq!(store.create(key.clone(), json!({})).await.unwrap_err(), WriteError::Exists);
                let updated =
                    store.update(key.clone(), json!({"metadata": {}, "n": -n}), created.revision).await.unwrap();
                let stale = store.update(key.clone(), json!({}), created.revision).await.unwrap_err();
                assert_eq!(stale, WriteError::Changed);
                revisions.push(updated.revision);
                if n % 5 == 0 {
                    revisions.push(store.delete(key, updated.revision).await.unwrap().revision);
                }
            }
            revisions
        });
    }
    let mut revisions = writers.join_all().await.concat();
    let (count, last) = (revisions.len(), store.revision());
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), count);
    drop(store);
    let again = Store::open(Some(dir.path()), 64).unwrap();
    assert_eq!((again.count("things"), again.revision()), (16 * 20, last));
    assert!(again.watch("things", None, 1).is_err(), "what happened before the restart is gone");
    assert!(again.watch("things", None, last).is_ok());
}
