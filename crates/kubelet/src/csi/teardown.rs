//! Giving volumes back, from their records alone: the pod, its claims and the driver's objects may be gone by now.
//!
//! A driver that is not there is waited for: its volume stays on record until it took it back.

use std::path::Path;

use rpc::csi::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};

use crate::context::Context;
use crate::drivers::places::{self, Places, Record};
use crate::drivers::request::Life;
use crate::drivers::{driver, unique_name};
use crate::error::{Error, Result};
use crate::mounted::is_mounted;

/// Gives back every CSI volume of the pod.
pub(crate) async fn release(context: &Context, uid: &str) -> Result<()> {
    let places = Places::new(&context.config.root);
    context.volumes.forget(uid);
    for (dir, record) in places.volumes_of(uid) {
        match record {
            Some(record) => {
                let name = record.name.clone();
                let given = give_back(context, places, uid, &record, &dir.join("mount"), &dir, None).await;
                given.map_err(failed("UnmountVolume.TearDown", name))?;
            }
            // Made, but never on record: the driver was never asked.
            None => places::remove_empty(&dir)?,
        }
    }
    for (name, record) in places.devices_of(uid) {
        let link = places.device_link(uid, &name);
        match record {
            Some(record) => {
                let target = places.published_device(uid, &name);
                let dir = places.device_record(&name);
                let given = give_back(context, places, uid, &record, &target, &dir, Some(&link)).await;
                given.map_err(failed("UnmapVolume.UnmapPodDevice", name))?;
            }
            None => places::remove_empty(&link)?,
        }
    }
    Ok(())
}

fn failed(operation: &'static str, name: String) -> impl FnOnce(Error) -> Error {
    move |error| Error::Mount { operation, name, source: Box::new(error) }
}

/// Unpublishes, and unstages when this was the last pod. `link` tells a block volume, whose record is all pods'.
async fn give_back(
    context: &Context,
    places: Places<'_>,
    uid: &str,
    record: &Record,
    target: &Path,
    dir: &Path,
    link: Option<&Path>,
) -> Result<()> {
    let lock = context.csi.lock(&record.driver, &record.handle);
    let mut staged = lock.lock().await;
    unpublish(context, record, target).await?;
    let last = !places.is_used(record, uid);
    if last && record.life != Life::Ephemeral.word() {
        let staging = match link {
            Some(_) => places.staged_device(&record.name),
            None => places.staged(&record.driver, &record.handle).join("globalmount"),
        };
        unstage(context, record, &staging).await?;
        staged.staged = false;
    }
    match link {
        // The link goes last: it is by the link that a block volume is found to be the pod's.
        Some(link) => {
            if last {
                places::forget(dir)?;
                remove_parents(dir, target);
            }
            places::remove_empty(link)?;
        }
        None => places::forget(dir)?,
    }
    if last {
        context.csi.in_use.remove(&unique_name(&record.driver, &record.handle));
    }
    Ok(())
}

/// Directories of a block volume that have become empty; one that has not is somebody else's by now.
fn remove_parents(record: &Path, target: &Path) {
    for dir in [record.parent(), target.parent()].into_iter().flatten() {
        if let Err(error) = places::remove_empty(dir) {
            tracing::debug!(error = %kit::Chain(&error), "a directory of a block volume stays");
        }
    }
}

async fn unpublish(context: &Context, record: &Record, target: &Path) -> Result<()> {
    let request =
        NodeUnpublishVolumeRequest { volume_id: record.handle.clone(), target_path: target.display().to_string() };
    let driver = context.csi.drivers.get(&record.driver)?;
    gone(driver::ask(driver.node().node_unpublish_volume(request)).await.map(drop))?;
    leave_nothing(target)
}

async fn unstage(context: &Context, record: &Record, staging: &Path) -> Result<()> {
    let driver = context.csi.drivers.get(&record.driver)?;
    if driver.abilities.stages {
        let request = NodeUnstageVolumeRequest {
            volume_id: record.handle.clone(),
            staging_target_path: staging.display().to_string(),
        };
        gone(driver::ask(driver.node().node_unstage_volume(request)).await.map(drop))?;
    }
    leave_nothing(staging)?;
    match staging.parent().filter(|_| staging.ends_with("globalmount")) {
        Some(dir) => places::forget(dir),
        None => Ok(()),
    }
}

/// A volume that the driver does not know is not in use by it.
fn gone(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(Error::Driver(status)) if status.0.code() == tonic::Code::NotFound => Ok(()),
        other => other,
    }
}

/// What drivers leave of the path they were given; a mount that is still there is their data, and an error.
fn leave_nothing(path: &Path) -> Result<()> {
    if is_mounted(path) {
        return Err(Error::Invalid(format!("{} is still mounted after the driver gave it back", path.display())));
    }
    places::remove_empty(path)
}

/// Unstages what no pod uses: left by a process that ended between two steps.
pub(crate) async fn release_unused(context: &Context) {
    let places = Places::new(&context.config.root);
    for (dir, record, block) in places.staged_volumes() {
        if places.is_used(&record, "") {
            continue;
        }
        let lock = context.csi.lock(&record.driver, &record.handle);
        let mut staged = lock.lock().await;
        // A pod may have come meanwhile.
        if places.is_used(&record, "") {
            continue;
        }
        let staging = if block { places.staged_device(&record.name) } else { dir.join("globalmount") };
        match unstage(context, &record, &staging).await.and_then(|()| places::forget(&dir)) {
            Ok(()) => {
                staged.staged = false;
                context.csi.in_use.remove(&unique_name(&record.driver, &record.handle));
                tracing::info!(volume = record.name, "a volume that no pod uses was given back");
            }
            Err(error) => {
                tracing::debug!(volume = record.name, error = %kit::Chain(&error), "an unused volume stays staged");
            }
        }
    }
}
