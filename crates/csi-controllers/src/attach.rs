//! The attacher: carries out `VolumeAttachment`s with drivers that bring no attacher of their own.
//!
//! An attachment keeps a finalizer until the driver has unpublished the volume; so does the volume while it is attached.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kit::clock;
use kit::controller::{self, Context, Error, Result, write};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use rpc::csi;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use serde_json::{Value, json};
use tonic::Code;

use crate::driver::{Driver, Fleet, worded};
use crate::facts::source;
use crate::sidecar::Function;
use crate::{capability, facts, secret};

/// Runs until the context's shutdown.
pub(crate) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    let (attachments, volumes) = (ctx.store::<VolumeAttachment>(), ctx.store::<PersistentVolume>());
    attachments.on_change({
        let queue = queue.clone();
        move |old, new| {
            let Some(attachment) = new.or(old) else { return };
            if new.is_some() {
                queue.add(Key::of(attachment.as_ref()));
            } else if let Some(volume) = &attachment.spec.source.persistent_volume_name {
                queue.add(Key::new(VOLUME, volume.as_str()));
            }
        }
    });
    volumes.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(volume) = new.filter(|volume| facts::is_leaving(volume.as_ref())) {
                queue.add(Key::new(VOLUME, volume.name_any()));
            }
        }
    });
    let again = {
        let (queue, attachments) = (queue.clone(), attachments.clone());
        move || {
            for attachment in attachments.all() {
                queue.add(Key::of(attachment.as_ref()));
            }
        }
    };
    fleet.on_change(again);
    fleet.synced().await;
    attachments.synced().await;
    volumes.synced().await;
    controller::work(&queue, "csi-attacher", 16, |key| reconcile(&ctx, &fleet, key)).await;
}

/// Stands in a key's namespace for "a volume": attachments have none.
const VOLUME: &str = "volume";

fn finalizer(driver: &str) -> String {
    format!("external-attacher/{}", driver.replace('.', "-"))
}

async fn reconcile(ctx: &Context, fleet: &Fleet, key: Key) -> Result<Next> {
    if key.namespace == VOLUME {
        release_volume(ctx, fleet, &key.name).await?;
        return Ok(Next::Wait);
    }
    let Some(attachment) = ctx.store::<VolumeAttachment>().get(&key) else { return Ok(Next::Wait) };
    let driver = attachment.spec.attacher.as_str();
    if !fleet.serves(driver, Function::Attacher) {
        return Ok(Next::Wait);
    }
    let leaving = facts::is_leaving(attachment.as_ref());
    if leaving && !attachment.finalizers().contains(&finalizer(driver)) {
        return Ok(Next::Wait);
    }
    if !leaving && attachment.status.as_ref().is_some_and(|s| s.attached) {
        return Ok(Next::Wait);
    }
    let outcome = if leaving { detach(ctx, fleet, &attachment).await } else { attach(ctx, fleet, &attachment).await };
    let Err(why) = outcome else { return Ok(Next::Wait) };
    let field = if leaving { "detachError" } else { "attachError" };
    let known = attachment
        .status
        .as_ref()
        .and_then(|s| if leaving { s.detach_error.as_ref() } else { s.attach_error.as_ref() });
    if known.and_then(|error| error.message.as_ref()) != Some(&why) {
        // Until the driver says otherwise, a volume whose detaching failed counts as attached.
        let attached = attachment.status.as_ref().is_some_and(|s| s.attached);
        let change = json!({"status": {"attached": attached, field: {"message": why, "time": clock::time()}}});
        write::merge_status::<VolumeAttachment>(ctx, "write status of volumeattachment", &key.name, &change).await?;
    }
    Err(Error::Unfinished { object: key.name, what: why })
}

/// The volume, its node's name for the driver, and the driver.
struct Pair {
    volume: Arc<PersistentVolume>,
    node_id: String,
    driver: Driver,
}

async fn pair(ctx: &Context, fleet: &Fleet, attachment: &VolumeAttachment) -> Result<Pair, String> {
    let spec = &attachment.spec;
    let name = spec.source.persistent_volume_name.as_deref();
    let name = name.ok_or("inline volumes are not attached: the source names no persistent volume")?;
    let volume = ctx.store::<PersistentVolume>().get(&Key::new("", name));
    let volume = volume.ok_or_else(|| format!("persistentvolume {name:?} not found"))?;
    let registered = ctx.store::<CSINode>().get(&Key::new("", spec.node_name.as_str()));
    let id = registered
        .as_ref()
        .and_then(|r| r.spec.drivers.iter().find(|d| d.name == spec.attacher))
        .map(|d| d.node_id.clone());
    // A node that lost its driver still has its id in the attachment.
    let kept = attachment.annotations().get(NODE_ID).cloned();
    let node_id =
        id.or(kept).ok_or_else(|| format!("CSINode {} does not contain driver {}", spec.node_name, spec.attacher))?;
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let driver = fleet.reach(&spec.attacher, None, affinity).await.map_err(|status| worded(&status))?;
    Ok(Pair { volume, node_id, driver })
}

/// On an attachment: what the driver calls the node.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

async fn attach(ctx: &Context, fleet: &Fleet, attachment: &VolumeAttachment) -> Result<(), String> {
    let name = attachment.name_any();
    let Pair { volume, node_id, driver } = pair(ctx, fleet, attachment).await?;
    let mut metadata = BTreeMap::new();
    if driver.abilities.can(Can::PublishUnpublishVolume) {
        let csi =
            source(&volume).ok_or_else(|| format!("persistentvolume {:?} is no CSI volume", volume.name_any()))?;
        keep(ctx, attachment, &volume, &node_id).await.map_err(|error| error.message())?;
        let read_only = csi.read_only.unwrap_or(false);
        let secrets = secret::read(ctx, csi.controller_publish_secret_ref.as_ref()).await.map_err(|e| e.message())?;
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            node_id,
            volume_capability: Some(capability::of(&volume, driver.abilities.can(Can::SingleNodeMultiWriter))?),
            readonly: read_only && driver.abilities.can(Can::PublishReadonly),
            secrets,
            volume_context: csi.volume_attributes.clone().unwrap_or_default().into_iter().collect(),
        };
        let answer = driver.client.clone().controller_publish_volume(request).await;
        metadata.extend(answer.map_err(|status| worded(&status))?.into_inner().publish_context);
    }
    let metadata = if metadata.is_empty() { Value::Null } else { json!(metadata) };
    let change = json!({"status": {"attached": true, "attachError": null, "attachmentMetadata": metadata}});
    let written =
        write::merge_status::<VolumeAttachment>(ctx, "write status of volumeattachment", &name, &change).await;
    written.map(drop).map_err(|error| error.message())
}

/// Puts the finalizers on before the driver does anything that has to be undone.
async fn keep(ctx: &Context, attachment: &VolumeAttachment, volume: &PersistentVolume, node_id: &str) -> Result<()> {
    let name = finalizer(&attachment.spec.attacher);
    if !facts::is_leaving(volume) {
        write::finalizer(ctx, "keep attached persistentvolume", volume, &name, true).await?;
    }
    write::finalizer(ctx, "keep volumeattachment until detached", attachment, &name, true).await?;
    if attachment.annotations().get(NODE_ID).map(String::as_str) != Some(node_id) {
        let change = json!({"metadata": {"annotations": {NODE_ID: node_id}}});
        write::merge::<VolumeAttachment>(
            ctx,
            "note the node's id on volumeattachment",
            &attachment.name_any(),
            &change,
        )
        .await?;
    }
    Ok(())
}

async fn detach(ctx: &Context, fleet: &Fleet, attachment: &VolumeAttachment) -> Result<(), String> {
    let Pair { volume, node_id, driver } = pair(ctx, fleet, attachment).await?;
    let csi = source(&volume).ok_or_else(|| format!("persistentvolume {:?} is no CSI volume", volume.name_any()))?;
    let secrets = secret::read(ctx, csi.controller_publish_secret_ref.as_ref()).await.map_err(|e| e.message())?;
    let request = csi::ControllerUnpublishVolumeRequest { volume_id: csi.volume_handle.clone(), node_id, secrets };
    match driver.client.clone().controller_unpublish_volume(request).await {
        Err(status) if status.code() != Code::NotFound => return Err(worded(&status)),
        _ => {}
    }
    let current = ctx.store::<VolumeAttachment>().get(&Key::of(attachment));
    let Some(current) = current else { return Ok(()) };
    let name = finalizer(&attachment.spec.attacher);
    let operation = "let detached volumeattachment go";
    write::finalizer(ctx, operation, current.as_ref(), &name, false).await.map_err(|error| error.message())
}

/// Lets a volume go that is attached nowhere any more.
async fn release_volume(ctx: &Context, fleet: &Fleet, name: &str) -> Result<()> {
    let Some(volume) = ctx.store::<PersistentVolume>().get(&Key::new("", name)) else { return Ok(()) };
    let attached = |a: &Arc<VolumeAttachment>| a.spec.source.persistent_volume_name.as_deref() == Some(name);
    if !facts::is_leaving(volume.as_ref()) || ctx.store::<VolumeAttachment>().all().iter().any(attached) {
        return Ok(());
    }
    let driver = source(&volume).map_or("", |csi| csi.driver.as_str());
    if fleet.serves(driver, Function::Attacher) {
        write::finalizer(ctx, "let detached persistentvolume go", volume.as_ref(), &finalizer(driver), false).await?;
    }
    Ok(())
}
