//! Collecting what nobody needs: dead containers beyond the newest, unused images when the disk fills, large logs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rpc::cri::{self, ContainerState, PodSandboxState};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::disk_space::Space;
use crate::error::{Error, Result};
use crate::known::Known;
use crate::logs::rotation;
use crate::runtime::label;

const PERIOD: Duration = Duration::from_secs(60);
/// The newest dead attempt of each container stays: its log is what `kubectl logs --previous` shows.
const KEEP_DEAD: usize = 1;
/// Images go when less than the first is free, until the second is (percent).
const IMAGE_LOW: u64 = 15;
const IMAGE_ENOUGH: u64 = 20;
/// An image that nobody has used for less than this may have been brought for a pod that is about to start.
const IMAGE_AGE: Duration = Duration::from_secs(120);

/// Unused images, and since when each is known to be unused.
type Idle = BTreeMap<String, Instant>;

/// Collects until `shutdown`.
pub(crate) async fn run(context: Arc<Context>, known: Known, shutdown: CancellationToken) -> Result<()> {
    let mut idle = Idle::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        for (what, result) in [
            ("containers", containers(&context).await),
            ("sandboxes", sandboxes(&context).await),
            ("images", images(&context, &mut idle).await),
            ("logs", rotation::rotate(&context, &known).await),
            ("devices", devices(&context, &known).await),
        ] {
            if let Err(error) = result {
                tracing::warn!(what, error = %kit::Chain(&error), "collection failed");
            }
        }
    }
}

/// Devices of pods that nothing is left of, as those that went while this process did not run.
async fn devices(context: &Context, known: &Known) -> Result<()> {
    let sandboxes = context.runtime.sandboxes(None).await?;
    let uids = sandboxes.into_iter().filter_map(|sandbox| sandbox.metadata.map(|metadata| metadata.uid));
    let mut there: BTreeSet<String> = uids.collect();
    there.extend(known.borrow().values().filter_map(|pod| pod.metadata.uid.clone()));
    context.devices.release_all_but(|pod| there.contains(pod));
    Ok(())
}

async fn containers(context: &Context) -> Result<()> {
    let mut dead: BTreeMap<(String, String), Vec<(u32, String)>> = BTreeMap::new();
    for container in context.runtime.list_containers(None).await? {
        let attempt = container.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
        let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
        let group = (label(label::POD_UID), label(label::CONTAINER_NAME));
        let list = dead.entry(group).or_default();
        // The running attempt is newer than all dead ones and does not count.
        if container.state() == ContainerState::ContainerExited {
            list.push((attempt, container.id));
        }
    }
    for list in dead.values_mut() {
        list.sort_by(|a, b| b.cmp(a));
        // The newest dead one may be the container's present state: one more is kept for the one before.
        for (_, id) in list.iter().skip(KEEP_DEAD + 1) {
            context.runtime.remove_container(id).await?;
        }
    }
    Ok(())
}

/// Dead sandboxes that have a successor and no containers any more.
async fn sandboxes(context: &Context) -> Result<()> {
    let used: BTreeSet<String> =
        context.runtime.list_containers(None).await?.into_iter().map(|container| container.pod_sandbox_id).collect();
    let mut newest: BTreeMap<String, u32> = BTreeMap::new();
    let all = context.runtime.sandboxes(None).await?;
    let identity = |sandbox: &cri::PodSandbox| {
        let metadata = sandbox.metadata.clone().unwrap_or_default();
        (metadata.uid, metadata.attempt)
    };
    for sandbox in &all {
        let (uid, attempt) = identity(sandbox);
        let known = newest.entry(uid).or_default();
        *known = attempt.max(*known);
    }
    for sandbox in all {
        let (uid, attempt) = identity(&sandbox);
        let succeeded = newest.get(&uid).is_some_and(|newest| *newest > attempt);
        if succeeded && sandbox.state == PodSandboxState::SandboxNotready as i32 && !used.contains(&sandbox.id) {
            context.runtime.remove_sandbox(&sandbox.id).await?;
        }
    }
    Ok(())
}

async fn images(context: &Context, idle: &mut Idle) -> Result<()> {
    let reply = context.runtime.images().image_fs_info(cri::ImageFsInfoRequest {}).await;
    let reply = reply.map_err(Error::runtime("image file system"))?.into_inner();
    let mount = reply.image_filesystems.into_iter().find_map(|fs| fs.fs_id).map(|id| id.mountpoint);
    let Some(mount) = mount else { return Ok(()) };
    let short = |percent| Space::of(Path::new(&mount)).is_some_and(|space| space.is_below(percent));
    let used: Vec<String> = context
        .runtime
        .list_containers(None)
        .await?
        .into_iter()
        .flat_map(|container| [Some(container.image_ref), container.image.map(|image| image.image)])
        .flatten()
        .collect();
    let listed = context.runtime.images().list_images(cri::ListImagesRequest { filter: None }).await;
    let mut images = listed.map_err(Error::runtime("list images"))?.into_inner().images;
    images.sort_by_key(|image| std::cmp::Reverse(image.size));
    images.retain(|image| {
        // Images without a registry behind them could not be had again.
        let local = image.repo_tags.iter().any(|tag| tag.starts_with("ferrovirt.local/"));
        let mut names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
        !image.pinned && !local && !names.any(|name| used.contains(name))
    });
    let now = Instant::now();
    idle.retain(|id, _| images.iter().any(|image| image.id == *id));
    images.retain(|image| now.duration_since(*idle.entry(image.id.clone()).or_insert(now)) >= IMAGE_AGE);
    if !short(IMAGE_LOW) {
        return Ok(());
    }
    for image in images {
        tracing::info!(image = image.id, "removing an unused image to free disk space");
        let spec = cri::ImageSpec { image: image.id, ..Default::default() };
        let removed = context.runtime.images().remove_image(cri::RemoveImageRequest { image: Some(spec) }).await;
        removed.map_err(Error::runtime("remove image"))?;
        if !short(IMAGE_ENOUGH) {
            break;
        }
    }
    Ok(())
}
