//! Multus: networks beside the pod's own, for clusters whose kubelets attach none.
//!
//! ```text
//!  container runtime --CNI--> multus-shim (on the node) --unix socket--> multus-daemon (in a pod)
//!                                                                            |
//!      the cluster's own CNI configuration  <--- eth0, as before ------------+
//!      NetworkAttachmentDefinitions         <--- net1, net2, … --------------+--> annotation network-status
//! ```
//! The daemon has the node's root mounted, and plugins run in it. It puts its own configuration before the cluster's once it
//! answers, and takes it away when it is taken off the node: nobody else would answer then.

mod call;
mod changes;
mod default_network;
mod devices;
mod install;
pub mod manifests;
mod pods;
mod serve;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use kit::events;
use kit::health::Ready;
use kit::shutdown::{self, CancellationToken};
use kube::Client;
use net::cni::Plugins;
use pod_networks::Networks;

use self::install::Files;
use self::serve::Daemon;
use crate::{Error, health};

/// Its command.
pub const PROGRAM: &str = "multus-daemon";

/// Command line of the daemon.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Namespace of its DaemonSet.
    #[arg(long, env = "NAMESPACE")]
    pub namespace: String,
    /// Where the node's root is.
    #[arg(long, default_value = "/hostroot")]
    pub root: PathBuf,
    /// Where the container runtime reads its CNI configuration, on the node.
    #[arg(long, default_value = manifests::CONFIG_DIR)]
    pub cni_config_dir: PathBuf,
    /// Where CNI plugins are, on the node; the first one is where the shim is put.
    #[arg(long, default_value = manifests::BIN_DIR)]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Where the shim reaches the daemon, on the node.
    #[arg(long, default_value = "/run/multus/multus.sock")]
    pub socket: PathBuf,
    /// Where what was made is recorded, on the node.
    #[arg(long, default_value = "/var/lib/cni/multus")]
    pub state_dir: PathBuf,
    /// The shim, in the image.
    #[arg(long, default_value = "/usr/bin/ferrovirt-cni")]
    pub shim: PathBuf,
    /// Interfaces of pods that run follow their annotation.
    #[arg(long)]
    pub dynamic_networks: bool,
    /// Port for health, on the loopback device.
    #[arg(long, default_value_t = manifests::HEALTH)]
    pub health_port: u16,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    let ready = Ready::default();
    let _health = health::serve(PROGRAM, (Ipv4Addr::LOCALHOST.into(), args.health_port), ready.clone(), &stop).await?;
    serve(client, args, &ready, &stop).await
}

/// Serves the node's shim until `stop`. `ready` is true while pods are given their networks.
///
/// # Errors
/// When the socket or the files of the node cannot be made.
pub async fn serve(client: Client, args: Args, ready: &Ready, stop: &CancellationToken) -> Result<(), Error> {
    let files = Files::new(&args);
    let plugins = Plugins { dirs: args.cni_bin_dir.clone(), root: Some(args.root.clone()) };
    let events = events::Recorder::new(client.clone(), "multus", &args.node_name);
    let networks = Networks::new(client.clone(), events, plugins, files.state());
    let networks = networks.made_of(Arc::new(devices::Kubelet::below(&args.root)));
    let daemon = Arc::new(Daemon::new(client.clone(), networks, files.config_dir()));
    let listener = files.listen()?;
    let _server = kit::spawn("socket", serve::serve(listener, daemon.clone(), stop.clone()));
    files.install_shim(&args.shim)?;
    let _changes = args.dynamic_networks.then(|| {
        kit::spawn("changes", changes::follow(client.clone(), daemon.clone(), args.node_name.clone(), stop.clone()))
    });
    install::keep(&files, ready, stop).await?;
    if install::is_leaving(&client, &files, &args.namespace).await {
        files.uninstall();
    }
    Ok(())
}
