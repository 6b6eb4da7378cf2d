//! A CSI driver that keeps a log of what it is asked: it stages, publishes by bind mounts, grows and measures.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rpc::csi::node_server::{Node, NodeServer};
use rpc::csi::node_service_capability::rpc::Type;
use rpc::csi::node_service_capability::{self, Rpc};
use rpc::csi::volume_usage::Unit;
use rpc::csi::{self, NodeServiceCapability};
use rpc::registration::registration_server::{Registration, RegistrationServer};
use rpc::registration::{CSI_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

pub(crate) const NAME: &str = "logged.csi.test";
pub(crate) const TOPOLOGY: &str = "logged.csi.test/zone";

#[derive(Clone)]
pub(crate) struct Driver {
    dir: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
}

pub(crate) struct Running {
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl Running {
    /// Goes as a pod goes: its sockets with it.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        for socket in &self.sockets {
            std::fs::remove_file(socket).unwrap();
        }
        for task in self.tasks {
            // A connection that the kubelet keeps would keep the server.
            task.abort();
            let _ = task.await;
        }
    }
}

impl Driver {
    pub(crate) fn new(dir: PathBuf) -> Driver {
        std::fs::create_dir_all(dir.join("data")).unwrap();
        Driver { dir, log: Arc::default() }
    }

    /// What was asked since the last look, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Serves, and registers below the kubelet's directory `root`.
    pub(crate) fn start(&self, root: &Path) -> Running {
        let stop = CancellationToken::new();
        let (own, registry) = (self.dir.join("csi.sock"), root.join("plugins_registry/logged-reg.sock"));
        std::fs::create_dir_all(registry.parent().unwrap()).unwrap();
        let (node, registration) = (self.clone(), self.clone());
        let incoming = |socket: &Path| UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let serving = tonic::transport::Server::builder()
            .add_service(NodeServer::new(node))
            .serve_with_incoming_shutdown(incoming(&own), stop.clone().cancelled_owned());
        let registering = tonic::transport::Server::builder()
            .add_service(RegistrationServer::new(registration))
            .serve_with_incoming_shutdown(incoming(&registry), stop.clone().cancelled_owned());
        let tasks = vec![
            tokio::spawn(async move { serving.await.unwrap() }),
            tokio::spawn(async move { registering.await.unwrap() }),
        ];
        Running { stop, tasks, sockets: vec![own, registry] }
    }

    fn note(&self, text: String) {
        self.log.lock().unwrap().push(text);
    }
}

fn mount(source: &Path, target: &str) -> Result<(), Status> {
    let target = Path::new(target);
    std::fs::create_dir_all(target)?;
    if !sys::mount::points().unwrap().iter().any(|point| point == target) {
        sys::mount::bind(source, target).map_err(|error| Status::internal(error.to_string()))?;
    }
    Ok(())
}

fn unmount(target: &str) -> Result<(), Status> {
    sys::mount::detach(Path::new(target)).map_err(|error| Status::internal(error.to_string()))
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: CSI_PLUGIN.into(),
            name: NAME.into(),
            endpoint: self.dir.join("csi.sock").display().to_string(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        assert!(status.plugin_registered, "{}", status.error);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let (context, secret) = (&request.publish_context["device"], &request.secrets["key"]);
        self.note(format!("stage {} device={context} key={secret}", request.volume_id));
        mount(&self.dir.join("data"), &request.staging_target_path)?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(format!("unstage {}", request.volume_id));
        unmount(&request.staging_target_path)?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let pod = request.volume_context.get("csi.storage.k8s.io/pod.name").cloned().unwrap_or_default();
        self.note(format!("publish {} pod={pod} readonly={}", request.volume_id, request.readonly));
        mount(Path::new(&request.staging_target_path), &request.target_path)?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(format!("unpublish {}", request.volume_id));
        unmount(&request.target_path)?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let usage = csi::VolumeUsage { available: 30, total: 42, used: 12, unit: Unit::Bytes.into() };
        Ok(Response::new(csi::NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let size = request.capacity_range.unwrap().required_bytes;
        self.note(format!("expand {} to {size}", request.volume_id));
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes: size }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let all = [Type::StageUnstageVolume, Type::ExpandVolume, Type::GetVolumeStats];
        let ability = |kind: Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities: all.map(ability).into() }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let topology = csi::Topology { segments: [(TOPOLOGY.to_owned(), "here".to_owned())].into() };
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "id-of-node".into(),
            max_volumes_per_node: 7,
            accessible_topology: Some(topology),
        }))
    }
}
