//! The machine a kubelet runs on, made of namespaces.
//!
//! ```text
//!  host                                   node (own net, mount, pid, uts, ipc, cgroup namespaces)
//!  start  ── bridge, interface pair ──▶   init (PID 1) ─┬─ containerd ─ containers
//!         ── spawns ──────────────────▶     reaps       └─ agent: kubelet, service proxy, DNS
//! ```
//!
//! Guarantees: nothing of the node outlives its init, so killing the init is a power cut; what is kept (images,
//! volumes, logs) lies under the node's directory; on the host there are one interface pair and one cgroup besides.

pub mod agent;
pub mod config;
pub mod containerd;
pub mod devices;
pub mod host_network;
pub mod init;
pub mod rootfs;
pub mod start;

use std::path::{Path, PathBuf};

pub use config::Config;

/// The kubeconfig of the node's agent, as the node itself sees it.
pub const IN_NODE_KUBECONFIG: &str = "/etc/ferrovirt/kubeconfig";

/// The kubeconfig of those of its parts that must know all pods of the cluster.
pub const IN_NODE_NETWORK_KUBECONFIG: &str = "/etc/ferrovirt/network.kubeconfig";

/// Why a node could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace, mount, device or cgroup operation.
    #[error("cannot prepare the node")]
    Prepare(#[from] sys::Error),
    /// A network operation.
    #[error("cannot set up the node's network")]
    Network(#[from] net::link::Error),
    /// The host's nftables.
    #[error("cannot set up address translation for the node")]
    Translate(#[from] net::nft::Error),
    /// A file.
    #[error("cannot {op} {}", path.display())]
    File {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A configuration file that cannot be read.
    #[error("unreadable {}", path.display())]
    Config {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A program that could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Which.
        program: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The thread that makes the namespaces ended early.
    #[error("the node's namespaces were not made")]
    Namespaces,
    /// A certificate or key that cannot be used.
    #[error("unusable {}", .0.display())]
    Certificate(PathBuf),
    /// The kubelet.
    #[error("the kubelet failed")]
    Kubelet(#[source] Box<crate::Error>),
    /// A range of the cluster is in use on the host.
    #[error("the cluster's range {range} overlaps {taken} of the host's interface {link}")]
    Overlap {
        /// The cluster's range.
        range: ipnet::IpNet,
        /// The host's.
        taken: ipnet::IpNet,
        /// Where.
        link: String,
    },
    /// Another init of the same node is running.
    #[error("node {0} is already running")]
    Running(String),
}

/// The result of node operations.
pub type Result<T> = std::result::Result<T, Error>;

fn file(op: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { op, path, source }
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, text).map_err(file("write", path))
}

fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(file("make", path))
}
