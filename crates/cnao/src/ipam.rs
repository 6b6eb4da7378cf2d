//! kubevirt-ipam-controller: a virtual machine keeps its addresses over restarts and migrations.
//!
//! ```text
//! VMI + NetworkAttachmentDefinitions --plan (pure)--> IPAMClaims, held by a finalizer --release (pure)--> let go
//!                                                        ^
//! pod of the VMI --webhook--> plan -> ensure ------------+--> the pod's annotations name the claims
//! ```
//!
//! A claim is a name under which whoever gives addresses on a network keeps those of one machine; this program writes no address. It is
//! there before a pod names it: the webhook makes it where the controller has not yet, and both make the same.
//!
//! Who names a claim has its addresses, so a pod may name only the claims of its own machine:
//!
//! * A launcher's pod is made by somebody who may write its instance, and its instance controls it. What else it names is refused.
//! * Of other pods, only those of users who may write the claims of the namespace may name one: a policy of the API server sees to it.
//! * A claim has one owner, the machine, or an instance that no machine has made. Who else wants one of its name is told so.
//! * A pod names the UID as well: it never gets the addresses of a claim that is made later.

pub mod certificates;
pub mod claim;
pub mod ensure;
mod keep;
pub mod manifests;
pub mod names;
pub mod network;
pub mod plan;
pub mod pod;
pub mod release;
mod watched;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kit::events::Recorder;
use kit::health::{self, Ready};
use kit::lease;
use kit::shutdown::{self, CancellationToken};
use kit::{Task, metrics, server, tls};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use self::names::PROGRAM;
use self::watched::Watched;
use crate::Error;

/// The Lease of the replica that looks after claims.
const LEADER: &str = "kubevirt-ipam-controller-election";
/// How many machines are looked at at a time.
const WIDTH: usize = 4;
/// How long this replica goes on serving after it was told to end: until then a request may still be sent to it.
const LINGER: Duration = Duration::from_secs(3);

/// Command line of the controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the controller.
    #[arg(long, env = "POD_NAMESPACE", default_value = crate::release::NAMESPACE)]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = PROGRAM)]
    pub identity: String,
    /// Port of the webhook and of health.
    #[arg(long, default_value_t = manifests::PORT)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = manifests::CERTIFICATE)]
    pub cert_dir: PathBuf,
    /// File with the authorities of that certificate.
    #[arg(long, default_value = manifests::AUTHORITIES)]
    pub ca_bundle: PathBuf,
    /// Namespace of the definition `default`, by which a pod's own network is asked for where it is a user-defined one.
    #[arg(long, env = "DEFAULT_NETWORK_NAD_NAMESPACE", default_value = manifests::DEFAULT_NETWORK_NAMESPACE)]
    pub default_network_nad_namespace: String,
    /// Least version of TLS: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = "VersionTLS13")]
    pub tls_min_version: String,
    /// Ciphers of TLS 1.2 by their names, with commas between them; none are all.
    #[arg(long, default_value = "", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    // Renewals do not wait behind whatever else is asked of the API server.
    let apart = kit::client::connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    let material = tls::Material::new();
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let reload = tls::load(files, material.clone(), tls::Trust::new()).await;
    let _reload = reload.map_err(Error::setup("load the certificate"))?;
    let config = configuration(&args, material)?;
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let events = Recorder::new(client.clone(), PROGRAM, "");
    let server = Server::start(client, &args.default_network_nad_namespace, events);
    let _leading = kit::spawn("leading", server.lead(apart, (args.namespace, args.identity), stop.clone()));
    let gone = CancellationToken::new();
    let _leaving = kit::spawn("leaving", leave(server.ready.clone(), stop, gone.clone()));
    let router = server.router().merge(metrics::router(Registry::default()));
    server::serve_tls(listener, config, router, gone).await;
    Ok(())
}

fn configuration(args: &Args, material: Arc<tls::Material>) -> Result<Arc<tls::Changing>, Error> {
    let ciphers: Vec<String> = args.tls_cipher_suites.iter().filter(|one| !one.is_empty()).cloned().collect();
    let (policy, problems) = tls::Policy::new(&args.tls_min_version, &ciphers);
    for problem in problems {
        tracing::warn!(problem, "TLS is not all that is asked for");
    }
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    config.obey(&policy).map_err(Error::setup("configure TLS"))?;
    Ok(config)
}

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

/// Everything behind the listener.
pub struct Server {
    watched: Arc<Watched>,
    webhook: Arc<webhook::Context>,
    /// Whether requests are to be sent here.
    pub ready: Ready,
    _watches: Vec<Task<()>>,
}

impl Server {
    /// Begins to watch the cluster. `default` is the namespace of the definition of the pod's own network.
    pub fn start(client: Client, default: &str, events: Recorder) -> Self {
        let watched = Arc::new(Watched::new(client.clone(), events));
        let watches = watched.follow();
        let webhook = Arc::new(webhook::Context { client, default: default.to_owned() });
        let ready = Ready::default();
        // The webhook asks the API server itself.
        ready.set(true);
        Server { watched, webhook, ready, _watches: watches }
    }

    /// The webhook and health.
    pub fn router(&self) -> Router {
        webhook::router(self.webhook.clone()).merge(health::router(self.ready.clone()))
    }

    /// Looks after claims whenever this replica leads in the namespace and by the name that it is given, until `stop`.
    pub fn lead(
        &self,
        client: Client,
        (namespace, identity): (String, String),
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let watched = self.watched.clone();
        async move {
            watched.synced().await;
            loop {
                let led = lease::acquire(client.clone(), &namespace, LEADER, &identity, &stop).await;
                let Ok(leadership) = led else { return };
                // What the leader before has not come to.
                watched.look_at_all();
                let (term, held) = (stop.child_token(), watched.clone());
                let workers = watched.queue.run(WIDTH, &term, move |key| {
                    let watched = held.clone();
                    async move { keep::reconcile(&watched, &key).await }
                });
                let stopped = leadership.run(&stop).await;
                term.cancel();
                // What they are about stays whole whoever leads: a claim is changed only as it was found.
                for worker in workers {
                    if let Err(error) = worker.await {
                        tracing::error!(%error, "a worker ended");
                    }
                }
                if stopped {
                    return;
                }
                tracing::warn!("leadership was lost: another replica looks after claims");
            }
        }
    }
}
