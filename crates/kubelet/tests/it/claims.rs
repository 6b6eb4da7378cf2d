//! Claims on devices, with a driver that registers, prepares and takes back, or says nothing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt};
use rpc::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use rpc::dra::{
    self, Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use rpc::registration::registration_server::{Registration, RegistrationServer};
use rpc::registration::{DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::machine::{Machine, node};

const NAME: &str = "gpu.dra.test";
const LIMIT: Duration = Duration::from_secs(40);

/// Keeps a log of what it is asked.
#[derive(Clone, Default)]
struct Driver {
    log: Arc<Mutex<Vec<String>>>,
    /// What it says instead of preparing.
    error: Arc<Mutex<String>>,
}

struct Running {
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl Running {
    async fn stop(self) {
        self.stop.cancel();
        for socket in &self.sockets {
            std::fs::remove_file(socket).unwrap();
        }
        for task in self.tasks {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Driver {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn note(&self, what: &str, claims: &[Claim]) {
        let names = claims.iter().map(|claim| format!("{what} {}/{}", claim.namespace, claim.name));
        self.log.lock().unwrap().extend(names);
    }

    fn start(&self, dir: &Path, root: &Path) -> Running {
        let stop = CancellationToken::new();
        let (own, registry) = (dir.join("dra.sock"), root.join("plugins_registry/dra-reg.sock"));
        std::fs::create_dir_all(registry.parent().unwrap()).unwrap();
        let incoming = |socket: &Path| UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let serving = tonic::transport::Server::builder()
            .add_service(DraPluginServer::new(self.clone()))
            .serve_with_incoming_shutdown(incoming(&own), stop.clone().cancelled_owned());
        let registering = tonic::transport::Server::builder()
            .add_service(RegistrationServer::new(Registered(own.clone())))
            .serve_with_incoming_shutdown(incoming(&registry), stop.clone().cancelled_owned());
        let tasks = vec![
            tokio::spawn(async move { serving.await.unwrap() }),
            tokio::spawn(async move { registering.await.unwrap() }),
        ];
        Running { stop, tasks, sockets: vec![own, registry] }
    }
}

struct Registered(PathBuf);

#[tonic::async_trait]
impl Registration for Registered {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: DRA_PLUGIN.into(),
            name: NAME.into(),
            endpoint: self.0.display().to_string(),
            supported_versions: vec![dra::SERVICE.into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        assert!(status.into_inner().plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("prepare", &claims);
        let error = self.error.lock().unwrap().clone();
        let answer = |claim: Claim| {
            let device = |request: &str, id: &str| Device {
                request_names: vec![request.into()],
                pool_name: node(),
                device_name: id.into(),
                cdi_device_ids: vec![format!("dra.test/gpu={id}")],
            };
            let devices = if error.is_empty() { vec![device("one", "a"), device("two", "b")] } else { Vec::new() };
            (claim.uid, NodePrepareResourceResponse { devices, error: error.clone() })
        };
        let claims: HashMap<_, _> = claims.into_iter().map(answer).collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("unprepare", &claims);
        let answer = |claim: Claim| (claim.uid, NodeUnprepareResourceResponse { error: String::new() });
        Ok(Response::new(NodeUnprepareResourcesResponse { claims: claims.into_iter().map(answer).collect() }))
    }
}

fn claims(machine: &Machine) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceClaim"));
    Api::namespaced_with(machine.client.clone(), "default", &kind)
}

/// A claim with devices, as a scheduler would leave it but for its users.
async fn allocated(machine: &Machine, name: &str) {
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "gpu"}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request("one"), request("two")]}}});
    claims(machine).create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let result =
        |request: &str, device: &str| json!({"request": request, "driver": NAME, "pool": node(), "device": device});
    let status = json!({"status": {"allocation": {"devices": {"results": [result("one", "a"), result("two", "b")]}}}});
    claims(machine).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

async fn reserve(machine: &Machine, claim: &str, pods: &[&Pod]) {
    let user = |pod: &&Pod| json!({"resource": "pods", "name": pod.name_any(), "uid": pod.uid()});
    let status = json!({"status": {"reservedFor": pods.iter().map(user).collect::<Vec<_>>()}});
    claims(machine).patch_status(claim, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

fn using(claim: &str, request: Value, command: &str) -> Value {
    let mut wanted = json!({"name": "gpu"});
    if request.is_string() {
        wanted["request"] = request;
    }
    json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}], "restartPolicy": "Never",
        "containers": [{"name": "c", "command": ["sh", "-c", command], "resources": {"claims": [wanted]}}]})
}

async fn said(machine: &Machine, reason: &str, text: &str) {
    let events: Api<Event> = Api::namespaced(machine.client.clone(), "default");
    let began = std::time::Instant::now();
    loop {
        let known = events.list(&ListParams::default()).await.unwrap().items;
        let found = known.iter().any(|event| {
            event.reason.as_deref() == Some(reason) && event.message.as_deref().is_some_and(|m| m.contains(text))
        });
        if found {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{reason} {text} was never said: {known:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn describe(machine: &Machine) {
    let device = |name: &str| {
        json!({"name": name, "containerEdits": {"env": [format!("GPU_{name}=yes")],
            "deviceNodes": [{"path": format!("/dev/gpu-{name}"), "hostPath": "/dev/null"}]}})
    };
    let spec = json!({"cdiVersion": "0.6.0", "kind": "dra.test/gpu", "containerEdits": {},
        "devices": [device("a"), device("b")]});
    std::fs::create_dir_all(machine.dir.join("cdi")).unwrap();
    std::fs::write(machine.dir.join("cdi/gpu.json"), spec.to_string()).unwrap();
}

/// From the driver's registration to its leave, over a restart of the kubelet.
pub(crate) async fn claims_on_devices(machine: &mut Machine) {
    let driver = Driver::default();
    let (dir, root) = (machine.dir.clone(), machine.dir.join("kubelet"));
    describe(machine);
    allocated(machine, "claim").await;

    // Nobody is told anything of a claim that is not the pod's.
    let show = "ls /dev | grep gpu; env | grep GPU_ | sort";
    let first = machine.create("claimed", using("claim", Value::Null, show)).await;
    said(machine, "FailedPrepareDynamicResources", "resourceclaim default/claim is not reserved for the pod").await;
    let second = machine.create("partly", using("claim", "two".into(), show)).await;
    reserve(machine, "claim", &[&first, &second]).await;
    said(machine, "FailedPrepareDynamicResources", "DRA driver gpu.dra.test is not registered on this node").await;

    "the card is on fire".clone_into(&mut driver.error.lock().unwrap());
    let running = driver.start(&dir, &root);
    said(machine, "FailedPrepareDynamicResources", "NodePrepareResources failed: the card is on fire").await;
    driver.error.lock().unwrap().clear();
    let done = machine.phase("claimed", "Succeeded").await;
    assert_eq!(machine.log(&done, "c", 0), "gpu-a\ngpu-b\nGPU_a=yes\nGPU_b=yes\n");
    let done = machine.phase("partly", "Succeeded").await;
    assert_eq!(machine.log(&done, "c", 0), "gpu-b\nGPU_b=yes\n");

    // The last of those who share a claim gives it back, though the kubelet was started anew meanwhile.
    allocated(machine, "kept").await;
    let long = machine.create("long", using("kept", Value::Null, "trap 'exit 0' TERM; sleep 1000 & wait")).await;
    reserve(machine, "kept", &[&long]).await;
    machine.phase("long", "Running").await;
    assert!(driver.asked().contains(&"prepare default/kept".to_owned()));
    machine.stop_kubelet().await;
    machine.start_kubelet();
    machine.delete("long", 5).await;
    machine.delete("claimed", 0).await;
    machine.delete("partly", 0).await;
    let asked = driver.asked();
    assert_eq!(asked.iter().filter(|call| *call == "unprepare default/kept").count(), 1, "{asked:?}");
    assert!(!asked.iter().any(|call| call == "prepare default/kept"), "{asked:?}");
    assert!(std::fs::read_dir(root.join("device-claims")).unwrap().next().is_none());
    running.stop().await;
}
