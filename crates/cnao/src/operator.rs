//! cluster-network-addons-operator: deploys, watches over and removes what the NetworkAddonsConfig object asks for.
//!
//! ```text
//! NetworkAddonsConfig + what the cluster has -> plan (operands, refusals, what is missing) -> manifests -> server-side apply -> status
//! ```

mod context;
mod deploy;
pub mod install;
pub mod object;
pub mod operands;
pub mod plan;
mod remove;
pub mod status;

use std::sync::Arc;

pub use context::Context;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Node;
use kit::apply::Applied;
use kit::health;
use kit::operator::Requests;
use kit::queue::Queue;
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Key, Store, Watch};
use kit::{Task, events, metrics, operator, served, server};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use prometheus_client::registry::Registry;

use self::object::NetworkAddonsConfig;
use crate::kubemacpool::manifests::monitoring;
use crate::{Error, release};

/// The finalizer that holds the object until everything is taken away.
const FINALIZER: &str = "networkaddonsoperator.network.kubevirt.io/cleanup";
/// Field manager of everything this operator applies, and its name in `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "cnao-operator";
/// Its Deployment, its account and its command.
pub const PROGRAM: &str = "cluster-network-addons-operator";

/// Command line of the operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator and of what it deploys.
    #[arg(long, env = "POD_NAMESPACE", default_value = release::NAMESPACE)]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = PROGRAM)]
    pub identity: String,
    /// Image of what is deployed.
    #[arg(long, env = "COMPONENT_IMAGE", default_value = release::COMPONENT_IMAGE)]
    pub component_image: String,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
}

/// What the operator deploys.
#[derive(Clone, Debug)]
pub struct Release {
    /// Namespace of what is deployed.
    pub namespace: String,
    /// Its image.
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
    let client = process.connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    let release =
        Release { namespace: args.namespace.clone(), image: args.component_image.clone(), version: release::version() };
    let ready = process.ready();
    let events = events::Recorder::new(client.clone(), PROGRAM, "");
    let operator = Operator::new(client.clone(), release, events);
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let config = crate::health::configuration(PROGRAM)?;
    let router = health::router(ready.clone()).merge(metrics::router(Registry::default()));
    let _server = kit::spawn("server", server::serve_tls(listener, config, router, stop.clone()));
    let remedy = "apply all of network-addons-operator.yaml, which begins with it";
    let _defined = served::required(&client, &ApiResource::erase::<NetworkAddonsConfig>(&()), ready, remedy);
    let lease = (args.namespace.as_str(), "cluster-network-addons-operator-lock");
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
        let configs = Store::default();
        let context = Arc::new(Context {
            requests: Requests::new(&client, &configs, FINALIZER, operator::Status::Subresource),
            client,
            release,
            events,
            configs,
            deployments: Store::default(),
            daemon_sets: Store::default(),
            nodes: Store::default(),
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
            context.configs.synced().await;
            context.deployments.synced().await;
            context.daemon_sets.synced().await;
            context.nodes.synced().await;
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
    let all = (queue.clone(), context.configs.clone());
    let wake = move || all.0.add_all(all.1.keys());
    // Which one counts depends on all of them.
    let again = wake.clone();
    let resource = ApiResource::erase::<NetworkAddonsConfig>(&());
    let api = Api::<NetworkAddonsConfig>::all(client.clone());
    let configs = served::watch(client, &resource, api, Watch::default(), context.configs.clone(), move |_| again());
    let selector = format!("app.kubernetes.io/managed-by={MANAGER}");
    let again = wake.clone();
    let deployments = store::watch(
        Api::<Deployment>::namespaced(client.clone(), namespace),
        Watch {
            config: watcher::Config::default().labels(&selector),
            trim: context::trim_deployment,
            ..Watch::default()
        },
        context.deployments.clone(),
        move |_| again(),
    );
    let again = wake.clone();
    let daemon_sets = store::watch(
        Api::<DaemonSet>::namespaced(client.clone(), namespace),
        Watch {
            config: watcher::Config::default().labels(&selector),
            trim: context::trim_daemon_set,
            ..Watch::default()
        },
        context.daemon_sets.clone(),
        move |_| again(),
    );
    let again = wake.clone();
    // Of nodes only what runs their pods matters, and that changes when one comes or is upgraded.
    let mut before = context::Kubelets::default();
    let nodes = store::watch(
        Api::<Node>::all(client.clone()),
        Watch { trim: context::trim_node, ..Watch::default() },
        context.nodes.clone(),
        move |change| {
            if before.differs(change.key, change.new) {
                again();
            }
        },
    );
    let mut known = Vec::new();
    for kind in monitoring::KINDS {
        let (group, version) = monitoring::VERSION.split_once('/').unwrap_or_default();
        let (again, kind) = (wake.clone(), GroupVersionKind::gvk(group, version, kind));
        known.push(served::follow(client, &ApiResource::from_gvk(&kind), move |_| again()));
    }
    let every = operands::every(namespace);
    let mut tasks = operator::repair(client, &every, &selector, &context.applied, wake);
    tasks.extend([configs, deployments, daemon_sets, nodes]);
    tasks.extend(known);
    tasks
}
