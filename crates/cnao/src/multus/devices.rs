//! What the node's kubelet says of the devices that a pod has.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kit::Chain;
use pod_networks::{Devices, Error, Result};
use rpc::podresources::pod_resources_lister_client::PodResourcesListerClient;
use rpc::podresources::{ListPodResourcesRequest, PodResources, SOCKET};
use tonic::transport::Endpoint;

/// The kubelet answers from memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer, which lists all pods of the node.
const LARGEST: usize = 16 << 20;

/// The kubelet at its usual socket.
pub(super) struct Kubelet {
    socket: PathBuf,
}

impl Kubelet {
    /// Where the node's root directory is `root`.
    pub(super) fn below(root: &Path) -> Self {
        Kubelet { socket: root.join(SOCKET.trim_start_matches('/')) }
    }

    async fn pods(&self) -> std::result::Result<Vec<PodResources>, Box<dyn std::error::Error + Send + Sync>> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket.display()))?;
        let channel = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE).connect().await?;
        let mut kubelet = PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST);
        Ok(kubelet.list(ListPodResourcesRequest {}).await?.into_inner().pod_resources)
    }
}

impl Devices for Kubelet {
    fn of<'a>(&'a self, pod: &'a Pod, resource: &'a str) -> BoxFuture<'a, Result<Vec<String>>> {
        async move {
            let failed = |error: &(dyn std::error::Error + 'static)| {
                let socket = self.socket.display();
                Error::Invalid(format!(
                    "the kubelet does not say at {socket} which devices the pod has: {}",
                    Chain(error)
                ))
            };
            let pods = self.pods().await.map_err(|error| failed(error.as_ref()))?;
            let metadata = &pod.metadata;
            let is_it = |one: &PodResources| {
                Some(&one.name) == metadata.name.as_ref() && Some(&one.namespace) == metadata.namespace.as_ref()
            };
            Ok(pods.iter().find(|one| is_it(one)).map(|one| ids(one, resource)).unwrap_or_default())
        }
        .boxed()
    }
}

/// Devices of the resource, in the order of the containers. Pure.
fn ids(pod: &PodResources, resource: &str) -> Vec<String> {
    let devices = pod.containers.iter().flat_map(|container| &container.devices);
    devices.filter(|given| given.resource_name == resource).flat_map(|given| given.device_ids.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use rpc::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
    use rpc::podresources::{
        ContainerDevices, ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesResponse,
    };
    use serde_json::json;
    use tonic::{Request, Response, Status};

    use super::*;

    const RED: &str = "example.com/red";

    struct Node;

    #[tonic::async_trait]
    impl PodResourcesLister for Node {
        async fn get(
            &self,
            _: Request<GetPodResourcesRequest>,
        ) -> std::result::Result<Response<GetPodResourcesResponse>, Status> {
            Err(Status::unimplemented("of later kubelets"))
        }

        async fn list(
            &self,
            _: Request<ListPodResourcesRequest>,
        ) -> std::result::Result<Response<ListPodResourcesResponse>, Status> {
            let given = |resource: &str, ids: &[&str]| ContainerDevices {
                resource_name: resource.into(),
                device_ids: ids.iter().map(ToString::to_string).collect(),
            };
            let devices = vec![given(RED, &["a"]), given("example.com/blue", &["x"]), given(RED, &["b"])];
            let pod = |name: &str, devices| PodResources {
                name: name.into(),
                namespace: "ns".into(),
                containers: vec![ContainerResources { name: "main".into(), devices }],
            };
            let pod_resources = vec![pod("other", vec![given(RED, &["z"])]), pod("own", devices)];
            Ok(Response::new(ListPodResourcesResponse { pod_resources }))
        }
    }

    fn pod(name: &str) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "ns" } })).unwrap()
    }

    #[tokio::test]
    async fn a_pods_own_devices_are_told_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let kubelet = Kubelet::below(dir.path());
        let why = kubelet.of(&pod("own"), RED).await.unwrap_err();
        assert!(Chain(&why).to_string().contains("the kubelet does not say"), "{why}");
        std::fs::create_dir_all(kubelet.socket.parent().unwrap()).unwrap();
        let incoming = rpc::unix::listen(&kubelet.socket).unwrap();
        let _serving = kit::spawn("kubelet", async move {
            let server = tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(Node));
            server.serve_with_incoming(incoming).await.unwrap();
        });
        assert_eq!(kubelet.of(&pod("own"), RED).await.unwrap(), ["a", "b"]);
        assert!(kubelet.of(&pod("own"), "example.com/green").await.unwrap().is_empty());
        assert!(kubelet.of(&pod("gone"), RED).await.unwrap().is_empty());
    }
}
