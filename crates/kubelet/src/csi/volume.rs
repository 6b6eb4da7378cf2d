//! Bringing one volume to one pod: attached, on record, staged, published, given to the pod's group, grown.
//!
//! Each step may be done again: after a failure, after a restart of this process, and to publish anew for drivers that
//! want it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use rpc::csi::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};

use super::{attachment, secrets, tokens};
use crate::context::Context;
use crate::drivers::places::{self, Places, Record};
use crate::drivers::request::{self, Life, Policy, Volume};
use crate::drivers::{Driver, Staged, driver, unique_name};
use crate::error::{Error, Result};
use crate::file_group;
use crate::mounted::is_mounted;

/// A volume that the pod's containers can have.
#[derive(Debug)]
pub(crate) struct Published {
    /// The file system's directory, or the link to the block device.
    pub(crate) path: PathBuf,
    /// The driver wants to be asked again from time to time.
    pub(crate) republish: bool,
}

/// What one publication works with.
struct Work<'a> {
    context: &'a Context,
    pod: &'a Pod,
    uid: &'a str,
    volume: &'a Volume,
    policy: Policy,
    driver: std::sync::Arc<Driver>,
    capability: VolumeCapability,
    publish_context: HashMap<String, String>,
}

/// What the cluster says of the driver.
pub(crate) async fn policy(context: &Context, driver: &str) -> Result<Policy> {
    let api: Api<CSIDriver> = Api::all(context.client.clone());
    let found = api.get_opt(driver).await.map_err(Error::api(format!("get csidriver {driver:?}")))?;
    Ok(request::policy(found.as_ref()))
}

/// Publishes the volume for the pod.
pub(crate) async fn publish(context: &Context, pod: &Pod, volume: &Volume) -> Result<Published> {
    let operation = operation_of(volume);
    let fail = |operation: &'static str| {
        let name = volume.name.clone();
        move |error: Error| Error::Mount { operation, name, source: Box::new(error) }
    };
    let policy = policy(context, &volume.driver).await.map_err(fail(operation.set_up))?;
    policy.check(volume).map_err(fail(operation.set_up))?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let places = Places::new(&context.config.root);
    let republish = policy.republish;
    if let Some(path) = already(places, uid, volume).filter(|_| !republish) {
        // Also after a restart, and while the driver is away.
        return Ok(Published { path, republish });
    }
    let driver = context.csi.drivers.get(&volume.driver);
    let absent = |error: Error| Error::Invalid(format!("kubernetes.io/csi: {}: {error}", operation.client));
    let driver = driver.map_err(absent).map_err(fail(operation.stage))?;
    let mut publish_context = HashMap::new();
    if policy.attaches(volume) {
        let name = unique_name(&volume.driver, &volume.handle);
        context.csi.in_use.add(&name).await.map_err(fail(operation.attach))?;
        publish_context = Box::pin(attachment::wait(context, volume)).await.map_err(fail(operation.attach))?;
    }
    let capability = volume.capability(driver.abilities, fs_group(pod));
    let work = Work { context, pod, uid, volume, policy, driver, capability, publish_context };
    let lock = context.csi.lock(&volume.driver, &volume.handle);
    let mut staged = lock.lock().await;
    // Two pods are told apart here, under the lock and before the record of this one is made.
    if volume.is_of_one_pod() && places.is_used(&work.record(), uid) {
        let message = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
        return Err(fail(operation.set_up)(Error::Invalid(message.into())));
    }
    work.keep_record(places).map_err(fail(operation.stage))?;
    work.stage(places, &mut staged).await.map_err(fail(operation.stage))?;
    let path = work.publish(places).await.map_err(fail(operation.set_up))?;
    work.give_group(&path).await.map_err(fail(operation.set_up))?;
    Ok(Published { path, republish })
}

/// What upstream calls the steps in events, and how it says that the driver is not there.
struct Operation {
    attach: &'static str,
    stage: &'static str,
    set_up: &'static str,
    client: &'static str,
}

const DEVICE: Operation = Operation {
    attach: "MapVolume.WaitForAttach",
    stage: "MapVolume.SetUpDevice",
    set_up: "MapVolume.MapPodDevice",
    client: "blockMapper.SetUpDevice failed to get CSI client",
};
const OF_A_POD: Operation = Operation {
    attach: "MountVolume.SetUp",
    stage: "MountVolume.SetUp",
    set_up: "MountVolume.SetUp",
    client: "mounter.SetUpAt failed to get CSI client",
};
const FILE_SYSTEM: Operation = Operation {
    attach: "MountVolume.WaitForAttach",
    stage: "MountVolume.MountDevice",
    set_up: "MountVolume.SetUp",
    client: "attacher.MountDevice failed to create newCsiDriverClient",
};

fn operation_of(volume: &Volume) -> &'static Operation {
    match (volume.block, volume.life) {
        (true, _) => &DEVICE,
        (false, Life::Ephemeral) => &OF_A_POD,
        (false, Life::Persistent) => &FILE_SYSTEM,
    }
}

pub(crate) fn fs_group(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.fs_group)
}

/// Where the volume is, if it is published already. Mounts end with a node that loses its power, files do not: of a
/// driver that publishes without a mount this is not known, and it is asked again.
pub(crate) fn already(places: Places<'_>, uid: &str, volume: &Volume) -> Option<PathBuf> {
    let target = published_path(places, uid, volume);
    if !is_mounted(&target) {
        return None;
    }
    if volume.block {
        let link = places.device_link(uid, &volume.name);
        return link.symlink_metadata().is_ok().then_some(link);
    }
    places::read(&places.published(uid, &volume.name)).map(|_| target)
}

impl Work<'_> {
    fn record(&self) -> Record {
        let node = &self.context.config.node_name;
        let attached = self.policy.attaches(self.volume);
        Record {
            name: self.volume.name.clone(),
            handle: self.volume.handle.clone(),
            driver: self.volume.driver.clone(),
            node: node.clone(),
            attachment: if attached { self.volume.attachment(node) } else { String::new() },
            life: self.volume.life.word().to_owned(),
        }
    }

    /// Before anything is asked of the driver.
    fn keep_record(&self, places: Places<'_>) -> Result<()> {
        let (volume, record) = (self.volume, self.record());
        if !volume.block {
            return places::write(&places.published(self.uid, &volume.name), &record);
        }
        places::write(&places.device_record(&volume.name), &record)?;
        let (link, device) =
            (places.device_link(self.uid, &volume.name), places.published_device(self.uid, &volume.name));
        for dir in [link.parent(), device.parent()].into_iter().flatten() {
            std::fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
        }
        match std::os::unix::fs::symlink(&device, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::file("link", link)(error)),
            _ => Ok(()),
        }
    }

    fn staging(&self, places: Places<'_>) -> Option<PathBuf> {
        let stages = self.driver.abilities.stages && self.volume.life == Life::Persistent;
        stages.then(|| staging_path(places, self.volume))
    }

    async fn stage(&self, places: Places<'_>, staged: &mut Staged) -> Result<()> {
        let Some(target) = self.staging(places) else { return Ok(()) };
        if staged.staged && (self.volume.block || is_mounted(&target)) {
            return Ok(());
        }
        if !self.volume.block {
            places::write(&places.staged(&self.volume.driver, &self.volume.handle), &self.record())?;
        }
        // The directory is the node's to make, also for a block volume.
        std::fs::create_dir_all(&target).map_err(Error::file("create", &target))?;
        let request = NodeStageVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: target.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            secrets: secrets::read(self.context, self.volume.stage_secret.as_ref()).await?,
            volume_context: self.volume.attributes.clone().into_iter().collect(),
        };
        driver::ask(self.driver.node().node_stage_volume(request)).await?;
        staged.staged = true;
        Ok(())
    }

    async fn publish(&self, places: Places<'_>) -> Result<PathBuf> {
        let target = published_path(places, self.uid, self.volume);
        let mut volume_context = self.volume.context(&self.policy, self.pod);
        if !self.policy.tokens.is_empty() {
            let tokens = tokens::request(self.context, self.pod, &self.policy.tokens).await?;
            volume_context.insert(tokens::ATTRIBUTE.to_owned(), tokens);
        }
        let staging = self.staging(places).map(|path| path.display().to_string()).unwrap_or_default();
        let request = NodePublishVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: staging,
            target_path: target.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            readonly: self.volume.read_only,
            secrets: secrets::read(self.context, self.volume.publish_secret.as_ref()).await?,
            volume_context,
        };
        driver::ask(self.driver.node().node_publish_volume(request)).await?;
        Ok(if self.volume.block { places.device_link(self.uid, &self.volume.name) } else { target })
    }

    async fn give_group(&self, path: &Path) -> Result<()> {
        let Some(group) = fs_group(self.pod).and_then(|group| u32::try_from(group).ok()) else { return Ok(()) };
        if !self.policy.gives_group(self.volume, self.driver.abilities) {
            return Ok(());
        }
        let security = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let when = security.and_then(|context| context.fs_group_change_policy.as_deref());
        file_group::give(path.to_path_buf(), group, when == Some("OnRootMismatch")).await
    }
}

/// Where the driver stages the volume for all pods of the node.
pub(crate) fn staging_path(places: Places<'_>, volume: &Volume) -> PathBuf {
    if volume.block {
        places.staged_device(&volume.name)
    } else {
        places.staged(&volume.driver, &volume.handle).join("globalmount")
    }
}

/// Where the driver publishes it for one pod.
pub(crate) fn published_path(places: Places<'_>, uid: &str, volume: &Volume) -> PathBuf {
    if volume.block {
        places.published_device(uid, &volume.name)
    } else {
        places.published(uid, &volume.name).join("mount")
    }
}
