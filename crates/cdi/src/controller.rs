//! cdi-controller: claims that say what they are filled with are filled, and DataVolumes, DataSources and DataImportCrons are kept
//! as they ask.
//!
//! ```text
//!  watches ─▶ stores ─▶ one queue of work ─▶ plan (pure) ─▶ a few writes
//! ```
//!
//! One replica leads. Every write is idempotent: names follow from UIDs, and what a pod has done stands on its claim before the
//! pod goes.

pub mod authorities;
pub mod claim;
pub mod clone;
pub mod config;
pub mod context;
pub mod cron;
pub mod datasource;
pub mod datavolume;
pub mod import;
pub mod insecure;
pub mod labels;
pub mod metrics;
pub mod names;
pub mod polls;
pub mod populator;
pub mod profile;
pub mod progress;
pub mod relay;
pub mod serve;
pub mod settings;
pub mod sources;
pub mod storage;
pub mod transfer;
pub mod upload;
pub mod watches;
pub mod worker;
pub mod write;

use std::sync::Arc;

use context::{Context, Inner, Work};
use kit::events::Recorder;
use kit::queue::{Next, Queue};
use kit::shutdown::{self, CancellationToken};
use kit::store::Store;
use kit::{Chain, Task, lease};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use polls::Polls;
use progress::{Progress, Scrape};

use crate::Error;

/// Command line of cdi-controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace CDI is installed in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "cdi")]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "cdi-controller")]
    pub identity: String,
    /// Image of the pods that fill volumes.
    #[arg(long, env = "IMPORTER_IMAGE")]
    pub image: String,
    /// When that image is pulled.
    #[arg(long, env = "PULL_POLICY", default_value = "IfNotPresent")]
    pub pull_policy: String,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
}

const WORKERS: usize = 6;

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect("cdi-controller").await.map_err(Error::setup("reach the API server"))?;
    let scrape = Scrape::new().map_err(Error::setup("configure TLS"))?;
    let counted = serve::Counted::default();
    let _serving = serve::start(&client, args.port, counted.clone(), &stop).await?;
    // Renewals do not wait behind whatever else is asked of the API server.
    let apart = kit::client::connect("cdi-controller").await.map_err(Error::setup("reach the API server"))?;
    let leader = lease::acquire(apart, &args.namespace, "cdi-controller", &args.identity, &stop).await;
    let Ok(leader) = leader else { return Ok(()) };
    let running = start(client, &args, Arc::new(scrape), &stop);
    counted.of(running.context.clone());
    if leader.run(&stop).await { Ok(()) } else { Err(Error::Deposed) }
}

/// The controllers at work; dropping it stops them.
pub struct Running {
    /// What they share.
    pub context: Context,
    _tasks: Vec<Task<()>>,
}

/// Starts every controller. Beside the API server they ask workers for their `progress`, and nobody else.
pub fn start(client: Client, args: &Args, progress: Arc<dyn Progress>, stop: &CancellationToken) -> Running {
    let context = Context(Arc::new(Inner {
        recorder: Recorder::new(client.clone(), "cdi-controller", ""),
        client,
        namespace: args.namespace.clone(),
        image: args.image.clone(),
        pull_policy: args.pull_policy.clone(),
        progress,
        polls: Polls::default(),
        queue: Queue::default(),
        volumes: Store::default(),
        claims: Store::default(),
        persistent: Store::default(),
        pods: Store::default(),
        classes: Store::default(),
        profiles: Store::default(),
        drivers: Store::default(),
        cdis: Store::default(),
        configs: Store::default(),
        imports: Store::default(),
        uploads: Store::default(),
        clones: Store::default(),
        sources: Store::default(),
        crons: Store::default(),
        transfers: Store::default(),
        ovirt: Store::default(),
        openstack: Store::default(),
        snapshots: Store::default(),
        snapshot_classes: Store::default(),
        authorities: authorities::Known::default(),
    }));
    let mut tasks = watches::start(&context);
    tasks.extend(relay::start(&context));
    let (started, stop) = (context.clone(), stop.clone());
    tasks.push(kit::spawn("controllers", async move {
        // Nothing is decided on half a picture.
        started.claims.synced().await;
        started.pods.synced().await;
        started.volumes.synced().await;
        started.classes.synced().await;
        started.profiles.synced().await;
        started.drivers.synced().await;
        started.cdis.synced().await;
        started.configs.synced().await;
        started.persistent.synced().await;
        let context = started.clone();
        for worker in started.queue.run(WORKERS, &stop, move |work| reconcile(context.clone(), work)) {
            // A worker ends with `stop`; one that panicked must not be missed silently.
            if let Err(error) = worker.await {
                tracing::error!(%error, "a worker ended");
            }
        }
    }));
    Running { context, _tasks: tasks }
}

async fn reconcile(context: Context, work: Work) -> Next {
    let outcome = match &work {
        Work::Volume(key) => Box::pin(datavolume::sync(&context, key)).await,
        Work::Claim(key) => Box::pin(claim::sync(&context, key)).await,
        Work::Profile(name) => profile::sync(&context, name).await,
        Work::Config => config::sync(&context).await,
        Work::Source(key) => datasource::sync(&context, key).await,
        Work::Cron(key) => Box::pin(cron::sync(&context, key)).await,
        Work::Transfer(name) => Box::pin(transfer::sync(&context, name)).await,
    };
    match outcome {
        Ok(next) => next,
        Err(error) if error.is_conflict() => {
            tracing::debug!(?work, error = %Chain(&error), "conflict, again with the newer object");
            Next::Retry
        }
        Err(error) => {
            tracing::warn!(?work, error = %Chain(&error), "not reconciled, and will be tried again");
            Next::Retry
        }
    }
}

/// An API of snapshots, whose kinds a cluster may lack.
pub fn snapshot_api(client: &Client, kind: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &snapshot_resource(kind))
}

/// How such a kind is named.
pub(crate) fn snapshot_resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind))
}

/// The same of one namespace.
pub fn snapshot_api_in(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &snapshot_resource(kind))
}
