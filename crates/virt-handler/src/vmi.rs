//! Every VMI of this node, from hand-over to the end of its guest.
//!
//! ```text
//!  VMI watch ---\                                  /--> launcher: Sync, Shutdown, Kill
//!                +-> queue -> reconcile -> steps -+
//!  DomainState -/      one key at a time           \--> one status patch, computed from the newest of both
//! ```
//! What a [`Guest`] holds can be rebuilt: after a restart this process connects again, plugs what is plugged already and
//! hands the same VMI to the launcher, which has it running. The guest notices nothing.

mod execute;
mod guest;
mod handover;
pub(crate) mod incoming;
mod launcher_state;
mod memory_dump;
pub(crate) mod migration_metrics;
mod outgoing;
mod plan;
mod pod;
mod status;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::kubevirt::constants::label;
use api::kubevirt::v1::VirtualMachineInstance;
use kit::Task;
use kit::backoff::Backoff;
use kit::events::Recorder;
use kit::queue::Queue;
use kit::shutdown::CancellationToken;
use kit::store::{self, Key, Store, Watch};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::task::JoinSet;

use crate::launcher::Pods;
use crate::migration::{Arrivals, Road};
use crate::network;
use crate::settings::Watched;

use guest::Guest;

/// What every part of this process shares; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context(pub Arc<Inner>);

/// See [`Context`].
pub(crate) struct Inner {
    /// This node.
    pub node: String,
    /// The API server.
    pub client: Client,
    /// Events.
    pub recorder: Recorder,
    /// The pods of this node.
    pub pods: Pods,
    /// Where the pods' links are recorded.
    pub records: PathBuf,
    /// Why KVM is not usable on this node, if it is not.
    pub no_kvm: Option<String>,
    /// The model of this node's processors as libvirt names it; none when it could not tell.
    pub host_model: Option<String>,
    /// What the administrator chose.
    pub settings: Watched,
    /// VMIs of this node.
    pub vmis: Store<VirtualMachineInstance>,
    /// VMIs that are to come here from other nodes.
    pub arriving: Store<VirtualMachineInstance>,
    /// Migrations whose streams are taken.
    pub arrivals: Arrivals,
    /// The way to other nodes.
    pub road: Arc<Road>,
    /// Keys to look at.
    pub queue: Queue<Key>,
    guests: Mutex<HashMap<Key, Arc<Guest>>>,
}

impl std::ops::Deref for Context {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// A context with nothing in it yet.
    pub(crate) fn new(
        node: String,
        pods: Pods,
        records: PathBuf,
        no_kvm: Option<String>,
        host_model: Option<String>,
        road: Road,
    ) -> Self {
        let client = road.client.clone();
        Self {
            recorder: Recorder::new(client.clone(), "virt-handler", &node),
            node,
            client,
            pods,
            records,
            no_kvm,
            host_model,
            settings: Watched::default(),
            vmis: Store::default(),
            arriving: Store::default(),
            arrivals: Arrivals::default(),
            road: Arc::new(road),
            queue: Queue::new(PATIENCE),
            guests: Mutex::default(),
        }
    }

    fn guests(&self) -> MutexGuard<'_, HashMap<Key, Arc<Guest>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The VMI under `key`, if it is this node's or to become so.
    pub(crate) fn vmi(&self, key: &Key) -> Option<VirtualMachineInstance> {
        self.vmis.get(key).or_else(|| self.arriving.get(key))
    }

    /// What is held of a VMI, from now on if nothing is.
    pub(crate) fn guest_or_new(&self, key: &Key, uid: &str) -> Arc<Guest> {
        self.guests().entry(key.clone()).or_insert_with(|| Arc::new(Guest::of(uid))).clone()
    }

    /// The guest of a VMI, if it has been taken over.
    pub(crate) fn guest(&self, key: &Key) -> Option<Arc<Guest>> {
        self.guests().get(key).cloned()
    }
}

/// A guest that waits for the lock of its disk, or for its image, is tried again before anybody wonders.
const PATIENCE: Backoff = Backoff { base: Duration::from_millis(50), max: Duration::from_secs(5) };

/// Watches and works until `stop`.
pub(crate) fn start(context: &Context, stop: &CancellationToken) -> Vec<Task<()>> {
    let follow = |label: &str, store: &Store<VirtualMachineInstance>| {
        let config = watcher::Config::default().labels(&format!("{label}={}", context.node));
        let queue = context.queue.clone();
        store::watch(
            Api::all(context.client.clone()),
            Watch { config, trim: |_| {}, index: |_| Vec::new() },
            store.clone(),
            move |change| queue.add(change.key.clone()),
        )
    };
    let mut tasks =
        Vec::from([follow(label::NODE_NAME, &context.vmis), follow(label::MIGRATION_TARGET_NODE, &context.arriving)]);
    let forgetting = network::forget_gone(context.records.clone(), context.pods.clone());
    tasks.push(kit::spawn("records", forgetting));
    tasks.push(kit::spawn("vmis", work(context.clone(), stop.clone())));
    tasks
}

/// Looks at each guest in a task of its own: one whose launcher takes its time to answer is waited for by nobody else.
async fn work(context: Context, stop: CancellationToken) {
    let mut looking = JoinSet::new();
    loop {
        tokio::select! {
            key = context.queue.next() => {
                let context = context.clone();
                looking.spawn(async move {
                    let next = execute::reconcile(&context, &key).await;
                    context.queue.done(&key, next);
                });
            }
            Some(ended) = looking.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "looking at a guest ended early");
                }
            }
            () = stop.cancelled() => return,
        }
    }
}
