//! Nodes that do not answer: no new guests, and the guests that were there are given up as far as their disks allow.
//!
//! ```text
//!  leases --> renewals (who is heard) --+
//!                                    +--> lost? --> context.lost --> the machines on the node (vmi::lost)
//!  nodes: Ready, taints -------------+
//!         heartbeat of virt-handler ----> schedulable?
//! ```
//! A node whose virt-handler alone is silent takes no new guests; its guests run on, and those whose pods have gone as well
//! have ended.

pub mod plan;

use api::kubevirt::constants::label;
use k8s_openapi::api::core::v1::Node;
use kit::{Chain, clock, queue::Next, store::Key};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    context::{Context, reference},
    error::Error,
    facts::{
        index::{migration_index, node_index, owner_index, pod_indexes},
        instance,
        nodes::{Lost, NODE_UNRESPONSIVE},
    },
    renewals::{self, Sound},
    vmi,
};

/// Looks at one node.
pub async fn reconcile(context: Context, key: Key) -> Next {
    match Box::pin(sync(&context, &key)).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(node = %key, error = %Chain(&error), "node not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(node) = context.stores.nodes.get(key) else {
        context.stores.lost.set(&key.name, None);
        return abandoned(context, &key.name).await.map(|()| Next::Wait);
    };
    let now = Instant::now();
    let (sound, renews) = {
        let renewals = context.renewals();
        (renewals.sound(&key.name, now), renewals.renews(&key.name, now))
    };
    // All nodes are looked at only where one is suspected.
    let lost = plan::lost(&node, sound, renews).filter(|lost| lost.word || has_company(context, &key.name, now));
    let changed = context.stores.lost.set(&key.name, lost.as_ref());
    if changed {
        announce(context, &node, lost.as_ref());
    }
    let verdict = plan::verdict(&node, clock::now());
    // The way back is virt-handler's, with its next heartbeat: a node that is back without it takes no guests.
    if verdict.schedulable && (lost.is_some() || verdict.silent) {
        let api: Api<Node> = Api::all(context.client.clone());
        let patch = json!({ "metadata": { "labels": { (label::SCHEDULABLE): "false" } } });
        let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        written.map_err(Error::api("patch", "node", "", &key.name))?;
    }
    if changed {
        for key in machines(context, &key.name) {
            context.migration_queue.add_all(context.stores.migrations.keys_by_index(&migration_index(&key)));
            context.vmi_queue.add(key);
        }
    }
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

/// Another node is well, and heard.
fn has_company(context: &Context, name: &str, now: Instant) -> bool {
    let others = context.stores.nodes.list();
    let renewals = context.renewals();
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
