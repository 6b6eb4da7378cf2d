//! The source of a snapshot: what is in the way of having it to oneself, its lock, and its guest's file systems.

use api::cdi::constants::phase as data_phase;
use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::VirtualMachineSnapshot;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::plan::{self, Guest};
use super::volumes::Used;
use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::vm_indexes;
use crate::patch;

/// What keeps `vm` from being snapshotted, whose volumes on claims are `used`, as clients know it.
pub(super) async fn obstacle(context: &Context, vm: &VirtualMachine, used: &[Used]) -> Result<Option<String>, Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    for volume in used {
        let claim = &volume.name;
        let data = |name: &str| context.stores.data_volumes.get(&Key::new(namespace.as_str(), name));
        let unfilled = |claim: &PersistentVolumeClaim| {
            let owner = claim.owner_references().iter().find(|owner| owner.kind == "DataVolume")?;
            let phase = data(&owner.name)?.status.and_then(|status| status.phase);
            (phase.as_deref() != Some(data_phase::SUCCEEDED)).then_some("volume not populated")
        };
        let why = match &volume.claim {
            None => Some("volume doesnt exist"),
            Some(found) if found.metadata.deletion_timestamp.is_some() => Some("volume is being deleted"),
            Some(found) if !is_bound(found) => Some("volume not bound"),
            Some(found) => unfilled(found),
        };
        if let Some(why) = why {
            return Ok(Some(format!("source {namespace}/{name} {why}: {claim}")));
        }
    }
    if used.is_empty() || context.stores.vmis.contains(&Key::of(vm)) {
        return Ok(None);
    }
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let pods = api.list(&ListParams::default()).await.map_err(Error::api("list", "pods", &namespace, ""))?;
    let using = pods.items.iter().filter(|pod| uses(pod, used)).count();
    let claims: Vec<&str> = used.iter().map(|volume| volume.name.as_str()).collect();
    Ok((using > 0).then(|| format!("source is offline but {using} pods using PVCs [{}]", claims.join(" "))))
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// True when `pod` may still write one of the claims.
fn uses(pod: &Pod, used: &[Used]) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut claims = volumes.filter_map(|volume| Some(&volume.persistent_volume_claim.as_ref()?.claim_name));
    !matches!(phase, "Succeeded" | "Failed") && claims.any(|claim| used.iter().any(|volume| volume.name == *claim))
}

/// Makes the source this snapshot's: it neither starts, stops nor goes meanwhile.
pub(super) async fn lock(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    vm: &VirtualMachine,
) -> Result<VirtualMachine, Error> {
    let vm = hold(context, vm, json!(snapshot.name_any())).await?;
    let finalizers = [vm.finalizers(), &[plan::PROTECTION.to_owned()]].concat();
    protect(context, &vm, &finalizers).await
}

/// Gives the source back, if it is this snapshot's.
pub(super) async fn unlock(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    vm: Option<&VirtualMachine>,
) -> Result<(), Error> {
    let Some(vm) = vm.filter(|vm| plan::is_locked(snapshot, vm)) else { return Ok(()) };
    let kept: Vec<String> = vm.finalizers().iter().filter(|held| *held != plan::PROTECTION).cloned().collect();
    let vm = if kept.len() == vm.finalizers().len() { vm.clone() } else { protect(context, vm, &kept).await? };
    match hold(context, &vm, Value::Null).await {
        // It has only been kept for this.
        Err(Error::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => Ok(()),
        outcome => outcome.map(drop),
    }
}

async fn protect(context: &Context, vm: &VirtualMachine, finalizers: &[String]) -> Result<VirtualMachine, Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let patch = json!({ "metadata": { "resourceVersion": vm.resource_version(), "finalizers": finalizers } });
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    Ok(remember(context, written.map_err(Error::api("protect", "virtualmachine", &namespace, &name))?))
}

async fn hold(context: &Context, vm: &VirtualMachine, holder: Value) -> Result<VirtualMachine, Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let patch = patch::status(vm.metadata.resource_version.as_deref(), &json!({ "snapshotInProgress": holder }));
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let written = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    Ok(remember(context, written.map_err(Error::api("lock", "virtualmachine", &namespace, &name))?))
}

fn remember(context: &Context, mut written: VirtualMachine) -> VirtualMachine {
    written.metadata.managed_fields = None;
    let words = vm_indexes(&written);
    context.stores.vms.put(&written, words);
    written
}

/// The guest of the source.
pub(super) fn guest(context: &Context, snapshot: &VirtualMachineSnapshot) -> Guest {
    let namespace = snapshot.namespace().unwrap_or_default();
    Guest::of(context.stores.vmis.get(&Key::new(namespace, snapshot.spec.source.name.as_str())).as_ref())
}

/// Has the guest's agent write out the file systems and hold them, as long as the snapshot may take; why it did not, if so.
pub(super) async fn freeze(context: &Context, snapshot: &VirtualMachineSnapshot) -> Option<String> {
    let left = plan::deadline(snapshot).map_or(0, |deadline| deadline.duration_since(clock::now()).as_secs().max(1));
    let options = if left > 0 { json!({ "unfreezeTimeout": format!("{left}s") }) } else { json!({}) };
    let error = ask(context, snapshot, "freeze", &options).await.err()?;
    let why = format!("server error. command Freeze failed: {}", Chain(&error));
    let key = Key::new(snapshot.namespace().unwrap_or_default(), snapshot.spec.source.name.as_str());
    if let Some(vmi) = context.stores.vmis.get(&key) {
        context.recorder.warning(&reference(&vmi), "FreezeError", why.clone());
    }
    Some(why)
}

/// Has the guest go on. One that was not frozen is none the worse for it; one that is not told goes on by itself in time.
/// What its agent says when it could not hold the file systems all the time.
pub(super) async fn thaw(context: &Context, snapshot: &VirtualMachineSnapshot) -> Option<String> {
    if !guest(context, snapshot).can_freeze() {
        return None;
    }
    let error = ask(context, snapshot, "unfreeze", &json!({})).await.err()?;
    let why = Chain(&error).to_string();
    tracing::warn!(vmi = %snapshot.spec.source.name, error = %why, "the guest's file systems were not thawed");
    why.contains(plan::FREEZE_LIMIT).then_some(why)
}

/// A request to a subresource of the instance.
async fn ask(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    verb: &'static str,
    body: &Value,
) -> Result<(), Error> {
    let (namespace, name) = (snapshot.namespace().unwrap_or_default(), &snapshot.spec.source.name);
    let path =
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{verb}");
    let request = http::Request::put(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).map_err(Error::setup("make a request"))?;
    let answer = context.client.request_text(request).await;
    answer.map(drop).map_err(Error::api(verb, "virtualmachineinstance", &namespace, name))
}
