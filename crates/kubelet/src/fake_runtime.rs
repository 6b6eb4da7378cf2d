//! A runtime that runs nothing, for tests of workers: what it is asked to make is there, and it keeps a log of changes.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rpc::cri::image_service_server::{ImageService, ImageServiceServer};
use rpc::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use rpc::cri::{self, ContainerState, PodSandboxState};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::runtime::label;

type Reply<T> = Result<Response<T>, Status>;

#[derive(Default)]
pub(crate) struct State {
    sandboxes: BTreeMap<String, cri::PodSandbox>,
    containers: BTreeMap<String, (cri::Container, cri::ContainerStatus)>,
    made: u32,
    /// What was asked of running containers.
    pub(crate) log: Vec<String>,
    /// Bytes of memory that containers use, by name.
    pub(crate) usage: BTreeMap<String, u64>,
    /// What changes of containers are answered with.
    pub(crate) refusal: Option<String>,
    /// The file with the limit on memory of the pods' groups, to be noted with each change.
    pub(crate) group: Option<PathBuf>,
}

#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

impl Fake {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Serves at the socket for as long as the test lasts.
    pub(crate) fn serve(&self, socket: &Path) {
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(RuntimeServiceServer::new(self.clone()))
            .add_service(ImageServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
    }

    /// A container ends by itself, or because it is told to.
    fn end(&self, id: &str) {
        if let Some((container, status)) = self.state().containers.get_mut(id) {
            container.state = ContainerState::ContainerExited as i32;
            status.state = container.state;
            status.finished_at = now();
        }
    }
}

fn nothing<T: Default>() -> Reply<T> {
    Ok(Response::new(T::default()))
}

fn now() -> i64 {
    i64::try_from(kit::clock::now().as_nanosecond()).unwrap()
}

fn matches(labels: &HashMap<String, String>, wanted: &HashMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn version(&self, _: Request<cri::VersionRequest>) -> Reply<cri::VersionResponse> {
        nothing()
    }

    async fn status(&self, _: Request<cri::StatusRequest>) -> Reply<cri::StatusResponse> {
        nothing()
    }

    async fn run_pod_sandbox(&self, request: Request<cri::RunPodSandboxRequest>) -> Reply<cri::RunPodSandboxResponse> {
        let config = request.into_inner().config.unwrap_or_default();
        let mut state = self.state();
        state.made += 1;
        let id = format!("sandbox{}", state.made);
        let sandbox = cri::PodSandbox {
            id: id.clone(),
            metadata: config.metadata,
            state: PodSandboxState::SandboxReady as i32,
            created_at: now(),
            labels: config.labels,
            ..Default::default()
        };
        state.sandboxes.insert(id.clone(), sandbox);
        Ok(Response::new(cri::RunPodSandboxResponse { pod_sandbox_id: id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Reply<cri::StopPodSandboxResponse> {
        if let Some(sandbox) = self.state().sandboxes.get_mut(&request.into_inner().pod_sandbox_id) {
            sandbox.state = PodSandboxState::SandboxNotready as i32;
        }
        nothing()
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Reply<cri::RemovePodSandboxResponse> {
        self.state().sandboxes.remove(&request.into_inner().pod_sandbox_id);
        nothing()
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Reply<cri::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let network = cri::PodSandboxNetworkStatus { ip: "10.0.0.9".into(), ..Default::default() };
        let status = cri::PodSandboxStatus { id, network: Some(network), ..Default::default() };
        Ok(Response::new(cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Reply<cri::ListPodSandboxResponse> {
        let wanted = request.into_inner().filter.unwrap_or_default().label_selector;
        let items = self.state().sandboxes.values().filter(|s| matches(&s.labels, &wanted)).cloned().collect();
        Ok(Response::new(cri::ListPodSandboxResponse { items }))
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Reply<cri::CreateContainerResponse> {
        let request = request.into_inner();
        let config = request.config.unwrap_or_default();
        let mut state = self.state();
        state.made += 1;
        let metadata = config.metadata.unwrap_or_default();
        let id = format!("{}-{}-{}", metadata.name, metadata.attempt, state.made);
        let created = ContainerState::ContainerCreated as i32;
        let container = cri::Container {
            id: id.clone(),
            pod_sandbox_id: request.pod_sandbox_id,
            metadata: Some(metadata.clone()),
            state: created,
            labels: config.labels.clone(),
            ..Default::default()
        };
        let status = cri::ContainerStatus {
            id: id.clone(),
            metadata: Some(metadata),
            state: created,
            created_at: now(),
            labels: config.labels,
            ..Default::default()
        };
        state.containers.insert(id.clone(), (container, status));
        Ok(Response::new(cri::CreateContainerResponse { container_id: id }))
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Reply<cri::StartContainerResponse> {
        let mut state = self.state();
        if let Some((container, status)) = state.containers.get_mut(&request.into_inner().container_id) {
            container.state = ContainerState::ContainerRunning as i32;
            (status.state, status.started_at) = (container.state, now());
            let name = status.metadata.clone().unwrap_or_default().name;
            state.log.push(format!("start {name}"));
        }
        nothing()
    }

    async fn stop_container(&self, request: Request<cri::StopContainerRequest>) -> Reply<cri::StopContainerResponse> {
        let id = request.into_inner().container_id;
        self.end(&id);
        self.state().log.push(format!("stop {}", id.split('-').next().unwrap_or_default()));
        nothing()
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Reply<cri::RemoveContainerResponse> {
        self.state().containers.remove(&request.into_inner().container_id);
        nothing()
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Reply<cri::ListContainersResponse> {
        let wanted = request.into_inner().filter.unwrap_or_default().label_selector;
        let state = self.state();
        let all = state.containers.values().map(|(container, _)| container);
        let containers = all.filter(|c| matches(&c.labels, &wanted)).cloned().collect();
        Ok(Response::new(cri::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Reply<cri::ContainerStatusResponse> {
        let state = self.state();
        let found = state.containers.get(&request.into_inner().container_id).map(|(_, status)| status.clone());
        let status = Some(found.ok_or_else(|| Status::not_found("no such container"))?);
        Ok(Response::new(cri::ContainerStatusResponse { status, ..Default::default() }))
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Reply<cri::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let linux = request.linux.unwrap_or_default();
        let mut state = self.state();
        if let Some(why) = &state.refusal {
            return Err(Status::unknown(why.clone()));
        }
        let name = request.container_id.split('-').next().unwrap_or_default().to_owned();
        let group = state.group.as_ref().map(|file| std::fs::read_to_string(file).unwrap());
        let group = group.map(|limit| format!(" in {}", mebi(&limit))).unwrap_or_default();
        let memory = mebi(&linux.memory_limit_in_bytes.to_string());
        state.log.push(format!("update {name} {} {} {memory}{group}", linux.cpu_shares, linux.cpu_quota));
        nothing()
    }

    async fn reopen_container_log(
        &self,
        _: Request<cri::ReopenContainerLogRequest>,
    ) -> Reply<cri::ReopenContainerLogResponse> {
        nothing()
    }

    async fn exec_sync(&self, _: Request<cri::ExecSyncRequest>) -> Reply<cri::ExecSyncResponse> {
        nothing()
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Reply<cri::ListContainerStatsResponse> {
        let wanted = request.into_inner().filter.unwrap_or_default().label_selector;
        let state = self.state();
        let running = ContainerState::ContainerRunning as i32;
        let all = state.containers.values().map(|(container, _)| container);
        let stats = all.filter(|c| c.state == running && matches(&c.labels, &wanted)).map(|container| {
            let name = container.labels.get(label::CONTAINER_NAME).cloned().unwrap_or_default();
            let value = state.usage.get(&name).copied().unwrap_or(1 << 20);
            let attributes = cri::ContainerAttributes { metadata: container.metadata.clone(), ..Default::default() };
            let memory = cri::MemoryUsage { usage_bytes: Some(cri::UInt64Value { value }), ..Default::default() };
            cri::ContainerStats { attributes: Some(attributes), memory: Some(memory), ..Default::default() }
        });
        Ok(Response::new(cri::ListContainerStatsResponse { stats: stats.collect() }))
    }
}

fn mebi(bytes: &str) -> String {
    format!("{}Mi", bytes.trim().parse::<i64>().unwrap() >> 20)
}

#[tonic::async_trait]
impl ImageService for Fake {
    async fn list_images(&self, _: Request<cri::ListImagesRequest>) -> Reply<cri::ListImagesResponse> {
        nothing()
    }

    async fn image_status(&self, request: Request<cri::ImageStatusRequest>) -> Reply<cri::ImageStatusResponse> {
        let id = request.into_inner().image.unwrap_or_default().image;
        let image = Some(cri::Image { id, ..Default::default() });
        Ok(Response::new(cri::ImageStatusResponse { image, ..Default::default() }))
    }

    async fn pull_image(&self, _: Request<cri::PullImageRequest>) -> Reply<cri::PullImageResponse> {
        nothing()
    }

    async fn remove_image(&self, _: Request<cri::RemoveImageRequest>) -> Reply<cri::RemoveImageResponse> {
        nothing()
    }

    async fn image_fs_info(&self, _: Request<cri::ImageFsInfoRequest>) -> Reply<cri::ImageFsInfoResponse> {
        nothing()
    }
}
