//! The Controller service: making, removing, listing and growing volumes of this node, and snapshots of them.
//!
//! A directory needs no attaching.

mod create;
mod snapshots;

use std::sync::Arc;

use rpc::csi::controller_server::Controller;
use rpc::csi::controller_service_capability::rpc::Type;
use rpc::csi::controller_service_capability::{self, Rpc};
use rpc::csi::validate_volume_capabilities_response::Confirmed;
use rpc::csi::{self, ControllerServiceCapability, Topology, TopologyRequirement, list_volumes_response};
use tonic::{Request, Response, Status};

use super::condition::{condition, is_mounted};
use super::{Driver, TOPOLOGY, busy, capability, failed, page, unannounced};
use crate::pool;
use crate::store::{self, Volume};

const ABILITIES: [Type; 10] = [
    Type::CreateDeleteVolume,
    Type::CloneVolume,
    Type::CreateDeleteSnapshot,
    Type::ListSnapshots,
    Type::ListVolumes,
    Type::GetCapacity,
    Type::GetVolume,
    Type::VolumeCondition,
    Type::ExpandVolume,
    Type::SingleNodeMultiWriter,
];

pub(super) struct Service(pub(super) Arc<Driver>);

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let volume = create::volume(&self.0, request.into_inner()).await?;
        let (size, block, pool) = (volume.record.size, volume.record.block, &volume.pool.name);
        tracing::info!(volume = volume.id, size, block, pool, "volume made");
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(self.0.describe(&volume)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let _held = self.0.changing().await?;
        match self.0.volume(&id) {
            Ok(volume) => {
                let changed = self.0.busy.change(busy::volume(&id))?;
                if volume.record.targets_on(&self.0.node).iter().any(|target| is_mounted(target)) {
                    return Err(Status::failed_precondition(format!("volume {id:?} is still published to a pod")));
                }
                if volume.record.block {
                    self.0.detach(&volume)?;
                }
                let removing = tokio::task::spawn_blocking(move || {
                    let _changed = changed;
                    volume.delete()
                });
                let removing = removing.await;
                removing.map_err(|error| Status::internal(error.to_string()))?.map_err(failed("remove the volume"))?;
                tracing::info!(volume = id, "volume removed");
            }
            Err(status) if status.code() == tonic::Code::NotFound => {}
            Err(status) => return Err(status),
        }
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() || request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_id and volume_capabilities are required"));
        }
        let volume = self.0.volume(&request.volume_id)?;
        let refusal = match capability::is_block(&request.volume_capabilities, volume.pool.shared) {
            Ok(block) if block == volume.record.block => None,
            Ok(true) => Some("the volume is a file system, not a block device".to_owned()),
            Ok(false) => Some("the volume is a block device, not a file system".to_owned()),
            Err(status) => Some(status.message().to_owned()),
        };
        let other_pool = request.parameters.get(super::POOL).filter(|pool| **pool != volume.pool.name);
        let refusal = match (refusal, other_pool) {
            (None, Some(pool)) => Some(format!("the volume is in pool {:?}, not in {pool:?}", volume.pool.name)),
            (None, None) if !request.volume_context.is_empty() => Some("the volume has no volume_context".to_owned()),
            (refusal, _) => refusal,
        };
        let confirmed = refusal.is_none().then_some(Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        });
        let message = refusal.unwrap_or_default();
        Ok(Response::new(csi::ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let mut all = store::all(&self.0.pools).map_err(failed("list volumes"))?;
        all.retain(|volume| !volume.record.filling);
        let (page, next_token) = page::of(all, |volume| &volume.id, request.max_entries, &request.starting_token)?;
        let entries = page.iter().map(|volume| {
            let status = list_volumes_response::VolumeStatus {
                published_node_ids: self.0.published_on(volume),
                volume_condition: Some(condition(volume)),
            };
            list_volumes_response::Entry { volume: Some(self.0.describe(volume)), status: Some(status) }
        });
        Ok(Response::new(csi::ListVolumesResponse { entries: entries.collect(), next_token }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        let volume = self.0.volume(&request.into_inner().volume_id)?;
        let status = csi::controller_get_volume_response::VolumeStatus {
            published_node_ids: self.0.published_on(&volume),
            volume_condition: Some(condition(&volume)),
        };
        let reply = csi::ControllerGetVolumeResponse { volume: Some(self.0.describe(&volume)), status: Some(status) };
        Ok(Response::new(reply))
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let pool = match self.0.pool(&request.parameters) {
            // A pool that is not mounted, or that nobody can write, has no room for anything.
            Err(status) if matches!(status.code(), tonic::Code::Unavailable | tonic::Code::FailedPrecondition) => {
                return Ok(Response::new(csi::GetCapacityResponse::default()));
            }
            other => other?,
        };
        let elsewhere = request.accessible_topology.is_some_and(|topology| !self.0.is_here(&topology));
        let capabilities = &request.volume_capabilities;
        let unfit = !capabilities.is_empty() && capability::is_block(capabilities, pool.shared).is_err();
        if (elsewhere && !pool.shared) || unfit {
            return Ok(Response::new(csi::GetCapacityResponse::default()));
        }
        let space = pool::space(&pool.path).map_err(failed("measure the pool"))?;
        Ok(Response::new(csi::GetCapacityResponse {
            available_capacity: space.available,
            maximum_volume_size: Some(space.available),
            minimum_volume_size: None,
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let Some(range) = request.capacity_range else {
            return Err(Status::invalid_argument("capacity_range is required"));
        };
        let _held = self.0.changing().await?;
        let mut volume = self.0.volume(&request.volume_id)?;
        if volume.record.filling {
            return Err(Status::failed_precondition(format!("volume {:?} is not filled yet", volume.id)));
        }
        capability::check_kind(request.volume_capability.as_ref(), volume.record.block)?;
        let size = capability::size(Some(&range), volume.record.block, None)?;
        if range.limit_bytes > 0 && volume.record.size > range.limit_bytes {
            let message = format!("the volume has {} bytes and is not made smaller", volume.record.size);
            return Err(Status::out_of_range(message));
        }
        if size > volume.record.size {
            check_space(&volume.pool, size - volume.record.size)?;
            volume.grow(size).map_err(failed("make the volume larger"))?;
            tracing::info!(volume = volume.id, size, "volume made larger");
        }
        Ok(Response::new(csi::ControllerExpandVolumeResponse {
            capacity_bytes: volume.record.size,
            // A device in use has to be told; a directory has what its pool has.
            node_expansion_required: volume.record.block,
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let ability = |kind: &Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: (*kind).into() })),
        };
        let capabilities = ABILITIES.iter().map(ability).collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        unannounced("ControllerPublishVolume")
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        unannounced("ControllerUnpublishVolume")
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        snapshots::create(&self.0, request.into_inner()).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        snapshots::delete(&self.0, request.into_inner().snapshot_id).await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        snapshots::list(&self.0, &request.into_inner())
    }

    async fn controller_modify_volume(
        &self,
        _: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        unannounced("ControllerModifyVolume")
    }
}

impl Driver {
    fn is_here(&self, topology: &Topology) -> bool {
        topology.segments.get(TOPOLOGY).is_none_or(|node| *node == self.node)
    }

    /// The volume is made on this node or not at all.
    fn check_place(&self, requirement: Option<&TopologyRequirement>) -> Result<(), Status> {
        let Some(requirement) = requirement else { return Ok(()) };
        let wanted = if requirement.requisite.is_empty() { &requirement.preferred } else { &requirement.requisite };
        if wanted.is_empty() || wanted.iter().any(|topology| self.is_here(topology)) {
            return Ok(());
        }
        Err(Status::invalid_argument(format!("not correct node: this is {}", self.node)))
    }

    /// The volume in the words of CSI. A directory is said to have what was asked for, so that growth shows, though
    /// its files
    /// may take what the pool has.
    fn describe(&self, volume: &Volume) -> csi::Volume {
        csi::Volume {
            capacity_bytes: volume.record.size,
            volume_id: volume.id.clone(),
            content_source: volume.record.origin.as_ref().map(create::source),
            accessible_topology: if volume.pool.shared { Vec::new() } else { vec![self.topology()] },
            ..Default::default()
        }
    }

    /// The nodes it is published on; what others say of themselves is believed.
    fn published_on(&self, volume: &Volume) -> Vec<String> {
        let mut nodes = volume.record.targets.clone();
        if let Some(own) = nodes.get_mut(&self.node) {
            own.retain(|target| is_mounted(target));
        }
        nodes.into_iter().filter(|(_, targets)| !targets.is_empty()).map(|(node, _)| node).collect()
    }
}

/// A sparse file can be larger than the disk, but nobody would be glad of it.
fn check_space(pool: &crate::Pool, size: i64) -> Result<(), Status> {
    let space = pool::space(&pool.path).map_err(failed("measure the pool"))?;
    if size > space.total {
        let message = format!("{size} bytes are asked for, and all of pool {:?} has {}", pool.name, space.total);
        return Err(Status::out_of_range(message));
    }
    if size > space.available || space.available == 0 {
        let message = format!("{size} bytes are asked for, and pool {:?} has {} left", pool.name, space.available);
        return Err(Status::resource_exhausted(message));
    }
    Ok(())
}
