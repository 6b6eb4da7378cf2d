//! One resource before the kubelet: its devices, and what a pod is given.
//!
//! The kubelet forgets its plugins when it restarts and removes their sockets, so a plugin serves until its socket is gone and then
//! registers again.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use kit::Chain;
use kit::shutdown::CancellationToken;
use net::link::Netlink;
use net::macvtap;
use rpc::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use rpc::deviceplugin::registration_client::RegistrationClient;
use rpc::deviceplugin::{
    self, AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use tokio::sync::watch;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::resources::{self, PREFIX, Resource, Seen};
use crate::Error;

const LOOK: Duration = Duration::from_secs(2);

/// Serves and registers the resource until `stop`.
pub(super) async fn keep(resource: Resource, dir: PathBuf, seen: watch::Receiver<Seen>, stop: CancellationToken) {
    let socket = dir.join(format!("macvtap-{}.sock", resource.name));
    while !stop.is_cancelled() {
        if let Err(error) = serve_once(&resource, &dir, &socket, &seen, &stop).await {
            tracing::info!(resource = resource.name, error = %Chain(&error), "the device plugin is not registered, trying again");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    let _ = std::fs::remove_file(&socket);
}

/// Returns when the kubelet removed the socket, or `stop` came.
async fn serve_once(
    resource: &Resource,
    dir: &Path,
    socket: &Path,
    seen: &watch::Receiver<Seen>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let _ = std::fs::remove_file(socket);
    let links = Netlink::open().map_err(Error::setup("change the links of the node"))?;
    let incoming = rpc::unix::listen(socket).map_err(Error::setup("listen for the kubelet"))?;
    let ended = CancellationToken::new();
    let plugin = Plugin { resource: resource.clone(), links, seen: seen.clone() };
    let server = Server::builder()
        .add_service(DevicePluginServer::new(plugin))
        .serve_with_incoming_shutdown(incoming, ended.clone().cancelled_owned());
    let serving = kit::spawn("device-plugin-server", async move {
        if let Err(error) = server.await {
            tracing::warn!(error = %Chain(&error), "a device plugin server ended");
        }
    });
    register(resource, dir, socket).await?;
    tracing::info!(resource = resource.name, "device plugin registered");
    while socket.exists() && !serving.is_finished() {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    ended.cancel();
    Ok(())
}

async fn register(resource: &Resource, dir: &Path, socket: &Path) -> Result<(), Error> {
    let kubelet = dir.join(deviceplugin::KUBELET_SOCKET);
    let reach = "reach the kubelet's device registry";
    let endpoint = Endpoint::from_shared(format!("unix://{}", kubelet.display())).map_err(Error::setup(reach))?;
    let channel = endpoint.connect().await.map_err(Error::setup(reach))?;
    let request = RegisterRequest {
        version: deviceplugin::VERSION.to_owned(),
        endpoint: socket.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        resource_name: format!("{PREFIX}{}", resource.name),
        options: Some(DevicePluginOptions::default()),
    };
    RegistrationClient::new(channel).register(request).await.map_err(Error::setup("register with the kubelet"))?;
    Ok(())
}

struct Plugin {
    resource: Resource,
    links: Netlink,
    seen: watch::Receiver<Seen>,
}

/// The devices as the kubelet hears of them.
fn list(resource: &Resource, seen: &Seen) -> ListAndWatchResponse {
    let device = |id| Device { id, health: deviceplugin::HEALTHY.into(), topology: None };
    ListAndWatchResponse { devices: resources::devices(resource, seen).into_iter().map(device).collect() }
}

impl Plugin {
    /// Makes the link of a device. Its character device has the number of the link.
    async fn give(&self, id: &str) -> Result<DeviceSpec, Status> {
        let known = resources::devices(&self.resource, &self.seen.borrow());
        if !known.iter().any(|one| one == id) {
            return Err(Status::not_found(format!("the resource {} has no device {id:?} now", self.resource.name)));
        }
        let made = macvtap::make(&self.links, id, &self.resource.lower, self.resource.mode).await;
        let index = made.map_err(|error| Status::unavailable(Chain(&error).to_string()))?;
        let path = format!("/dev/tap{index}");
        Ok(DeviceSpec { container_path: path.clone(), host_path: path, permissions: "rw".to_owned() })
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let begin = (self.resource.clone(), self.seen.clone(), true);
        let stream = futures::stream::unfold(begin, |(resource, mut seen, first)| async move {
            if !first {
                seen.changed().await.ok()?;
            }
            let now = list(&resource, &seen.borrow_and_update());
            Some((Ok(now), (resource, seen, false)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse::default()))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let mut answer = ContainerAllocateResponse::default();
            for id in &container.devices_ids {
                answer.devices.push(self.give(id).await?);
            }
            container_responses.push(answer);
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use futures::StreamExt as _;
    use rpc::deviceplugin::ContainerAllocateRequest;
    use sys::namespace::{Namespace, current_netns, unshare};

    use super::*;

    #[tokio::test]
    async fn a_device_is_a_link_at_the_one_that_is_named_and_goes_with_it() {
        let fresh = || std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().unwrap();
        let (Ok(one), Ok(two)) = (fresh(), fresh()) else { return };
        let links = Netlink::open_in(one.as_fd()).unwrap();
        links.add_veth("eth7", "far", two.as_fd()).await.unwrap();
        let wanted = resources::parse(r#"[{"name": "dp", "lowerDevice": "eth7", "capacity": 3}]"#).unwrap();
        let (news, seen) = watch::channel(Seen { all: ["eth7".to_owned()].into(), lower: Vec::new() });
        let plugin = Plugin { resource: wanted[0].clone(), links: links.clone(), seen };
        let mut told = plugin.list_and_watch(Request::new(Empty {})).await.unwrap().into_inner();
        assert_eq!(told.next().await.unwrap().unwrap().devices.len(), 3);
        let ask = async |id: &str| {
            let container = ContainerAllocateRequest { devices_ids: vec![id.to_owned()] };
            plugin.allocate(Request::new(AllocateRequest { container_requests: vec![container] })).await
        };
        let given = ask("dpMvp2").await.unwrap().into_inner().container_responses.remove(0).devices.remove(0);
        let link = links.get("dpMvp2").await.unwrap();
        assert_eq!((given.host_path, given.permissions.as_str()), (format!("/dev/tap{}", link.index), "rw"));
        for other in ["dpMvp3", "eth7", "otherMvp0"] {
            assert_eq!(ask(other).await.unwrap_err().code(), tonic::Code::NotFound, "{other}");
        }
        assert_eq!(links.links().await.unwrap().len(), 3);
        news.send_replace(Seen::default());
        assert!(told.next().await.unwrap().unwrap().devices.is_empty());
        assert!(ask("dpMvp0").await.is_err());
    }
}
