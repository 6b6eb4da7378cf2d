//! Nodes whose virt-handler is silent: no new guests, and the guests that were there are given up once their pods are.
//!
//! A guest is never given up on a guess: only when its pod is gone, or on its way out on a node that is not ready.

pub mod plan;

use api::kubevirt::{v1::VirtualMachineInstance, words::label};
use k8s_openapi::api::core::v1::Node;
use kit::{Chain, clock, queue::Next, store::Key};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use plan::Verdict;
use serde_json::json;

use crate::{
    context::{Context, node_word, owner_word},
    error::Error,
    patch, vmi,
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
    let verdict = match context.nodes.get(key) {
        Some(node) => plan::verdict(&node, clock::now()),
        None => Verdict { silent: true, dead: true, unschedulable: false, again: None },
    };
    if verdict.unschedulable {
        let api: Api<Node> = Api::all(context.client.clone());
        let patch = json!({ "metadata": { "labels": { (label::SCHEDULABLE): "false" } } });
        let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        written.map_err(Error::api("patch", "node", "", &key.name))?;
    }
    if verdict.silent && verdict.dead {
        for vmi in context.vmis.by_word(&node_word(&key.name)) {
            give_up(context, &key.name, &vmi).await?;
        }
    }
    Ok(verdict.again.map_or(Next::Wait, Next::After))
}

async fn give_up(context: &Context, node: &str, vmi: &VirtualMachineInstance) -> Result<(), Error> {
    if vmi::plan::is_final(vmi) {
        return Ok(());
    }
    let pods = context.pods.by_word(&owner_word(&vmi.uid().unwrap_or_default()));
    if pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_none()) {
        return Ok(());
    }
    let old = vmi.status.as_deref().cloned().unwrap_or_default();
    let plan = vmi::plan::Plan {
        phase: Some(api::kubevirt::words::phase::FAILED),
        reason: Some(format!("node {node} is not ready and its virt-handler is silent")),
        ..Default::default()
    };
    let settings = context.settings();
    let emulation = context.emulation(&settings);
    let wanted = vmi::status::status(vmi, None, &plan, &settings, emulation, clock::seconds(clock::now()));
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(vmi.metadata.resource_version.as_deref(), &changed);
    let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map(|_| ()).map_err(Error::api("patch", "virtualmachineinstance", &namespace, &name))
}
