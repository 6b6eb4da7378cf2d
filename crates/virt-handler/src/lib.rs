//! virt-handler: the privileged part, one on each node. It prepares the network of launcher pods, hands VMIs to their
//! launchers, reports what became of the guests, and connects people with consoles.
//!
//! ```text
//!                    API server                         virt-api
//!            VMI watch |  ^ status patch                   | mTLS
//!                      v  |                                v
//!   node labels <-- [ vmi: plan -> steps -> status ] <-- [ server ]
//!   device plugins     | launcher socket (R3, R5)          | console sockets (R3, R5)
//!                      v                                   v
//!                  virt-launcher --------------------> QEMU
//! ```
//!
//! Invariants: no path that a user chose reaches a system call here; whoever answers on a pod's socket is checked against
//! what the kernel says; this process may die and come back at any time without the guests noticing.

mod certificate;
mod device_plugin;
mod error;
mod hotplug;
mod launcher;
mod migration;
mod network;
mod node;
mod pace;
mod server;
mod settings;
mod storage;
mod vmi;

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

pub use error::Error;
use kit::health::{self, Ready, Report};
use kit::peer::Peers;
use kit::{metrics, shutdown, tls};
use prometheus_client::registry::Registry;
use sys::kvm::Verdict;
use tokio::net::TcpListener;

/// Command line of virt-handler.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The kubelet's directory of pods.
    #[arg(long, default_value = "/var/lib/kubelet/pods")]
    pub pods_dir: PathBuf,
    /// The kubelet's directory of device plugins.
    #[arg(long, default_value = rpc::deviceplugin::PLUGIN_DIR)]
    pub device_plugins_dir: PathBuf,
    /// What has to outlive this process on the node.
    #[arg(long, default_value = "/var/run/kubevirt")]
    pub state_dir: PathBuf,
    /// What libvirt told of this node before this process was started.
    #[arg(long, default_value = "/var/lib/kubevirt-node-labeller/capabilities.json")]
    pub capabilities: PathBuf,
    /// Port that virt-api connects to.
    #[arg(long, default_value_t = 8186)]
    pub console_port: u16,
    /// Port that the virt-handlers of other nodes send guests to.
    #[arg(long, default_value_t = 8187)]
    pub migration_port: u16,
    /// This pod's address.
    #[arg(long, env = "POD_IP")]
    pub pod_ip: String,
    /// This pod's namespace.
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: String,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/etc/virt-handler/certificates")]
    pub cert_dir: PathBuf,
    /// File with the trust bundle.
    #[arg(long, default_value = "/etc/kubevirt/ca/ca-bundle")]
    pub ca_bundle: PathBuf,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect("virt-handler").await.map_err(Error::setup("reach the API server"))?;
    let verdict = sys::kvm::verdict();
    tracing::info!(?verdict, "how guests run on this node");
    let kvm = verdict.is_usable();
    let no_kvm = match verdict {
        Verdict::Usable => None,
        Verdict::Unusable(why) => Some(why),
    };

    let (material, trust) = (tls::Material::new(), tls::Trust::new());
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let _reload =
        tls::load(files, material.clone(), trust.clone()).await.map_err(Error::setup("load the certificate"))?;

    let own = tls::Material::new();
    let _own = kit::spawn(
        "certificate",
        certificate::keep(client.clone(), args.node_name.clone(), args.cert_dir.clone(), own.clone()),
    );
    let records = args.state_dir.join("network");
    let road = migration::Road {
        peers: Peers::new("virt-handler", own.clone(), trust.clone()),
        address: migration::address::of_this_node(args.pod_ip).await,
        port: args.migration_port,
        namespace: args.pod_namespace,
        client: client.clone(),
    };
    let capabilities = node::capabilities(&args.capabilities);
    let host_model = Some(capabilities.host_model.clone()).filter(|model| !model.is_empty());
    let inner =
        vmi::Inner::new(args.node_name.clone(), launcher::Pods::at(args.pods_dir), records, no_kvm, host_model, road);
    let context = vmi::Context(Arc::new(inner));
    let ready = Ready::default();
    let public = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let listener = listen(args.port).await?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(vmi::migration_metrics::Figures(context.clone())));
    let report = Report::new(client.clone());
    let health = health::reporting(ready.clone(), report.clone()).merge(metrics::router(registry));
    let _health = kit::spawn("health", kit::server::serve_tls(listener, public.clone(), health, stop.clone()));

    let only = tls::Clients::Roles(trust, vec!["virt-api".to_owned()]);
    // virt-api goes by the node in the certificate, which the one that all nodes share does not name.
    let private = tls::Changing::new(own, Some(only)).map_err(Error::setup("configure TLS"))?;
    let listener = listen(args.console_port).await?;
    let consoles = server::router(context.clone());
    let _consoles = kit::spawn("consoles", kit::server::serve_tls(listener, private.clone(), consoles, stop.clone()));
    report.obeys(context.settings.objects());
    let _settings = context.settings.start(&client, vec![public, private]);

    let listener = listen(args.migration_port).await?;
    let _streams = kit::spawn("streams", vmi::incoming::serve(listener, context.clone(), stop.clone()));

    let _plugins = device_plugin::start(device_plugin::kinds(kvm), &args.device_plugins_dir, &stop);
    let _vmis = vmi::start(&context, &stop);
    tokio::join!(context.vmis.synced(), context.arriving.synced());
    ready.set(true);

    let machine = node::Machine { capabilities, kvm, realtime: node::is_realtime() };
    node::keep(&client, &args.node_name, &machine, &context.settings, &context.recorder, &stop).await;
    network::forget_now(&context.records, &context.pods);
    Ok(())
}

async fn listen(port: u16) -> Result<TcpListener, Error> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.map_err(Error::setup("listen"))
}
