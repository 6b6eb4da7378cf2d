//! containerd's socket: the CRI services, and containerd's own for exec and events.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rpc::containerd::containers::containers_client::ContainersClient;
use rpc::containerd::events::events_client::EventsClient;
use rpc::containerd::tasks;
use rpc::containerd::tasks::tasks_client::TasksClient;
use rpc::containerd::{CRI_NAMESPACE, NAMESPACE_HEADER};
use rpc::cri;
use rpc::cri::image_service_client::ImageServiceClient;
use rpc::cri::runtime_service_client::RuntimeServiceClient;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};

/// Messages with a thousand containers are larger than tonic's default of 4 MiB.
const MESSAGE_LIMIT: usize = 64 << 20;

/// How long containerd's CRI services are waited for, and how often they are asked.
const INITIALIZATION: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(20);

/// How long the last output of a process that has ended may take to reach the log.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Labels and annotations of sandboxes and containers, named as upstream so that crictl and others understand them.
pub(crate) mod label {
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation: where the container's termination message lies on the node.
    pub(crate) const TERMINATION_LOG: &str = "ferrovirt.io/termination-log";
}

/// A connection to one containerd; cheap to clone.
#[derive(Clone)]
pub(crate) struct Runtime {
    channel: Channel,
    /// Which pod a container or sandbox belongs to, for events that name only the container.
    owners: Arc<Mutex<HashMap<String, String>>>,
}

#[derive(Clone, Copy)]
pub(crate) struct CriNamespace;

impl tonic::service::Interceptor for CriNamespace {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, tonic::Status> {
        request.metadata_mut().insert(NAMESPACE_HEADER, MetadataValue::from_static(CRI_NAMESPACE));
        Ok(request)
    }
}

type Namespaced = InterceptedService<Channel, CriNamespace>;

impl Runtime {
    pub(crate) async fn connect(socket: &Path) -> Result<Self> {
        let fail = |source| Error::Connect { what: "containerd", socket: PathBuf::from(socket), source };
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(fail)?;
        let channel = endpoint.connect().await.map_err(fail)?;
        Ok(Runtime { channel, owners: Arc::default() })
    }

    /// Returns when the CRI services answer: containerd listens a moment before they do, and pods that were refused meanwhile
    /// would wait for their next turn. After a while each pod may rather say itself what is wrong.
    pub(crate) async fn initialized(&self) {
        let deadline = tokio::time::Instant::now() + INITIALIZATION;
        while let Err(status) = self.cri().version(cri::VersionRequest { version: "v1".into() }).await {
            if tokio::time::Instant::now() > deadline {
                tracing::warn!(error = status.message(), "containerd does not answer as it should");
                return;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    pub(crate) fn cri(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    pub(crate) fn tasks(&self) -> TasksClient<Namespaced> {
        TasksClient::with_interceptor(self.channel.clone(), CriNamespace)
    }

    pub(crate) fn containers(&self) -> ContainersClient<Namespaced> {
        ContainersClient::with_interceptor(self.channel.clone(), CriNamespace)
    }

    pub(crate) fn events(&self) -> EventsClient<Namespaced> {
        EventsClient::with_interceptor(self.channel.clone(), CriNamespace)
    }

    /// Remembers that events about `id` concern the pod `uid`.
    pub(crate) fn own(&self, id: &str, uid: &str) {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), uid.to_owned());
    }

    pub(crate) fn disown(&self, id: &str) {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    pub(crate) fn owner(&self, id: &str) -> Option<String> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) async fn sandboxes(&self, uid: Option<&str>) -> Result<Vec<cri::PodSandbox>> {
        let filter = uid.map(|uid| cri::PodSandboxFilter { label_selector: by_uid(uid), ..Default::default() });
        let reply = self.cri().list_pod_sandbox(cri::ListPodSandboxRequest { filter }).await;
        Ok(reply.map_err(Error::runtime("list sandboxes"))?.into_inner().items)
    }

    pub(crate) async fn list_containers(&self, uid: Option<&str>) -> Result<Vec<cri::Container>> {
        let filter = uid.map(|uid| cri::ContainerFilter { label_selector: by_uid(uid), ..Default::default() });
        let reply = self.cri().list_containers(cri::ListContainersRequest { filter }).await;
        Ok(reply.map_err(Error::runtime("list containers"))?.into_inner().containers)
    }

    pub(crate) async fn sandbox_status(&self, id: &str, verbose: bool) -> Result<cri::PodSandboxStatusResponse> {
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        Ok(self.cri().pod_sandbox_status(request).await.map_err(Error::runtime("sandbox status"))?.into_inner())
    }

    pub(crate) async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus> {
        let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let reply = self.cri().container_status(request).await.map_err(Error::runtime("container status"))?;
        Ok(reply.into_inner().status.unwrap_or_default())
    }

    pub(crate) async fn container_stats(&self, uid: &str) -> Result<Vec<cri::ContainerStats>> {
        let filter = Some(cri::ContainerStatsFilter { label_selector: by_uid(uid), ..Default::default() });
        let reply = self.cri().list_container_stats(cri::ListContainerStatsRequest { filter }).await;
        Ok(reply.map_err(Error::runtime("container stats"))?.into_inner().stats)
    }

    /// Returns once the container's process has ended and its log is whole.
    ///
    /// The end of the process comes first: what it said last is still on its way then. containerd waits for it before it
    /// calls the container exited (`task.Delete`, which the CRI plugin does on an exit, waits for the copying of output).
    /// An error says that containerd could not be asked; a container that is gone has ended.
    pub(crate) async fn ended(&self, id: &str) -> Result<()> {
        let request = tasks::WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
        gone_is_fine(self.tasks().wait(request).await.map(drop), "wait for task")?;
        let whole = async {
            while self
                .container_status(id)
                .await
                .is_ok_and(|status| status.state() == cri::ContainerState::ContainerRunning)
            {
                tokio::time::sleep(INTERVAL).await;
            }
        };
        // Somebody who holds the output of a dead container open shall not hold its readers.
        let _ = tokio::time::timeout(LAST_WORDS, whole).await;
        Ok(())
    }

    /// Stops a container: its stop signal now, SIGKILL after `grace` seconds. A container that is gone is stopped.
    pub(crate) async fn stop_container(&self, id: &str, grace: i64) -> Result<()> {
        let request = cri::StopContainerRequest { container_id: id.to_owned(), timeout: grace };
        gone_is_fine(self.cri().stop_container(request).await.map(drop), "stop container")
    }

    pub(crate) async fn remove_container(&self, id: &str) -> Result<()> {
        let request = cri::RemoveContainerRequest { container_id: id.to_owned() };
        gone_is_fine(self.cri().remove_container(request).await.map(drop), "remove container")?;
        self.disown(id);
        Ok(())
    }

    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(self.cri().stop_pod_sandbox(request).await.map(drop), "stop sandbox")
    }

    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(self.cri().remove_pod_sandbox(request).await.map(drop), "remove sandbox")?;
        self.disown(id);
        Ok(())
    }

    /// Runs a command to its end; the runtime kills it after `timeout` seconds (0: never).
    pub(crate) async fn exec_sync(&self, id: &str, command: &[String], timeout: i64) -> Result<cri::ExecSyncResponse> {
        let request = cri::ExecSyncRequest { container_id: id.to_owned(), cmd: command.to_vec(), timeout };
        Ok(self.cri().exec_sync(request).await.map_err(Error::runtime("exec"))?.into_inner())
    }
}

fn by_uid(uid: &str) -> HashMap<String, String> {
    HashMap::from([(label::POD_UID.to_owned(), uid.to_owned())])
}

fn gone_is_fine(reply: Result<(), tonic::Status>, call: &'static str) -> Result<()> {
    match reply {
        Err(status) if status.code() != tonic::Code::NotFound => Err(Error::runtime(call)(status)),
        _ => Ok(()),
    }
}
