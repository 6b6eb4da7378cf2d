//! virt-operator: deploys, watches over and removes the virtualization components, as the KubeVirt object says.
//!
//! ```text
//! KubeVirt -> certificates (plan) + manifests (render) -> server-side apply, in parallel -> readiness -> status
//! ```

pub mod certificates;
mod context;
pub mod customize;
pub mod deploy;
pub mod error;
pub mod install;
mod instancetypes;
pub mod manifests;
mod remove;
mod rollout;
mod signing;
pub mod status;
mod traces;
pub mod webhook;

use std::sync::Arc;

use api::kubevirt::constants::finalizer;
use api::kubevirt::tls::asked;
use api::kubevirt::v1::KubeVirt;
pub use context::{Context, Release};
pub use error::Error;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kit::apply::Applied;
use kit::health::{self, Ready, Report};
use kit::operator::{self, Requests};
use kit::queue::Queue;
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Key, Store, Watch};
use kit::{Task, metrics, served, server, tls};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Field manager of everything this operator applies.
pub const MANAGER: &str = "virt-operator";

/// Command line of virt-operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt")]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "virt-operator")]
    pub identity: String,
    /// Image of virt-api, virt-controller and virt-handler.
    #[arg(long, env = "COMPONENT_IMAGE", default_value = install::COMPONENT_IMAGE)]
    pub component_image: String,
    /// Image of launcher pods.
    #[arg(long, env = "LAUNCHER_IMAGE", default_value = install::LAUNCHER_IMAGE)]
    pub launcher_image: String,
    /// Image of what `virtctl guestfs` runs.
    #[arg(long, env = "GUESTFS_IMAGE", default_value = install::GUESTFS_IMAGE)]
    pub guestfs_image: String,
    /// Port for webhooks, health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
    /// A port for webhooks alone, where tools of KubeVirt look for them.
    #[arg(long, default_value_t = 8444)]
    pub webhook_port: u16,
}

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args, process: operator::Process) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = process.connect(MANAGER).await.map_err(Error::setup("reach the API server"))?;
    // Until the product's own authority exists, the server shows a certificate that only serves the kubelet's probes.
    let material = tls::Material::of_its_own(MANAGER).map_err(Error::setup("make a certificate"))?;

    let release = Release {
        namespace: args.namespace.clone(),
        component: args.component_image.clone(),
        launcher: args.launcher_image.clone(),
        guestfs: args.guestfs_image.clone(),
        version: install::version(),
    };
    let ready = process.ready();
    let operator = Operator::new(client.clone(), release, material.clone());
    let listen = async |port: u16| {
        let bound = TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, port)).await;
        bound.map_err(Error::setup("listen"))
    };
    let listeners = [listen(args.port).await?, listen(args.webhook_port).await?];
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let all = Api::<KubeVirt>::all(client.clone());
    let (report, copy) = (Report::new(client.clone()), Store::default());
    report.obeys(&operator.context.kubevirts);
    report.obeys(&copy);
    let _obeying = tls::follow_optional(&client, all, watcher::Config::default(), copy, vec![config.clone()], asked);
    let _servers = serve(&operator, listeners, &config, ready.clone(), report, &stop);
    let _defined = defined(&client, ready);
    let lease = (args.namespace.as_str(), MANAGER);
    let led = operator::lead(&process, MANAGER, lease, &args.identity, &stop, || operator.start(&stop)).await;
    if led.map_err(Error::setup("reach the API server"))? { Ok(()) } else { Err(Error::Deposed) }
}

/// Serves health, metrics and webhooks on the first listener, and webhooks alone on the second.
pub fn serve(
    operator: &Operator,
    [all, webhooks]: [TcpListener; 2],
    config: &Arc<tls::Changing>,
    ready: Ready,
    report: Report,
    stop: &CancellationToken,
) -> [Task<()>; 2] {
    let judging = webhook::router(operator.context.kubevirts.clone(), operator.context.client.clone());
    let router = health::reporting(ready, report).merge(metrics::router(Registry::default())).merge(judging.clone());
    [
        kit::spawn("server", server::serve_tls(all, config.clone(), router, stop.clone())),
        kit::spawn("webhooks", server::serve_tls(webhooks, config.clone(), judging, stop.clone())),
    ]
}

/// Keeps `ready` while there is a kind by which the product can be asked for, and says what to do while there is none.
pub fn defined(client: &Client, ready: Ready) -> Task<()> {
    let remedy = "apply all of kubevirt-operator.yaml, which begins with it";
    served::required(client, &ApiResource::erase::<KubeVirt>(&()), ready, remedy)
}

/// KubeVirt objects to look at: for what runs, and for the instance types, which must not keep that waiting.
#[derive(Clone, Default)]
struct Queues {
    components: Queue<Key>,
    instancetypes: Queue<Key>,
}

/// The operator before it leads: its stores are filled, nothing is written.
pub struct Operator {
    /// Shared by the workers.
    pub context: Arc<Context>,
    queues: Queues,
    _watches: Vec<Task<()>>,
}

impl Operator {
    /// Starts the watches.
    pub fn new(client: Client, release: Release, material: Arc<tls::Material>) -> Self {
        let kubevirts = Store::default();
        let context = Arc::new(Context {
            requests: Requests::new(&client, &kubevirts, finalizer::KUBEVIRT, operator::Status::Subresource),
            client,
            release,
            kubevirts,
            deployments: Store::default(),
            daemon_sets: Store::default(),
            material,
            applied: Applied::by(MANAGER),
        });
        let queues = Queues::default();
        let watches = watches(&context, &queues);
        Operator { context, queues, _watches: watches }
    }

    /// Starts the work; dropping the result stops it.
    pub fn start(self, stop: &CancellationToken) -> Running {
        let (context, queues, stop) = (self.context.clone(), self.queues.clone(), stop.clone());
        let task = kit::spawn("controllers", async move {
            context.kubevirts.synced().await;
            context.deployments.synced().await;
            context.daemon_sets.synced().await;
            let requests = Queue::default();
            let (_watch, store) = signing::watch(&context, &requests);
            let signer = context.clone();
            let mut workers = requests.run(1, &stop, move |key| signing::reconcile(signer.clone(), store.clone(), key));
            let shared = context.clone();
            let types = queues.instancetypes;
            workers.extend(types.run(1, &stop, move |key| instancetypes::reconcile(shared.clone(), key)));
            workers.extend(queues.components.run(1, &stop, move |key| deploy::reconcile(context.clone(), key)));
            for worker in workers {
                if let Err(error) = worker.await {
                    tracing::error!(%error, "a worker ended");
                }
            }
        });
        Running { operator: self, _task: task }
    }
}

/// The operator at work.
pub struct Running {
    /// What it shares, for tests.
    pub operator: Operator,
    _task: Task<()>,
}

fn watches(context: &Arc<Context>, queues: &Queues) -> Vec<Task<()>> {
    let client = &context.client;
    let (queues, kubevirts) = (queues.clone(), context.kubevirts.clone());
    let wake = move || {
        queues.components.add_all(kubevirts.keys());
        queues.instancetypes.add_all(kubevirts.keys());
    };
    // Which one counts depends on all of them.
    let again = wake.clone();
    let kubevirts = served::watch(
        client,
        &ApiResource::erase::<KubeVirt>(&()),
        Api::<KubeVirt>::all(client.clone()),
        Watch::default(),
        context.kubevirts.clone(),
        move |_| again(),
    );
    let ours = || watcher::Config::default().labels(SELECTOR);
    let again = wake.clone();
    let deployments = store::watch(
        Api::<Deployment>::all(client.clone()),
        Watch { config: ours(), trim: trim_deployment, ..Watch::default() },
        context.deployments.clone(),
        move |_| again(),
    );
    let again = wake.clone();
    let daemon_sets = store::watch(
        Api::<DaemonSet>::all(client.clone()),
        Watch { config: ours(), trim: |set| set.spec = None, ..Watch::default() },
        context.daemon_sets.clone(),
        move |_| again(),
    );
    // Without its webhooks nothing judges what is written. Who has to take one out of the way scales the operator to zero before.
    let rendered = every_kind(&context.release.namespace);
    let mut tasks = operator::repair(client, &rendered, SELECTOR, &context.applied, wake);
    tasks.extend([kubevirts, deployments, daemon_sets]);
    tasks
}

/// An object at least of every kind that is ever applied in `namespace`, for what watches them.
fn every_kind(namespace: &str) -> Vec<Value> {
    let mut all =
        manifests::render(&manifests::Input { namespace: namespace.to_owned(), ..manifests::Input::default() });
    let metadata = json!({ "name": certificates::AUTHORITY, "namespace": namespace });
    all.extend(manifests::instancetypes::render(&manifests::labels("")));
    all.extend(["Secret", "ConfigMap"].map(|kind| json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata })));
    all
}

/// What everything that this operator applies is found by.
const SELECTOR: &str = "app.kubernetes.io/managed-by=virt-operator";

fn trim_deployment(deployment: &mut Deployment) {
    if let Some(spec) = &mut deployment.spec {
        spec.template = Default::default();
    }
}

/// The key under which `object` is stored and queued.
pub fn key<K: Resource>(object: &K) -> Key {
    Key::new(object.namespace().unwrap_or_default(), object.name_any())
}
