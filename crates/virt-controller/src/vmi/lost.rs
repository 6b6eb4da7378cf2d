//! A machine whose node does not answer: finding out whether its disks are free, and giving it up.

pub mod fate;
pub mod fence;

use api::kubevirt::constants::phase;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kit::clock;
use kit::store::Key;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};

use fate::{Fate, fate};
use fence::Backing;

use super::{plan, status};
use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::nodes::{Lost, NODE_UNRESPONSIVE};
use crate::facts::{claims, instance, migration_state};
use crate::patch;

/// The node `vmi` is on, or its pod is bound to, when that node is lost. Of a machine that has ended it may be any node that
/// has a pod of it: the target of a migration, too.
pub(super) fn node(context: &Context, vmi: &VirtualMachineInstance, pods: &[Pod]) -> Option<(String, Lost)> {
    let own = vmi.status.as_ref().and_then(|status| status.node_name.clone()).filter(|name| !name.is_empty());
    let mut bound = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
    let lost = |node: String| context.stores.lost.get(&node).map(|lost| (node, lost));
    match own {
        Some(own) if instance::is_final(vmi) => lost(own).or_else(|| bound.find_map(lost)),
        Some(own) => lost(own),
        None => lost(bound.next()?),
    }
}

/// What becomes of `vmi` on the lost node.
pub(super) async fn decide(
    context: &Context,
    vmi: &VirtualMachineInstance,
    pods: &[Pod],
    node: &str,
    lost: &Lost,
) -> Result<Fate, Error> {
    let evicted = !pods.is_empty() && pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_some());
    let backings = backings(context, vmi, node, evicted).await?;
    let vm = context.stores.vms.get(&Key::of(vmi)).filter(|vm| {
        let uid = vm.metadata.uid.as_deref();
        vmi.owner_references().iter().any(|owner| Some(owner.uid.as_str()) == uid)
    });
    Ok(fate(vmi, vm.as_ref(), node, lost, &backings, &context.stores.nodes.list()))
}

/// Why `vmi`, which `migration` was moving to the node `target`, must not go on where it came from: that node is lost, may
/// run the guest, and may write a disk of it.
pub(crate) async fn held_at_target(
    context: &Context,
    vmi: &VirtualMachineInstance,
    migration: &VirtualMachineInstanceMigration,
    target: &str,
) -> Result<Option<String>, Error> {
    let own = migration_state::ours(vmi, migration.metadata.uid.as_deref().unwrap_or_default());
    let lost = context.stores.lost.get(target).filter(|lost| !lost.word);
    if lost.is_none() || !own.is_some_and(migration_state::unanswered) {
        return Ok(None);
    }
    let backings = backings(context, vmi, target, false).await?;
    let nodes = context.stores.nodes.list();
    Ok(backings.iter().find_map(|backing| {
        let hold = fence::hold_at_target(backing, target, &nodes)?;
        Some(fence::sentence_at_target(target, &backing.volume, hold))
    }))
}

/// Asked of the API server and not of a copy: this is rare, and the answer has to be true.
async fn backings(
    context: &Context,
    vmi: &VirtualMachineInstance,
    node: &str,
    evicted: bool,
) -> Result<Vec<Backing>, Error> {
    let claims = context.claims_of(vmi);
    let mut out = Vec::new();
    let mut attachments = None;
    for used in claims::written(vmi) {
        let claim = claims.get(used.claim);
        let mut backing = Backing {
            volume: used.volume.to_owned(),
            block: claim.is_some_and(claims::is_block),
            ..Backing::default()
        };
        let name = claim.and_then(|claim| claim.spec.as_ref()?.volume_name.clone()).unwrap_or_default();
        if !name.is_empty() {
            let api: Api<PersistentVolume> = Api::all(context.client.clone());
            backing.persistent = api.get_opt(&name).await.map_err(Error::api("read", "persistentvolume", "", &name))?;
        }
        let csi = backing.persistent.as_ref().and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
        if let Some(driver) = csi.map(|csi| csi.driver.clone()) {
            backing.attachable = attaches(context, &driver).await?;
            if attachments.is_none() {
                attachments = Some(attached_to(context, node).await?);
            }
            // Kubernetes has given the pod up, and detaches the volume before anybody else gets it; but not while the pod is
            // there.
            let passed_on = evicted && claim.is_some_and(claims::is_for_one_node);
            backing.attached = !passed_on && attachments.iter().flatten().any(|held| *held == name);
        }
        out.push(backing);
    }
    Ok(out)
}

/// Drivers attach unless their object says otherwise; one without an object attaches.
async fn attaches(context: &Context, driver: &str) -> Result<bool, Error> {
    let api: Api<CSIDriver> = Api::all(context.client.clone());
    let found = api.get_opt(driver).await.map_err(Error::api("read", "csidriver", "", driver))?;
    Ok(found.is_none_or(|found| found.spec.attach_required.unwrap_or(true)))
}

/// Names of the PersistentVolumes that are attached to `node`, or may be.
async fn attached_to(context: &Context, node: &str) -> Result<Vec<String>, Error> {
    let api: Api<VolumeAttachment> = Api::all(context.client.clone());
    let found = api.list(&ListParams::default()).await.map_err(Error::api("list", "volumeattachment", "", ""))?;
    let here = found.items.into_iter().filter(|attachment| attachment.spec.node_name == node);
    Ok(here.filter_map(|attachment| attachment.spec.source.persistent_volume_name).collect())
}

/// Fails `vmi`.
pub(crate) async fn give_up(context: &Context, vmi: &VirtualMachineInstance, node: &str) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let failed =
        plan::Plan { phase: Some(phase::FAILED), reason: Some(NODE_UNRESPONSIVE.to_owned()), ..Default::default() };
    let settings = context.settings();
    let now = clock::seconds(clock::now());
    let mut wanted = status::status(vmi, None, &failed, &settings, context.emulation(&settings), now);
    let said = format!("node {node} does not answer: the guest that was there is given up");
    status::cut_off(&mut wanted, &said, now);
    let old = vmi.status.as_deref().cloned().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(vmi.metadata.resource_version.as_deref(), &changed);
    let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map_err(Error::api("patch", "virtualmachineinstance", &namespace, &name))?;
    let said = format!("virt-handler on node {node} is not responsive, marking VMI as failed");
    context.recorder.warning(&reference(vmi), NODE_UNRESPONSIVE, said);
    Ok(())
}

/// Deletes those of `pods` that are on the lost node without waiting for its kubelet, which ends what is left of them
/// before it starts anything new.
pub(super) async fn forget_pods(context: &Context, key: &Key, pods: &mut Vec<Pod>, node: &str) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let there = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    for pod in pods.iter().filter(|pod| there(pod)) {
        let preconditions = Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None });
        let now = DeleteParams { grace_period_seconds: Some(0), preconditions, ..Default::default() };
        let name = pod.name_any();
        match api.delete(&name, &now).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(Error::api("delete", "pod", &key.namespace, &name)(error)),
        }
    }
    pods.retain(|pod| !there(pod));
    Ok(())
}
