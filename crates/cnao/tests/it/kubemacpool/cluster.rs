//! An API server that has the pool deployed, and the pods of its replicas played by the test.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::kubevirt::v1::VirtualMachine;
use axum::Router;
use axum::body::Body;
use cnao::kubemacpool::certificates::{self, Intervals};
use cnao::kubemacpool::manifests::{self, Input};
use cnao::kubemacpool::names::{ACCOUNT, SECRET};
use cnao::kubemacpool::opting::Mode;
use cnao::kubemacpool::reservation::LABEL;
use cnao::kubemacpool::{Mac, Modes, Range, Server, Settings};
use http::Request;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kit::apply::Applied;
use kit::certs::Pair;
use kit::events::Recorder;
use kit::keyring::Held;
use kit::shutdown::CancellationToken;
use kit::{Task, clock, server, tls};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tower::ServiceExt;

pub(crate) const NAMESPACE: &str = "kubemacpool-system";
pub(crate) const LONG: Duration = Duration::from_secs(60);
const DEFINITIONS: [(&str, &str); 2] = [
    ("virtualmachines.kubevirt.io", include_str!("../../../../../deploy/crds/virtualmachines.kubevirt.io.yaml")),
    (
        "virtualmachineinstances.kubevirt.io",
        include_str!("../../../../../deploy/crds/virtualmachineinstances.kubevirt.io.yaml"),
    ),
];

/// A cluster whose pool gives the addresses 02:00:00:00:00:00 to one that ends in these bytes.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    pair: Pair,
    made: AtomicU64,
}

impl Cluster {
    pub(crate) async fn new(last: [u8; 3]) -> Self {
        let server = ApiServer::in_memory().await.unwrap();
        let client = server.client();
        kit::apply::crds(&client, &Applied::by("test"), &DEFINITIONS).await.unwrap();
        let ring = certificates::keyring(NAMESPACE, Intervals::default().lifetimes().unwrap());
        let renewed = ring.plan(&Held::default(), clock::now()).unwrap();
        let [a, b, c] = last;
        let end: Mac = format!("02:00:00:{a:02x}:{b:02x}:{c:02x}").parse().unwrap();
        let range = Range::new("02:00:00:00:00:00".parse().unwrap(), end).unwrap();
        let input = Input { ca_bundle: renewed.bundle.clone(), ..Input::new(NAMESPACE, "image", range) };
        let pair = renewed.leaves[SECRET].clone();
        let cluster = Cluster { server, client, pair, made: AtomicU64::new(0) };
        cluster.namespace(NAMESPACE, json!({})).await;
        cluster.namespace("ns", json!({})).await;
        kit::apply::all(&cluster.client, &Applied::by("test"), &manifests::render(&input)).await.unwrap();
        cluster
    }

    pub(crate) async fn namespace(&self, name: &str, labels: Value) {
        let namespace = json!({ "metadata": { "name": name, "labels": labels } });
        let api: Api<Namespace> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    }

    /// A replica that leads as soon as no other does; requests are sent to it once it is ready.
    pub(crate) async fn replica(&self) -> Replica {
        self.replica_waiting(Duration::from_secs(600)).await
    }

    /// The same; `wait` is how long it waits for requests to be stored.
    pub(crate) async fn replica_waiting(&self, wait: Duration) -> Replica {
        let name = format!("kubemacpool-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let client = self.server.client_as(User {
            name: format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
            groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
            ..User::default()
        });
        let modes = Modes { machines: Mode::OptOut, pods: Mode::OptIn };
        let settings = Settings { namespace: NAMESPACE.into(), wait, modes };
        let events = Recorder::new(client.clone(), "kubemacpool", "");
        let pool = Server::start(client.clone(), &settings, events);
        until("ready", async || pool.ready.get().then_some(())).await;
        let stop = CancellationToken::new();
        let leading = kit::spawn("leading", pool.lead(client, name.clone(), stop.clone()));
        let material = tls::Material::new();
        material.set(&self.pair).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = tls::Changing::new(material, None).unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let counter = asked.clone();
        let count = axum::middleware::map_request(move |request: axum::extract::Request| {
            counter.fetch_add(1, Ordering::Relaxed);
            std::future::ready(request)
        });
        let router = pool.router().layer(count);
        let serving = kit::spawn("serving", server::serve_tls(listener, config, router, stop.clone()));
        self.expose(&name, port).await;
        Replica { name, pool, asked, stop, leading, serving }
    }

    /// A ready pod of the Deployment.
    async fn expose(&self, name: &str, port: u16) {
        let labels = json!({ "control-plane": "mac-controller-manager", "controller-tools.k8s.io": "1.0" });
        let ports = json!([{ "name": "webhook-server", "containerPort": port }]);
        let pod = json!({
            "metadata": { "name": name, "labels": labels },
            "spec": { "containers": [{ "name": "manager", "image": "i", "ports": ports }] },
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let status = json!({ "status": {
            "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// Ends a replica without warning. What it has answered stays answered.
    pub(crate) async fn kill(&self, replica: Replica) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        api.delete(&replica.name, &at_once).await.unwrap();
        drop(replica);
    }

    pub(crate) fn machines(&self) -> Api<VirtualMachine> {
        self.of("ns")
    }

    pub(crate) fn of<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The addresses that are reserved.
    pub(crate) async fn reserved(&self) -> BTreeSet<String> {
        let api: Api<Lease> = self.of(NAMESPACE);
        let leases = api.list(&ListParams::default().labels(LABEL)).await.unwrap();
        let names = leases.iter().map(ResourceExt::name_any);
        names.map(|name| name.strip_prefix("kubemacpool-").unwrap().replace('-', ":")).collect()
    }

    /// Waits until exactly these addresses are reserved.
    pub(crate) async fn until_reserved(&self, expect: &[&str]) {
        let expect: BTreeSet<String> = expect.iter().map(|mac| (*mac).to_owned()).collect();
        until(&format!("{expect:?} reserved"), async || (self.reserved().await == expect).then_some(())).await;
    }
}

/// A replica at work.
pub(crate) struct Replica {
    name: String,
    pub(crate) pool: Server,
    asked: Arc<AtomicU64>,
    stop: CancellationToken,
    leading: Task<()>,
    serving: Task<()>,
}

impl Replica {
    /// Ends as it does when the kubelet asks it to.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.leading.await.unwrap();
        self.serving.await.unwrap();
    }

    /// How many requests the API server has sent to it.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// What a webhook answers to `request`, asked by whoever reaches it.
    pub(crate) async fn ask(&self, path: &str, request: &Value) -> Value {
        let mut request = request.clone();
        request["uid"] = json!("1");
        ask(self.pool.router(), path, &json!({ "request": request })).await
    }

    /// What is scraped.
    pub(crate) async fn metrics(&self) -> String {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let response = self.pool.metrics().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        String::from_utf8(bytes.into()).unwrap()
    }
}

async fn ask(router: Router, path: &str, review: &Value) -> Value {
    let request = Request::post(path).body(Body::from(review.to_string())).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 22).await.unwrap();
    let answer: Value =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&bytes)));
    answer["response"].clone()
}

/// Waits until there is an answer.
pub(crate) async fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let found = timeout(LONG, async {
        loop {
            if let Some(found) = holds().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("never {what}"))
}

/// Interfaces as `name`, or `name=address`: `p…` on the pod's network, others on one of Multus'.
pub(crate) fn machine(name: &str, interfaces: &[&str]) -> VirtualMachine {
    let (mut all, mut networks) = (Vec::new(), Vec::new());
    for text in interfaces {
        let (name, mac) = text.split_once('=').unwrap_or((text, ""));
        let mut one = json!({ "name": name, "bridge": {} });
        if !mac.is_empty() {
            one["macAddress"] = json!(mac);
        }
        all.push(one);
        networks.push(match name.starts_with('p') {
            true => json!({ "name": name, "pod": {} }),
            false => json!({ "name": name, "multus": { "networkName": "br1" } }),
        });
    }
    let domain = json!({ "devices": { "interfaces": all }, "resources": { "requests": { "memory": "64Mi" } } });
    let spec = json!({ "runStrategy": "Halted", "template": { "spec": { "domain": domain, "networks": networks } } });
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
}

/// The addresses of a virtual machine, in the order of its interfaces.
pub(crate) fn addresses(machine: &VirtualMachine) -> Vec<String> {
    let spec = machine.spec.template.spec.as_ref().unwrap();
    let all = spec.domain.devices.interfaces.iter();
    all.map(|one| one.mac_address.clone().unwrap_or_default()).collect()
}

pub(crate) async fn create<K>(api: &Api<K>, object: &K) -> K
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    api.create(&PostParams::default(), object).await.unwrap()
}

/// The sentence with which a request is refused, and its code.
pub(crate) fn refused<T: Debug>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("not refused: {other:?}"),
    }
}
