//! The garbage collector: objects go when their owners are gone, in all served resources, CRDs included.
//!
//! ```text
//!  discovery --> one watch per resource --> graph of owners --> queue of uids --> live check --> delete / patch
//! ```
//!
//! Guarantee: an object is deleted only after the API server itself said that each of its owners is gone (or waits for
//! it), and only with its uid as precondition.

mod graph;
mod owned;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kit::controller::{self, During, Error, Result, gone_is_none};
use kit::queue::{self, Next, Queue};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::resources::{Served, discover};
use graph::{Graph, Node, Owner, Verdict};
use owned::Owned;

struct Collector {
    ctx: Context,
    graph: Mutex<Graph>,
    queue: Queue<String>,
    /// The resources watched and how to stop each watch.
    watched: Mutex<HashMap<Arc<Served>, CancellationToken>>,
    /// Rung when CRDs or APIServices change.
    changed: Notify,
}

/// How long after a change of CRDs discovery is asked: the server needs a moment to serve what it stored.
const SETTLE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(950)];

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let collector = Arc::new(Collector {
        ctx: ctx.clone(),
        graph: Mutex::default(),
        queue: queue::eager(),
        watched: Mutex::default(),
        changed: Notify::new(),
    });
    ctx.spawn({
        let collector = collector.clone();
        async move { collector.follow_discovery().await }
    });
    controller::work(&collector.queue, "garbage-collector", 16, |uid| collector.look_at(uid)).await;
}

impl Collector {
    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn watched(&self) -> MutexGuard<'_, HashMap<Arc<Served>, CancellationToken>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow_discovery(self: Arc<Self>) {
        self.refresh().await;
        loop {
            self.changed.notified().await;
            for pause in SETTLE {
                tokio::time::sleep(pause).await;
                self.refresh().await;
            }
        }
    }

    /// Starts and stops watches so that they are those of the served resources.
    async fn refresh(self: &Arc<Self>) {
        let served = match discover(&self.ctx.client).await {
            Ok(served) => served,
            Err(error) => {
                tracing::warn!(error = error.chain(), "discovery failed, asking again");
                self.changed.notify_one();
                return;
            }
        };
        let gone: Vec<_> = self.watched().extract_if(|known, _| !served.contains(known)).collect();
        for (resource, stop) in gone {
            stop.cancel();
            let uids = self.graph().of(&resource);
            for uid in uids {
                self.removed(&uid);
            }
        }
        let mut complete = Vec::new();
        for resource in served {
            let mut watched = self.watched();
            if watched.contains_key(&resource) {
                continue;
            }
            let (resource, stop) = (Arc::new(resource), CancellationToken::new());
            watched.insert(resource.clone(), stop.clone());
            let (sender, receiver) = watch::channel(false);
            complete.push(receiver);
            let collector = self.clone();
            self.ctx.spawn(async move {
                stop.run_until_cancelled(collector.follow(resource, sender)).await;
            });
        }
        for mut receiver in complete {
            let _ = receiver.wait_for(|listed| *listed).await;
        }
        // Only now are owners that are missing here likely to be missing for good.
        let suspects = self.graph().with_unknown_owner();
        for uid in suspects {
            self.queue.add(uid);
        }
    }

    async fn follow(self: Arc<Self>, served: Arc<Served>, listed: watch::Sender<bool>) {
        let api: Api<Owned> = served.within(&self.ctx.client, "");
        let announces = matches!(served.api.plural.as_str(), "customresourcedefinitions" | "apiservices");
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut relist: Option<std::collections::HashSet<String>> = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => relist = Some(std::collections::HashSet::new()),
                Ok(watcher::Event::InitApply(object)) => {
                    if let (Some(seen), Some(uid)) = (&mut relist, object.uid()) {
                        seen.insert(uid);
                    }
                    self.observed(&served, &object, *listed.borrow());
                }
                Ok(watcher::Event::InitDone) => {
                    let seen = relist.take().unwrap_or_default();
                    let known = self.graph().of(&served);
                    for uid in known.iter().filter(|uid| !seen.contains(*uid)) {
                        self.removed(uid);
                    }
                    listed.send_replace(true);
                    // Something may have become served between discovery and this list.
                    if announces {
                        self.changed.notify_one();
                    }
                }
                Ok(watcher::Event::Apply(object)) => {
                    self.observed(&served, &object, true);
                    if announces {
                        self.changed.notify_one();
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    self.removed(&object.uid().unwrap_or_default());
                    if announces {
                        self.changed.notify_one();
                    }
                }
                Err(error) => {
                    tracing::debug!(resource = served.group_resource(), %error, "watch interrupted");
                    // A resource that cannot be listed must not hold up the others.
                    listed.send_replace(true);
                }
            }
        }
    }

    fn observed(&self, served: &Arc<Served>, object: &Owned, settled: bool) {
        let affected = self.graph().set(served, &object.metadata);
        let known = |uid: &String| {
            let graph = self.graph();
            // During the first lists owners may simply not be listed yet; a whole node that waits is looked at anyway.
            settled || graph.get(uid).is_some_and(|node| node.deleting)
        };
        for uid in affected.into_iter().filter(known) {
            self.queue.add(uid);
        }
    }

    fn removed(&self, uid: &str) {
        let (affected, node) = self.graph().remove(uid);
        if let Some(node) = node.filter(|node| !node.namespace.is_empty()) {
            self.ctx.announce_removal(&node.namespace);
        }
        for uid in affected {
            self.queue.add(uid);
        }
    }

    async fn look_at(&self, uid: String) -> Result<Next> {
        let Some(node) = self.graph().get(&uid).cloned() else { return Ok(Next::Wait) };
        if node.deleting && node.orphan {
            let dependents: Vec<Node> = self.graph().dependents(&uid).map(|(_, node)| node.clone()).collect();
            for dependent in dependents {
                self.drop_owners(&dependent, std::slice::from_ref(&uid)).await?;
            }
            self.drop_finalizer(&node, &uid, graph::ORPHAN).await?;
            return Ok(Next::Wait);
        }
        if node.waits_for_dependents() {
            let blocking = self.graph().blocking(&uid);
            if blocking.is_empty() {
                self.drop_finalizer(&node, &uid, graph::FOREGROUND).await?;
                return Ok(Next::Wait);
            }
            for dependent in blocking {
                if self.graph().get(&dependent).is_some_and(|node| !node.deleting) {
                    self.queue.add(dependent);
                }
            }
        }
        let mut owners = Vec::new();
        for reference in &node.owners {
            owners.push((reference.uid.clone(), self.judge_owner(&node, reference).await?));
        }
        let has_dependents = self.graph().dependents(&uid).next().is_some();
        match graph::judge(&node, &owners, has_dependents) {
            Verdict::Keep => {}
            Verdict::Drop(owners) => self.drop_owners(&node, &owners).await?,
            Verdict::DeleteForeground => self.delete(&node, &uid, DeleteParams::foreground()).await?,
            Verdict::Delete => {
                let params = match (node.orphan, node.foreground) {
                    (true, _) => DeleteParams::orphan(),
                    (_, true) => DeleteParams::foreground(),
                    _ => DeleteParams::background(),
                };
                self.delete(&node, &uid, params).await?;
            }
        }
        Ok(Next::Wait)
    }

    /// Asks the graph, and the server about owners the graph does not know.
    async fn judge_owner(&self, node: &Node, reference: &OwnerReference) -> Result<Owner> {
        if let Some(owner) = self.graph().get(&reference.uid) {
            return Ok(if owner.waits_for_dependents() { Owner::Waiting } else { Owner::Solid });
        }
        let served = {
            let watched = self.watched();
            watched.keys().find(|served| served.is_kind(&reference.api_version, &reference.kind)).cloned()
        };
        let about = || format!("{} {} of {}", reference.kind, reference.name, node.name);
        // A kind nobody serves (yet): neither there nor provably gone. Its arrival brings the object here again.
        let Some(served) = served else { return Ok(Owner::Solid) };
        // A cluster-wide object cannot have an owner in a namespace; such a reference is never collected.
        if served.namespaced && node.namespace.is_empty() {
            return Ok(Owner::Solid);
        }
        let api: Api<Owned> = served.within(&self.ctx.client, &node.namespace);
        let owner = api.get_opt(&reference.name).await.during("read owner", about())?;
        Ok(match owner {
            Some(owner) if owner.uid().as_deref() == Some(reference.uid.as_str()) => {
                let waits = owner.metadata.deletion_timestamp.is_some()
                    && owner.finalizers().iter().any(|f| f == graph::FOREGROUND);
                if waits { Owner::Waiting } else { Owner::Solid }
            }
            _ => Owner::Dangling,
        })
    }

    async fn delete(&self, node: &Node, uid: &str, params: DeleteParams) -> Result<()> {
        let api: Api<DynamicObject> = node.served.within(&self.ctx.client, &node.namespace);
        let params = params.preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let deleted = api.delete(&node.name, &params).await.during("delete", describe(node));
        // A different object of that name is none of our business.
        ignore_conflict(gone_is_none(deleted).map(drop))
    }

    async fn drop_owners(&self, node: &Node, uids: &[String]) -> Result<()> {
        self.rewrite(node, |object| {
            let owners: Vec<_> = object.owner_references().iter().filter(|o| !uids.contains(&o.uid)).cloned().collect();
            (owners.len() != object.owner_references().len()).then(|| json!({"ownerReferences": owners}))
        })
        .await
    }

    async fn drop_finalizer(&self, node: &Node, uid: &str, finalizer: &str) -> Result<()> {
        self.rewrite(node, |object| {
            let left: Vec<_> = object.finalizers().iter().filter(|f| *f != finalizer).cloned().collect();
            let ours = object.uid().as_deref() == Some(uid);
            (ours && left.len() != object.finalizers().len()).then(|| json!({"finalizers": left}))
        })
        .await
    }

    /// Changes the metadata of an object as it is now.
    async fn rewrite(&self, node: &Node, change: impl Fn(&Owned) -> Option<serde_json::Value>) -> Result<()> {
        let api: Api<Owned> = node.served.within(&self.ctx.client, &node.namespace);
        let Some(object) = api.get_opt(&node.name).await.during("read", describe(node))? else { return Ok(()) };
        let Some(mut metadata) = change(&object) else { return Ok(()) };
        metadata["uid"] = json!(object.uid());
        metadata["resourceVersion"] = json!(object.resource_version());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let patched = api.patch(&node.name, &PatchParams::default(), &patch).await.during("patch", describe(node));
        gone_is_none(patched).map(drop)
    }
}

fn describe(node: &Node) -> String {
    format!("{} {}/{}", node.served.group_resource(), node.namespace, node.name)
}

fn ignore_conflict(result: Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.code() == 409 => Ok(()),
        other => other,
    }
}
