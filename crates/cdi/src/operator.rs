//! cdi-operator: deploys, watches over and removes CDI, as the CDI object says.
//!
//! ```text
//! CDI -> key rings (plan) + manifests (render) -> server-side apply, in parallel -> readiness -> status
//! ```

mod authority;
pub mod certificates;
mod context;
mod deploy;
pub mod install;
pub mod manifests;
mod metrics;
mod remove;
pub mod status;

use std::sync::Arc;

use api::cdi::v1beta1::CDI;
pub use context::Context;
pub(crate) use deploy::refused;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kit::apply::Applied;
use kit::health;
use kit::operator::Requests;
use kit::queue::Queue;
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Key, Store, Watch};
use kit::{Task, events, operator, served, server, tls};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};

use self::manifests::monitoring;
use crate::{Error, security};

/// The finalizer that holds the CDI object until everything is taken away.
const FINALIZER: &str = "operator.cdi.kubevirt.io";
/// Field manager of everything this operator applies, and its name in `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "cdi-operator";

/// Command line of cdi-operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator and of what it deploys.
    #[arg(long, env = "POD_NAMESPACE", default_value = "cdi")]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "cdi-operator")]
    pub identity: String,
    /// Image of the components and of the pods that import, clone and upload.
    #[arg(long, env = "COMPONENT_IMAGE", default_value = install::COMPONENT_IMAGE)]
    pub component_image: String,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
}

/// What the operator deploys.
#[derive(Clone, Debug)]
pub struct Release {
    /// Namespace of the components.
    pub namespace: String,
    /// Their image.
    pub image: String,
    /// Version of the product.
    pub version: String,
}

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args, process: operator::Process) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = process.connect(MANAGER).await.map_err(Error::setup("reach the API server"))?;
    let material = tls::Material::of_its_own(MANAGER).map_err(Error::setup("make a certificate"))?;
    let release =
        Release { namespace: args.namespace.clone(), image: args.component_image.clone(), version: install::version() };
    let ready = process.ready();
    let events = events::Recorder::new(client.clone(), MANAGER, "");
    let operator = Operator::new(client.clone(), release, events);
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let _following = security::follow_optional(&client, config.clone());
    let registry = metrics::registry(operator.context.cdis.clone());
    let router = health::router(ready.clone()).merge(kit::metrics::router(registry));
    let _server = kit::spawn("server", server::serve_tls(listener, config, router, stop.clone()));
    let remedy = "apply all of cdi-operator.yaml, which begins with it";
    let _defined = served::required(&client, &ApiResource::erase::<CDI>(&()), ready, remedy);
    let lease = (args.namespace.as_str(), "cdi-operator-leader-election-helper");
    let led = operator::lead(&process, MANAGER, lease, &args.identity, &stop, || operator.start(&stop)).await;
    if led.map_err(Error::setup("reach the API server"))? { Ok(()) } else { Err(Error::Deposed) }
}

/// The operator before it leads: its stores are filled, nothing is written.
pub struct Operator {
    /// Shared by the workers.
    pub context: Arc<Context>,
    queue: Queue<Key>,
    _watches: Vec<Task<()>>,
}

impl Operator {
    /// Starts the watches.
    pub fn new(client: Client, release: Release, events: events::Recorder) -> Self {
        let cdis = Store::default();
        let context = Arc::new(Context {
            requests: Requests::new(&client, &cdis, FINALIZER, operator::Status::Object),
            client,
            release,
            events,
            cdis,
            deployments: Store::default(),
            priorities: Store::default(),
            applied: Applied::by(MANAGER),
        });
        let queue = Queue::default();
        let watches = watches(&context, &queue);
        Operator { context, queue, _watches: watches }
    }

    /// Starts the work; dropping the result stops it.
    pub fn start(self, stop: &CancellationToken) -> Running {
        let (context, queue, stop) = (self.context.clone(), self.queue.clone(), stop.clone());
        let task = kit::spawn("controllers", async move {
            context.cdis.synced().await;
            context.deployments.synced().await;
            context.priorities.synced().await;
            for worker in queue.run(1, &stop, move |key| deploy::reconcile(context.clone(), key)) {
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

fn watches(context: &Arc<Context>, queue: &Queue<Key>) -> Vec<Task<()>> {
    let client = &context.client;
    let namespace = &context.release.namespace;
    let all = (queue.clone(), context.cdis.clone());
    let wake = move || all.0.add_all(all.1.keys());
    // Which one counts depends on all of them.
    let again = wake.clone();
    let (api, resource) = (Api::<CDI>::all(client.clone()), ApiResource::erase::<CDI>(&()));
    let cdis = served::watch(client, &resource, api, Watch::default(), context.cdis.clone(), move |_| again());
    let selector = format!("app.kubernetes.io/managed-by={MANAGER}");
    let ours = watcher::Config::default().labels(&selector);
    let again = wake.clone();
    let deployments = store::watch(
        Api::<Deployment>::namespaced(client.clone(), namespace),
        Watch { config: ours, trim: trim_deployment, ..Watch::default() },
        context.deployments.clone(),
        move |_| again(),
    );
    let again = wake.clone();
    let config = watcher::Config::default().fields(&format!("metadata.name={}", context::PRIORITY));
    let priorities = store::watch(
        Api::<PriorityClass>::all(client.clone()),
        Watch { config, ..Watch::default() },
        context.priorities.clone(),
        move |_| again(),
    );
    let mut known = Vec::new();
    for kind in monitoring::KINDS {
        let (group, version) = monitoring::VERSION.split_once('/').unwrap_or_default();
        let (again, kind) = (wake.clone(), GroupVersionKind::gvk(group, version, kind));
        known.push(served::follow(client, &ApiResource::from_gvk(&kind), move |_| again()));
    }
    let mut tasks = operator::repair(client, &every_kind(namespace), &selector, &context.applied, wake);
    tasks.extend([cdis, deployments, priorities]);
    tasks.extend(known);
    tasks
}

/// An object at least of every kind that is ever applied in `namespace`, for what watches them.
fn every_kind(namespace: &str) -> Vec<Value> {
    let mut all = manifests::every(namespace);
    let metadata = json!({ "name": certificates::APISERVER_BUNDLE, "namespace": namespace });
    all.extend(["Secret", "ConfigMap"].map(|kind| json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata })));
    all
}

fn trim_deployment(deployment: &mut Deployment) {
    if let Some(spec) = &mut deployment.spec {
        spec.template = Default::default();
    }
}
