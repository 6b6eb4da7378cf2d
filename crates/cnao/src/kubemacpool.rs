//! kubemacpool: a MAC address for each interface of virtual machines and pods, which no other interface of the cluster has.
//!
//! ```text
//! VM, pod --webhook, every replica--> plan (pure) --> a Lease for each address --> patch
//!                                                       ^
//! VMs, pods --watch, the leader--> addresses in use ----'--> Leases of what was never stored, or is gone, are deleted
//! VMIs, pods --watch, the leader--> the same address twice is told of
//! ```
//!
//! An address is taken when there is a Lease of its name, which the API server makes once however many replicas ask for it. So
//! replicas serve at the same time and need not agree on anything, one that ends at any moment loses nothing, and none has to wait
//! for the other: there is always one that gives addresses. What a request took that was never stored is given back by its age.

mod collect;
mod collisions;
mod mac;
mod machine;
pub mod manifests;
mod pod;
mod pool;
pub mod range;
mod watched;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kit::health::{self, Ready};
use kit::shutdown::{self, CancellationToken};
use kit::{Task, events, metrics, operator, server, tls};
use kube::Client;

pub use self::collisions::Collisions;
pub use self::mac::Mac;
pub use self::pool::Pool;
pub use self::range::{Invalid, Range};
use crate::Error;

/// Its name in leases and events.
pub const PROGRAM: &str = "kubemacpool";
/// How long a replica goes on serving after it was told to end: until then a request may still be sent to it.
const LINGER: Duration = Duration::from_secs(3);

/// Command line of kubemacpool.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the pool.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt-hyperconverged")]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = PROGRAM)]
    pub identity: String,
    /// Seconds after which an address is given back that was taken for something that is not there.
    #[arg(long, default_value_t = 600)]
    pub wait_time: u64,
    /// Port to serve on.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub cert_dir: PathBuf,
    /// File with the authorities of that certificate.
    #[arg(long, default_value = "/tmp/k8s-webhook-server/bundle/ca-bundle.crt")]
    pub ca_bundle: PathBuf,
}

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    let material = tls::Material::new();
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let reload = tls::load(files, material.clone(), tls::Trust::new()).await;
    let _reload = reload.map_err(Error::setup("load the certificate"))?;
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let ready = Ready::default();
    let replica = Replica::start(client.clone(), &args.namespace).await;
    ready.set(true);
    let gone = CancellationToken::new();
    let leaving = kit::spawn("leaving", leave(ready.clone(), stop.clone(), gone.clone()));
    let collisions = Collisions::default();
    let registry = collisions.registry();
    let router = replica.router().merge(health::router(ready)).merge(metrics::router(registry));
    let server = kit::spawn("server", server::serve_tls(listener, config, router, gone));
    let lease = (args.namespace.as_str(), "kubemacpool-election");
    let wait = Duration::from_secs(args.wait_time);
    let recorder = events::Recorder::new(client.clone(), PROGRAM, "");
    let lead = || Leader::start(&client, &replica.pool, wait, collisions, recorder, &stop);
    let led = operator::lead(PROGRAM, lease, &args.identity, &stop, lead).await;
    if !led.map_err(Error::setup("reach the API server"))? {
        return Err(Error::Deposed);
    }
    for task in [leaving, server] {
        if let Err(error) = task.await {
            tracing::error!(%error, "a task ended");
        }
    }
    Ok(())
}

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

/// What every replica does: it gives addresses.
pub struct Replica {
    /// The addresses.
    pub pool: Arc<Pool>,
    client: Client,
    _tasks: Vec<Task<()>>,
}

impl Replica {
    /// Begins to follow what is taken, and returns once that is known.
    pub async fn start(client: Client, namespace: &str) -> Self {
        let (pool, tasks) = Pool::follow(client.clone(), namespace);
        pool.synced().await;
        Replica { pool: Arc::new(pool), client, _tasks: tasks }
    }

    /// The webhooks.
    pub fn router(&self) -> Router {
        webhook::router(&self.client, &self.pool)
    }
}

/// What one replica does: it gives back what nothing uses, and tells of what is used twice.
pub struct Leader {
    _tasks: Vec<Task<()>>,
}

impl Leader {
    /// Begins; dropping it ends the work.
    pub fn start(
        client: &Client,
        pool: &Arc<Pool>,
        wait: Duration,
        collisions: Collisions,
        recorder: events::Recorder,
        stop: &CancellationToken,
    ) -> Self {
        let mut tasks = collect::start(client, pool, wait, stop);
        tasks.extend(collisions.start(client, recorder, stop));
        Leader { _tasks: tasks }
    }
}
