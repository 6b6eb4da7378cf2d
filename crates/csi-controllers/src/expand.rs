//! Grows volumes to what their claims ask for, with drivers that bring no resizer; the node's part is the node agent's.

mod plan;

pub(crate) use plan::conditions;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kit::clock;
use kit::controller::quantity::{self, Milli};
use kit::controller::{self, Context, Error, Result, write};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use rpc::csi;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use serde_json::json;

use self::plan::{IN_PROGRESS, INFEASIBLE, NODE_PENDING, Step};
use super::driver::{Driver, Fleet, worded};
use super::{capability, facts, secret};
use crate::sidecar::Function;

const COMPONENT: &str = "csi-resizer";
/// What the expand controller of Kubernetes calls itself: it leaves CSI volumes to their resizers.
const WAITING: &str = "volume_expand";
/// What cannot be done is tried again at this interval: the storage may have grown.
const RECONSIDER: i64 = 300;

/// Runs until the context's shutdown.
pub(super) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    claims.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(claim) = new.filter(|claim| wants_more(claim)) {
                queue.add(Key::of(claim.as_ref()));
            }
        }
    });
    let again = {
        let (queue, claims) = (queue.clone(), claims.clone());
        move || {
            for claim in claims.all().iter().filter(|claim| wants_more(claim)) {
                queue.add(Key::of(claim.as_ref()));
            }
        }
    };
    fleet.on_change(again);
    fleet.synced().await;
    claims.synced().await;
    volumes.synced().await;
    controller::work(&queue, "csi-resizer", 8, |key| reconcile(&ctx, &fleet, key)).await;
}

fn wants_more(claim: &PersistentVolumeClaim) -> bool {
    facts::phase(claim) == "Bound" && facts::requested(claim) > facts::has(claim)
}

async fn reconcile(ctx: &Context, fleet: &Fleet, key: Key) -> Result<Next> {
    let claim = ctx.store::<PersistentVolumeClaim>().get(&key).filter(|claim| wants_more(claim));
    let Some(claim) = claim.filter(|claim| !facts::is_leaving(claim.as_ref())) else { return Ok(Next::Wait) };
    let volume = ctx.store::<PersistentVolume>().get(&Key::new("", facts::volume_name(&claim)));
    let Some(volume) = volume.filter(|volume| facts::is_for(volume, &claim)) else { return Ok(Next::Wait) };
    let name = volume.spec.as_ref().and_then(|s| s.csi.as_ref()).map(|csi| csi.driver.clone());
    let Some(name) = name.filter(|name| fleet.serves(name, Function::Resizer)) else {
        if fleet.sidecar().is_some() {
            return Ok(Next::Wait);
        }
        let text = "waiting for an external controller to expand this PVC";
        ctx.events.record(WAITING, claim.as_ref(), Severity::Normal, "ExternalExpanding", text);
        return Ok(Next::Wait);
    };
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    if !fleet.is_ours(&name, None, affinity) {
        return Ok(Next::Wait);
    }
    let target = match plan::step(&claim, &volume) {
        Step::None => return Ok(Next::Wait),
        Step::Grow(target) | Step::Finish(target) => target,
    };
    if let Some(seconds) = plan::rests(&claim, &clock::time(), RECONSIDER) {
        return Ok(Next::After(Duration::from_secs(u64::try_from(seconds).unwrap_or(1))));
    }
    let driver = match fleet.reach(&name, None, affinity).await {
        Ok(driver) => driver,
        Err(status) => return Err(failed(ctx, &claim, &volume, &name, &worded(&status))),
    };
    if !driver.abilities.can(Can::ExpandVolume) && !driver.abilities.node_expands() {
        let text = format!("CSI driver {name} supports neither controller nor node volume expansion (EXPAND_VOLUME)");
        ctx.events.record(COMPONENT, claim.as_ref(), Severity::Warning, "VolumeResizeFailed", text);
        return Ok(Next::Wait);
    }
    begin(ctx, &claim, &volume, target).await?;
    match grow(ctx, &driver, &volume, target).await {
        Ok(grown) => {
            finish(ctx, &key, &volume, grown).await?;
            Ok(Next::Wait)
        }
        Err(status) => {
            let error = failed(ctx, &claim, &volume, &name, &worded(&status));
            let infeasible = plan::is_infeasible(status.code());
            refuse(ctx, &key, &worded(&status), infeasible).await?;
            if infeasible {
                return Ok(Next::After(Duration::from_secs(RECONSIDER.unsigned_abs())));
            }
            Err(error)
        }
    }
}

fn failed(ctx: &Context, claim: &PersistentVolumeClaim, volume: &PersistentVolume, driver: &str, why: &str) -> Error {
    let text = format!("resize volume {:?} by resizer {driver:?} failed: {why}", volume.name_any());
    ctx.events.record(COMPONENT, claim, Severity::Warning, "VolumeResizeFailed", text.clone());
    Error::Unfinished { object: Key::of(claim).to_string(), what: text }
}

/// Writes that the expansion is under way.
async fn begin(ctx: &Context, claim: &PersistentVolumeClaim, volume: &PersistentVolume, target: Milli) -> Result<()> {
    let wanted = quantity::format(target, true);
    let known = claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref()).and_then(|a| a.get("storage"));
    if plan::state(claim) == IN_PROGRESS && known == Some(&wanted) {
        return Ok(());
    }
    let resizing = json!({"type": "Resizing", "status": "True", "lastTransitionTime": clock::time()});
    let change = json!({"metadata": {"resourceVersion": claim.resource_version()}, "status": {
        "allocatedResources": {"storage": wanted}, "allocatedResourceStatuses": {"storage": IN_PROGRESS},
        "conditions": conditions(claim, &["Resizing", "ControllerResizeError"], Some(resizing))}});
    ctx.merge_status::<PersistentVolumeClaim>("begin to expand persistentvolumeclaim", &Key::of(claim), &change)
        .await?;
    let text = format!("External resizer is resizing volume {}", volume.name_any());
    ctx.events.record(COMPONENT, claim, Severity::Normal, "Resizing", text);
    Ok(())
}

/// What became of the controller's part.
struct Grown {
    size: Milli,
    /// Whether the node has to do its part.
    node: bool,
}

async fn grow(
    ctx: &Context,
    driver: &Driver,
    volume: &PersistentVolume,
    target: Milli,
) -> Result<Grown, tonic::Status> {
    let block = facts::volume_mode(volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref())) == "Block";
    if !driver.abilities.can(Can::ExpandVolume) {
        return Ok(Grown { size: target, node: true });
    }
    let Some(csi) = volume.spec.as_ref().and_then(|s| s.csi.as_ref()) else {
        return Err(tonic::Status::invalid_argument("the volume is no CSI volume"));
    };
    let secrets = secret::read(ctx, csi.controller_expand_secret_ref.as_ref()).await;
    let secrets = secrets.map_err(|error| tonic::Status::unavailable(error.message()))?;
    let capability = capability::of(volume, driver.abilities.can(Can::SingleNodeMultiWriter));
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: csi.volume_handle.clone(),
        capacity_range: Some(csi::CapacityRange { required_bytes: facts::bytes(target), limit_bytes: 0 }),
        secrets,
        volume_capability: Some(capability.map_err(tonic::Status::invalid_argument)?),
    };
    let answer = driver.client.clone().controller_expand_volume(request).await?.into_inner();
    let size = i128::from(answer.capacity_bytes) * 1000;
    let node = answer.node_expansion_required && (driver.abilities.node_expands() || !block);
    Ok(Grown { size: size.max(target), node })
}

/// Writes the volume's new size, and hands over to the node or declares the expansion done.
async fn finish(ctx: &Context, key: &Key, volume: &PersistentVolume, grown: Grown) -> Result<()> {
    let size = quantity::format(grown.size, true);
    if facts::capacity(volume) < grown.size {
        let change = json!({"spec": {"capacity": {"storage": size}}});
        write::merge::<PersistentVolume>(ctx, "write size of persistentvolume", &volume.name_any(), &change).await?;
    }
    let Some(claim) = ctx.store::<PersistentVolumeClaim>().get(key) else { return Ok(()) };
    let over = ["Resizing", "ControllerResizeError", "FileSystemResizePending"];
    let status = if grown.node {
        let text = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
        let pending = json!({"type": "FileSystemResizePending", "status": "True", "message": text, "lastTransitionTime": clock::time()});
        ctx.events.record(
            COMPONENT,
            claim.as_ref(),
            Severity::Normal,
            "FileSystemResizeRequired",
            "Require file system resize of volume on node",
        );
        json!({"allocatedResourceStatuses": {"storage": NODE_PENDING}, "conditions": conditions(&claim, &over, Some(pending))})
    } else {
        ctx.events.record(
            COMPONENT,
            claim.as_ref(),
            Severity::Normal,
            "VolumeResizeSuccessful",
            "Resize volume succeeded",
        );
        json!({"capacity": {"storage": size}, "allocatedResources": {"storage": size}, "allocatedResourceStatuses": null,
            "conditions": conditions(&claim, &over, None)})
    };
    let change = json!({"metadata": {"resourceVersion": claim.resource_version()}, "status": status});
    ctx.merge_status::<PersistentVolumeClaim>("write size of persistentvolumeclaim", key, &change).await
}

/// Writes that the expansion failed, and whether it can succeed at all.
async fn refuse(ctx: &Context, key: &Key, why: &str, infeasible: bool) -> Result<()> {
    let Some(claim) = ctx.store::<PersistentVolumeClaim>().get(key) else { return Ok(()) };
    let state = if infeasible { INFEASIBLE } else { IN_PROGRESS };
    let known = claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let said = known.iter().any(|c| c.type_ == "ControllerResizeError" && c.message.as_deref() == Some(why));
    if said && plan::state(&claim) == state {
        return Ok(());
    }
    let error =
        json!({"type": "ControllerResizeError", "status": "True", "message": why, "lastTransitionTime": clock::time()});
    let change = json!({"metadata": {"resourceVersion": claim.resource_version()}, "status": {
        "allocatedResourceStatuses": {"storage": state},
        "conditions": conditions(&claim, &["ControllerResizeError"], Some(error))}});
    ctx.merge_status::<PersistentVolumeClaim>("write failed expansion of persistentvolumeclaim", key, &change).await
}
