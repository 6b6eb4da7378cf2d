//! What a kubelet is told about its node.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::netpol::Guard;
use crate::uplink::Uplinks;

/// What a kubelet is told about its node.
#[derive(Clone)]
pub struct Config {
    /// The Node object's name.
    pub node_name: String,
    /// The node's own addresses, the main one first.
    pub node_ips: Vec<IpAddr>,
    /// Volumes and device plugin sockets live below it: `/var/lib/kubelet`.
    pub root: PathBuf,
    /// Container logs live below it: `/var/log/pods`.
    pub log_dir: PathBuf,
    /// Where drivers describe devices for containers, the later one counting: `/etc/cdi`, `/var/run/cdi`.
    pub cdi_dirs: Vec<PathBuf>,
    /// containerd's socket: `/run/containerd/containerd.sock`.
    pub containerd: PathBuf,
    /// Addresses of the cluster's DNS; empty: pods use the node's resolver.
    pub cluster_dns: Vec<IpAddr>,
    /// `cluster.local`.
    pub cluster_domain: String,
    /// The node's pod address ranges, written to the Node object.
    pub pod_cidrs: Vec<String>,
    /// Labels of the Node object beyond the well-known ones.
    pub labels: BTreeMap<String, String>,
    /// How many pods the scheduler may place here.
    pub max_pods: u32,
    /// Holds containers back until the network policies about their pod are in force; none enforces none.
    pub guard: Option<Guard>,
    /// Connects bridges of pods' secondary networks with those of other nodes; none leaves each node to itself.
    pub uplinks: Option<Uplinks>,
    /// Cancelled when the machine is about to be switched off: containers are stopped with their grace, and not started
    /// again in this life.
    pub power_off: CancellationToken,
    /// Where to serve logs, exec and port-forward, and with which TLS configuration (client certificates required).
    pub server: Option<Server>,
}

/// The kubelet's listener.
#[derive(Clone)]
pub struct Server {
    /// `0.0.0.0:10250`.
    pub address: SocketAddr,
    /// Must demand and verify client certificates.
    pub tls: Arc<rustls::ServerConfig>,
}
