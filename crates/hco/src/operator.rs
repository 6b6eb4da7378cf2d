//! hyperconverged-cluster-operator: makes, watches over and removes the objects of the other operators, as the HyperConverged object
//! says.
//!
//! ```text
//! HyperConverged + nodes -> the objects (render) -> what differs is written, edits of others are put right and counted
//!                        -> what the objects say -> status
//! ```

mod children;
mod context;
mod guard;
pub mod install;
mod metrics;
mod remove;
mod sync;

use std::sync::Arc;

use api::hco::HyperConverged;
pub use context::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kit::apply::Applied;
use kit::health;
use kit::operator::Requests;
use kit::queue::Queue;
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Key, Store, Watch};
use kit::{Task, events, operator, served, server, tls};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;

use crate::child::Child;
use crate::render::Input;
use crate::{Error, release};

/// The finalizer that holds the object until everything is taken away.
const FINALIZER: &str = "kubevirt.io/hyperconverged";
/// Field manager of everything this operator writes.
pub const MANAGER: &str = "hyperconverged-cluster-operator";

/// Command line of the operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator, of the HyperConverged object, and of what follows from it.
    #[arg(long, env = "POD_NAMESPACE", default_value = release::NAMESPACE)]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = MANAGER)]
    pub identity: String,
    /// Image of what the operator deploys itself.
    #[arg(long, env = "COMPONENT_IMAGE", default_value = release::COMPONENT_IMAGE)]
    pub component_image: String,
    /// Guests are emulated where a node has no KVM.
    #[arg(long, env = "KVM_EMULATION", default_value_t = false, action = clap::ArgAction::Set)]
    pub kvm_emulation: bool,
    /// The type of machines that name none.
    #[arg(long, env = "AMD64_MACHINETYPE", default_value = "")]
    pub machine_type: String,
    /// What guests see of their vendor, as JSON: family, manufacturer, product, sku, version.
    #[arg(long, env = "SMBIOS", default_value = "")]
    pub smbios: String,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
}

impl Args {
    /// What the arguments say of what is rendered.
    ///
    /// # Errors
    /// When the SMBIOS is no JSON.
    fn input(&self) -> Result<Input, Error> {
        let smbios = match self.smbios.trim() {
            "" => Value::Null,
            text => serde_json::from_str(text).map_err(Error::setup("read SMBIOS"))?,
        };
        Ok(Input {
            namespace: self.namespace.clone(),
            image: self.component_image.clone(),
            version: release::version(),
            emulation: self.kvm_emulation,
            machine_type: self.machine_type.trim().to_owned(),
            smbios,
            ..Input::default()
        })
    }
}

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args, process: operator::Process) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = process.connect(MANAGER).await.map_err(Error::setup("reach the API server"))?;
    let material = tls::Material::of_its_own(MANAGER).map_err(Error::setup("make a certificate"))?;
    let ready = process.ready();
    let events = events::Recorder::new(client.clone(), MANAGER, "");
    let operator = Operator::new(client.clone(), args.input()?, events);
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let registry = metrics::registry(operator.context.clone());
    let router = health::router(ready.clone()).merge(kit::metrics::router(registry));
    let _server = kit::spawn("server", server::serve_tls(listener, config, router, stop.clone()));
    let remedy = "apply all of hco-operator.yaml, which begins with it";
    let _defined = served::required(&client, &ApiResource::erase::<HyperConverged>(&()), ready, remedy);
    let lease = (args.namespace.as_str(), "hyperconverged-cluster-operator-lock");
    let led = operator::lead(&process, MANAGER, lease, &args.identity, &stop, || operator.start(&stop)).await;
    if led.map_err(Error::setup("reach the API server"))? { Ok(()) } else { Err(Error::Deposed) }
}

/// What the queue holds: the objects, and the operator's own guard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    Object(Key),
    Guard,
}

/// The operator before it leads: its stores are filled, nothing is written.
pub struct Operator {
    /// Shared by the workers.
    pub context: Arc<Context>,
    queue: Queue<Work>,
    _watches: Vec<Task<()>>,
}

impl Operator {
    /// Starts the watches.
    pub fn new(client: Client, input: Input, events: events::Recorder) -> Self {
        let hcos = Store::default();
        let context = Arc::new(Context {
            requests: Requests::new(&client, &hcos, FINALIZER, operator::Status::Subresource),
            client,
            input,
            events,
            hcos,
            nodes: Store::default(),
            injectors: Store::default(),
            children: children::Children::default(),
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
            context.hcos.synced().await;
            context.nodes.synced().await;
            context.injectors.synced().await;
            context.children.synced().await;
            queue.add(Work::Guard);
            let reconcile = move |work: Work| {
                let context = context.clone();
                async move {
                    match work {
                        Work::Object(key) => sync::reconcile(&context, &key).await,
                        Work::Guard => guard::reconcile(&context).await,
                    }
                }
            };
            for worker in queue.run(1, &stop, reconcile) {
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

fn watches(context: &Arc<Context>, queue: &Queue<Work>) -> Vec<Task<()>> {
    let client = &context.client;
    let all = (queue.clone(), context.hcos.clone());
    let wake = move || all.0.add_all(all.1.keys().into_iter().map(Work::Object));
    let again = wake.clone();
    let resource = ApiResource::erase::<HyperConverged>(&());
    let api = Api::<HyperConverged>::all(client.clone());
    let (mut configured, guard, counted) = (None, queue.clone(), context.clone());
    let hcos = served::watch(client, &resource, api, Watch::default(), context.hcos.clone(), move |change| {
        again();
        // The lives of certificates and the network resources injector are fields of the object: the guard follows them.
        if counted.counts(change.key) {
            let now = change.new.map(|hco: &HyperConverged| {
                let deleted = hco.metadata.deletion_timestamp.is_some();
                (deleted, hco.spec.security.cert_config.clone(), hco.spec.deployment.clone())
            });
            if configured.as_ref() != Some(&now) {
                configured = Some(now);
                guard.add(Work::Guard);
            }
        }
    });
    let again = wake.clone();
    // Of nodes only roles, labels and taints matter, and these change seldom; their status changes all the time.
    let (mut before, guard) = (context::Shapes::default(), queue.clone());
    let nodes = store::watch(
        Api::<Node>::all(client.clone()),
        Watch { trim: context::trim_node, ..Watch::default() },
        context.nodes.clone(),
        move |change| {
            if before.differs(change.key, change.new) {
                again();
                guard.add(Work::Guard);
            }
        },
    );
    let (again, guard) = (wake.clone(), queue.clone());
    let config = watcher::Config::default().fields(&format!("metadata.name={}", crate::injector::PROGRAM));
    let injectors = store::watch(
        Api::<Deployment>::namespaced(client.clone(), &context.input.namespace),
        Watch { config, trim: context::trim_deployment, ..Watch::default() },
        context.injectors.clone(),
        move |_| {
            again();
            guard.add(Work::Guard);
        },
    );
    let mut tasks = vec![hcos, nodes, injectors];
    for child in Child::ALL {
        tasks.extend(context.children.watch(client, child, wake.clone()));
    }
    let guard = queue.clone();
    let selector = format!("app.kubernetes.io/managed-by={MANAGER}");
    let wake_guard = move || guard.add(Work::Guard);
    tasks.extend(operator::repair(client, &guard::every_kind(&context.input), &selector, &context.applied, wake_guard));
    tasks
}
