//! Watches: kube's watcher by both ways of listing, reflectors, metadata, and positions that are gone.

use std::collections::BTreeSet;
use std::pin::pin;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PartialObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::runtime::{WatchStreamExt, predicates, reflector, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{LIMIT, Space, Test, object};

pub(crate) const TESTS: &[Test] = &[
    ("a_watcher_lists_and_follows", |space| {
        Box::pin(lists_and_follows(space, watcher::Config::default().page_size(2)))
    }),
    ("a_watcher_streams_its_list", |space| {
        Box::pin(lists_and_follows(space, watcher::Config::default().streaming_lists()))
    }),
    ("a_reflector_is_what_the_cluster_is", |space| Box::pin(reflects(space))),
    ("a_watch_of_metadata", |space| Box::pin(metadata(space))),
    ("positions_and_bookmarks", |space| Box::pin(positions(space))),
];

async fn make(maps: &Api<ConfigMap>, name: &str) -> Result<ConfigMap> {
    Ok(maps
        .create(&PostParams::default(), &object(json!({"metadata": {"name": name, "labels": {"made": "here"}}}))?)
        .await?)
}

async fn lists_and_follows(space: Space, config: watcher::Config) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    for name in ["a", "b", "c"] {
        make(&maps, name).await?;
    }
    let mut events = pin!(watcher(maps.clone(), config.labels("made=here")));
    let mut initial = BTreeSet::new();
    loop {
        match next(&mut events).await? {
            watcher::Event::Init => {}
            watcher::Event::InitApply(map) => {
                initial.insert(map.name_any());
            }
            watcher::Event::InitDone => break,
            other => anyhow::bail!("before the list was done: {other:?}"),
        }
    }
    ensure!(initial == ["a", "b", "c"].map(String::from).into(), "{initial:?}");
    make(&maps, "d").await?;
    maps.delete("a", &DeleteParams::default()).await?;
    let seen = [next(&mut events).await?, next(&mut events).await?];
    let seen = seen.map(|event| match event {
        watcher::Event::Apply(map) => format!("+{}", map.name_any()),
        watcher::Event::Delete(map) => format!("-{}", map.name_any()),
        other => format!("{other:?}"),
    });
    ensure!(seen == ["+d", "-a"], "{seen:?}");
    Ok(())
}

async fn next<T>(stream: &mut (impl futures::Stream<Item = Result<T, watcher::Error>> + Unpin)) -> Result<T> {
    let event = tokio::time::timeout(LIMIT, stream.next()).await.context("no event came")?;
    Ok(event.context("the watch ended")??)
}

async fn reflects(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    make(&maps, "a").await?;
    let (store, writer) = reflector::store();
    let stream = watcher(maps.clone(), watcher::Config::default().labels("made=here")).default_backoff();
    let mut changes = pin!(
        stream.reflect(writer).applied_objects().predicate_filter(predicates::resource_version, Default::default())
    );
    ensure!(next(&mut changes).await?.name_any() == "a");
    make(&maps, "b").await?;
    ensure!(next(&mut changes).await?.name_any() == "b");
    store.wait_until_ready().await?;
    let names: BTreeSet<String> = store.state().iter().map(|map| map.name_any()).collect();
    ensure!(names == ["a", "b"].map(String::from).into(), "{names:?}");
    Ok(())
}

async fn metadata(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    let heads: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(space.client.clone(), &space.name);
    let mut events = pin!(watcher(heads, watcher::Config::default().labels("made=here")).applied_objects());
    make(&maps, "a").await?;
    let seen = next(&mut events).await?;
    ensure!(seen.name_any() == "a" && seen.labels().contains_key("made"), "{seen:?}");
    Ok(())
}

async fn positions(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    let start = make(&maps, "a").await?.resource_version().context("no revision")?;
    make(&maps, "b").await?;
    let params = WatchParams::default().labels("made=here").timeout(20);
    let mut events = pin!(maps.watch(&params, &start).await?);
    let first = tokio::time::timeout(LIMIT, events.try_next()).await??.context("the watch ended")?;
    ensure!(matches!(&first, WatchEvent::Added(map) if map.name_any() == "b"), "{first:?}");
    // A position that nobody has reached is one of another cluster.
    let future = (start.parse::<u64>()? + 1_000_000_000).to_string();
    let refused = match maps.watch(&params, &future).await {
        Err(kube::Error::Api(status)) => status.code,
        Ok(stream) => match pin!(stream).try_next().await {
            Ok(Some(WatchEvent::Error(status))) => status.code,
            Err(kube::Error::Api(status)) => status.code,
            other => anyhow::bail!("{other:?}"),
        },
        Err(other) => return Err(other.into()),
    };
    ensure!(matches!(refused, 410 | 504), "{refused}");
    Ok(())
}
