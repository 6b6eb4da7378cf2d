//! Binds claims and volumes to one another and keeps both sides' phases true: carries out [`super::plan`].
//!
//! A binding is written in four steps, each of which leaves a state the next round completes: the volume names the claim,
//! the volume is Bound, the claim names the volume, the claim is Bound.

use std::sync::Arc;
use std::time::Duration;

use csi_controllers::facts;
use csi_controllers::names::{BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONER};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::clock;
use kit::controller::{self, During, Result, pod, write};
use kit::events::Severity;
use kit::queue::{self, Next, Queue};
use kit::store::Key;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::plan::{self, ClaimStep, Note, Reclaim, VolumeStep, World};
use super::turned::Turned;
use crate::context::Context;
use crate::protection::claims_of;

const COMPONENT: &str = "persistentvolume-controller";

/// Runs until the context's shutdown.
pub(super) async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    let (classes, pods) = (ctx.store::<StorageClass>(), ctx.store::<Pod>());
    let unbound = {
        let (queue, claims) = (queue.clone(), claims.clone());
        move || {
            for claim in claims.all().iter().filter(|claim| !facts::is_bound(claim)) {
                queue.add(Key::of(claim.as_ref()));
            }
        }
    };
    claims.on_change({
        let queue = queue.clone();
        move |old, new| {
            let Some(claim) = new.or(old) else { return };
            if new.is_some() {
                queue.add(Key::of(claim.as_ref()));
            }
            if !facts::volume_name(claim).is_empty() {
                queue.add(Key::new("", facts::volume_name(claim)));
            }
        }
    });
    volumes.on_change({
        let (queue, unbound) = (queue.clone(), unbound.clone());
        move |old, new| {
            let Some(volume) = new.or(old) else { return };
            if new.is_some() {
                queue.add(Key::of(volume.as_ref()));
            }
            // A claim whose volume was given to another has lost it.
            for reference in [old, new].into_iter().flatten().filter_map(|volume| facts::claim_ref(volume)) {
                queue.add(claim_key(reference));
            }
            if facts::claim_ref(volume).is_none() {
                unbound();
            }
        }
    });
    classes.on_change(move |_, _| unbound());
    claims.synced().await;
    volumes.synced().await;
    classes.synced().await;
    pods.synced().await;
    let turned = Turned::default();
    controller::work(&queue, "persistentvolume", 8, |key| reconcile(&ctx, &queue, &turned, key)).await;
}

fn claim_key(reference: &k8s_openapi::api::core::v1::ObjectReference) -> Key {
    Key::new(reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default())
}

async fn reconcile(ctx: &Context, queue: &Queue<Key>, turned: &Turned, key: Key) -> Result<Next> {
    if key.namespace.is_empty() {
        let Some(volume) = ctx.store::<PersistentVolume>().get(&key) else { return Ok(Next::Wait) };
        return sync_volume(ctx, queue, &volume).await;
    }
    let Some(claim) = ctx.store::<PersistentVolumeClaim>().get(&key) else {
        turned.forget(&key);
        return Ok(Next::Wait);
    };
    sync_claim(ctx, turned, &claim).await
}

async fn sync_claim(ctx: &Context, turned: &Turned, claim: &PersistentVolumeClaim) -> Result<Next> {
    let key = Key::of(claim);
    let (volumes, classes) = (ctx.store::<PersistentVolume>().all(), ctx.store::<StorageClass>().all());
    let mut consumers = ctx.store::<Pod>().in_namespace(&key.namespace);
    consumers.retain(|pod| !pod::is_finished(pod) && claims_of(pod).contains(&key.name));
    let step = plan::claim(claim, World { volumes: &volumes, classes: &classes, consumers: &consumers });
    // One that is going away must not take a volume with it.
    if facts::is_leaving(claim) && !matches!(&step, ClaimStep::Bind(volume) if facts::is_for(volume, claim)) {
        return Ok(Next::Wait);
    }
    match step {
        ClaimStep::Wait(note) => {
            if facts::phase(claim) != "Pending" {
                set_status(ctx, claim, &json!({"phase": "Pending", "accessModes": null, "capacity": null})).await?;
            }
            if let Some(note) = note {
                record(ctx, claim, note);
            }
        }
        ClaimStep::TakeClass(class) => {
            let change =
                json!({"metadata": {"resourceVersion": claim.resource_version()}, "spec": {"storageClassName": class}});
            ctx.merge::<PersistentVolumeClaim>("set the class of persistentvolumeclaim", &key, &change).await?;
        }
        ClaimStep::Provision(provisioner) => {
            if PROVISIONER.iter().any(|name| facts::annotation(claim, name) != provisioner) {
                let annotations: serde_json::Map<String, Value> =
                    PROVISIONER.iter().map(|name| ((*name).to_owned(), provisioner.clone().into())).collect();
                let change =
                    json!({"metadata": {"resourceVersion": claim.resource_version(), "annotations": annotations}});
                ctx.merge::<PersistentVolumeClaim>("name the provisioner of persistentvolumeclaim", &key, &change)
                    .await?;
            }
            let text = plan::waiting_for(&provisioner);
            ctx.events.record(COMPONENT, claim, Severity::Normal, "ExternalProvisioning", text);
        }
        ClaimStep::Bind(volume) => {
            turned.forget(&key);
            bind(ctx, claim, &volume).await?;
        }
        ClaimStep::Lose(reason, text) => {
            let news = facts::phase(claim) != "Lost";
            if news {
                set_status(ctx, claim, &json!({"phase": "Lost", "accessModes": null, "capacity": null})).await?;
            }
            let left = match (reason, news) {
                (plan::MISBOUND, true) => Some(turned.note(&key, Instant::now())),
                (plan::MISBOUND, false) => turned.due(&key, Instant::now()),
                (_, news) => news.then_some(Duration::ZERO),
            };
            match left {
                Some(Duration::ZERO) => ctx.events.record(COMPONENT, claim, Severity::Warning, reason, text),
                Some(left) => return Ok(Next::After(left)),
                None => {}
            }
        }
    }
    Ok(Next::Wait)
}

fn record(ctx: &Context, claim: &PersistentVolumeClaim, note: Note) {
    ctx.events.record(COMPONENT, claim, note.severity, note.reason, note.message);
}

async fn set_status(ctx: &Context, claim: &PersistentVolumeClaim, status: &Value) -> Result<()> {
    let change = json!({"metadata": {"resourceVersion": claim.resource_version()}, "status": status});
    ctx.merge_status::<PersistentVolumeClaim>("write status of persistentvolumeclaim", &Key::of(claim), &change).await
}

/// Completes a binding from wherever it stands.
async fn bind(ctx: &Context, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<()> {
    let (key, name) = (Key::of(claim), volume.name_any());
    if let Some(change) = claim_reference(claim, volume) {
        write::merge::<PersistentVolume>(ctx, "bind persistentvolume", &name, &change).await?;
    }
    set_phase(ctx, &name, "Bound", None).await?;
    let mut current = Some(claim.clone());
    let chosen = facts::volume_name(claim).is_empty();
    if chosen || facts::annotation(claim, BIND_COMPLETED).is_empty() {
        let mut annotations = json!({BIND_COMPLETED: "yes"});
        if chosen {
            annotations[BOUND_BY_CONTROLLER] = "yes".into();
        }
        let change = json!({"metadata": {"resourceVersion": claim.resource_version(), "annotations": annotations},
            "spec": {"volumeName": name}});
        current = ctx.merge("bind persistentvolumeclaim", &key, &change).await?;
    }
    let Some(current) = current else { return Ok(()) };
    let mut status = json!({});
    if facts::phase(&current) != "Bound" {
        // Later the claim's size follows expansions, not the volume.
        status["phase"] = "Bound".into();
        status["capacity"] = json!(volume.spec.as_ref().and_then(|s| s.capacity.clone()));
        if !facts::attributes_class_of_volume(volume).is_empty() {
            status["currentVolumeAttributesClassName"] = facts::attributes_class_of_volume(volume).into();
        }
    }
    let modes = current.status.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    if modes != facts::modes_of_volume(volume) {
        status["accessModes"] = json!(facts::modes_of_volume(volume));
    }
    if status.as_object().is_some_and(|map| !map.is_empty()) {
        set_status(ctx, &current, &status).await?;
    }
    Ok(())
}

/// What makes the volume name exactly this claim; `None` when it does.
fn claim_reference(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Value> {
    let known = facts::claim_ref(volume);
    if known.is_some_and(|known| known.uid.is_some() && known.uid == claim.metadata.uid) {
        return None;
    }
    let mut change = json!({"metadata": {"resourceVersion": volume.metadata.resource_version},
        "spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
            "name": claim.metadata.name, "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}}});
    if known.is_none() {
        change["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
    }
    Some(change)
}

async fn set_phase(ctx: &Context, name: &str, phase: &str, message: Option<&str>) -> Result<()> {
    let known = ctx.store::<PersistentVolume>().get(&Key::new("", name));
    if known.as_ref().is_none_or(|volume| facts::volume_phase(volume) == phase) {
        return Ok(());
    }
    let status = json!({"phase": phase, "message": message, "reason": null, "lastPhaseTransitionTime": clock::time()});
    let change = json!({"metadata": {"resourceVersion": known.and_then(|v| v.resource_version())}, "status": status});
    write::merge_status::<PersistentVolume>(ctx, "write status of persistentvolume", name, &change).await?;
    Ok(())
}

async fn sync_volume(ctx: &Context, queue: &Queue<Key>, volume: &PersistentVolume) -> Result<Next> {
    let name = volume.name_any();
    let reference = facts::claim_ref(volume).map(claim_key);
    let claim = reference.as_ref().and_then(|key| ctx.store::<PersistentVolumeClaim>().get(key));
    match plan::volume(volume, claim.as_deref()) {
        VolumeStep::Phase(phase) => set_phase(ctx, &name, phase, None).await?,
        VolumeStep::WakeClaim => {
            if let Some(key) = reference {
                queue.add(key);
            }
        }
        VolumeStep::Mismatch => {
            let text = format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
                claim.map(|c| c.name_any()).unwrap_or_default()
            );
            ctx.events.record(COMPONENT, volume, Severity::Warning, "VolumeMismatch", text);
        }
        VolumeStep::Free { forget_name } => {
            let reference = if forget_name { json!(null) } else { json!({"uid": null, "resourceVersion": null}) };
            let change = json!({"metadata": {"resourceVersion": volume.resource_version(), "annotations": {BOUND_BY_CONTROLLER: null}},
                "spec": {"claimRef": reference}});
            write::merge::<PersistentVolume>(ctx, "free persistentvolume", &name, &change).await?;
            set_phase(ctx, &name, "Available", None).await?;
        }
        VolumeStep::Release(reclaim) => {
            if let Some(key) = reference
                && still_claimed(ctx, volume, &key).await?
            {
                queue.add(Key::of(volume));
                return Ok(Next::Wait);
            }
            release(ctx, volume, reclaim).await?;
        }
    }
    Ok(Next::Wait)
}

/// Whether the server has the claim a volume would be released from. Data may be deleted for a release, so a claim counts
/// that the watch has not shown yet.
async fn still_claimed(ctx: &Context, volume: &PersistentVolume, key: &Key) -> Result<bool> {
    if facts::volume_phase(volume) == "Released" {
        return Ok(false);
    }
    let api: Api<PersistentVolumeClaim> = ctx.api(&key.namespace);
    let claim = api.get_opt(&key.name).await.during("read persistentvolumeclaim", key)?;
    let Some(claim) = claim.filter(|claim| facts::is_for(volume, claim)) else { return Ok(false) };
    let name = facts::volume_name(&claim);
    let here = name.is_empty() || Some(name) == volume.metadata.name.as_deref();
    ctx.store::<PersistentVolumeClaim>().observe(claim);
    Ok(here)
}

/// A volume becomes Released once; what its policy says follows, or its failure.
async fn release(ctx: &Context, volume: &PersistentVolume, reclaim: Reclaim) -> Result<()> {
    let name = volume.name_any();
    match reclaim {
        Reclaim::Fail(reason, text) => {
            if facts::volume_phase(volume) != "Failed" {
                ctx.events.record(COMPONENT, volume, Severity::Warning, reason, text.clone());
                set_phase(ctx, &name, "Failed", Some(&text)).await?;
            }
        }
        // A failed deletion is its provisioner's to report and to repeat.
        Reclaim::ByProvisioner if facts::volume_phase(volume) == "Failed" => {}
        Reclaim::Keep | Reclaim::ByProvisioner => set_phase(ctx, &name, "Released", None).await?,
    }
    Ok(())
}
