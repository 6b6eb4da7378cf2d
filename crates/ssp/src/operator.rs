//! ssp-operator: deploys, watches over and removes the validator, templates and boot sources, as the SSP object says.
//!
//! ```text
//! SSP -> check -> key ring (plan) + manifests, templates (render) -> server-side apply -> boot sources (plan) -> readiness -> status
//! ```

pub mod architectures;
pub mod certificates;
pub mod check;
mod context;
mod deploy;
pub mod install;
pub mod manifests;
mod metrics;
pub mod names;
mod remove;
mod restored;
pub mod sources;
pub mod status;
pub mod templates;

use std::fmt::Debug;
use std::net::Ipv6Addr;
use std::sync::Arc;

use api::cdi::v1beta1::{DataImportCron, DataSource};
pub use context::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::health;
use kit::operator::{self as frame, Requests};
use kit::queue::Queue;
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Key, Store, Watch};
use kit::{Task, events, served, server, tls};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::manifests::{monitoring, tekton};
use crate::object::SSP;
use crate::templates::system::Architecture;
use crate::words::IMAGES;
use crate::{Error, security};

/// The finalizer that holds the SSP object until everything is taken away.
const FINALIZER: &str = "finalize.ssp.kubevirt.io";
/// Field manager of everything this operator applies, and its name in `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "ssp-operator";

/// Command line of ssp-operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator, of the SSP object and of the validator.
    #[arg(long, env = "POD_NAMESPACE", default_value = install::NAMESPACE)]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = MANAGER)]
    pub identity: String,
    /// Image of the validator.
    #[arg(long, env = "COMPONENT_IMAGE", default_value = install::COMPONENT_IMAGE)]
    pub component_image: String,
    /// Image of the steps of Tekton's tasks.
    #[arg(long, env = "TEKTON_TASKS_IMAGE", default_value = install::TEKTON_TASKS_IMAGE)]
    pub tekton_tasks_image: String,
    /// Image of those steps that take libguestfs; they cannot run without one.
    #[arg(long, env = "GUESTFS_IMAGE", default_value = install::GUESTFS_IMAGE)]
    pub guestfs_image: String,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
}

/// What the operator deploys.
#[derive(Clone, Debug)]
pub struct Release {
    /// Namespace of the validator.
    pub namespace: String,
    /// Its image.
    pub image: String,
    /// Images of steps: of most, and of those that take libguestfs.
    pub steps: [String; 2],
    /// Version of the product.
    pub version: String,
    /// What machines run on where the SSP object does not say.
    pub architecture: Architecture,
}

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args, process: frame::Process) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = process.connect(MANAGER).await.map_err(Error::setup("reach the API server"))?;
    let release = Release {
        namespace: args.namespace.clone(),
        image: args.component_image.clone(),
        steps: [args.tekton_tasks_image.clone(), args.guestfs_image.clone()],
        version: install::version(),
        architecture: Architecture::own(),
    };
    let ready = process.ready();
    let events = events::Recorder::new(client.clone(), MANAGER, "");
    let operator = Operator::new(client.clone(), release, events);
    let material = tls::Material::of_its_own(MANAGER).map_err(Error::setup("make a certificate"))?;
    let address = (Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let _following = security::follow_optional(&client, &args.namespace, vec![config.clone()]);
    let router = health::router(ready.clone()).merge(kit::metrics::router(operator.context.metrics.registry()));
    let _server = kit::spawn("server", server::serve_tls(listener, config, router, stop.clone()));
    let remedy = "apply all of ssp-operator.yaml, which begins with it";
    let _defined = served::required(&client, &ApiResource::erase::<SSP>(&()), ready, remedy);
    let lease = (args.namespace.as_str(), "ssp-operator-leader-election");
    let led = frame::lead(&process, MANAGER, lease, &args.identity, &stop, || operator.start(&stop)).await;
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
        let ssps = Store::default();
        let requests = Requests::new(&client, &ssps, FINALIZER, frame::Status::Subresource);
        let context = Arc::new(Context::new(client, release, events, requests, ssps));
        let queue = Queue::default();
        let watches = watches(&context, &queue);
        Operator { context, queue, _watches: watches }
    }

    /// Starts the work; dropping the result stops it.
    pub fn start(self, stop: &CancellationToken) -> Running {
        let (context, queue, stop) = (self.context.clone(), self.queue.clone(), stop.clone());
        let task = kit::spawn("controllers", async move {
            context.ssps.synced().await;
            context.deployments.synced().await;
            context.sources.synced().await;
            context.crons.synced().await;
            context.claims.synced().await;
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
    let namespace = context.release.namespace.as_str();
    let all = (queue.clone(), context.ssps.clone());
    // Which one counts depends on all of them.
    let wake = move || all.0.add_all(all.1.keys());
    let managed = format!("app.kubernetes.io/managed-by={MANAGER}");
    let ours = || watcher::Config::default().labels(&managed);
    let mut tasks = frame::repair(client, &every_kind(namespace), &managed, &context.applied, wake.clone());

    let here = Api::namespaced(client.clone(), namespace);
    tasks.push(optional(client, here, Watch::default(), &context.ssps, &wake));
    let others = watcher::Config::default().fields(&format!("metadata.namespace!={namespace}"));
    let how = Watch { config: others, ..Watch::default() };
    let one = queue.clone();
    let resource = ApiResource::erase::<SSP>(&());
    let api = Api::<SSP>::all(client.clone());
    let elsewhere = context.elsewhere.clone();
    tasks.push(served::watch(client, &resource, api, how, elsewhere, move |change| one.add(change.key.clone())));

    let how = Watch { config: ours(), trim: trim_deployment, ..Watch::default() };
    let again = wake.clone();
    let api = Api::<Deployment>::namespaced(client.clone(), namespace);
    tasks.push(store::watch(api, how, context.deployments.clone(), move |_| again()));
    let images = Api::<DataSource>::namespaced(client.clone(), IMAGES);
    tasks.push(optional(client, images, Watch::default(), &context.sources, &wake));
    let how = Watch { config: ours(), ..Watch::default() };
    tasks.push(optional(client, Api::<DataImportCron>::all(client.clone()), how, &context.crons, &wake));
    // Only that a claim is there counts.
    let how = Watch { trim: trim_claim, ..Watch::default() };
    let (again, claims) = (wake.clone(), context.claims.clone());
    let mut known = std::collections::BTreeSet::new();
    let api = Api::<PersistentVolumeClaim>::namespaced(client.clone(), IMAGES);
    tasks.push(store::watch(api, how, claims, move |change| {
        let news = match change.new {
            Some(_) => known.insert(change.key.name.clone()),
            None => known.remove(&change.key.name),
        };
        if news {
            again();
        }
    }));
    let monitors = monitoring::KINDS.map(|kind| (monitoring::VERSION, kind));
    let pipelines = tekton::KINDS.map(|kind| (tekton::VERSION, kind));
    let templates = templates::KINDS.map(|kind| (kind.api_version, kind.kind));
    for (api_version, kind) in monitors.into_iter().chain(pipelines).chain(templates) {
        let (group, version) = api_version.split_once('/').unwrap_or_default();
        let (again, kind) = (wake.clone(), GroupVersionKind::gvk(group, version, kind));
        tasks.push(served::follow(client, &ApiResource::from_gvk(&kind), move |_| again()));
    }
    for resource in [ApiResource::erase::<DataSource>(&()), ApiResource::erase::<DataImportCron>(&())] {
        let again = wake.clone();
        tasks.push(served::follow(client, &resource, move |_| again()));
    }
    tasks
}

/// Keeps `store` with objects of a kind that the cluster may lack, and calls `wake` whatever happens to one of them.
fn optional<K>(
    client: &Client,
    api: Api<K>,
    how: Watch<K>,
    store: &Store<K>,
    wake: &(impl Fn() + Clone + Send + 'static),
) -> Task<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
{
    let wake = wake.clone();
    served::watch(client, &ApiResource::erase::<K>(&()), api, how, store.clone(), move |_| wake())
}

/// An object at least of every kind that is ever applied, for what watches them.
fn every_kind(namespace: &str) -> Vec<Value> {
    let mut all = manifests::every(namespace);
    let of = |api_version: &str, kind: &str, namespace: &str| json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "any", "namespace": namespace } });
    all.extend(["Secret", "ConfigMap"].map(|kind| of("v1", kind, namespace)));
    // Templates are in a namespace that the object names.
    for kind in templates::KINDS {
        all.extend(["any", "other"].map(|namespace| of(kind.api_version, kind.kind, namespace)));
    }
    all
}

fn trim_deployment(deployment: &mut Deployment) {
    if let Some(spec) = &mut deployment.spec {
        spec.template = Default::default();
    }
}

fn trim_claim(claim: &mut PersistentVolumeClaim) {
    store::trim(claim);
    (claim.spec, claim.status) = (None, None);
    (claim.metadata.annotations, claim.metadata.labels) = (None, None);
}
