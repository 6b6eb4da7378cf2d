//! What an API server is started with.

use std::path::PathBuf;

/// Settings of one server. `Config::default()` is an in-memory server with the embedded cluster's defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where objects are kept; None keeps them in memory only.
    pub data_dir: Option<PathBuf>,
    /// IPv4 and IPv6 ranges cluster IPs are allocated from, the primary family first.
    pub service_cidrs: Vec<ipnet::IpNet>,
    /// Inclusive range of node ports.
    pub node_ports: (u16, u16),
    /// Address and port the `kubernetes` Service leads to; None creates the Service without endpoints.
    pub advertise: Option<std::net::SocketAddr>,
    /// Events of one resource kept for watches to resume from; older positions get 410 Gone.
    pub watch_history: usize,
    /// Largest accepted request body in bytes.
    pub body_limit: usize,
    /// Domain of cluster DNS.
    pub cluster_domain: String,
    /// Directory with (or for) the cluster's keys and certificates; None keeps them in memory.
    pub pki_dir: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        let cidr = |text: &str| text.parse::<ipnet::IpNet>().ok();
        Self {
            data_dir: None,
            service_cidrs: [cidr("10.96.0.0/16"), cidr("fd00:10:96::/112")].into_iter().flatten().collect(),
            node_ports: (30000, 32767),
            advertise: None,
            watch_history: 4096,
            body_limit: 3 * 1024 * 1024,
            cluster_domain: "cluster.local".into(),
            pki_dir: None,
        }
    }
}
