//! Nodes that do not answer: no new guests, and the guests that were there are given up as far as their disks allow.
//!
//! ```text
//!  leases --> renewals (who is heard) --+
//!                                    +--> lost? --> stores.lost --> the machines on the node (vmi::lost)
//!  nodes: Ready, taints -------------+
//!         heartbeat of virt-handler ----> schedulable?
//! ```
//! A node whose virt-handler alone is silent takes no new guests; its guests run on, and those whose pods have gone as well
//! have ended.

pub mod plan;
pub mod renewals;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::kubevirt::constants::label;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kit::{Chain, Task, clock};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use renewals::{Renewals, Sound};
use serde_json::json;
use tokio::time::Instant;

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::{node_index, owner_index, pod_indexes};
use crate::facts::instance;
use crate::facts::nodes::{Lost, NODE_UNRESPONSIVE};
use crate::setup::Setup;
use crate::vmi;

/// Where kubelets renew their leases.
const NODE_LEASES: &str = "kube-node-lease";

/// What it works with.
#[derive(Clone)]
struct Nodes {
    context: Context,
    /// Whose leases are renewed.
    renewals: Arc<Mutex<Renewals>>,
}

impl Nodes {
    fn renewals(&self) -> MutexGuard<'_, Renewals> {
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has nodes looked after.
pub(crate) fn register(setup: &mut Setup) {
    let own = Nodes { context: setup.context.clone(), renewals: Arc::default() };
    let queue = Queue::default();
    setup.changes.nodes.wake(&queue, |_, change| [change.key.clone()]);
    setup.keep(leases(&own, &queue));
    let stores = own.context.stores.clone();
    let known = async move {
        tokio::join!(stores.nodes.synced(), stores.vmis.synced(), stores.pods.synced(), stores.kubevirts.synced());
    };
    setup.work(queue, 1, known, move |key| reconcile(own.clone(), key));
}

/// Leases are not kept: only that one was renewed matters.
fn leases(own: &Nodes, queue: &Queue<Key>) -> Task<()> {
    let api = Api::<Lease>::namespaced(own.context.client.clone(), NODE_LEASES);
    let (own, queue) = (own.clone(), queue.clone());
    store::watch(api, Watch::default(), Store::default(), move |change| {
        let node = &change.key.name;
        let renewal = change.new.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
        let Some(renewal) = renewal else { return own.renewals().forget(node) };
        let news = own.renewals().hear(node, &renewal.0.to_string(), Instant::now());
        if news && own.context.stores.lost.get(node).is_some() {
            queue.add(Key::new("", node.as_str()));
        }
    })
}

/// Looks at one node.
async fn reconcile(own: Nodes, key: Key) -> Next {
    match Box::pin(sync(&own, &key)).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(node = %key, error = %Chain(&error), "node not reconciled");
            Next::Retry
        }
    }
}

async fn sync(own: &Nodes, key: &Key) -> Result<Next, Error> {
    let context = &own.context;
    let Some(node) = context.stores.nodes.get(key) else {
        context.stores.lost.set(&key.name, None);
        return abandoned(context, &key.name).await.map(|()| Next::Wait);
    };
    let now = Instant::now();
    let (sound, renews) = {
        let renewals = own.renewals();
        (renewals.sound(&key.name, now), renewals.renews(&key.name, now))
    };
    // All nodes are looked at only where one is suspected.
    let lost = plan::lost(&node, sound, renews).filter(|lost| lost.word || has_company(own, &key.name, now));
    let changed = context.stores.lost.set(&key.name, lost.as_ref());
    if changed {
        announce(context, &node, lost.as_ref());
    }
    let verdict = plan::verdict(&node, clock::now());
    let mut kept_away = Ok(());
    // The way back is virt-handler's, with its next heartbeat: a node that is back without it takes no guests.
    if verdict.schedulable && (lost.is_some() || verdict.silent) {
        kept_away = keep_away(context, &key.name).await;
    }
    // Told also where that failed: the next look has no news.
    if changed {
        machines(context, &key.name).into_iter().for_each(|vmi| context.stores.stranded.send(vmi));
    }
    kept_away?;
    if verdict.silent && verdict.dead {
        abandoned(context, &key.name).await?;
    }
    let again = match sound {
        Sound::Heard(left) => left,
        Sound::Unknown(wait) => wait,
        Sound::Silent => renewals::GAP,
    };
    Ok(Next::After(verdict.again.map_or(again, |other| other.min(again))))
}

/// Has the node take no new guests.
async fn keep_away(context: &Context, name: &str) -> Result<(), Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    let patch = json!({ "metadata": { "labels": { (label::SCHEDULABLE): "false" } } });
    let written = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map(drop).map_err(Error::api("patch", "node", "", name))
}

/// Another node is well, and heard.
fn has_company(own: &Nodes, name: &str, now: Instant) -> bool {
    let others = own.context.stores.nodes.list();
    let renewals = own.renewals();
    let well =
        |node: &Node| plan::ready(node) == "True" && matches!(renewals.sound(&node.name_any(), now), Sound::Heard(_));
    others.iter().any(|node| node.name_any() != name && well(node))
}

fn announce(context: &Context, node: &Node, lost: Option<&Lost>) {
    let name = node.name_any();
    match lost {
        Some(Lost { word }) => {
            tracing::warn!(node = name, word, "the node does not answer");
            let said = "virt-handler is not responsive, marking node as unresponsive";
            context.recorder.warning(&reference(node), NODE_UNRESPONSIVE, said);
        }
        None => tracing::info!(node = name, "the node answers"),
    }
}

/// The machines on `node`, also those that are just being started there.
fn machines(context: &Context, node: &str) -> Vec<Key> {
    let mut out = context.stores.vmis.keys_by_index(&node_index(node));
    let pods = context.stores.pods.list();
    let there = pods.iter().filter(|pod| pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node));
    out.extend(there.flat_map(pod_indexes).flat_map(|word| context.stores.vmis.keys_by_index(&word)));
    out
}

/// Machines of a node that is gone, or silent for long, have ended once their pods have.
async fn abandoned(context: &Context, node: &str) -> Result<(), Error> {
    for vmi in context.stores.vmis.by_index(&node_index(node)) {
        let pods = context.stores.pods.by_index(&owner_index(&vmi.uid().unwrap_or_default()));
        let ended = pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_some());
        if ended && !instance::is_final(&vmi) {
            vmi::lost::give_up(context, &vmi, node).await?;
        }
    }
    Ok(())
}
