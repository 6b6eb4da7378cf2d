//! Classes of volume attributes in use are not deleted: a finalizer that goes when no claim and no volume names the class.

use std::sync::Arc;

use csi_controllers::{VolumeAttributesClass, facts};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kit::controller::{self, Result, write};
use kit::queue::{self, Next};
use kit::store::Key;

use crate::context::Context;

const FINALIZER: &str = "kubernetes.io/vac-protection";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let classes = ctx.store::<VolumeAttributesClass>();
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    classes.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(class) = new {
                queue.add(Key::of(class.as_ref()));
            }
        }
    });
    claims.on_change({
        let queue = queue.clone();
        move |old, new| {
            let now: Vec<&str> = new.map(|claim| facts::attributes_classes(claim)).unwrap_or_default();
            let before: Vec<&str> = old.map(|claim| facts::attributes_classes(claim)).unwrap_or_default();
            for class in before.into_iter().filter(|class| !now.contains(class)) {
                queue.add(Key::new("", class));
            }
        }
    });
    volumes.on_change({
        let queue = queue.clone();
        move |old, new| {
            let now = new.map(|volume| facts::attributes_class_of_volume(volume)).unwrap_or_default();
            let before = old.map(|volume| facts::attributes_class_of_volume(volume)).unwrap_or_default();
            if !before.is_empty() && before != now {
                queue.add(Key::new("", before));
            }
        }
    });
    classes.synced().await;
    claims.synced().await;
    volumes.synced().await;
    controller::work(&queue, "volumeattributesclass-protection", 1, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(class) = ctx.store::<VolumeAttributesClass>().get(&key) else { return Ok(Next::Wait) };
    let name = key.name.as_str();
    let used = || {
        let volumes = ctx.store::<PersistentVolume>().all();
        let claims = ctx.store::<PersistentVolumeClaim>().all();
        volumes.iter().any(|volume| facts::attributes_class_of_volume(volume) == name)
            || claims.iter().any(|claim| facts::attributes_classes(claim).contains(&name))
    };
    let leaving = facts::is_leaving(class.as_ref());
    if leaving && used() {
        return Ok(Next::Wait);
    }
    write::finalizer(ctx, "protect volumeattributesclass", class.as_ref(), FINALIZER, !leaving).await?;
    Ok(Next::Wait)
}
