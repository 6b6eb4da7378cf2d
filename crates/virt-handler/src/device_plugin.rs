//! Devices that launcher pods request: tun for their taps, KVM where it is usable.
//!
//! The kubelet forgets its plugins when it restarts and removes their sockets, so each plugin serves until its socket is
//! gone and then registers again.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use hyper_util::rt::TokioIo;
use kit::shutdown::CancellationToken;
use kit::{Chain, Task};
use rpc::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use rpc::deviceplugin::registration_client::RegistrationClient;
use rpc::deviceplugin::{
    self, AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::Error;
use crate::launcher::Launcher;
use crate::storage::USER;

/// A device any number of pods may use; KubeVirt's count of them.
const COUNT: usize = 1000;
const LOOK: Duration = Duration::from_secs(2);

/// A kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// `tun` of `devices.kubevirt.io/tun`.
    pub name: &'static str,
    /// Path on the node and in the container.
    pub path: &'static str,
    /// What a container gets beside it, at the same paths.
    pub beside: &'static [&'static str],
}

/// Where QEMU gets the right to fetch pages of a guest that runs here before all of its memory does. Making one is a system
/// call that the usual seccomp profiles refuse; opening this is not.
pub(crate) const USERFAULTFD: &str = "/dev/userfaultfd";

/// Devices that QEMU opens itself, below /dev.
const OPENED: [&str; 3] = ["kvm", "net/tun", "vhost-net"];

/// Gives the devices that the pod of `launcher` was allocated to the user that its QEMU runs as, before libvirt asks for
/// them: few container runtimes do so themselves. What cannot be given the launcher cannot open, and says so.
pub(crate) fn hand_over(launcher: &Launcher) -> Result<(), Error> {
    let root = launcher.root()?;
    OPENED.iter().try_for_each(|path| sys::device::give(&root, path, USER).map(drop)).map_err(Error::Device)
}

/// The devices of this node.
pub(crate) fn kinds(kvm: bool) -> Vec<Kind> {
    // Every launcher asks for tun, so every launcher can be the target of a migration that ends in post-copy.
    let beside: &[&str] = if Path::new(USERFAULTFD).exists() { &[USERFAULTFD] } else { &[] };
    let mut kinds = vec![Kind { name: "tun", path: "/dev/net/tun", beside }];
    if kvm {
        kinds.push(Kind { name: "kvm", path: "/dev/kvm", beside: &[] });
    }
    if Path::new("/dev/vhost-net").exists() {
        kinds.push(Kind { name: "vhost-net", path: "/dev/vhost-net", beside: &[] });
    }
    kinds
}

/// Serves and registers every kind until `stop`.
pub(crate) fn start(kinds: Vec<Kind>, dir: &Path, stop: &CancellationToken) -> Vec<Task<()>> {
    let one = |kind| kit::spawn("device-plugin", keep(kind, dir.to_owned(), stop.clone()));
    kinds.into_iter().map(one).collect()
}

async fn keep(kind: Kind, dir: PathBuf, stop: CancellationToken) {
    let socket = dir.join(format!("kubevirt-{}.sock", kind.name));
    while !stop.is_cancelled() {
        if let Err(error) = serve_once(&kind, &dir, &socket, &stop).await {
            tracing::info!(device = kind.name, error = %Chain(&error), "the device plugin is not registered, trying again");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    let _ = std::fs::remove_file(&socket);
}

/// Returns when the kubelet removed the socket, or `stop` came.
async fn serve_once(kind: &Kind, dir: &Path, socket: &Path, stop: &CancellationToken) -> Result<(), Error> {
    let _ = std::fs::remove_file(socket);
    let incoming = rpc::unix::listen(socket).map_err(Error::setup("listen for the kubelet"))?;
    let ended = CancellationToken::new();
    let serving = ended.clone().cancelled_owned();
    let server = Server::builder()
        .add_service(DevicePluginServer::new(Plugin { kind: kind.clone() }))
        .serve_with_incoming_shutdown(incoming, serving);
    let serving = kit::spawn("device-plugin-server", async move {
        if let Err(error) = server.await {
            tracing::warn!(error = %Chain(&error), "a device plugin server ended");
        }
    });
    register(kind, dir, socket).await?;
    tracing::info!(device = kind.name, "device plugin registered");
    while socket.exists() && !serving.is_finished() {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    ended.cancel();
    Ok(())
}

async fn register(kind: &Kind, dir: &Path, socket: &Path) -> Result<(), Error> {
    let kubelet = dir.join(deviceplugin::KUBELET_SOCKET);
    let connector = tower::service_fn(move |_| {
        let kubelet = kubelet.clone();
        async move { UnixStream::connect(kubelet).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://kubelet")
        .connect_with_connector(connector)
        .await
        .map_err(Error::setup("reach the kubelet's device registry"))?;
    let request = RegisterRequest {
        version: deviceplugin::VERSION.to_owned(),
        endpoint: socket.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        resource_name: format!("devices.kubevirt.io/{}", kind.name),
        options: Some(DevicePluginOptions::default()),
    };
    RegistrationClient::new(channel).register(request).await.map_err(Error::setup("register with the kubelet"))?;
    Ok(())
}

struct Plugin {
    kind: Kind,
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device =
            |n| Device { id: format!("{}{n}", self.kind.name), health: deviceplugin::HEALTHY.into(), topology: None };
        let all = ListAndWatchResponse { devices: (0..COUNT).map(device).collect() };
        // One list, then silence: these devices do not fall ill.
        let stream = futures::stream::once(async move { Ok(all) }).chain(futures::stream::pending());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse::default()))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let device = |path: &&str| DeviceSpec {
            container_path: (*path).to_owned(),
            host_path: (*path).to_owned(),
            permissions: "mrw".to_owned(),
        };
        let devices: Vec<_> = std::iter::once(&self.kind.path).chain(self.kind.beside).map(device).collect();
        let answer = |_| ContainerAllocateResponse { devices: devices.clone(), ..Default::default() };
        let container_responses = request.into_inner().container_requests.iter().map(answer).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
