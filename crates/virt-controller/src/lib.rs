//! virt-controller: VirtualMachine -> VirtualMachineInstance -> launcher pod -> hand-over to virt-handler; and
//! VirtualMachineInstanceMigration -> another launcher pod -> hand-over to two of them.
//!
//! ```text
//! watches -> stores (bytes) -> each controller's own queue -> plan (pure) -> steps -> status (pure) -> one patch
//! ```
//!
//! One replica leads; the others wait for its Lease. Every write is idempotent: names are chosen by UID, status patches
//! carry the version they were computed from.

pub mod backup;
pub mod clone;
mod context;
pub mod disruption;
pub mod error;
pub mod evacuation;
mod evictable;
pub mod export;
pub mod facts;
pub mod hotplug;
pub mod limits;
pub mod migration;
mod migration_cleanup;
pub mod node;
pub mod patch;
pub mod pool;
mod replicas;
pub mod replicaset;
pub mod resources;
pub mod restore;
mod revisions;
pub mod settings;
mod setup;
pub mod snapshot;
pub mod stand_in;
pub mod stores;
pub mod template;
pub mod template_request;
pub mod tracking;
pub mod vm;
pub mod vmi;
pub mod volumes_update;
pub mod workload_update;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

use api::kubevirt::tls::asked;
use api::kubevirt::v1::KubeVirt;
pub use context::{Context, Images, Inner};
pub use error::Error;
use kit::health::{self, Ready, Report};
use kit::shutdown::{self, CancellationToken};
use kit::store::{Key, Store};
use kit::{Task, lease, metrics, server, tls};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use migration::metrics::Figures;
use prometheus_client::registry::Registry;
use setup::Setup;
use stores::Stores;

/// Command line of virt-controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace this controller and its KubeVirt object live in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt")]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "virt-controller")]
    pub identity: String,
    /// Image of the launcher container.
    #[arg(long, env = "LAUNCHER_IMAGE")]
    pub launcher_image: String,
    /// Image of the servers of exports; that of the launcher, when nobody says.
    #[arg(long, env = "EXPORTER_IMAGE")]
    pub exporter_image: Option<String>,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/etc/virt-controller/certificates")]
    pub cert_dir: PathBuf,
    /// File with the trust bundle.
    #[arg(long, default_value = "/etc/kubevirt/ca/ca-bundle")]
    pub ca_bundle: PathBuf,
}

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect("virt-controller").await.map_err(Error::setup("reach the API server"))?;
    let ready = Ready::default();
    let figures = Figures::default();
    let report = Report::new(client.clone());
    let _serving = serve(&args, &client, ready.clone(), report.clone(), figures.clone(), stop.clone()).await?;
    // A replica that waits its turn is as healthy as the one that leads.
    ready.set(true);
    // Renewals do not wait behind whatever else is asked of the API server.
    let apart = kit::client::connect("virt-controller").await.map_err(Error::setup("reach the API server"))?;
    let leader = lease::acquire(apart, &args.namespace, "virt-controller", &args.identity, &stop).await;
    let Ok(leader) = leader else { return Ok(()) };
    let exporter = args.exporter_image.as_deref().unwrap_or(&args.launcher_image);
    let images = Images { launcher: &args.launcher_image, exporter };
    let running = start_with(client, &args.namespace, images, &figures, &stop);
    report.obeys(&running.context.stores.kubevirts);
    if leader.run(&stop).await { Ok(()) } else { Err(Error::Deposed) }
}

/// The controllers at work; dropping it stops them.
pub struct Running {
    /// What they share, for tests and metrics.
    pub context: Context,
    _tasks: Vec<Task<()>>,
}

/// Starts every controller, with one image for all pods.
pub fn start(client: Client, namespace: &str, image: &str, stop: &CancellationToken) -> Running {
    let images = Images { launcher: image, exporter: image };
    start_with(client, namespace, images, &Figures::default(), stop)
}

/// Starts every controller; from now on `figures` are theirs.
pub fn start_with(
    client: Client,
    namespace: &str,
    images: Images<'_>,
    figures: &Figures,
    stop: &CancellationToken,
) -> Running {
    let (stores, changes) = Stores::new();
    let context = Context(Arc::new(Inner::new(client, namespace, images, Arc::new(stores))));
    let mut setup = Setup::new(context.clone(), changes, stop);
    register(&mut setup, figures);
    figures.of(context.clone());
    Running { context, _tasks: setup.start() }
}

/// Each controller has a queue of its own, says which changes put what into it, and waits for the stores it reads.
fn register(setup: &mut Setup, figures: &Figures) {
    vm::register(setup);
    vmi::register(setup);
    node::register(setup);
    disruption::register(setup);
    evacuation::register(setup);
    workload_update::register(setup);
    migration::register(setup, figures);
    stand_in::register(setup);
    snapshot::register(setup);
    restore::register(setup);
    clone::register(setup);
    backup::register(setup);
    backup::tracker::register(setup);
    export::register(setup);
    template::register(setup);
    template_request::register(setup);
    replicaset::register(setup);
    pool::register(setup);
}

async fn serve(
    args: &Args,
    client: &Client,
    ready: Ready,
    report: Report,
    figures: Figures,
    stop: CancellationToken,
) -> Result<Vec<Task<()>>, Error> {
    let (material, trust) = (tls::Material::new(), tls::Trust::new());
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let reload = tls::load(files, material.clone(), trust).await.map_err(Error::setup("load the certificate"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let all = Api::<KubeVirt>::all(client.clone());
    let copy = Store::default();
    report.obeys(&copy);
    let obeying = tls::follow(all, watcher::Config::default(), copy, vec![config.clone()], asked);
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let router = health::reporting(ready, report).merge(metrics::router(registry));
    Ok(vec![reload, obeying, kit::spawn("server", server::serve_tls(listener, config, router, stop))])
}

/// The key under which `object` is stored and queued.
pub fn key<K: kube::Resource>(object: &K) -> Key {
    Key::new(object.namespace().unwrap_or_default(), object.name_any())
}
