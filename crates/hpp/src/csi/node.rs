//! The Node service: volumes are bound where the kubelet wants them, directories as they are, files as loop devices.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rpc::csi::node_server::Node;
use rpc::csi::node_service_capability::rpc::Type;
use rpc::csi::node_service_capability::{self, Rpc};
use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::volume_usage::Unit;
use rpc::csi::{self, NodeServiceCapability, VolumeUsage};
use sys::{device, loop_device, mount};
use tonic::{Request, Response, Status};

use super::condition::{condition, is_mounted};
use super::{Driver, capability, failed, refused, unannounced};
use crate::store::{Record, Volume};
use crate::{pool, record};

const ABILITIES: [Type; 4] =
    [Type::GetVolumeStats, Type::VolumeCondition, Type::ExpandVolume, Type::SingleNodeMultiWriter];
/// What the kubelet says of a volume that a pod describes itself.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

pub(super) struct Service(pub(super) Arc<Driver>);

#[tonic::async_trait]
impl Node for Service {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is required"));
        }
        let Some(wanted) = &request.volume_capability else {
            return Err(Status::invalid_argument("volume_capability is required"));
        };
        let target = path("target_path", &request.target_path)?;
        let block = capability::is_block_one(wanted, true)?;
        let driver = &self.0;
        let _held = driver.changing().await?;
        let mut volume = match driver.volume(&request.volume_id) {
            Err(status) if status.code() == tonic::Code::NotFound && is_ephemeral(&request.volume_context) => {
                driver.make_ephemeral(&request.volume_id, block, &request.volume_context)?
            }
            other => other?,
        };
        capability::is_block_one(wanted, volume.pool.shared)?;
        if volume.record.filling {
            return Err(Status::aborted(format!("volume {:?} is not filled yet", volume.id)));
        }
        match (volume.record.block, block) {
            (false, true) => {
                return Err(Status::failed_precondition("cannot publish a non-block volume as block volume"));
            }
            (true, false) => {
                return Err(Status::failed_precondition("cannot publish a block volume as a file system"));
            }
            _ => {}
        }
        if is_mounted(&target) {
            return driver.check_published(&volume, &target, request.readonly).map(|()| answer());
        }
        let elsewhere = volume.record.targets_on(&driver.node).iter().find(|known| is_mounted(known));
        if let (Some(other), Some(Mode::SingleNodeSingleWriter)) = (elsewhere, capability::mode(wanted)) {
            return Err(Status::failed_precondition(format!(
                "volume {:?} is published at {}, and SINGLE_NODE_SINGLE_WRITER is for one path",
                volume.id,
                other.display()
            )));
        }
        // First on record: what is published is unpublished even when this process ends in between.
        volume.record.retain_on(&driver.node, |known| *known != target && is_mounted(known));
        volume.record.targets.entry(driver.node.clone()).or_default().push(target.clone());
        volume.keep().map_err(failed("keep the record of the volume"))?;
        if block {
            driver.publish_device(&volume, &target)?;
        } else {
            publish_directory(&volume, &target, request.readonly)?;
        }
        tracing::info!(volume = volume.id, target = %target.display(), "volume published");
        Ok(answer())
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is required"));
        }
        let target = path("target_path", &request.target_path)?;
        let _held = self.0.changing().await?;
        // Also of a volume that is gone: nothing of it must stay with the pod.
        mount::detach(&target).map_err(|error| refused(&error))?;
        remove_target(&target)?;
        let mut volume = match self.0.volume(&request.volume_id) {
            Err(status) if status.code() == tonic::Code::NotFound => {
                return Ok(Response::new(csi::NodeUnpublishVolumeResponse {}));
            }
            other => other?,
        };
        volume.record.retain_on(&self.0.node, |known| *known != target && is_mounted(known));
        if volume.record.targets.is_empty() {
            if volume.record.block {
                self.0.detach(&volume)?;
            }
            if volume.record.ephemeral {
                volume.delete().map_err(failed("remove the volume"))?;
                return Ok(Response::new(csi::NodeUnpublishVolumeResponse {}));
            }
        }
        volume.keep().map_err(failed("keep the record of the volume"))?;
        tracing::info!(volume = volume.id, target = %target.display(), "volume unpublished");
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let volume = self.0.volume(&request.volume_id)?;
        let at = path("volume_path", &request.volume_path)?;
        if !is_mounted(&at) {
            return Err(Status::not_found(format!("volume {:?} is not published at {}", volume.id, at.display())));
        }
        let volume_condition = Some(condition(&volume));
        let usage = if volume.record.block {
            let total = volume.record.size;
            vec![VolumeUsage { total, unit: Unit::Bytes.into(), ..Default::default() }]
        } else {
            let space = pool::space(&at).map_err(failed("measure the volume"))?;
            let (available, total, used) = (space.available, space.total, space.used);
            let inodes_used = space.inodes - space.inodes_free;
            vec![
                VolumeUsage { available, total, used, unit: Unit::Bytes.into() },
                VolumeUsage {
                    available: space.inodes_free,
                    total: space.inodes,
                    used: inodes_used,
                    unit: Unit::Inodes.into(),
                },
            ]
        };
        Ok(Response::new(csi::NodeGetVolumeStatsResponse { usage, volume_condition }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let at = path("volume_path", &request.volume_path)?;
        let _held = self.0.changing().await?;
        let volume = self.0.volume(&request.volume_id)?;
        capability::check_kind(request.volume_capability.as_ref(), volume.record.block)?;
        if !is_mounted(&at) {
            return Err(Status::not_found(format!("volume {:?} is not published at {}", volume.id, at.display())));
        }
        let required = request.capacity_range.map_or(0, |range| range.required_bytes);
        if !volume.record.block {
            return Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes: required }));
        }
        if required > volume.record.size {
            let message =
                format!("the volume has {} bytes: it is made larger by ControllerExpandVolume", volume.record.size);
            return Err(Status::out_of_range(message));
        }
        let file = volume.data().file().map_err(failed("open the volume"))?;
        if let Some(device) = loop_device::find(&file, &self.0.dev).map_err(|error| refused(&error))? {
            loop_device::follow_size(&device).map_err(|error| refused(&error))?;
        }
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes: volume.record.size }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let ability = |kind: &Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: (*kind).into() })),
        };
        let capabilities = ABILITIES.iter().map(ability).collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: self.0.node.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.0.topology()),
        }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        unannounced("NodeStageVolume")
    }

    async fn node_unstage_volume(
        &self,
        _: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        unannounced("NodeUnstageVolume")
    }
}

fn answer() -> Response<csi::NodePublishVolumeResponse> {
    Response::new(csi::NodePublishVolumeResponse {})
}

impl Driver {
    /// Whether what is mounted at `target` already is what is asked for.
    fn check_published(&self, volume: &Volume, target: &Path, read_only: bool) -> Result<(), Status> {
        if !volume.record.targets_on(&self.node).iter().any(|known| known == target) {
            let message = format!("something other than volume {:?} is mounted at {}", volume.id, target.display());
            return Err(Status::already_exists(message));
        }
        // Of a pool that nobody can write, all its mounts look alike.
        let known = volume.record.block || pool::is_read_only(&volume.pool.path);
        if !known && pool::is_read_only(target) != read_only {
            let how = if read_only { "so that it can be written" } else { "read-only" };
            let message = format!("volume {:?} is published at {} already, {how}", volume.id, target.display());
            return Err(Status::already_exists(message));
        }
        Ok(())
    }

    fn make_ephemeral(&self, id: &str, block: bool, context: &HashMap<String, String>) -> Result<Volume, Status> {
        if block {
            return Err(Status::invalid_argument("an ephemeral volume is a file system"));
        }
        if !record::is_id(id) {
            return Err(Status::invalid_argument(format!("volume_id {id:?} cannot be a file's name")));
        }
        let record = Record { name: id.to_owned(), ephemeral: true, ..Default::default() };
        Volume::create(self.pool(context)?, record).map_err(failed("make the volume"))
    }

    fn publish_device(&self, volume: &Volume, target: &Path) -> Result<(), Status> {
        let file = volume.data().file().map_err(failed("open the volume"))?;
        let device = loop_device::attach(&file, &self.dev).map_err(|error| refused(&error))?;
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(target)
            .map_err(failed("make the file that the device is bound to"))?;
        bind_open(&self.dev, &device, &volume.id, target).map_err(|error| refused(&error))
    }

    /// Gives back the loop device of a volume that nobody has any more.
    pub(super) fn detach(&self, volume: &Volume) -> Result<(), Status> {
        match volume.data().file() {
            Ok(file) => loop_device::detach(&file, &self.dev).map_err(|error| refused(&error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("open the volume")(error)),
        }
    }
}

/// Binds a node of the device at `target` that whoever the pod runs as may open, as they may write into directories: nobody
/// else sees it. The device's own node in `dev` stays root's.
fn bind_open(dev: &Path, device: &Path, volume: &str, target: &Path) -> sys::Result<()> {
    let (_, major, minor) =
        device::numbers(device).ok_or_else(|| sys::Error::Protocol(format!("{} is not a device", device.display())))?;
    let failed = |op: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| sys::Error::Path { op, path, source }
    };
    // Closed to others until it is bound; by then it has no other name.
    let private = dev.join(format!(".hostpath-{volume}"));
    match std::fs::DirBuilder::new().mode(0o700).create(&private) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed("make a directory", &private)(error));
        }
        _ => {}
    }
    let node = private.join("device");
    let bound = device::make(&node, device::Kind::Block, major, minor, 0o666).and_then(|()| mount::bind(&node, target));
    let removed = std::fs::remove_file(&node).and_then(|()| std::fs::remove_dir(&private));
    bound.and(removed.map_err(failed("remove", &private)))
}

fn publish_directory(volume: &Volume, target: &Path, read_only: bool) -> Result<(), Status> {
    let source = volume.data().open().map_err(|error| refused(&error))?;
    match std::fs::create_dir(target) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed("make the directory that the volume is bound to")(error));
        }
        _ => {}
    }
    let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    mount::bind_volume(&source, target, read_only).map_err(|error| refused(&error))
}

/// An absolute path without `..`, as the kubelet gives them.
fn path(field: &str, text: &str) -> Result<PathBuf, Status> {
    let path = PathBuf::from(text);
    if text.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is required")));
    }
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(Status::invalid_argument(format!("{field} {text:?} is not an absolute path without \"..\"")));
    }
    Ok(path)
}

fn is_ephemeral(context: &HashMap<String, String>) -> bool {
    context.get(EPHEMERAL).is_some_and(|value| value == "true")
}

/// Removes what was bound to, which is empty; not being there is as good.
fn remove_target(target: &Path) -> Result<(), Status> {
    let removed = match std::fs::symlink_metadata(target) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir(target),
        Ok(_) => std::fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("remove the target path")(error)),
        _ => Ok(()),
    }
}
