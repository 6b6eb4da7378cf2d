//! What others do to the objects an operator owns: a watch of their metadata, kind by kind. Only their addresses are kept.

use std::collections::BTreeSet;
use std::pin::pin;

use futures::StreamExt;
use kube::core::{DynamicObject, GroupVersionKind, ObjectMeta, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;

use crate::served::Served;
use crate::{Chain, Task, apply};

/// A kind that is watched.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The group; empty for the core's.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Only in the operator's namespace.
    pub namespaced: bool,
    /// A cluster may lack it: it is watched while it is served.
    pub optional: bool,
}

/// Calls `touched` with the address of each object of `kinds` under the label `selector` whenever it changes, with what it
/// is now, or nothing when it is gone, for as long as the tasks are held.
pub fn watch<F>(client: &Client, kinds: &[Kind], namespace: &str, selector: &str, touched: F) -> Vec<Task<()>>
where
    F: Fn(&str, Option<&ObjectMeta>) + Clone + Send + 'static,
{
    let watch = |kind: &Kind| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group, kind.version, kind.kind));
        let api: Api<PartialObjectMeta<DynamicObject>> = match kind.namespaced {
            true => Api::namespaced_with(client.clone(), namespace, &resource),
            false => Api::all_with(client.clone(), &resource),
        };
        let (config, mut touched) = (watcher::Config::default().labels(selector), touched.clone());
        let served = kind.optional.then(|| Served::new(client, &resource));
        crate::spawn("drift", async move {
            let mut known = BTreeSet::new();
            let Some(mut served) = served else {
                return follow(api, config, &resource, &mut touched, &mut known).await;
            };
            loop {
                if served.next().await {
                    tokio::select! {
                        () = follow(api.clone(), config.clone(), &resource, &mut touched, &mut known) => {}
                        () = served.ends() => {}
                    }
                }
                std::mem::take(&mut known).iter().for_each(|address| touched(address, None));
            }
        })
    };
    kinds.iter().map(watch).collect()
}

async fn follow<F>(
    api: Api<PartialObjectMeta<DynamicObject>>,
    config: watcher::Config,
    resource: &ApiResource,
    touched: &mut F,
    known: &mut BTreeSet<String>,
) where
    F: Fn(&str, Option<&ObjectMeta>),
{
    let address = |metadata: &ObjectMeta| {
        apply::address(&json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": { "name": metadata.name, "namespace": metadata.namespace },
        }))
    };
    let mut listed = BTreeSet::new();
    let mut stream = pin!(watcher(api, config).default_backoff());
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                let address = address(&object.metadata);
                touched(&address, Some(&object.metadata));
                listed.insert(address);
            }
            // What went while nobody looked.
            Ok(watcher::Event::InitDone) => {
                known.difference(&listed).for_each(|address| touched(address, None));
                *known = std::mem::take(&mut listed);
            }
            Ok(watcher::Event::Apply(object)) => {
                let address = address(&object.metadata);
                touched(&address, Some(&object.metadata));
                known.insert(address);
            }
            Ok(watcher::Event::Delete(object)) => {
                let address = address(&object.metadata);
                touched(&address, None);
                known.remove(&address);
            }
            Err(error) => tracing::debug!(error = %Chain(&error), "watch interrupted, retrying"),
        }
    }
}
