//! The hostpath provisioner: volumes that are directories of a node, or files of it as block devices.
//!
//! ```text
//!  kubelet ── registration.sock ──▶ [ csi::registration ]
//!          └─ csi.sock ───────────▶ [ csi::{identity, controller, node} ] ──▶ store ──▶ POOL/VOLUME
//!  control plane ── through the kubelet, or a provisioner beside it ─┘
//!
//!  HostPathProvisioner ──▶ [ operator ] ──▶ DaemonSet of the driver, what mounts its pools, [ legacy ] where it is
//! asked for
//! ```
//!
//! Invariants: a volume's name never becomes a path without being checked; nothing of a volume is resolved by path but
//! beneath its pool; this process may die and come back at any time, what it needs to know lies in the pool.

mod copy;
pub mod csi;
pub mod legacy;
mod metrics;
pub mod mounter;
pub mod operator;
mod pool;
mod record;
mod store;

use std::path::PathBuf;
use std::sync::Arc;

pub use pool::Pool;

/// Command line of the CSI driver.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of this node, by which its volumes are bound to it.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Name the driver registers by.
    #[arg(long, default_value = csi::NAME)]
    pub driver_name: String,
    /// Socket to serve CSI on, with or without `unix://`.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "/csi/csi.sock")]
    pub endpoint: String,
    /// Socket to register with the kubelet by; none when a registrar does it.
    #[arg(long)]
    pub registration_socket: Option<PathBuf>,
    /// Where the kubelet finds the socket of CSI; needed to register.
    #[arg(long, requires = "registration_socket")]
    pub kubelet_endpoint: Option<PathBuf>,
    /// Where volumes are kept: a directory, or a list of pools as JSON: `[{"name":"local","path":"/data"}]`.
    #[arg(long, visible_alias = "datadir", default_value = "/csi-data-dir")]
    pub data_dir: String,
    /// Where metrics and health are served; nowhere by default.
    #[arg(long)]
    pub metrics_port: Option<u16>,
    /// A directory of the node's system, by which it is seen whether pools are on its file system.
    #[arg(long, default_value = "/var/lib/kubelet/pods")]
    pub system_dir: PathBuf,
}

/// Why the driver cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument that cannot be used.
    #[error("{0}")]
    Argument(String),
    /// A file operation.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// A mount failed.
    #[error("cannot mount the volume of a pool")]
    Kernel(#[source] sys::Error),
    /// The API server refused, or cannot be reached.
    #[error("the API server refused")]
    Cluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another instance leads now.
    #[error("leadership was lost")]
    Deposed,
    /// The metrics cannot be served.
    #[error("cannot serve metrics on port {port}")]
    Metrics {
        /// The port.
        port: u16,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A listening socket failed.
    #[error("cannot serve on {}", socket.display())]
    Serve {
        /// The socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
}

impl Error {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::File { what, path: path.into(), source }
    }
}

/// Serves until it is told to stop.
///
/// # Errors
/// When an argument is wrong, a pool is not usable or a socket cannot be served.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = kit::shutdown::on_signals().map_err(Error::file("listen for signals in", "this process"))?;
    let pools = pool::parse(&args.data_dir)?;
    let _metrics = match args.metrics_port {
        None => None,
        Some(port) => {
            let (paths, system) = (pools.iter().map(|pool| pool.path.clone()).collect::<Vec<_>>(), args.system_dir);
            let fact = metrics::Fact {
                name: operator::ON_ROOT,
                help: "HPP pool path sharing a filesystem with OS, fix to prevent HPP PVs from causing disk pressure",
                holds: move || paths.iter().any(|path| pool::is_on_same_file_system(path, &system)),
            };
            let ready = kit::health::Ready::default();
            ready.set(true);
            Some(metrics::serve("hostpath-csi", port, fact.registry(), ready, &stop).await?)
        }
    };
    let driver = Arc::new(csi::Driver::new(args.driver_name.clone(), args.node_name.clone(), pools)?);
    let endpoint = PathBuf::from(args.endpoint.trim_start_matches("unix://").trim_start_matches("unix:"));
    let serving = csi::serve(driver, &endpoint, stop.clone());
    let Some(socket) = args.registration_socket else { return serving.await };
    let announced = args.kubelet_endpoint.unwrap_or_else(|| endpoint.clone());
    let registering = csi::registration::serve(args.driver_name, announced, &socket, stop.clone());
    tokio::try_join!(serving, registering).map(drop)
}
