//! kubemacpool: every interface of a virtual machine, and of a pod that asks for it, has a MAC address of its own.
//!
//! ```text
//! API server --webhook--> wanted (pure) -> pool (pure): choose -> create a Lease -> patch
//!     |                                     ^                        |
//!     +---- watches: VMs, VMIs, pods, Leases+                        |
//!     +<--------------------------------------- Leases --------------+
//!                          the leader: due (pure) -> ask about the owner -> delete the Lease
//! ```
//!
//! Every replica gives addresses, so that machines can be made while one of them is exchanged, and none asks another. An address
//! is taken by whoever creates the Lease that is named after it: the API server lets one create succeed. That is how the API
//! server itself gives cluster addresses to Services, by an IPAddress for each. Slices of the range for each replica would need no
//! Lease, but a small range would be full for one replica while the other has addresses left, and an address that a request
//! names could be in anybody's slice.
//!
//! * The objects say who has which address; a Lease is there before the address is answered, and as long as its owner or anybody
//!   else has it. What a replica sees late, or forgets by a crash, costs it a try and nothing else. Addresses that never came by
//!   here, as those of machines that are older than the pool, are known from the objects alone.
//! * A Lease is deleted by the leader, once no VM, VMI or pod is seen with the address, the API server says that the owner does not
//!   have it, and no request with it can still be stored: the one request that had it was, or `--wait-time` has passed. It is
//!   deleted as it was when that was found out; a request that has the address meanwhile has changed it.
//! * Whoever asks again for what was not stored gets the same address, so that a controller's retries do not use up the range.
//!   A namespace has a limited number of reservations for requests that were not stored.
//! * An address that a request names is reserved the same way. That somebody has it already is told and not refused: restored
//!   and cloned machines share addresses with the one they come from. Of two that run, both are told (`collisions`).

pub mod certificates;
mod collisions;
mod detect;
mod grant;
mod mac;
mod machine;
pub mod manifests;
mod mirror;
pub mod names;
pub mod opting;
mod pod;
mod pool;
pub mod range;
mod release;
pub mod reservation;
mod wanted;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use kit::admission::Verdict;
use kit::events::Recorder;
use kit::health::{self, Ready};
use kit::lease;
use kit::shutdown::{self, CancellationToken};
use kit::{Task, metrics, server, tls};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

pub use self::grant::MOST_OPEN;
pub use self::mac::Mac;
pub use self::mirror::Modes;
pub use self::range::Range;
pub use self::wanted::{MOST_INTERFACES, TRANSACTION};

use self::collisions::Collisions;
use self::mirror::Mirror;
use self::opting::Mode;

/// The component, as events name it.
pub const MANAGER: &str = "kubemacpool";
/// The Lease of the replica that gives addresses back and tells of collisions.
const LEADER: &str = "kubemacpool-election";
/// How many addresses are given back at a time.
const RETURNS: usize = 4;
/// How long this replica goes on serving after it was told to end: until then a request may still be sent to it.
const LINGER: Duration = Duration::from_secs(3);

/// Command line of kubemacpool.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the pool, its range and its reservations.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubemacpool-system")]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "kubemacpool")]
    pub identity: String,
    /// Port of the webhooks and of health.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Port of the metrics.
    #[arg(long, default_value_t = 8443)]
    pub metrics_port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub cert_dir: PathBuf,
    /// File with the authorities of that certificate.
    #[arg(long, default_value = "/tmp/k8s-webhook-server/ca/ca-bundle.crt")]
    pub ca_bundle: PathBuf,
    /// Seconds after which an address is free again whose request was not stored. The API server stores requests for a minute.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(60..))]
    pub wait_time: u64,
    /// Whether virtual machines of namespaces that do not say get addresses.
    #[arg(long, value_enum, default_value_t = Mode::OptOut)]
    pub virtual_machines: Mode,
    /// Whether pods of namespaces that do not say get addresses.
    #[arg(long, value_enum, default_value_t = Mode::OptIn)]
    pub pods: Mode,
    /// Least version of TLS: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = "VersionTLS13")]
    pub tls_min_version: String,
    /// Ciphers of TLS 1.2 by their names, with commas between them; none are all.
    #[arg(long, default_value = "", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
}

/// kubemacpool could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct Error {
    what: &'static str,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

fn setup<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error { what, source: Box::new(source) }
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(setup("handle signals"))?;
    let client = kit::client::connect(MANAGER).await.map_err(setup("reach the API server"))?;
    // Renewals do not wait behind whatever else is asked of the API server.
    let apart = kit::client::connect(MANAGER).await.map_err(setup("reach the API server"))?;
    let material = tls::Material::new();
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let reload = tls::load(files, material.clone(), tls::Trust::new()).await;
    let _reload = reload.map_err(setup("load the certificate"))?;
    let config = configuration(&args, material)?;
    let [webhooks, scraped] = [args.port, args.metrics_port].map(|port| (std::net::Ipv6Addr::UNSPECIFIED, port));
    let webhooks = TcpListener::bind(webhooks).await.map_err(setup("listen for webhooks"))?;
    let scraped = TcpListener::bind(scraped).await.map_err(setup("listen for metrics"))?;
    let settings = Settings {
        namespace: args.namespace.clone(),
        wait: Duration::from_secs(args.wait_time),
        modes: Modes { machines: args.virtual_machines, pods: args.pods },
    };
    let events = Recorder::new(client.clone(), MANAGER, "");
    let pool = Server::start(client, &settings, events);
    let _leading = kit::spawn("leading", pool.lead(apart, args.identity.clone(), stop.clone()));
    let gone = CancellationToken::new();
    let _leaving = kit::spawn("leaving", leave(pool.ready.clone(), stop, gone.clone()));
    let metrics = server::serve_tls(scraped, config.clone(), pool.metrics(), gone.clone());
    tokio::join!(server::serve_tls(webhooks, config, pool.router(), gone), metrics);
    Ok(())
}

fn configuration(args: &Args, material: Arc<tls::Material>) -> Result<Arc<tls::Changing>, Error> {
    let ciphers: Vec<String> = args.tls_cipher_suites.iter().filter(|one| !one.is_empty()).cloned().collect();
    let (policy, problems) = tls::Policy::new(&args.tls_min_version, &ciphers);
    for problem in problems {
        tracing::warn!(problem, "TLS is not all that is asked for");
    }
    let config = tls::Changing::new(material, None).map_err(setup("configure TLS"))?;
    config.obey(&policy).map_err(setup("configure TLS"))?;
    Ok(config)
}

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

/// What a pool is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where its range and its reservations are.
    pub namespace: String,
    /// How long an address is reserved for a request that is not stored.
    pub wait: Duration,
    /// What is done with namespaces that do not say.
    pub modes: Modes,
}

/// What the handlers share.
struct Context {
    mirror: Arc<Mirror>,
    wait: Duration,
    synced: Ready,
}

impl Context {
    /// Fails before the cluster was seen once: who has which address is not known.
    fn started(&self) -> Result<(), Verdict> {
        if self.synced.get() {
            return Ok(());
        }
        let message =
            "kubemacpool has just begun and does not know yet which MAC addresses are used: try again".to_owned();
        Err(Verdict::Deny { code: 503, reason: "ServiceUnavailable", message })
    }
}

/// Everything behind the listeners.
pub struct Server {
    context: Arc<Context>,
    collisions: Arc<Collisions>,
    leads: Arc<AtomicBool>,
    /// Whether requests are to be sent here.
    pub ready: Ready,
    _tasks: Vec<Task<()>>,
}

impl Server {
    /// Begins to watch the cluster; ready once it was seen.
    pub fn start(client: Client, settings: &Settings, events: Recorder) -> Self {
        let mirror = Mirror::new(client, &settings.namespace, settings.modes);
        let mut tasks = mirror.follow(&events);
        let (ready, synced) = (Ready::default(), Ready::default());
        let collisions = Arc::new(Collisions::new(events));
        let leads = Arc::new(AtomicBool::new(false));
        let seen = (mirror.clone(), collisions.clone(), leads.clone(), ready.clone(), synced.clone());
        tasks.push(kit::spawn("collisions", async move {
            let (mirror, collisions, leads, ready, synced) = seen;
            mirror.synced().await;
            synced.set(true);
            ready.set(true);
            let look = async |mac| collisions.look(&mirror, mac, leads.load(Ordering::Acquire));
            mirror.running.work(1, look).await;
        }));
        let context = Arc::new(Context { mirror, wait: settings.wait, synced });
        Server { context, collisions, leads, ready, _tasks: tasks }
    }

    /// The webhooks and health.
    pub fn router(&self) -> Router {
        webhook::router(self.context.clone()).merge(health::router(self.ready.clone()))
    }

    /// The metrics.
    pub fn metrics(&self) -> Router {
        let mut registry = Registry::default();
        self.collisions.register(&mut registry);
        metrics::router(registry)
    }

    /// Gives addresses back and tells of collisions whenever this replica leads, until `stop`.
    pub fn lead(&self, client: Client, identity: String, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
        let (context, leads) = (self.context.clone(), self.leads.clone());
        async move {
            let mirror = &context.mirror;
            mirror.synced().await;
            loop {
                let led = lease::acquire(client.clone(), &mirror.namespace, LEADER, &identity, &stop).await;
                let Ok(leadership) = led else { return };
                leads.store(true, Ordering::Release);
                // Collisions of which the leader before did not tell any more.
                mirror.running.add_all(mirror.pool().shared());
                let term = stop.child_token();
                let held = context.clone();
                let workers = mirror.unused.run(RETURNS, &term, move |mac| {
                    let context = held.clone();
                    async move { release::look(&context.mirror, mac, context.wait).await }
                });
                let stopped = leadership.run(&stop).await;
                leads.store(false, Ordering::Release);
                term.cancel();
                // What they are about stays whole whoever leads: a Lease is deleted only as it was found.
                for worker in workers {
                    if let Err(error) = worker.await {
                        tracing::error!(%error, "a worker ended");
                    }
                }
                if stopped {
                    return;
                }
                tracing::warn!("leadership was lost: another replica gives addresses back");
            }
        }
    }
}
