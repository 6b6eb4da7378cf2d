//! The Controller service: making, removing, listing and growing volumes of this node.
//!
//! A directory needs no attaching, and snapshots and clones are not among what the driver announces.

use std::sync::Arc;

use rpc::csi::controller_server::Controller;
use rpc::csi::controller_service_capability::{self, Rpc, rpc::Type};
use rpc::csi::{
    self, ControllerServiceCapability, Topology, TopologyRequirement, VolumeCondition, list_volumes_response,
    validate_volume_capabilities_response::Confirmed,
};
use tonic::{Request, Response, Status};

use super::{Driver, TOPOLOGY, capability, failed, unannounced};
use crate::pool;
use crate::store::{self, Record, Volume};

const ABILITIES: [Type; 7] = [
    Type::CreateDeleteVolume,
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
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(Status::invalid_argument("name is required"));
        }
        let block = capability::is_block(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument("volume_content_source: volumes are made empty by this driver"));
        }
        self.0.check_place(request.accessibility_requirements.as_ref())?;
        let pool = self.0.pool(&request.parameters)?;
        let range = request.capacity_range.as_ref();
        let size = capability::size(range, block)?;
        let _held = self.0.changing.lock().await;
        let id = store::id(&request.name);
        let known = store::find(&self.0.pools, &id).map_err(failed("read the record of the volume"))?;
        let volume = match known {
            Some(known) => {
                let same = known.record.block == block && known.pool == *pool && known.record.name == request.name;
                if !same || !capability::fits(range, known.record.size) {
                    let message = format!("volume {:?} exists already with another size, mode or pool", request.name);
                    return Err(Status::already_exists(message));
                }
                known.ensure().map_err(failed("make the volume"))?;
                known
            }
            None => {
                check_space(pool, size)?;
                let record = Record { name: request.name, block, size, ..Default::default() };
                Volume::create(pool, record).map_err(failed("make the volume"))?
            }
        };
        tracing::info!(volume = volume.id, size, block, pool = pool.name, "volume made");
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(self.0.describe(&volume)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let _held = self.0.changing.lock().await;
        match self.0.volume(&id) {
            Ok(volume) => {
                if volume.record.targets.iter().any(|target| super::node::is_mounted(target)) {
                    return Err(Status::failed_precondition(format!("volume {id:?} is still published to a pod")));
                }
                let removing = tokio::task::spawn_blocking(move || volume.delete()).await;
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
        let refusal = match capability::is_block(&request.volume_capabilities) {
            Ok(block) if block == volume.record.block => None,
            Ok(true) => Some("the volume is a file system, not a block device".to_owned()),
            Ok(false) => Some("the volume is a block device, not a file system".to_owned()),
            Err(status) => Some(status.message().to_owned()),
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
        let most = usize::try_from(request.max_entries)
            .map_err(|_| Status::invalid_argument("max_entries is negative"))
            .map(|most| if most == 0 { usize::MAX } else { most })?;
        let all = store::all(&self.0.pools).map_err(failed("list volumes"))?;
        let token = request.starting_token;
        // A token is the last volume of the page before: it holds also when volumes come and go meanwhile.
        if !token.is_empty() && store::id(&token) != token {
            return Err(Status::aborted(format!("starting_token {token:?} is not one of this driver")));
        }
        let rest: Vec<&Volume> = all.iter().filter(|volume| token.is_empty() || volume.id > token).collect();
        let page = &rest[..most.min(rest.len())];
        let next_token = page.last().filter(|_| page.len() < rest.len()).map(|last| last.id.clone());
        let entries = page.iter().map(|volume| {
            let status = list_volumes_response::VolumeStatus {
                published_node_ids: self.0.published_on(volume),
                volume_condition: Some(condition(volume)),
            };
            Ok(list_volumes_response::Entry { volume: Some(self.0.describe(volume)), status: Some(status) })
        });
        let entries = entries.collect::<Result<_, Status>>()?;
        Ok(Response::new(csi::ListVolumesResponse { entries, next_token: next_token.unwrap_or_default() }))
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
        let elsewhere = request.accessible_topology.is_some_and(|topology| !self.0.is_here(&topology));
        let unfit =
            !request.volume_capabilities.is_empty() && capability::is_block(&request.volume_capabilities).is_err();
        if elsewhere || unfit {
            return Ok(Response::new(csi::GetCapacityResponse::default()));
        }
        let pool = self.0.pool(&request.parameters)?;
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
        let _held = self.0.changing.lock().await;
        let mut volume = self.0.volume(&request.volume_id)?;
        let size = capability::size(Some(&range), volume.record.block)?;
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
        _: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        unannounced("CreateSnapshot")
    }

    async fn delete_snapshot(
        &self,
        _: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        unannounced("DeleteSnapshot")
    }

    async fn list_snapshots(
        &self,
        _: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        unannounced("ListSnapshots")
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

    /// The volume in the words of CSI. A directory is said to have what was asked for, so that growth shows, though its files
    /// may take what the pool has.
    fn describe(&self, volume: &Volume) -> csi::Volume {
        csi::Volume {
            capacity_bytes: volume.record.size,
            volume_id: volume.id.clone(),
            accessible_topology: vec![self.topology()],
            ..Default::default()
        }
    }

    fn published_on(&self, volume: &Volume) -> Vec<String> {
        let published = volume.record.targets.iter().any(|target| super::node::is_mounted(target));
        if published { vec![self.node.clone()] } else { Vec::new() }
    }
}

/// A sparse file can be larger than the disk, but nobody would be glad of it.
fn check_space(pool: &crate::Pool, size: i64) -> Result<(), Status> {
    let space = pool::space(&pool.path).map_err(failed("measure the pool"))?;
    if size <= space.available {
        return Ok(());
    }
    Err(Status::out_of_range(format!("{size} bytes are asked for, and pool {:?} has {}", pool.name, space.available)))
}

/// How the volume is.
pub(super) fn condition(volume: &Volume) -> VolumeCondition {
    if volume.is_whole() {
        return VolumeCondition { abnormal: false, message: "the volume is well".into() };
    }
    let what = if volume.record.block { "file" } else { "directory" };
    VolumeCondition {
        abnormal: true,
        message: format!("the {what} of the volume is missing in pool {:?}", volume.pool.name),
    }
}
