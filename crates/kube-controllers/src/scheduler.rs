//! The scheduler: binds every pod to the best node that can take it, as soon as it appears.
//!
//! ```text
//!  backlog --> filter nodes --> score --> assume in the store --> bind
//!     ^             | none fits
//!     |             +--> preemption: victims are deleted, the pod is nominated for their node
//!     +-- a change that may help; condition PodScheduled=False says meanwhile why it waits
//! ```
//!
//! Decisions are taken one after the other, the most important pod first, on a picture that already holds the earlier
//! ones; what they lead to is written beside them.

mod affinity;
mod amounts;
mod backlog;
mod cluster;
mod cycle;
mod devices;
mod execute;
mod filter;
mod image;
mod preemption;
mod score;
mod spread;
mod terms;
mod verdict;
mod volumes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use kit::controller::pod;
use kit::store::Key;
use kube::{Resource, ResourceExt};
use tokio::sync::Semaphore;

use crate::context::Context;
use crate::devices::kinds::{DeviceClass, ResourceClaim, ResourceSlice};
use backlog::Backlog;
use cluster::{Cluster, priority};
use verdict::Event;

const NAME: &str = "default-scheduler";
/// How many decisions may be on their way to the API server.
const WRITES: usize = 128;

struct Scheduler {
    ctx: Context,
    picture: Mutex<Cluster>,
    backlog: Backlog,
    shelf: devices::Shelf,
    /// Where the search for nodes goes on, so that in a large cluster all have their turn.
    turn: std::sync::atomic::AtomicUsize,
}

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let scheduler = Arc::new(Scheduler {
        ctx: ctx.clone(),
        picture: Mutex::default(),
        backlog: Backlog::default(),
        shelf: devices::Shelf::default(),
        turn: std::sync::atomic::AtomicUsize::new(0),
    });
    listen(&scheduler).await;
    let writes = Arc::new(Semaphore::new(WRITES));
    // The semaphore is never closed.
    while let Ok(permit) = writes.clone().acquire_owned().await {
        let key = scheduler.backlog.next().await;
        let Some(decided) = scheduler.decide(&key) else { continue };
        // A pod may wait long for its volumes: others are not to wait with it.
        let permit = Some(permit).filter(|_| !decided.waits_for_volumes());
        let scheduler = scheduler.clone();
        ctx.spawn(async move {
            scheduler.execute(&key, decided).await;
            drop(permit);
        });
    }
}

/// Follows everything a decision looks at, and waits until all of it is known.
async fn listen(scheduler: &Arc<Scheduler>) {
    let ctx = &scheduler.ctx;
    let (nodes, pods) = (ctx.store::<Node>(), ctx.store::<Pod>());
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    let namespaces = ctx.store::<Namespace>();
    let budgets = ctx.store::<PodDisruptionBudget>();
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
        move |_, _| scheduler.backlog.happened(Event::Volume)
    });
    volumes.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.backlog.happened(Event::Volume)
    });
    let (classes, drivers) = (ctx.store::<StorageClass>(), ctx.store::<CSIDriver>());
    let (registered, capacities) = (ctx.store::<CSINode>(), ctx.store::<CSIStorageCapacity>());
    classes.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.backlog.happened(Event::Volume)
    });
    registered.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.backlog.happened(Event::Volume)
    });
    capacities.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.backlog.happened(Event::Volume)
    });
    listen_to_devices(scheduler).await;
    classes.synced().await;
    drivers.synced().await;
    registered.synced().await;
    capacities.synced().await;
    nodes.synced().await;
    pods.synced().await;
    claims.synced().await;
    volumes.synced().await;
    namespaces.synced().await;
    budgets.synced().await;
}

/// The same, for claims of devices.
async fn listen_to_devices(scheduler: &Arc<Scheduler>) {
    let ctx = &scheduler.ctx;
    let (claims, slices, classes) =
        (ctx.store::<ResourceClaim>(), ctx.store::<ResourceSlice>(), ctx.store::<DeviceClass>());
    claims.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.backlog.happened(Event::Device)
    });
    slices.on_change({
        let scheduler = scheduler.clone();
        move |_, _| {
            scheduler.shelf.clear();
            scheduler.backlog.happened(Event::Device);
        }
    });
    classes.on_change({
        let scheduler = scheduler.clone();
        move |_, _| scheduler.backlog.happened(Event::Device)
    });
    claims.synced().await;
    slices.synced().await;
    classes.synced().await;
}

/// A pod this scheduler is to place.
fn is_waiting(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    pod::node_name(pod).is_none()
        && pod::is_active(pod)
        && spec.and_then(|s| s.scheduler_name.as_deref()).is_none_or(|name| name == NAME || name.is_empty())
        && spec.and_then(|s| s.scheduling_gates.as_ref()).is_none_or(Vec::is_empty)
}

/// The claims that were made for a pod.
fn claims_made(pod: &Pod) -> impl PartialEq + '_ {
    pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref())
}

/// What of a node matters to placement; heartbeats do not.
fn offers(node: &Node) -> impl PartialEq + '_ {
    let status = node.status.as_ref();
    (&node.metadata.labels, &node.spec, status.and_then(|s| s.allocatable.as_ref()))
}

impl Scheduler {
    fn picture(&self) -> MutexGuard<'_, Cluster> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node_changed(&self, old: Option<&Arc<Node>>, new: Option<&Arc<Node>>) {
        let Some(name) = new.or(old).map(|node| node.name_any()) else { return };
        self.picture().set_node(&name, new.cloned());
        let same = old.zip(new).is_some_and(|(old, new)| offers(old) == offers(new));
        if !same {
            self.backlog.happened(Event::Node);
        }
    }

    fn namespace_changed(&self, old: Option<&Arc<Namespace>>, new: Option<&Arc<Namespace>>) {
        let Some(name) = new.or(old).map(|namespace| namespace.name_any()) else { return };
        let mut picture = self.picture();
        let changed = match new {
            Some(namespace) => {
                let labels = pod::labels(namespace.meta()).clone();
                picture.namespaces.insert(name, labels.clone()) != Some(labels)
            }
            None => picture.namespaces.remove(&name).is_some(),
        };
        drop(picture);
        if changed {
            // The pods in it may be neighbours now that were none.
            self.backlog.happened(Event::PodArrived);
        }
    }

    fn pod_changed(&self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        self.picture().set_pod(old, new);
        if let Some(pod) = new.filter(|pod| is_waiting(pod)) {
            let relevant = old.is_none_or(|old| {
                !is_waiting(old)
                    || old.spec != pod.spec
                    || old.metadata.labels != pod.metadata.labels
                    || claims_made(old) != claims_made(pod)
                    || old.metadata.uid != pod.metadata.uid
            });
            if relevant {
                self.backlog.add(&Key::of(pod.as_ref()), priority(pod));
            }
            return;
        }
        if let Some(pod) = old.filter(|pod| is_waiting(pod)) {
            self.backlog.remove(&Key::of(pod.as_ref()));
        }
        let bound = |pod: &&Arc<Pod>| pod::node_name(pod).is_some() && !pod::is_finished(pod);
        let relabelled = old.zip(new).is_some_and(|(old, new)| old.metadata.labels != new.metadata.labels);
        // One that goes is no neighbour any more, though it still holds its resources.
        let going = old.zip(new).is_some_and(|(old, new)| !pod::is_terminating(old) && pod::is_terminating(new));
        let shrunk = old.zip(new).is_some_and(|(old, new)| old.spec != new.spec || amounts::shrank(old, new));
        // A pod that waited for its victims gives up its claim on the room.
        let gave_up = old.and_then(|old| cluster::nominated_node(old)).is_some() && new.is_none();
        if (old.filter(bound).is_some() && new.filter(bound).is_none()) || going || shrunk || gave_up {
            self.backlog.happened(Event::PodLeft);
        }
        if relabelled || (old.filter(bound).is_none() && new.filter(bound).is_some()) {
            self.backlog.happened(Event::PodArrived);
        }
    }
}
