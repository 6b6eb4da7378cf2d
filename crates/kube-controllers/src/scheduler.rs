//! The scheduler: binds every pod to the best node that can take it, as soon as it appears.
//!
//! ```text
//!  pod without node --> filter every node --> score --> assume in the store --> bind
//!         ^                   | none fits
//!         +-- wait for a change of nodes, pods or volumes; condition PodScheduled=False says why
//! ```
//!
//! Decisions are taken one after the other on a picture that already holds the earlier ones; binding runs beside them.

mod affinity;
mod cluster;
mod filter;
mod score;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::{During, Result, gone_is_none};
use crate::events::Severity;
use crate::queue::{Queue, Wake};
use crate::store::Key;
use crate::{clock, pod};
use cluster::Cluster;

const NAME: &str = "default-scheduler";

#[derive(Default)]
struct Picture {
    cluster: Cluster,
    /// Pods that fitted nowhere.
    stuck: HashSet<Key>,
}

struct Scheduler {
    ctx: Context,
    picture: Mutex<Picture>,
    queue: Queue<Key>,
}

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let scheduler = Arc::new(Scheduler { ctx: ctx.clone(), picture: Mutex::default(), queue: Queue::new() });
    let (nodes, pods) = (ctx.store::<Node>(), ctx.store::<Pod>());
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    let namespaces = ctx.store::<Namespace>();
    nodes.on_change({
        let scheduler = scheduler.clone();
        move |old, new| scheduler.node_changed(old, new)
    });
    pods.on_change({
        let scheduler = scheduler.clone();
        move |old, new| scheduler.pod_changed(old, new)
    });
    namespaces.on_change({
        let scheduler = scheduler.clone();
        move |old, new| scheduler.namespace_changed(old, new)
    });
    claims.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.retry_stuck()
    });
    volumes.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.retry_stuck()
    });
    nodes.synced().await;
    pods.synced().await;
    claims.synced().await;
    volumes.synced().await;
    namespaces.synced().await;
    scheduler.queue.work("scheduler", 32, |key| scheduler.schedule(key)).await;
}

/// A pod this scheduler is to place.
fn is_waiting(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    pod::node_name(pod).is_none()
        && pod::is_active(pod)
        && spec.and_then(|s| s.scheduler_name.as_deref()).is_none_or(|name| name == NAME || name.is_empty())
        && spec.and_then(|s| s.scheduling_gates.as_ref()).is_none_or(Vec::is_empty)
}

/// What of a node matters to placement; heartbeats and images do not.
fn offers(node: &Node) -> impl PartialEq + '_ {
    let status = node.status.as_ref();
    (&node.metadata.labels, &node.spec, status.and_then(|s| s.allocatable.as_ref()))
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retry_stuck(&self) {
        let stuck: Vec<Key> = self.lock().stuck.drain().collect();
        for key in stuck {
            self.queue.push(key);
        }
    }

    fn node_changed(&self, old: Option<&Arc<Node>>, new: Option<&Arc<Node>>) {
        let Some(name) = new.or(old).map(|node| node.name_any()) else { return };
        self.lock().cluster.set_node(&name, new.cloned());
        let same = old.zip(new).is_some_and(|(old, new)| offers(old) == offers(new));
        if !same {
            self.retry_stuck();
        }
    }

    fn namespace_changed(&self, old: Option<&Arc<Namespace>>, new: Option<&Arc<Namespace>>) {
        let Some(name) = new.or(old).map(|namespace| namespace.name_any()) else { return };
        let mut picture = self.lock();
        match new {
            Some(namespace) => {
                picture.cluster.namespaces.insert(name, pod::labels(namespace.meta()).clone());
            }
            None => {
                picture.cluster.namespaces.remove(&name);
            }
        }
    }

    fn pod_changed(&self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        self.lock().cluster.set_pod(old, new);
        if let Some(pod) = new.filter(|pod| is_waiting(pod)) {
            let relevant = old.is_none_or(|old| {
                !is_waiting(old) || old.spec != pod.spec || old.metadata.labels != pod.metadata.labels
            });
            if relevant {
                self.queue.push(Key::of(pod.as_ref()));
            }
            return;
        }
        let bound = |pod: &&Arc<Pod>| pod::node_name(pod).is_some() && !pod::is_finished(pod);
        let freed = old.filter(bound).is_some() && new.filter(bound).is_none();
        let relabelled = old.zip(new).is_some_and(|(old, new)| old.metadata.labels != new.metadata.labels);
        // A new neighbour can satisfy an affinity.
        let arrived = old.filter(bound).is_none() && new.filter(bound).is_some();
        if freed || relabelled || arrived {
            self.retry_stuck();
        }
    }

    async fn schedule(&self, key: Key) -> Result<Wake> {
        let pods = self.ctx.store::<Pod>();
        let Some(pod) = pods.get(&key).filter(|pod| is_waiting(pod)) else {
            self.lock().stuck.remove(&key);
            return Ok(Wake::OnChange);
        };
        match self.decide(&pod) {
            Ok(node) => {
                let mut assumed = Pod::clone(&pod);
                if let Some(spec) = &mut assumed.spec {
                    spec.node_name = Some(node.clone());
                }
                pods.assume(assumed);
                self.bind(&pod, &node).await
            }
            Err(why) => {
                self.lock().stuck.insert(key);
                self.report_stuck(&pod, &why).await
            }
        }
    }

    /// The best node, or why there is none.
    fn decide(&self, pod: &Pod) -> Result<String, String> {
        let Some(spec) = &pod.spec else { return Err("the pod has no spec".into()) };
        let picture = self.lock();
        let cluster = &picture.cluster;
        let count = cluster.nodes().count();
        let volumes = match self.volumes(pod) {
            Ok(volumes) => volumes,
            Err(why) if count > 0 => return Err(format!("0/{count} nodes are available: {why}.")),
            Err(_) => return Err(filter::summary(0, &[])),
        };
        let wanted = filter::Wanted::new(pod, spec, cluster, volumes);
        let mut reasons = Vec::new();
        let mut best: Option<(f64, &str)> = None;
        for (node, place) in cluster.nodes() {
            let against = filter::reasons(&wanted, node, place);
            if !against.is_empty() {
                reasons.push(against);
                continue;
            }
            let score = score::score(&wanted, node, place);
            if best.is_none_or(|(highest, _)| score > highest) {
                best = node.metadata.name.as_deref().map(|name| (score, name));
            }
        }
        best.map(|(_, name)| name.to_owned()).ok_or_else(|| filter::summary(count, &reasons))
    }

    /// The bound volumes of the pod's claims, or why the claims are not ready.
    fn volumes(&self, pod: &Pod) -> Result<Vec<filter::BoundVolume>, String> {
        let claims = self.ctx.store::<PersistentVolumeClaim>();
        let volumes = self.ctx.store::<PersistentVolume>();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => source.claim_name.clone(),
                (None, Some(_)) => format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name),
                (None, None) => continue,
            };
            let Some(claim) = claims.get(&Key::new(namespace, &name)) else {
                return Err(format!("persistentvolumeclaim {name:?} not found"));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
            let Some(bound) = bound else {
                return Err("pod has unbound immediate PersistentVolumeClaims".into());
            };
            if let Some(volume) = volumes.get(&Key::new("", bound)) {
                found.push(filter::BoundVolume(volume));
            }
        }
        Ok(found)
    }

    async fn bind(&self, pod: &Pod, node: &str) -> Result<Wake> {
        let key = Key::of(pod);
        let api: Api<Pod> = self.ctx.api(&key.namespace);
        let binding = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": pod.uid()},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        let params = PostParams::default();
        let bound: Result<Value, _> = api.create_subresource("binding", &key.name, &params, &binding).await;
        match bound.during("bind pod", &key) {
            Ok(_) => {
                let text = format!("Successfully assigned {key} to {node}");
                self.ctx.events.record(NAME, pod, Severity::Normal, "Scheduled", text);
                Ok(Wake::OnChange)
            }
            Err(error) => {
                self.forget_assumption(&api, pod).await?;
                Err(error)
            }
        }
    }

    /// Puts what the server has in place of what was assumed.
    async fn forget_assumption(&self, api: &Api<Pod>, pod: &Pod) -> Result<()> {
        let key = Key::of(pod);
        match api.get_opt(&key.name).await.during("read pod", &key)? {
            Some(mut current) => {
                crate::Cached::trim(&mut current);
                self.ctx.store::<Pod>().assume(current);
            }
            None => self.ctx.store::<Pod>().forget(&key, &pod.uid().unwrap_or_default()),
        }
        Ok(())
    }

    async fn report_stuck(&self, pod: &Pod, why: &str) -> Result<Wake> {
        let known = pod::condition(pod, "PodScheduled");
        if known.is_some_and(|c| c.status == "False" && c.message.as_deref() == Some(why)) {
            return Ok(Wake::OnChange);
        }
        self.ctx.events.record(NAME, pod, Severity::Warning, "FailedScheduling", why);
        let since = known.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
        let change = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": why, "lastTransitionTime": since.unwrap_or_else(clock::now)}]}});
        let key = Key::of(pod);
        let api: Api<Pod> = self.ctx.api(&key.namespace);
        let params = PatchParams::default();
        let patched = api.patch_status(&key.name, &params, &Patch::Strategic(&change)).await;
        if let Some(pod) = gone_is_none(patched.during("write status of pod", &key))? {
            self.ctx.store::<Pod>().observe(pod);
        }
        Ok(Wake::OnChange)
    }
}
