//! A CSI driver in this process: real gRPC over in-memory sockets, volumes in a map.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_controllers::{Drivers, Socket};
use rpc::csi;
use rpc::csi::controller_server::{Controller, ControllerServer};
use rpc::csi::controller_service_capability::rpc::Type as Can;
use rpc::csi::identity_server::{Identity, IdentityServer};
use rpc::csi::node_server::{Node, NodeServer};
use rpc::csi::plugin_capability::service::Type as Service;
use tokio::sync::{Notify, mpsc};
use tonic::{Request, Response, Status};

/// What the driver did and is to do next.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Id -> size.
    pub(crate) volumes: BTreeMap<String, i64>,
    /// Id -> volume of snapshots.
    pub(crate) snapshots: BTreeMap<String, String>,
    /// (id, node id) of published volumes.
    pub(crate) published: Vec<(String, String)>,
    /// Calls in order: method and what it was about.
    pub(crate) calls: Vec<String>,
    /// The last CreateVolume.
    pub(crate) created: Option<csi::CreateVolumeRequest>,
    /// Method -> failures that come first.
    pub(crate) failures: HashMap<&'static str, Vec<Status>>,
    /// Methods that do their work and whose answers never arrive.
    pub(crate) lost: HashSet<&'static str>,
    /// Whether growing needs the node.
    pub(crate) node_expansion: bool,
    /// Id -> what is wrong with the volume.
    pub(crate) trouble: BTreeMap<String, String>,
    /// What GetCapacity answers for a segment's host, or for all.
    pub(crate) capacity: i64,
    /// Id -> attributes that the volume was given.
    pub(crate) attributes: BTreeMap<String, HashMap<String, String>>,
}

impl State {
    fn snapshot(&self, id: &str) -> csi::Snapshot {
        let volume = self.snapshots.get(id).cloned().unwrap_or_default();
        csi::Snapshot {
            size_bytes: self.volumes.get(&volume).copied().unwrap_or(1 << 30),
            snapshot_id: id.to_owned(),
            source_volume_id: volume,
            creation_time: Some(prost_types::Timestamp { seconds: 1_767_225_600, nanos: 0 }),
            ready_to_use: true,
            ..csi::Snapshot::default()
        }
    }
}

/// See the module; cheap to clone.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) state: Arc<Mutex<State>>,
    /// Told of deletions.
    changed: Arc<Notify>,
    topology: bool,
    /// Which node this socket is on.
    node: String,
}

impl Driver {
    pub(crate) fn new(topology: bool) -> Self {
        let state = State { capacity: 10 << 30, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::default(), topology, node: String::new() }
    }

    /// Opens sockets to the driver, whatever its name.
    pub(crate) fn drivers(&self) -> Drivers {
        let driver = self.clone();
        Drivers::new(move |node, _| {
            let driver = Driver { node, ..driver.clone() };
            Box::pin(async move {
                let (ours, theirs) = tokio::io::duplex(64 * 1024);
                let (sender, receiver) = mpsc::channel(1);
                sender.send(Ok::<_, std::io::Error>(theirs)).await.map_err(std::io::Error::other)?;
                let server = tonic::transport::Server::builder()
                    .add_service(IdentityServer::new(driver.clone()))
                    .add_service(ControllerServer::new(driver.clone()))
                    .add_service(NodeServer::new(driver));
                tokio::spawn(server.serve_with_incoming(tokio_stream::wrappers::ReceiverStream::new(receiver)));
                Ok(Box::new(ours) as Box<dyn Socket>)
            })
        })
    }

    pub(crate) fn fail(&self, method: &'static str, status: Status) {
        self.state.lock().unwrap().failures.entry(method).or_default().push(status);
    }

    /// Loses the answers of a method until it is taken out of [`State::lost`].
    pub(crate) fn lose(&self, method: &'static str) {
        self.state.lock().unwrap().lost.insert(method);
    }

    /// Waits until the driver's state is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if wanted(&self.state.lock().unwrap()) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the driver never came to that state");
    }

    pub(crate) fn calls(&self, method: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.calls.iter().filter(|call| call.starts_with(method)).cloned().collect()
    }

    fn called(&self, method: &'static str, about: &str) -> Result<(), Status> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(format!("{method} {about}"));
        match state.failures.get_mut(method).filter(|list| !list.is_empty()) {
            Some(list) => Err(list.remove(0)),
            None => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse::default()))
    }
    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let mut services = vec![Service::ControllerService];
        services.extend(Some(Service::VolumeAccessibilityConstraints).filter(|_| self.topology));
        let capability = |service: Service| csi::PluginCapability {
            r#type: Some(csi::plugin_capability::Type::Service(csi::plugin_capability::Service {
                r#type: service as i32,
            })),
        };
        let capabilities = services.into_iter().map(capability).collect();
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }
    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        Ok(Response::new(csi::ProbeResponse::default()))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        self.called("CreateVolume", &request.name)?;
        let size = request.capacity_range.map_or(0, |range| range.required_bytes);
        let host = || HashMap::from([("test/host".to_owned(), self.node.clone())]);
        let mut state = self.state.lock().unwrap();
        state.volumes.insert(format!("id-{}", request.name), size);
        state.created = Some(request.clone());
        if state.lost.contains("CreateVolume") {
            return Err(Status::deadline_exceeded("the answer is lost"));
        }
        let volume = csi::Volume {
            volume_id: format!("id-{}", request.name),
            capacity_bytes: size,
            volume_context: HashMap::from([("made".into(), "here".into())]),
            content_source: request.volume_content_source,
            accessible_topology: if self.topology { vec![csi::Topology { segments: host() }] } else { Vec::new() },
        };
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
    }
    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        self.called("DeleteVolume", &id)?;
        self.state.lock().unwrap().volumes.remove(&id);
        self.changed.notify_waiters();
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }
    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.called("Publish", &format!("{} {}", request.volume_id, request.node_id))?;
        self.state.lock().unwrap().published.push((request.volume_id, request.node_id));
        let publish_context = HashMap::from([("device".into(), "/dev/x".into())]);
        Ok(Response::new(csi::ControllerPublishVolumeResponse { publish_context }))
    }
    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.called("Unpublish", &format!("{} {}", request.volume_id, request.node_id))?;
        let pair = (request.volume_id, request.node_id);
        self.state.lock().unwrap().published.retain(|published| *published != pair);
        Ok(Response::new(csi::ControllerUnpublishVolumeResponse {}))
    }
    async fn validate_volume_capabilities(
        &self,
        _: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
    async fn list_volumes(
        &self,
        _: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let state = self.state.lock().unwrap();
        let entry = |id: &String| {
            let trouble = state.trouble.get(id);
            let volume_condition = Some(csi::VolumeCondition {
                abnormal: trouble.is_some(),
                message: trouble.cloned().unwrap_or_default(),
            });
            csi::list_volumes_response::Entry {
                volume: Some(csi::Volume { volume_id: id.clone(), ..csi::Volume::default() }),
                status: Some(csi::list_volumes_response::VolumeStatus { volume_condition, ..Default::default() }),
            }
        };
        let entries = state.volumes.keys().map(entry).collect();
        Ok(Response::new(csi::ListVolumesResponse { entries, next_token: String::new() }))
    }
    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        if request.parameters.contains_key("bad") {
            return Err(Status::invalid_argument("a parameter it does not know"));
        }
        let place = request.accessible_topology.unwrap_or_default();
        let host = place.segments.get("test/host").cloned().unwrap_or_default();
        self.called("GetCapacity", &host)?;
        let state = self.state.lock().unwrap();
        let available_capacity = if host == "full" { 0 } else { state.capacity };
        Ok(Response::new(csi::GetCapacityResponse { available_capacity, ..csi::GetCapacityResponse::default() }))
    }
    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let all = [
            Can::CreateDeleteVolume,
            Can::PublishUnpublishVolume,
            Can::ExpandVolume,
            Can::GetCapacity,
            Can::CloneVolume,
            Can::CreateDeleteSnapshot,
            Can::ListSnapshots,
            Can::ListVolumes,
            Can::VolumeCondition,
            Can::ModifyVolume,
        ];
        let capability = |can: Can| csi::ControllerServiceCapability {
            r#type: Some(csi::controller_service_capability::Type::Rpc(csi::controller_service_capability::Rpc {
                r#type: can as i32,
            })),
        };
        let capabilities = all.into_iter().map(capability).collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }
    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.called("CreateSnapshot", &format!("{} {} {}", request.name, request.source_volume_id, self.node))?;
        let mut state = self.state.lock().unwrap();
        let id = format!("id-{}", request.name);
        state.snapshots.insert(id.clone(), request.source_volume_id);
        if state.lost.contains("CreateSnapshot") {
            return Err(Status::unavailable("the answer is lost"));
        }
        Ok(Response::new(csi::CreateSnapshotResponse { snapshot: Some(state.snapshot(&id)) }))
    }
    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        self.called("DeleteSnapshot", &format!("{id} {}", self.node))?;
        self.state.lock().unwrap().snapshots.remove(&id);
        self.changed.notify_waiters();
        Ok(Response::new(csi::DeleteSnapshotResponse {}))
    }
    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        let wanted = request.into_inner().snapshot_id;
        self.called("ListSnapshots", &format!("{wanted} {}", self.node))?;
        let state = self.state.lock().unwrap();
        // Snapshots whose ids say so are on one node.
        let here = wanted.split_once("-on-").is_none_or(|(_, node)| node == self.node);
        let found = state.snapshots.contains_key(&wanted).then(|| state.snapshot(&wanted)).filter(|_| here);
        let entry = |snapshot| csi::list_snapshots_response::Entry { snapshot: Some(snapshot) };
        let entries = found.into_iter().map(entry).collect();
        Ok(Response::new(csi::ListSnapshotsResponse { entries, next_token: String::new() }))
    }
    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.called("Expand", &format!("{} {bytes}", request.volume_id))?;
        let mut state = self.state.lock().unwrap();
        state.volumes.insert(request.volume_id, bytes);
        let node_expansion_required = state.node_expansion;
        Ok(Response::new(csi::ControllerExpandVolumeResponse { capacity_bytes: bytes, node_expansion_required }))
    }
    async fn controller_get_volume(
        &self,
        _: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        let request = request.into_inner();
        self.called("Modify", &request.volume_id)?;
        self.state.lock().unwrap().attributes.insert(request.volume_id, request.mutable_parameters);
        Ok(Response::new(csi::ControllerModifyVolumeResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        _: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        Err(Status::unimplemented("the control plane's test"))
    }
    async fn node_unstage_volume(
        &self,
        _: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        Err(Status::unimplemented("the control plane's test"))
    }
    async fn node_publish_volume(
        &self,
        _: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        Err(Status::unimplemented("the control plane's test"))
    }
    async fn node_unpublish_volume(
        &self,
        _: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("the control plane's test"))
    }
    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("the control plane's test"))
    }
    async fn node_expand_volume(
        &self,
        _: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("the control plane's test"))
    }
    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let expand = csi::node_service_capability::rpc::Type::ExpandVolume as i32;
        let rpc = csi::node_service_capability::Rpc { r#type: expand };
        let capability = csi::NodeServiceCapability { r#type: Some(csi::node_service_capability::Type::Rpc(rpc)) };
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities: vec![capability] }))
    }
    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        Ok(Response::new(csi::NodeGetInfoResponse::default()))
    }
}
