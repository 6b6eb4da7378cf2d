//! Pods become larger and smaller on a node of four cpus and one gibibyte, with the real API server and no runtime.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as Told, ServiceAccount};
use kit::events::Recorder;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::reflector;
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use sys::cgroup::Hierarchy;

use super::*;
use crate::allocation::Allocations;
use crate::config::Config;
use crate::device_drivers::DeviceClaims;
use crate::devices::Devices;
use crate::drivers::Csi;
use crate::fake_runtime::Fake;
use crate::fields::NodeAmounts;
use crate::image_pulls::Images;
use crate::inventory::Inventory;
use crate::networks;
use crate::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    dir: tempfile::TempDir,
    client: Client,
    runtime: Fake,
    life: Option<(CancellationToken, tokio::task::JoinHandle<Result<()>>)>,
}

impl Node {
    async fn new() -> Self {
        let client = kube_apiserver::ApiServer::in_memory().await.unwrap().client();
        let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        let _ = accounts.create(&PostParams::default(), &account).await;
        let mut node = Node { dir: tempfile::tempdir().unwrap(), client, runtime: Fake::default(), life: None };
        node.runtime.serve(&node.dir.path().join("runtime.sock"));
        node.begin().await;
        node
    }

    /// A life of the kubelet.
    async fn begin(&mut self) {
        let dir = |name: &str| self.dir.path().join(name);
        let config = Config {
            node_name: "n".into(),
            node_ips: vec!["127.0.0.1".parse().unwrap()],
            root: dir("kubelet"),
            log_dir: dir("logs"),
            cdi_dirs: Vec::new(),
            containerd: dir("runtime.sock"),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            pod_cidrs: Vec::new(),
            labels: BTreeMap::new(),
            max_pods: 10,
            guard: None,
            uplinks: None,
            power_off: CancellationToken::new(),
            server: None,
        };
        let events = Recorder::new(self.client.clone(), "kubelet", "n");
        let devices = Devices::new(dir("devices"));
        let amounts = NodeAmounts { cpu_milli: 4000, memory: 1 << 30, storage: 0 };
        let context = Context {
            allocations: Allocations::new(config.root.join("pods"), &amounts),
            device_claims: DeviceClaims::new(dir("claims")),
            csi: Csi::new(),
            volumes: Inventory::default(),
            images: Images::default(),
            networks: networks::networks(&config, &self.client, &events, &devices),
            runtime: Runtime::connect(&config.containerd).await.unwrap(),
            services: reflector::store().0,
            hierarchies: vec![Hierarchy { mount: dir("memory"), options: Some("memory".into()) }],
            node_dns: rpc::cri::DnsConfig::default(),
            client: self.client.clone(),
            events,
            devices,
            amounts,
            config,
        };
        let stop = CancellationToken::new();
        let running = tokio::spawn(Box::pin(run(Arc::new(context), watch::channel(Arc::default()).0, stop.clone())));
        self.life = Some((stop, running));
    }

    async fn end(&mut self) {
        let (stop, running) = self.life.take().unwrap();
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// Makes a pod with one container, and waits until that runs.
    async fn create(&self, name: &str, size: Value, more: Value) -> Pod {
        let mut container = json!({"name": "c", "image": "i:1", "resources": size});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.create_of(name, json!({"containers": [container]})).await
    }

    async fn create_of(&self, name: &str, mut spec: Value) -> Pod {
        spec["nodeName"] = "n".into();
        spec["automountServiceAccountToken"] = false.into();
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let runs = |pod: &Pod| container(pod).is_some_and(|c| c["state"]["running"].is_object());
        self.wait(name, "runs", runs).await
    }

    async fn wait(&self, name: &str, what: &str, condition: impl Fn(&Pod) -> bool) -> Pod {
        let holds = |pod: Option<&Pod>| pod.is_some_and(&condition);
        match tokio::time::timeout(PATIENCE, await_condition(self.pods(), name, holds)).await {
            Ok(found) => found.unwrap().unwrap(),
            Err(_) => panic!("{name} never {what}: {:?}", self.pods().get(name).await.unwrap().status),
        }
    }

    async fn resize(&self, name: &str, size: Value) {
        self.resize_in(name, "containers", size).await;
    }

    async fn resize_in(&self, name: &str, list: &str, size: Value) {
        let of = if list == "containers" { "c" } else { "s" };
        let patch = Patch::Strategic(json!({"spec": {list: [{"name": of, "resources": size}]}}));
        self.pods().patch_subresource("resize", name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until the container has the size, and nothing is said of it any more.
    async fn has(&self, name: &str, size: &Value) -> Pod {
        let pod =
            self.wait(name, "had its size", |pod| said(pod).is_empty() && actual(pod) == Some(size.clone())).await;
        assert_eq!(container(&pod).unwrap()["allocatedResources"], size["requests"]);
        assert_eq!(pod.status.as_ref().unwrap().observed_generation, pod.metadata.generation);
        pod
    }

    /// Waits until this is said of resizing: the reasons and messages of the two conditions.
    async fn says(&self, name: &str, expect: &[&str]) -> Pod {
        self.wait(name, &format!("said {expect:?}"), |pod| said(pod) == expect).await
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.runtime.state().log)
    }

    /// The file with the limit of the pod's group, which is there from now on.
    fn group(&self, pod: &Pod, limit: &str) -> PathBuf {
        let file = self.dir.path().join(format!("memory/ferrovirt/n/pod{}/memory.limit_in_bytes", pod.uid().unwrap()));
        std::fs::write(&file, (limit.parse::<i64>().unwrap() << 20).to_string()).unwrap();
        self.runtime.state().group = Some(file.clone());
        file
    }

    async fn told(&self, reason: &str) {
        let events: Api<Told> = Api::default_namespaced(self.client.clone());
        let began = tokio::time::Instant::now();
        loop {
            let all = events.list(&ListParams::default()).await.unwrap();
            if all.iter().any(|event| event.reason.as_deref() == Some(reason)) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "nobody was told {reason}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn size(cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({"requests": amounts, "limits": amounts})
}

fn container(pod: &Pod) -> Option<Value> {
    let status = serde_json::to_value(pod.status.as_ref()?).unwrap();
    Some(status["containerStatuses"][0].clone())
}

fn actual(pod: &Pod) -> Option<Value> {
    container(pod).map(|container| container["resources"].clone())
}

fn said(pod: &Pod) -> Vec<String> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let resizes = conditions.filter(|c| c.type_.starts_with("PodResize"));
    let mut all: Vec<String> = resizes
        .map(|c| {
            let words = [Some(c.type_.as_str()), c.reason.as_deref(), c.message.as_deref()];
            words.into_iter().flatten().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        })
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn a_running_container_grows_and_shrinks() {
    let node = Node::new().await;
    let pod = node.create("p", size("1", "64Mi"), json!({})).await;
    let id = container(&pod).unwrap()["containerID"].clone();
    node.has("p", &size("1", "64Mi")).await;
    assert_eq!(node.log(), ["start c"]);
    let group = node.group(&pod, "64");
    node.resize("p", size("2", "128Mi")).await;
    let grown = node.has("p", &size("2", "128Mi")).await;
    // The pod's group is as large before its container is.
    assert_eq!(node.log(), ["update c 2048 200000 128Mi in 128Mi"]);
    assert_eq!(grown.metadata.generation, Some(2));
    node.resize("p", size("500m", "32Mi")).await;
    let shrunk = node.has("p", &size("500m", "32Mi")).await;
    assert_eq!(node.log(), ["update c 512 50000 32Mi in 128Mi"]);
    assert_eq!(std::fs::read_to_string(group).unwrap(), (32 << 20).to_string());
    let status = container(&shrunk).unwrap();
    assert_eq!((&status["containerID"], &status["restartCount"]), (&id, &json!(0)));
    node.told("ResizeStarted").await;
    node.told("ResizeCompleted").await;
}

#[tokio::test]
async fn a_resize_waits_for_room() {
    let node = Node::new().await;
    let (small, large) = (size("1", "64Mi"), size("3", "64Mi"));
    node.create("p", small.clone(), json!({})).await;
    node.create("q", size("2", "64Mi"), json!({})).await;
    node.resize("p", size("5", "64Mi")).await;
    let never = "PodResizePending Infeasible Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000";
    let refused = node.says("p", &[never]).await;
    assert_eq!(actual(&refused), Some(small.clone()));
    node.told("ResizeInfeasible").await;
    node.resize("p", large.clone()).await;
    let later =
        "PodResizePending Deferred Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000";
    assert_eq!(actual(&node.says("p", &[later]).await), Some(small));
    node.told("ResizeDeferred").await;
    node.pods().delete("q", &DeleteParams::default().grace_period(0)).await.unwrap();
    node.has("p", &large).await;
}

#[tokio::test]
async fn who_takes_a_wish_back_keeps_what_he_has() {
    let node = Node::new().await;
    node.create("p", size("1", "64Mi"), json!({})).await;
    node.resize("p", size("9", "64Mi")).await;
    node.wait("p", "was refused", |pod| !said(pod).is_empty()).await;
    node.resize("p", size("1", "64Mi")).await;
    node.has("p", &size("1", "64Mi")).await;
    assert_eq!(node.log(), ["start c"]);
}

#[tokio::test]
async fn memory_in_use_is_not_taken_away() {
    let node = Node::new().await;
    node.create("p", size("1", "64Mi"), json!({})).await;
    node.runtime.state().usage.insert("c".into(), 48 << 20);
    node.resize("p", size("1", "32Mi")).await;
    let why = "PodResizeInProgress Error cannot decrease memory limits: [attempting to set pod memory limit (33554432) \
        below current usage (50331648), attempting to set container \"c\" memory limit (33554432) below current usage \
        (50331648)]";
    let refused = node.says("p", &[why]).await;
    assert_eq!(actual(&refused), Some(size("1", "64Mi")));
    node.told("ResizeError").await;
    node.runtime.state().usage.insert("c".into(), 16 << 20);
    node.has("p", &size("1", "32Mi")).await;
}

#[tokio::test]
async fn a_container_that_wants_it_is_started_again() {
    let node = Node::new().await;
    let policy = json!({"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]});
    let pod = node.create("p", size("1", "64Mi"), policy).await;
    node.group(&pod, "64");
    node.log();
    node.resize("p", size("2", "64Mi")).await;
    node.has("p", &size("2", "64Mi")).await;
    assert_eq!(node.log(), ["update c 2048 200000 64Mi in 64Mi"]);
    node.resize("p", size("2", "128Mi")).await;
    let pod = node.has("p", &size("2", "128Mi")).await;
    assert_eq!(node.log(), ["stop c", "start c"]);
    assert_eq!(container(&pod).unwrap()["restartCount"], 1);
}

#[tokio::test]
async fn a_sidecar_is_resized_as_well() {
    let node = Node::new().await;
    let (one, two) = (size("1", "64Mi"), size("2", "64Mi"));
    let container = |name: &str| json!({"name": name, "image": "i:1", "resources": one});
    let mut sidecar = container("s");
    sidecar["restartPolicy"] = "Always".into();
    let spec = json!({"containers": [container("c")], "initContainers": [sidecar]});
    node.create_of("p", spec).await;
    node.log();
    node.resize_in("p", "initContainers", two.clone()).await;
    let sidecar =
        |pod: &Pod| serde_json::to_value(pod.status.as_ref().unwrap()).unwrap()["initContainerStatuses"][0].clone();
    let pod = node.wait("p", "grew", |pod| sidecar(pod)["resources"] == two && said(pod).is_empty()).await;
    assert_eq!(sidecar(&pod)["allocatedResources"], two["requests"]);
    assert_eq!(node.log(), ["update s 2048 200000 64Mi"]);
}

#[tokio::test]
async fn the_next_life_of_the_kubelet_goes_on_with_it() {
    let mut node = Node::new().await;
    node.create("p", size("1", "64Mi"), json!({})).await;
    node.log();
    node.runtime.state().refusal = Some("not now".into());
    node.resize("p", size("2", "64Mi")).await;
    node.says("p", &["PodResizeInProgress Error not now"]).await;
    node.end().await;
    // What is wanted meanwhile has to be granted first.
    node.resize("p", size("5", "64Mi")).await;
    node.runtime.state().refusal = None;
    node.begin().await;
    let never = "PodResizePending Infeasible Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000";
    let pod = node.says("p", &[never]).await;
    assert_eq!(actual(&pod), Some(size("2", "64Mi")));
    assert_eq!(node.log(), ["update c 2048 200000 64Mi"]);
    node.end().await;
    node.resize("p", size("3", "64Mi")).await;
    node.begin().await;
    node.has("p", &size("3", "64Mi")).await;
    assert_eq!(node.log(), ["update c 3072 300000 64Mi"]);
}
