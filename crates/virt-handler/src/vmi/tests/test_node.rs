//! A node with virt-handler's VMI controller at work, against the in-process API server and launchers of the test.
//!
//! Time is paused. It advances in small steps while a test waits, and only after what could run has run: sockets are
//! ready at once here, and no limit passes because the runtime was idle between two of their events.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use axum::http::Request;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::Task;
use kit::peer::Peers;
use kit::shutdown::CancellationToken;
use kit::tls;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};
use sys::peer::Process;
use tokio::time::{Instant, advance};

use super::fake_launcher::FakeLauncher;
use crate::launcher::Pods;
use crate::migration::Road;
use crate::vmi::{Context, Inner, start};

pub(super) const NAMESPACE: &str = "default";
/// How far time advances between two looks, and how often others run before it does.
const STEP: Duration = Duration::from_millis(50);
const TURNS: usize = 100;
const LIMIT: Duration = Duration::from_secs(180);

pub(super) struct TestNode {
    pub(super) vmis: Api<VirtualMachineInstance>,
    pub(super) context: Context,
    events: Api<Event>,
    requests: Arc<Mutex<Vec<String>>>,
    dir: PathBuf,
    processes: Arc<Mutex<BTreeMap<String, u32>>>,
    _tasks: Vec<Task<()>>,
    _server: ApiServer,
}

impl TestNode {
    pub(super) async fn start(name: &str) -> Self {
        // The runtime is never idle, so that time advances only where it is told to.
        let awake: Task<()> = kit::spawn("awake", async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        for name in ["virtualmachineinstances.kubevirt.io", "kubevirts.kubevirt.io"] {
            let path = format!("../../deploy/crds/{name}.yaml");
            let crd = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        let dir = std::env::temp_dir().join(format!("node-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let road = Road {
            peers: Peers::new("virt-handler", tls::Material::new(), tls::Trust::new()),
            address: "192.0.2.1".into(),
            port: 8187,
            namespace: "kubevirt".into(),
            client: recording(client.clone(), requests.clone()),
        };
        let processes: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
        let known = processes.clone();
        let pods = Pods::played(dir.clone()).with_peer(move |pod, _| Process::open(known.lock().unwrap()[pod]));
        let inner = Inner::new("node1".into(), pods, dir.join("records"), None, None, road);
        let context = Context(Arc::new(inner));
        let mut tasks = start(&context, &CancellationToken::new());
        tasks.extend([awake, context.settings.start(&context.client, Vec::new())]);
        Self {
            vmis: Api::namespaced(client.clone(), NAMESPACE),
            context,
            events: Api::namespaced(client, NAMESPACE),
            requests,
            dir,
            processes,
            _tasks: tasks,
            _server: server,
        }
    }

    /// What virt-handler has asked of the API server so far: methods and paths.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// A launcher in a pod of its own.
    pub(super) fn launcher(&self, number: usize) -> FakeLauncher {
        let pod = super::uid(number);
        let launcher = FakeLauncher::start(&self.dir, &pod);
        self.processes.lock().unwrap().insert(pod, launcher.pid());
        launcher
    }

    /// A VMI that was scheduled to this node, with its launcher.
    pub(super) async fn guest(&self, name: &str, number: usize) -> FakeLauncher {
        let launcher = self.launcher(number);
        self.create(name, scheduled(&launcher)).await;
        launcher
    }

    /// Creates a VMI with what is `given` beside its name.
    pub(super) async fn create(&self, name: &str, mut given: Value) {
        given["metadata"]["name"] = name.into();
        self.vmis.create(&PostParams::default(), &serde_json::from_value(given).unwrap()).await.unwrap();
    }

    /// What others write of a VMI.
    pub(super) async fn patch(&self, name: &str, patch: Value) {
        self.vmis.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn vmi(&self, name: &str) -> Value {
        serde_json::to_value(self.vmis.get(name).await.unwrap()).unwrap()
    }

    /// Waits until the VMI is as it should be.
    pub(super) async fn until(&self, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let vmi = self.vmi(name).await;
            if fits(&vmi) {
                return vmi;
            }
            assert!(Instant::now() < deadline, "{name} is left at {vmi:#}");
            step().await;
        }
    }

    /// Waits until the condition of the VMI is there, or not.
    pub(super) async fn until_condition(&self, name: &str, condition: &str, there: bool) -> Value {
        let vmi = self.until(name, |vmi| find(vmi, condition).is_some() == there).await;
        find(&vmi, condition).cloned().unwrap_or_default()
    }

    /// Waits for an event about the VMI, and returns the reasons of all of them.
    pub(super) async fn until_event(&self, name: &str, reason: &str) -> Vec<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let events = self.events(name).await;
            if events.iter().any(|event| event == reason) {
                return events;
            }
            assert!(Instant::now() < deadline, "{name} has only the events {events:?}");
            step().await;
        }
    }

    async fn events(&self, name: &str) -> Vec<String> {
        let events = self.events.list(&ListParams::default()).await.unwrap().items;
        let about = events.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
        about.filter_map(|event| event.reason).collect()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A client that writes down what is asked.
fn recording(client: Client, requests: Arc<Mutex<Vec<String>>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        requests.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, NAMESPACE)
}

/// What virt-controller hands over.
pub(super) fn scheduled(launcher: &FakeLauncher) -> Value {
    json!({
        "metadata": { "labels": { "kubevirt.io/nodeName": "node1" } },
        "spec": { "domain": { "devices": {} } },
        "status": { "phase": "Scheduled", "nodeName": "node1", "activePods": { &launcher.pod: "node1" } },
    })
}

/// A condition of the VMI.
pub(super) fn find<'a>(vmi: &'a Value, condition: &str) -> Option<&'a Value> {
    vmi["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == condition)
}

async fn step() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    advance(STEP).await;
}

/// Waits until `fits`.
pub(super) async fn until(what: &str, fits: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !fits() {
        assert!(Instant::now() < deadline, "it never came to this: {what}");
        step().await;
    }
}

/// Lets this much time pass.
pub(super) async fn pass(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        step().await;
    }
}
